# anomalies: a smaller type that measures better is looked at in other contexts. SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
text 100 7 >e.txt
quick imatrix m.gguf -f t.txt --chunks 2 -o im.gguf >/dev/null
# TQ2_0 takes its scale from the largest weight, so that almost all others become 0; IQ1_M is smaller
for type in IQ1_M TQ2_0; do
    printf '%s\n' "ffn_down=$type" '.*=Q8_0' >r
    quick quantize m.gguf own-$type.gguf --recipe r --imatrix im.gguf >/dev/null
    quick learn own-$type.gguf >/dev/null
done
find=(m.gguf -f t.txt --imatrix im.gguf --eval e.txt --windows 4 --ctx 64 --types Q3_K,Q8_0 --sequences 2 --seq-len 64 --sources own-IQ1_M,own-TQ2_0)
"$ALLOT" search "${find[@]}" -t 2 >said.txt 2>log.txt
grep '^ffn_down' said.txt
grep -c '^allot: note: search: probe-[0-9]*, as ffn_down of own-IQ1_M measured better than that of own-TQ2_0 by' log.txt
# on record now: nothing is measured again, and the rule is the same
quick search "${find[@]}" --json >again.json
[ "$(json builds <again.json)" = "$(json recalled <again.json)" ] && echo 'nothing is measured again'
sed -n '/"anomalies"/,/\]/p' again.json
# the budget counts probes
quick search "${find[@]}" --json --builds $(($(json builds <again.json) - 1)) | json complete
