# kill -9 and Ctrl-C at any moment of cost --method exact: the next run goes on, and the costs are those of an
# undisturbed run. SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
job=(cost m.gguf -f t.txt --types Q2_K,Q3_K,Q4_K,Q6_K --sequences 4 --seq-len 64 --imatrix-chunks 2 --method exact --json)
costs() { sed -n '/"tensors"/,$p' "$1"; }
"$ALLOT" "${job[@]}" --archive whole.allot -t 2 2>said.txt >whole.json || exit 1
grep -c 'note: exact: 92 types of 23 tensors, each a part of a pass of .* s and an output of .* s: about .* seconds' said.txt
grep -e '"method"' -e '"params"' -e '"measured"' whole.json
for signal in KILL INT; do
    stop_at $signal $(($(bytes_of m.gguf.allot-wal) + 100000)) m.gguf.allot-wal "${job[@]}"
done
"$ALLOT" "${job[@]}" -t 1 --quiet >run.json || exit 1
resumed=$(json resumed <run.json)
[ "$resumed" -gt 0 ] && [ "$resumed" -lt 23 ] && echo 'resumed'
costs whole.json >whole.costs
costs run.json >run.costs
cmp whole.costs run.costs && echo 'same costs'
"$ALLOT" plan m.gguf --bpw 4 --json --archive whole.allot | grep -v cost_set >whole.plan
"$ALLOT" plan m.gguf --bpw 4 --json | grep -v cost_set >run.plan
cmp whole.plan run.plan && echo 'same plan'
# what it would not heed
quick cost m.gguf -f t.txt --method exact --seed 2
quick cost m.gguf -f t.txt --method exact --chunk 8
