# kill -9 at any moment of cost: the next run goes on, and the costs are those of an undisturbed run.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
job=(cost m.gguf -f t.txt --types Q2_K,Q3_K,Q4_K,Q5_K,Q6_K --sequences 8 --imatrix-chunks 2 --json)
costs() { sed -n '/"tensors"/,$p' "$1"; }
"$ALLOT" "${job[@]}" --archive whole.allot -t 1 --quiet >whole.json || exit 1
# The first kill finds no tensor finished or a few; each later one some more: the journal grows with each.
for round in 1 2 3; do
    size=$(bytes_of m.gguf.allot-wal)
    stop_at KILL $((size + 80000)) m.gguf.allot-wal "${job[@]}"
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
