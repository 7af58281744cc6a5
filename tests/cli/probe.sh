# An architecture that lib/net does not have: one line that says so and the way on; --method probe goes it.
# SPDX-License-Identifier: MIT
"$TOOLS/make-synthetic" m.gguf 2 256 512 300 4 2 1 stablelm
text 100 >t.txt
cheap=(--types Q3_K,Q4_K,Q6_K --sequences 2 --seq-len 64 --imatrix-chunks 2)
quick cost m.gguf -f t.txt "${cheap[@]}"
quick quantize m.gguf o.gguf --bpw 4.5 -f t.txt "${cheap[@]}"
# it says at first how long it will take
"$ALLOT" cost m.gguf -f t.txt "${cheap[@]}" --method probe -t 2 2>said.txt | grep -e costs -e '^Q'
grep -c 'note: probe: 16 tensors, one forward pass of .* s each, and .* s to quantize them: about .* seconds' said.txt
quick cost m.gguf -f t.txt "${cheap[@]}" --method probe --json | grep -e method -e params -e resumed -e unsuited
# its costs are all that plan and quantize want
quick plan m.gguf --bpw 4.5 | head -n 3
quick quantize m.gguf o.gguf --bpw 4.5 -f t.txt "${cheap[@]}" --method probe | head -n 1
quick measure m.gguf o.gguf -f t.txt --windows 1 --ctx 64 | grep -c o.gguf
quick imatrix m.gguf -f t.txt -o m.imatrix --ctx 64 --chunks 2
# what it would not heed
quick cost m.gguf -f t.txt --method probe --seed 2
quick cost m.gguf -f t.txt --method probe --chunk 8
quick cost m.gguf -f t.txt --method gradient
# a sequence need not be whole chunks
quick cost m.gguf -f t.txt --no-imatrix --types Q4_K --sequences 1 --seq-len 70 --method probe | grep costs
# an interrupted run keeps what it has
stop_at INT $(($(bytes_of m.gguf.allot-wal) + 60000)) m.gguf.allot-wal cost m.gguf -f t.txt --no-imatrix --types Q2_K,Q5_K \
    --sequences 16 --method probe
"$ALLOT" cost m.gguf -f t.txt --no-imatrix --types Q2_K,Q5_K --sequences 16 --method probe --json --quiet >run.json
resumed=$(json resumed <run.json)
[ "$resumed" -gt 0 ] && [ "$resumed" -lt 16 ] && echo resumed
"$ALLOT" cost m.gguf -f t.txt --no-imatrix --types Q2_K,Q5_K --sequences 16 --method probe --json --quiet -t 1 \
    --archive whole.allot >whole.json
cmp <(sed -n '/"tensors"/,$p' run.json) <(sed -n '/"tensors"/,$p' whole.json) && echo 'same costs'
