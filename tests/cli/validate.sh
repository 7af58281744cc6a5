# validate: usage, costs computed or on record, what it prints, and that judging changes nothing for 'plan'.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
text 100 7 >e.txt
few=(--windows 2 --ctx 64)
quick validate m.gguf -f t.txt
quick validate m.gguf --eval e.txt --size 1MB --bpw 4
quick validate m.gguf --eval e.txt --bpw 4,x
quick validate m.gguf --eval e.txt --size 1MB,,2MB
quick validate m.gguf --eval e.txt -f t.txt --methods fisher,guess
quick validate m.gguf --eval e.txt -f t.txt --method fisher
quick validate m.gguf --eval e.txt --sequences 3
quick validate m.gguf --eval absent.txt -f t.txt
quick validate m.gguf --eval e.txt
ls *.allot 2>/dev/null

# costs are computed where there are none
quick validate m.gguf -f t.txt --eval e.txt "${few[@]}" "${CHEAP[@]}" >said.txt
sed -E 's/[0-9a-f]{8} /HASH /; s/[0-9]{4}-[0-9-]*T[0-9:]*Z/TIME/; s/-?[0-9]+\.[0-9]+/X/g; s/ +/ /g' said.txt | sed '/rank/,$d'
grep -c '^fisher: ' said.txt
# and found where there are, with the imatrix of the newest, or none
quick plan m.gguf --bpw 4.5 --json | grep predicted_kl >before
grep -c null before
quick validate m.gguf --eval e.txt "${few[@]}" --json >again.json
json resumed <again.json
quick validate m.gguf --eval e.txt "${few[@]}" --methods probe
quick validate m.gguf --eval e.txt "${few[@]}" --no-imatrix
# another method's costs are computed for the same imatrix, and compared; plan goes on with what it had
quick validate m.gguf -f t.txt --eval e.txt "${few[@]}" --types Q3_K,Q4_K,Q6_K,Q8_0 --imatrix-chunks 2 --sequences 2 --seq-len 64 \
    --methods probe >said.txt
grep -c '^probe ' said.txt
quick plan m.gguf --bpw 4.5 --json | grep predicted_kl >after
cmp before after && echo 'the same costs for plan'
quick validate m.gguf -f t.txt --eval e.txt "${few[@]}" "${CHEAP[@]}" --methods fisher,probe --json >both.json
grep -e '"method"' -e reference -e '"types": "' both.json | sed 's/^ *//'
# once on record it is judged without being named
quick validate m.gguf --eval e.txt "${few[@]}" --json | grep -c '"spearman"'
quick validate m.gguf --eval e.txt "${few[@]}" --methods fisher,probe --json -t 1 | grep -v -e '"resumed"' >threads.json
grep -v '"resumed"' both.json | cmp - threads.json && echo 'the same report'
# every number of every tensor
grep -o '^  "[a-z_0-9]*"' both.json
sed -n '/"tensors": {/,$p' both.json | sed -n '2,/^    }/p' | sed -E 's/: -?[0-9][^,]*/: X/'
grep -c '"low": "Q3_K"' both.json
grep -c '"high": "Q8_0"' both.json
# the same by plain means: the rank correlation, the sum of a plan's costs, the ratio
awk '
    /"change": {/ { change = 1 }
    change && /"mean"/ { x[++n] = $2 + 0; change = 0 }
    n && /"fisher"/ { y[n] = $2 + 0 }
    function rank(a, i, k, r) { r = 0; for (k = 1; k <= n; k++) r += (a[k] < a[i]) + (a[k] == a[i]) / 2; return r }
    END {
        for (i = 1; i <= n; i++) { p = rank(x, i) - n / 2; q = rank(y, i) - n / 2; pq += p * q; pp += p * p; qq += q * q }
        printf "%.6f\n", pq / sqrt(pp * qq)
    }' both.json >plain
json spearman <both.json | awk '{ printf "%.6f\n", $1 }' | cmp - plain && echo 'the same rank correlation'
quick validate m.gguf --eval e.txt "${few[@]}" --methods fisher --bpw 4.5 --json | sed -n '/"plans": \[/,/\],/p' >plans
[ "$(json predicted <plans)" = "$(json predicted_kl <before)" ] && echo 'what plan predicts'
awk '/"mean"/ { kl = $2 } /"predicted"/ { sum = $2 } /"floor"/ { floor = $2 } /"ratio"/ { plain = $2 } /"ratio_with_floor"/ { all = $2 }
    END { if (sqrt((kl / sum - plain) ^ 2) < 1e-6 && sqrt((kl / (sum + floor) - all) ^ 2) < 1e-6 && floor >= 0) print "the same ratios" }' plans
# sizes: those that cannot be are told
run validate m.gguf --eval e.txt "${few[@]}" --bpw 1,4.5 -t 2 --methods fisher 2>&1 >said.txt | grep 'no plan'
grep -c ' MB .* ± ' said.txt
quick validate m.gguf --eval e.txt "${few[@]}" --size 1.5MB,2MB --methods fisher | grep -c ' MB .* ± '

# two texts under one method: plans of both
for seed in 1 9; do
    text 60 $seed >c.txt
    quick cost m.gguf -f c.txt "${CHEAP[@]:0:6}" --no-imatrix >/dev/null
done
quick validate m.gguf --eval e.txt "${few[@]}" --no-imatrix --bpw 4 --json >two.json
grep -c '"newest_of_method": true' two.json
grep -c '"newest_of_method": false' two.json
grep -c '"ratio_with_floor"' two.json
# types that leave nothing to choose, and costs of too little text, whose order is chance
quick validate m.gguf --eval e.txt "${few[@]}" --types Q8_0 --no-imatrix --methods fisher | grep '^fisher: '
quick validate m.gguf --eval e.txt -f t.txt "${few[@]}" --types Q3_K,Q8_0 --sequences 1 --seq-len 8 --chunk 8 --no-imatrix --methods fisher |
    tail -n 3
