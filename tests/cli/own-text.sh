# Without -f the model writes the calibration text itself; it is sampled once and kept.  SPDX-License-Identifier: MIT
cp "$MODEL" m.gguf
cheap=(--types Q3_K,Q4_K,Q6_K --sequences 2 --seq-len 32 --imatrix-chunks 1)
quick cost m.gguf "${cheap[@]}" | head -n 1
"$ALLOT" cost m.gguf "${cheap[@]}" --quiet -t 1 --json >again.json
json resumed <again.json
json text_seed <again.json
# the same text and costs from nothing, with other threads; another text from another seed
for t in 1 3; do
    "$ALLOT" cost m.gguf "${cheap[@]}" --quiet -t $t --json --archive $t.allot >$t.json
done
cmp <(sed -n '/"tensors"/,$p' 1.json) <(sed -n '/"tensors"/,$p' 3.json) && echo 'same costs'
[ "$(json text_sha256 <1.json)" = "$(json text_sha256 <again.json)" ] && echo 'same text'
quick cost m.gguf "${cheap[@]}" --text-seed 2 --json >other.json
[ "$(json text_sha256 <1.json)" != "$(json text_sha256 <other.json)" ] && echo 'another text'
# plan and quantize say so
quick plan m.gguf --bpw 5 | head -n 1
quick plan m.gguf --bpw 5 --json | grep own_text
quick quantize m.gguf o.gguf --bpw 5 | grep -e calibration -e optimality
# quantize without an archive does it all
quick quantize m.gguf p.gguf --bpw 5 "${cheap[@]}" --archive new.allot | grep -e written -e calibration
quick imatrix m.gguf -o i.gguf --ctx 32 --chunks 2
quick imatrix m.gguf -o i.gguf --ctx 32 --chunks 1
# an interrupted run goes on
stop_at INT 100000 n.allot-wal cost m.gguf --types Q3_K,Q4_K --sequences 40 --seq-len 32 --no-imatrix --archive n.allot
"$ALLOT" cost m.gguf --types Q3_K,Q4_K --sequences 40 --seq-len 32 --no-imatrix --archive n.allot 2>&1 | grep -o 'n.allot: costs of 44 tensors'
# nothing to seed
quick cost m.gguf -f t.txt --text-seed 2
quick cost m.gguf --method weight --no-imatrix --text-seed 2
quick imatrix m.gguf -f t.txt -o i.gguf --text-seed 2
