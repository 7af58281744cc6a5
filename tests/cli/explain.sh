# Why a tensor has its type: alternatives, prices and verdicts.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
mask() { sed 's/[0-9.]*e-[0-9]*/.../g; s/0\.00[0-9]*/.../g; s/  */ /g'; }
quick plan m.gguf --size 1.2MB --explain output.weight --pin output=Q5_1 | sed -n '/^output.weight/,/^$/p' | mask
quick plan m.gguf --size 1.2MB --explain blk.1.ffn_up.weight --min ffn=Q4_K --max ffn=Q6_K --types Q3_K,Q4_K,Q6_K,BF16 |
    sed -n '/^blk.1.ffn_up.weight/,/^$/s/ .* / ... /p'
quick plan m.gguf --size 9MB --explain blk.1.ffn_up.weight | sed -n '/^blk.1.ffn_up.weight/,/^$/p' | head -n 1
quick plan m.gguf --size 1.2MB --tie attn_q --explain blk.1.attn_q.weight | sed -n '/^blk.1.attn_q.weight/p' | mask
# By the numbers: one is chosen, and the margin is cost and bytes at the price of bytes.
for tensor in blk.0.ffn_up.weight blk.2.attn_v.weight token_embd.weight; do
    quick plan m.gguf --size 1.2MB --json --explain $tensor | sed -n '/"explained"/,$p' >doc
    grep -c '"chosen"' doc
    grep '"verdict"' doc | grep -vc 'chosen\|dominated\|worth\|little\|fit\|unused'
    tr -d '",' <doc | awk '$1 == "nats_per_megabyte:" { price = $2 / 1e6 } $1 == "bytes:" { b[++n] = $2 } $1 == "cost:" { c[n] = $2 }
        $1 == "at_the_margin:" { m[n] = $2 } $1 == "verdict:" && $2 == "chosen" { chosen = n }
        END { for (i = 1; i <= n; i++) { d = c[i] - c[chosen] + price * (b[i] - b[chosen]) - m[i]
              if (d * d > 1e-24) print "margin of choice " i " is off by " d } print n " choices" }'
done
quick plan m.gguf --size 1MB,1.2MB --explain token_embd.weight | grep -c '^token_embd.weight'
# The price of a limit is that limit's.
quick plan m.gguf --size 1.4MB --budget 'blk\.[01]=640kB' --explain blk.0.ffn_up.weight --explain blk.2.ffn_up.weight --json >doc
prices=($(sed -n '/"explained"/,$s/.*nats_per_megabyte": \([^,]*\),*/\1/p' doc))
awk -v a="${prices[0]}" -v b="${prices[1]}" -v c="$(json nats_per_megabyte <doc)" 'BEGIN { print (a > b && b == c) ? "dearer under the limit" : a " " b " " c }'
quick plan m.gguf --size 1.2MB --explain blk.1.ffn_upp.weight
quick plan m.gguf --size 1.2MB --explain blk.1.attn_norm.weight
