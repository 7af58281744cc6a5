# Outputs that cannot or must not be written: said before any work, nothing lost.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
printf '.*=Q4_K\n' >recipe
sha256sum m.gguf t.txt recipe >sums
ln -s m.gguf link.gguf
ln m.gguf hard.gguf
ln -s . folder
: >file
for out in m.gguf ./m.gguf link.gguf hard.gguf folder/m.gguf recipe absent/out.gguf file/out.gguf .; do
    quick quantize m.gguf "$out" --recipe recipe
done
quick quantize m.gguf t.txt --size 2MB -f t.txt
quick quantize link.gguf m.gguf --recipe recipe
# What goes beside an output is an output too.
cp m.gguf r.imatrix.gguf
for companion in out.gguf.recipe out.gguf.imatrix.gguf; do
    ln t.txt $companion
    quick quantize m.gguf out.gguf --size 2MB -f $companion
    rm $companion
    mkdir $companion
    quick quantize m.gguf out.gguf --size 2MB -f t.txt
    rmdir $companion
done
ln -s recipe out.gguf.recipe
quick quantize m.gguf out.gguf --recipe recipe --base Q8_0
rm out.gguf.recipe
mkdir r.recipe.imatrix.gguf
for out in r.imatrix.gguf r r.recipe absent/r; do quick plan r.imatrix.gguf --size 2MB -o $out; done
quick plan m.gguf --like recipe -o recipe
rm -r r.*
quick imatrix m.gguf -f t.txt -o m.gguf
quick imatrix m.gguf -f t.txt -o t.txt
quick imatrix m.gguf -f t.txt -o absent/i.gguf
quick imatrix absent.gguf -f t.txt -o i.gguf
quick imatrix m.gguf -f absent.txt -o i.gguf
quick cost m.gguf -f t.txt --archive absent/a
quick cost m.gguf -f t.txt --archive t.txt
quick cost m.gguf -f t.txt --archive m.gguf
sha256sum --quiet -c sums && echo 'inputs untouched'
ls
# nor an archive that would only be made
quick quantize m.gguf new.allot --bpw 6 -f t.txt --archive new.allot
quick imatrix m.gguf -f t.txt -o ./m2.gguf.allot --archive m2.gguf.allot
ls *.allot 2>/dev/null || echo "no archive"
