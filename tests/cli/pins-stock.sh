# What is pinned, and held by floors, stays so in the file that the printed llama-quantize command writes: output and
# token embeddings too.  SPDX-License-Identifier: MIT
[ -x "$STOCK_TOOLS/llama-quantize" ] || skip 'no llama-quantize (STOCK_TOOLS)'
synthetic m.gguf
text 60 >t.txt
quick quantize m.gguf o.gguf --size 1.35MB -f t.txt "${CHEAP[@]}" --pin '^output\.weight$=Q5_1' --min 'token_embd=Q6_K' \
    --max 'token_embd=Q6_K' --pin 'blk\.0\.attn_q=F16' --pin 'blk\.1\.attn_q=BF16' --tie 'ffn_(?:up|down)' >report
mv o.gguf ours.gguf
(PATH=$STOCK_TOOLS:$PATH && eval "$(tail -n 1 report)") >log 2>&1 || cat log
list() { "$ALLOT" inspect --tensors "$1" | awk 'NF > 3 && $1 ~ /weight$/ { print $1, $2 }' | sort; }
list ours.gguf >ours
list o.gguf | cmp - ours && wc -l <ours
run verify o.gguf.recipe o.gguf
grep -E '^(output|token_embd|blk\.[01]\.attn_q)\.weight' ours
grep -E 'ffn_(up|down)' ours | awk '{ print $2 }' | sort -u | wc -l
