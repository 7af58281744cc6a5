# kill -9 at any moment of cost: the next run goes on, and the costs are those of an undisturbed run.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
job=("$ALLOT" cost m.gguf -f t.txt --types Q2_K,Q3_K,Q4_K,Q5_K --sequences 4 --seq-len 64 --imatrix-chunks 2
    -t 1 --quiet --json)
costs() { sed -n '/"tensors"/,$p' "$1"; }
"${job[@]}" --archive whole.allot >whole.json || exit 1
killed=0
for delay in 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1 1.5 2 3 4; do
    "${job[@]}" >run.json &
    pid=$!
    sleep $delay
    if kill -9 $pid 2>/dev/null; then
        wait $pid 2>/dev/null
        killed=$((killed + 1))
    else
        wait $pid
        break
    fi
done
"${job[@]}" >run.json || exit 1
[ $killed -gt 0 ] && echo 'killed'
[ "$(json resumed <run.json)" -gt 0 ] && echo 'resumed'
costs whole.json >whole.costs
costs run.json >run.costs
cmp whole.costs run.costs && echo 'same costs'
"$ALLOT" plan m.gguf --bpw 4 --json --archive whole.allot | grep -v cost_set >whole.plan
"$ALLOT" plan m.gguf --bpw 4 --json | grep -v cost_set >run.plan
cmp whole.plan run.plan && echo 'same plan'
