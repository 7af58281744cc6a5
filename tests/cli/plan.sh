# Plans: sizes kept exactly, what cannot be is said, recipes hold.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
run plan m.gguf --size 1.2MB
quick cost m.gguf -f t.txt "${CHEAP[@]}"
quick plan m.gguf --size 1.2MB
for size in 1000000 1200000 1500000 2000000; do
    quick plan m.gguf --size $size --json -o recipe-$size >doc
    planned=$(json file_bytes <doc)
    [ "$planned" -le $size ] && [ "$planned" -gt $((size * 98 / 100)) ] || echo "$size asked, $planned planned"
    quick quantize m.gguf out-$size.gguf --size $size --json >written
    # The name of the imatrix file is in the header, so the two may differ by a few bytes.
    real=$(stat -c %s out-$size.gguf)
    [ "$(json file_bytes <written)" = "$real" ] || echo "$size: planned and real size differ"
    [ "$real" -le $size ] || echo "$size asked, $real written"
    run verify recipe-$size out-$size.gguf
    json predicted_kl <doc
done | sort -rg >results
grep -c tensors results
grep -v tensors results | sort -rgc && echo 'larger plans cost less'
quick plan m.gguf --size 100k
quick plan m.gguf --size 1MB --types Q8_0
quick plan m.gguf --size 1.5MB --types Q5_K,q4_k,Q2_K,BF16
quick quantize m.gguf out.gguf --size 1.5MB --types Q5_K
quick plan m.gguf --size 1.5MB --types q4_k,BF16 | grep '^size asked'
quick plan m.gguf --size 1GB | sed -n '/^predicted/p; /^remark/p; /^layers/,/^$/p'
# The source's own type is one of a list only if it is named.
quick plan m.gguf --size 1GB --types q4_k | sed -n '/^type /,/^$/p'
quick plan m.gguf --size 1GB --types q4_k,BF16 | sed -n '/^type /,/^$/p'
quick plan m.gguf --bpw 4.5 --json | json bits_per_weight | cut -c1-3
quick plan m.gguf --bpw 100
quick plan m.gguf --like out-1200000.gguf | grep '^size asked'
quick plan m.gguf --like t.txt
quick plan m.gguf --size 1.2MB -o absent/recipe
quick plan m.gguf --size 1.2MB -o m.gguf
quick plan m.gguf --size 1.2MB --archive elsewhere
# Costs are of this model's bytes: another model does not get them.
"$TOOLS/make-synthetic" other.gguf 3 256 512 300 4 2 2
quick plan other.gguf --size 1.2MB --archive m.gguf.allot
