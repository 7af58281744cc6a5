# Measurements: a file against itself is zero and a tie; results go where they can; a strange vocabulary is refused.
# SPDX-License-Identifier: MIT
ln -s "$MODEL" m.gguf
text 150 >a.txt
text 150 7 >b.txt
printf '.*=Q2_K\n' >recipe
quick quantize m.gguf q2.gguf --recipe recipe | head -n 1
quick measure m.gguf m.gguf m.gguf q2.gguf -f a.txt -f b.txt --ctx 128 --windows 2
quick measure m.gguf q2.gguf -f a.txt --ctx 128 --windows 2 --json >doc
for key in base ctx path windows tokens tie_with_first; do echo "$key: $(json $key <doc)"; done
if perl -MJSON::PP -e 1 2>/dev/null; then
    perl -MJSON::PP -0777 -ne 'decode_json($_)' doc || echo 'no valid JSON'
fi
# What was measured is kept under the version of what measured it.
grep -aEq 'ctx=128 windows=2 allot [0-9.]+ ggml [0-9.]+' m.gguf.allot && echo 'kept by version'
ls
# A model that cannot be measured, and an archive that cannot be made.
synthetic other.gguf
quick measure m.gguf other.gguf -f a.txt --ctx 128 --windows 1
quick measure m.gguf absent.gguf -f a.txt
run measure m.gguf q2.gguf -f a.txt --ctx 128 --windows 1 --archive absent/a -t 2 | wc -l
# a text given twice is told
quick measure m.gguf q2.gguf -f a.txt -f a.txt --ctx 128 --windows 1 | grep remark
