# --method weight: a preview without a pass through the model, for any architecture, without a text.
# SPDX-License-Identifier: MIT
"$TOOLS/make-synthetic" m.gguf 2 256 512 300 4 2 1 stablelm
text 60 >t.txt
quick cost m.gguf --method weight --no-imatrix --types Q3_K,Q4_K,Q6_K | sed 's/quantizing [0-9.]* s/quantizing/'
quick plan m.gguf --bpw 4.5 | head -n 3
quick plan m.gguf --bpw 4.5 --json | grep -e predicted
quick quantize m.gguf o.gguf --bpw 4.5 | sed -n 3,4p
# with an imatrix; the set is another
quick imatrix m.gguf -f t.txt -o m.imatrix --ctx 64 --chunks 2
quick cost m.gguf --method weight --imatrix m.imatrix --types Q3_K,Q4_K,Q6_K --json |
    grep -e method -e params -e unit -e resumed -e '"tokens"' -e text_sha256
# more types later are added to the set
quick cost m.gguf --method weight --imatrix m.imatrix --types Q3_K,Q4_K,Q6_K,Q8_0 | grep -c Q8_0
# the imatrix of a text; it is in the archive then
quick cost m.gguf -f t.txt --method weight --imatrix-chunks 1 --types Q4_K --archive a.allot | grep costs
quick cost m.gguf -f t.txt --method weight --imatrix-chunks 1 --types Q4_K --archive a.allot | grep costs
# quantize measures as cost does, when asked to
quick quantize m.gguf p.gguf --bpw 4.5 --method weight --no-imatrix --types Q4_K,Q3_K,Q6_K --archive b.allot | head -n 1
# the same with any number of threads
for t in 1 2 3; do
    "$ALLOT" cost m.gguf --method weight --no-imatrix --archive "$t.allot" --json --quiet -t $t | sed -n '/"tensors"/,$p' >$t.json
done
cmp 1.json 2.json && cmp 1.json 3.json && echo 'same costs'
# what it would not heed, and what it wants
quick cost m.gguf --method weight --no-imatrix --sequences 3
quick cost m.gguf --method weight --no-imatrix --chunk 8
quick quantize m.gguf q.gguf --bpw 4.5 --method weight --imatrix none.gguf
