# The imatrix behind the costs on record: the newest set counts, --no-imatrix and --imatrix choose among sets, and a
# file that is gone or changed is not passed on. SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
text 60 7 >u.txt
odd=$(printf 'i\351.gguf')
quick imatrix m.gguf -f t.txt -o "$odd" --chunks 2 >/dev/null
quick imatrix m.gguf -f u.txt -o u.gguf --chunks 2 >/dev/null
cost=(cost m.gguf -f t.txt --types Q4_K,Q6_K --sequences 2 --seq-len 64)
quick "${cost[@]}" --no-imatrix >/dev/null
quick "${cost[@]}" --imatrix "$odd" >/dev/null
quick "${cost[@]}" --imatrix u.gguf >/dev/null
here=$PWD
# used ARGUMENTS...: the imatrix in the printed command, its folder left out.
used() { quick "$@" --bpw 5 | sed -n "s|$here/||g; s/^  llama-quantize \(.*\)--tensor-type-file.*/uses [\1]/p"; }
used plan m.gguf
used quantize m.gguf o.gguf
used quantize m.gguf o.gguf --no-imatrix
used quantize m.gguf o.gguf --imatrix "$odd"
run inspect --json o.gguf | grep -c "allot.imatrix.sha256.*$(sha256sum <"$odd" | cut -c 1-64)"
# Used again, a set is the newest.
quick "${cost[@]}" --imatrix "$odd" | head -n 1
used plan m.gguf
quick plan m.gguf --bpw 5 | grep -cF "$odd"
cp "$odd" copy
quick plan m.gguf --bpw 5 -o "$odd"
quick quantize m.gguf "$odd" --bpw 5
cmp "$odd" copy
# Gone, changed, something else.
mv "$odd" moved.gguf
quick plan m.gguf --bpw 5
cp u.gguf "$odd"
quick plan m.gguf --bpw 5
echo 'no imatrix' >"$odd"
quick plan m.gguf --bpw 5
quick quantize m.gguf o.gguf --bpw 5
used quantize m.gguf o.gguf --imatrix moved.gguf
quick "${cost[@]}" --imatrix moved.gguf | head -n 1
used plan m.gguf
# One that the archive keeps, damaged there.
quick "${cost[@]}" --imatrix-chunks 2 --archive kept.allot >/dev/null
python3 -c 'import sqlite3
d = sqlite3.connect("kept.allot")
d.execute("update blobs set data = zeroblob(100) where kind = ?", ("imatrix",))
d.commit()'
quick plan m.gguf --bpw 5 --archive kept.allot
