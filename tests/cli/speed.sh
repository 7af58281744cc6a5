# speed: every type has a speed; --speed with a table by hand: a larger price is never slower, and the report is what
# plain sums give. SPDX-License-Identifier: MIT
quick speed -o s.json --matrix-size 64KiB >table
head -n 1 table
awk 'NR > 3 { n++; for (i = 2; i <= NF; i++) good += $i > 0 } END { print n, "types,", good - 3 * n, "numbers short" }' table
[ "$(awk 'NR > 3 { print $1 }' table)" = "$(sed -n 's/^    "\([A-Z0-9_]*\)": .*/\1/p' s.json)" ] && echo 'the file has the same types'
cp "$MODEL" tiny.gguf
quick speed tiny.gguf --matrix-size 64KiB --json >doc
sed -n '/"ms_per_token": {/,/}/p' doc | awk -F': ' '/": [0-9]/ { n++; good += $2 + 0 > 0 } END { print n - good, "times that are none" }'
quick speed absent.gguf
quick speed -o absent/s.json
quick speed tiny.gguf -o tiny.gguf
quick speed --matrix-size 0

synthetic m.gguf
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
echo '{"ns_per_byte": {"Q3_K": 0.5, "Q4_K": 0.1, "q6_k": 0.12, "Q8_0": 0.08, "BF16": 0.1, "F32": 0.1}}' >s.json
quick plan m.gguf --size 1.5MB -o plain >/dev/null
quick plan m.gguf --size 1.5MB --speed-table s.json --speed 0 -o zero | sed -n '/^decode/p; /^unpriced/p; /^optimality/p'
cmp plain zero && echo 'at no price the plan is the free one'
quick plan m.gguf --size 1.5MB --speed-table s.json --speed 0.01 -o priced --explain blk.0.attn_q.weight |
    sed -n '/^predicted/p; /^decode/p; /^unpriced/p; /^optimality/p; /ms per token$/,/^$/p'
# what JSON says, from the recipe and the tensors: bytes by type, one row of token_embd, vectors not counted
for w in 0.0001 0.001 0.01 0.1 1 1000; do
    quick plan m.gguf --size 1.5MB --speed-table s.json --speed $w --json >doc
    echo "$w $(json decode_ms <doc) $(json predicted_kl <doc) $(json objective <doc) $(json nats_per_ms <doc)" \
        "$(json decode_ms_without_speed <doc) $(json kl_without_speed <doc)"
done >ladder
awk 'function near(a, b) { return (a - b) ^ 2 <= 1e-18 * b * b }
    NR > 1 && $2 > ms { print $1 ": slower" }
    !near($4, $3 + $5 * $2) { print $1 ": another objective" }
    !near($5, $1 / $6) { print $1 ": another price" }
    $4 > $7 + $1 { print $1 ": worse than the plan without" }
    { ms = $2 }
    END { if (ms < 0.9 * $6) print "a high price is faster" }' ladder
sed -n 's/^    "\([a-z0-9_.]*\)": "\([A-Z0-9_]*\)",\{0,1\}$/\1 \2/p' doc >chosen
"$ALLOT" inspect --tensors m.gguf >tensors
awk 'BEGIN { split("Q3_K 0.5 110 256 Q4_K 0.1 144 256 Q6_K 0.12 210 256 Q8_0 0.08 34 32 BF16 0.1 2 1", t, " ")
        for (i = 1; i in t; i += 4) ns[t[i]] = t[i + 1] * t[i + 2] / t[i + 3] }
    NR == FNR { type[$1] = $2; next }
    $1 in type && $4 == "x" { ms += $3 * ($1 == "token_embd.weight" ? 1 : $5) * ns[type[$1]] / 1e6 }
    END { printf "%.9f\n", ms }' chosen tensors >plainly
json decode_ms <doc | awk '{ printf "%.9f\n", $1 }' | cmp - plainly && echo 'the time of the recipe'
quick plan m.gguf --size 1.5MB,2MB --speed-table s.json --speed 0.01 | tail -n 3
# a plan changed by --interactions has its own time
quick plan m.gguf --size 1.5MB --speed-table s.json --interactions | grep -c '^decode'
# quantize plans alike
quick quantize m.gguf q.gguf --size 1.5MB --speed-table s.json --speed 0.01 | sed -n '/^predicted/p; /^decode/p; /^unpriced/p'
cmp priced q.gguf.recipe && echo 'the same recipe'
printf '.=Q4_K' >rules
quick quantize m.gguf r.gguf --recipe rules --speed 1
# measured where no table is given, which a remark says
run plan m.gguf --size 1.5MB --speed 0.01 -t 1 --json 2>said >doc
grep -c 'no --speed-table: measuring' said
json decode_ms <doc | awk '{ print $1 > 0 }'
# what cannot be
quick plan m.gguf --size 1.5MB --speed -1
quick plan m.gguf --size 1.5MB --speed x
quick plan m.gguf --size 1.5MB --speed 1 --interactions
quick quantize m.gguf r.gguf --size 1.5MB --speed 1 --interactions
quick plan m.gguf --size 1.5MB --speed-table absent
echo '{"ns_per_byte": {"Q4_K": 0.1, "Q6_K": 0.1, "Q8_0": 0.1, "BF16": 0.1}}' >s.json
quick plan m.gguf --size 1.5MB --speed-table s.json
quick plan m.gguf --size 1.5MB --speed-table s.json --min Q4_K | grep -c '^decode'
quick plan m.gguf --size 1.5MB --speed-table s.json -o s.json --min Q4_K
echo '{"ns_per_byte": {"Q4_K": 0}}' >s.json
quick plan m.gguf --size 1.5MB --speed-table s.json
quick cost m.gguf --method weight --no-imatrix --types Q4_K >/dev/null
quick plan m.gguf --size 2MB --speed 1
