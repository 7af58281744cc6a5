#!/usr/bin/env bash
# pays.sh - at the sizes of llama.cpp's plain mixes, with the same imatrix, allot's files of the tiny model are
# closer to the original by a stated factor, as llama-perplexity measures it on text kept out of calibration;
# and every file keeps to the size asked for. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/model.gguf"
cd "$folder"
chunks=60

# kl MODEL: mean and standard error. llama-perplexity has been seen to end before its table: run it again then.
kl() {
    local try
    for try in 1 2 3 4; do
        "$STOCK_TOOLS/llama-perplexity" -m "$1" --kl-divergence-base base.kld --kl-divergence -c 512 -t 1 \
            >kl.log 2>&1 || true
        awk '/^Mean +KLD:/ { print $3, $5; found = 1 } END { exit !found }' kl.log && return
        echo "pays.sh: llama-perplexity ended before its table (attempt $try)" >&2
    done
    tail -n 15 kl.log >&2
    fail "llama-perplexity gives no table for $1"
}

run imatrix.log "$STOCK_TOOLS/llama-imatrix" -m model.gguf -f calib.txt -o imatrix.gguf -c 512 --chunks 150 -t 1 --no-ppl
for text in docs prose; do
    run base.log "$STOCK_TOOLS/llama-perplexity" -m model.gguf -f eval-$text.txt --kl-divergence-base base.kld -c 512 \
        --chunks $chunks -t 1
    mv base.kld $text.kld
done
"$ALLOT" cost model.gguf -f calib.txt --imatrix imatrix.gguf --quiet >cost.txt || fail 'allot cost failed'

worst=0
printf '%-8s %9s %9s  %-6s %-23s %-23s %6s %6s\n' mix bytes allot text 'plain KL' 'allot KL' ratio limit
while read -r mix limit; do
    run plain.log "$STOCK_TOOLS/llama-quantize" --imatrix imatrix.gguf model.gguf plain.gguf "$mix" 1
    size=$(stat -c %s plain.gguf)
    rm -f ours.gguf
    "$ALLOT" quantize model.gguf ours.gguf --size "$size" --imatrix imatrix.gguf --quiet >plan.txt ||
        fail "allot quantize --size $size failed"
    got=$(stat -c %s ours.gguf)
    [ "$got" -le "$size" ] && [ $((got * 1000)) -ge $((size * 995)) ] || fail "$size bytes asked for, $got written"
    for text in docs prose; do
        mv $text.kld base.kld
        plain=$(kl plain.gguf)
        ours=$(kl ours.gguf)
        mv base.kld $text.kld
        ratio=$(awk -v a="${ours% *}" -v b="${plain% *}" 'BEGIN { printf "%.3f", a / b }')
        printf '%-8s %9d %9d  %-6s %-23s %-23s %6s %6s\n' "$mix" "$size" "$got" $text "${plain/ / +- }" "${ours/ / +- }" \
            "$ratio" "$limit"
        below "$ratio" "$limit" || worst=1
    done
done <<'ROWS'
Q2_K 0.58
Q3_K_M 0.68
Q4_K_M 0.66
Q5_K_M 0.78
ROWS
[ "$worst" = 0 ] || fail 'a file is not as much closer as it should be'
