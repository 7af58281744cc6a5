# Several sizes: costs once, a plan or a file for each, a table at the end.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick quantize m.gguf 'q-{}.gguf' --size 1MB,1200kB,1.5MB -f t.txt "${CHEAP[@]}" >report
sed -n '/^written/p; /^size asked  /,$p' report
grep -c '^SHA-256' report
quick plan m.gguf --size 1.5MB,1MB,1200kB -o 'p-{}.recipe' | sed -n '/^==/p; /^written/p; /^size asked  /,$p'
quick plan m.gguf --size 1.5MB,1MB,1200kB --json >doc
for size in 1MB 1200kB 1.5MB; do
    run verify p-$size.recipe q-$size.gguf
    # Each is what the size alone gives.
    quick plan m.gguf --size $size -o 'single-{}' --json | json file_bytes
    cmp single-$size p-$size.recipe
    cmp p-$size.recipe q-$size.gguf.recipe
    cmp p-$size.recipe.imatrix.gguf q-$size.gguf.imatrix.gguf
done
grep -c predicted_kl doc
head -n 1 doc
quick quantize m.gguf 'j-{}.gguf' --size 1MB,1.5MB --json | grep '"file"'
ls | grep -c partial
# {} is the size only where there is one.
quick plan m.gguf --bpw 5 -o 'x-{}' | grep '^written'
# What cannot be, before anything is written.
quick plan m.gguf --size 1MB,100kB -o 'n-{}'
quick quantize m.gguf 'n-{}.gguf' --size 1MB,100kB
ls n-* 2>/dev/null
quick plan m.gguf --size 1MB,2MB -o x
quick quantize m.gguf x --size 1MB,2MB
quick plan m.gguf --size 1MB,2XB
quick plan m.gguf --size 1MB,
quick plan m.gguf --size 1MB,2MB,1mb
quick plan m.gguf --size 1MB,2MB -o 'absent/{}'
