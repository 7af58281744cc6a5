# Pins, floors and ceilings: the first rule wins, types that were never measured too, and what cannot be is said.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
# type_of TENSOR: in the last recipe; types TENSOR-PATTERN: all of them, once each.
type_of() { awk -F= -v t="^$(sed 's/\./\\\\./g' <<<"$1")\$" '$1 == t { print $2 }' recipe; }
types() { grep -- "$1" recipe | cut -d= -f2 | sort -u | tr '\n' ' '; }

quick plan m.gguf --size 2MB -o recipe --types Q3_K,Q4_K --max Q4_K --pin '^output\.weight$=Q6_K' \
    --pin 'output=Q8_0' --pin '0\.attn_q=bf16' --pin '1\.attn_q=F32' --pin '2\.attn_q=F16' --pin 'attn_k=IQ4_NL' |
    sed -n '/^remark/p; /^pinned/p; /^optimality/p'
for tensor in output.weight blk.0.attn_output.weight blk.0.attn_q.weight blk.1.attn_q.weight blk.2.attn_q.weight; do
    echo "$tensor $(type_of $tensor)"
done
echo "attn_k $(types attn_k); else $(grep -v 'attn_k\|attn_q\|output' recipe | cut -d= -f2 | sort -u | tr '\n' ' ')"
quick plan m.gguf --size 2MB --pin 'output=Q8_0' --pin 'attn_k=IQ4_NL' --pin attn_q=F32 --json >doc
echo "unknown: $(json unknown_costs <doc); $(grep -c '"pinned"' doc) pinned, $(grep -c '"chosen"' doc) chosen"

# Floors and ceilings by bits, per tensor or for all.
quick plan m.gguf --size 1.35MB -o recipe --min 'ffn_(?:up|gate)=Q4_K' --min 'output=Q6_K' --max 'ffn=Q4_K' --max Q6_K \
    >/dev/null
echo "ffn_up $(types ffn_up); ffn_down $(types ffn_down); output $(types 'output'); all $(types .)"
# Without a constraint that binds, the plan is the free one.
quick plan m.gguf --size 1.2MB -o free >/dev/null
quick plan m.gguf --size 1.2MB --min Q3_K --max F32 --compat no-iq --tie 'blk\.(\d)\.attn_q' -o recipe >/dev/null
cmp free recipe && echo 'constraints that do not bind change nothing'

# Rows that do not fit get what a recipe gives them.
"$TOOLS/make-synthetic" odd.gguf 2 96 160 300 2 1 1
quick cost odd.gguf -f t.txt --types Q4_0,Q5_0,Q8_0,Q4_K --sequences 2 --seq-len 64 --no-imatrix >/dev/null
quick plan odd.gguf --bpw 6 -o recipe --pin ffn_down=Q4_K --pin ffn_up=Q6_K --pin attn_v=Q5_0 --json >doc
echo "$(grep -c '"fallback"' doc) fallback, $(grep -c '"pinned"' doc) pinned; ffn_down $(types ffn_down), ffn_up $(types ffn_up)"
printf 'ffn_down=Q4_K ffn_up=Q6_K attn_v=Q5_0' >rules
quick quantize odd.gguf by-recipe.gguf --recipe rules --base Q8_0 >/dev/null
for part in ffn_down ffn_up attn_v; do
    diff <(grep $part recipe) <(grep $part by-recipe.gguf.recipe) || echo "$part differs from quantize --recipe"
done
quick plan odd.gguf --bpw 6 --pin ffn_down=Q4_K | sed -n '/^pinned/p'
quick plan odd.gguf --bpw 17 --compat k-quants --types Q4_K -o recipe | sed -n '/^remark/p'
quick plan odd.gguf --bpw 6 --pin ffn_down=IQ1_S -o recipe >/dev/null && echo "IQ1_S falls back to $(types ffn_down)"

# What cannot be.
quick plan m.gguf --size 900kB --pin output=Q8_0
quick plan m.gguf --size 900kB --min 'ffn=Q4_K' --pin attn_q=Q8_0
quick plan m.gguf --size 1.2MB --min Q6_K --max Q4_K
quick plan m.gguf --size 1.2MB --max Q2_K
quick plan m.gguf --size 9MB --min 'blk\.1=F32'
quick plan m.gguf --size 1.2MB --pin blk.9=Q4_K
quick plan m.gguf --size 1.2MB --pin attn_norm=Q8_0
quick plan m.gguf --size 1.2MB --pin blk=Q4_K --pin attn_q=Q6_K
quick plan m.gguf --size 1.2MB --pin '(.+)+(.+)+(.+)+[!?]=Q4_K'
quick cost m.gguf -f t.txt --archive bare --types Q4_K --sequences 2 --seq-len 64 --no-imatrix >/dev/null
quick plan m.gguf --archive bare --size 1.2MB --pin attn_q=IQ2_XXS
quick plan m.gguf --size 1.2MB --compat legacy
quick plan m.gguf --size 1.2MB --compat legacy --types Q4_K
quick plan m.gguf --size 1.2MB --compat lgacy
for pin in Q4_K x=Q4_X '=Q4_K' '[=Q4_K' 'x='; do quick plan m.gguf --size 1.2MB --pin "$pin"; done
