# Types from a recipe: the first rule wins, anchors count, rows that do not fit fall back or are refused, and
# verify tells.  SPDX-License-Identifier: MIT
"$TOOLS/make-synthetic" odd.gguf 12 96 160 300 2 1 1
printf '%s\n' '^blk\.1\.attn_q\.weight$=Q8_0' 'blk.1.attn_q=Q5_0' 'ffn_up=Q4_K' 'no_such_tensor=Q6_K' >recipe
run quantize odd.gguf out.gguf --recipe recipe --base q6_k -t 2 2>err
grep -v 'rows of' err >&2
grep -c 'rows of' err
run inspect --tensors out.gguf | awk '/^blk.1[01]?\.(attn_q|ffn_up|ffn_down).weight/ { print $1, $2 }' | sort
run verify recipe out.gguf
run verify out.gguf.recipe out.gguf
quick quantize odd.gguf out.gguf --recipe recipe --base Q6_K --strict
quick quantize odd.gguf out.gguf --recipe out.gguf.recipe --base Q6_K
printf 'ffn_up=Q8_0\n' >other
run verify other out.gguf
run verify --json other out.gguf | sed -n '/unused/,$p'
printf 'nothing=Q8_0\n' >other
run verify other out.gguf
: >other
run verify other out.gguf
run verify absent out.gguf
printf '.*=F16' >other
quick quantize odd.gguf f16.gguf --recipe other | tail -n 1
printf '.*=IQ2_S' >other
quick quantize odd.gguf never.gguf --recipe other >/dev/null && run inspect never.gguf | grep -c IQ4_NL
# Candidates that suit only some tensors: the others keep their type, and the costs still count as complete.
text 60 >t.txt
quick cost odd.gguf -f t.txt --types Q4_K --sequences 2 --no-imatrix
quick cost odd.gguf -f t.txt --types Q4_K,Q5_0 --sequences 2 --no-imatrix --json >doc
echo "$(json measured <doc) tensors, $(json unsuited <doc) unsuited, $(json resumed <doc) resumed"
quick plan odd.gguf --size 800kB -o planned | sed -n 's/ bytes.*//; /^size asked/p'
quick quantize odd.gguf out.gguf --size 800kB --json >doc
[ "$(json file_bytes <doc)" -le 800000 ] && run verify planned out.gguf
