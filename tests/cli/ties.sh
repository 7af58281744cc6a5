# Tied tensors get one type, as cheap as one type can be.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
types() { grep -E -- "$1" recipe | cut -d= -f2 | sort -u | tr '\n' ' '; }
kl() { quick plan m.gguf --size 1.1MB "$@" --json -o recipe | json predicted_kl; }
free=$(kl)
# One group per layer; one for all; two rules that meet in one tensor make one group.
tied=$(kl --tie 'blk\.(\d+)\.(?:ffn_gate|ffn_up|ffn_down)')
for layer in 0 1 2; do types "blk.\.$layer.\.ffn" | wc -w; done
awk -v a="$free" -v b="$tied" 'BEGIN { print (b >= a) ? "tying never costs less" : "tying costs less" }'
# The same types, pinned one by one, cost the same.
pins=()
while IFS== read -r name type; do pins+=(--pin "$name=$type"); done < <(grep ffn recipe)
pinned=$(kl "${pins[@]}")
[ "$tied" = "$pinned" ] || echo "tied $tied, the same types pinned $pinned"
# Of one group for all, the best of its four types is what trying each finds.
tied=$(kl --tie attn_)
types attn_ | wc -w
best=$(for type in Q3_K Q4_K Q6_K Q8_0; do kl --pin "attn_=$type"; done | grep -v exit | sort -g | head -n 1)
[ "$tied" = "$best" ] || echo "tied $tied, best of all types $best"
kl --tie attn_q --tie '0\.attn_[qk]' --tie '0\.attn_k|output\.weight' >/dev/null
types 'attn_q|0..attn_k|[^_]output' | wc -w
quick plan m.gguf --size 1.1MB --tie attn_q --pin '1\.attn_q=Q8_0' | sed -n '/^pinned/p; /^groups tied/p'
quick plan m.gguf --size 1.1MB --tie attn_q --pin '1\.attn_q=Q8_0' --json | grep -c '"tied"'
# What cannot be.
quick plan m.gguf --size 1.1MB --tie blk.9
quick plan m.gguf --size 1.1MB --tie attn_q --pin '0\.attn_q=Q8_0' --pin '1\.attn_q=Q4_K'
quick plan m.gguf --size 1.1MB --tie attn_q --budget 'blk\.0=300kB'
quick plan m.gguf --size 1.1MB --tie attn_q --min '0\.attn_q=Q6_K' --max '1\.attn_q=Q4_K'
"$TOOLS/make-synthetic" odd.gguf 2 96 256 300 2 1 1
quick cost odd.gguf -f t.txt --types Q4_0,Q4_K --sequences 2 --seq-len 64 --no-imatrix >/dev/null
quick plan odd.gguf --bpw 17 --tie ffn_ --types Q4_K,BF16 -o recipe >/dev/null && echo "in common: $(types ffn_)"
quick plan odd.gguf --bpw 6 --tie ffn_ --pin ffn_down=Q4_K
# a type that comes by a tie is held to floors and ceilings; one that is pinned is not
quick plan m.gguf --size 1.1MB --tie 'attn_[qk]' --pin attn_q=Q6_K --max attn_k=Q4_K
quick plan m.gguf --size 1.1MB --tie 'attn_[qk]' --pin 'attn_[qk]=Q6_K' --max attn_k=Q4_K >/dev/null && echo pinned
