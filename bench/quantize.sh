#!/usr/bin/env bash
# quantize.sh - the whole job of writing a file: allot quantize beside llama-quantize, same recipe, importance matrix
# and threads, in alternating pairs; then allot with one thread and with all. SPDX-License-Identifier: MIT
#
# usage: bench/quantize.sh [BUILD [PAIRS]]
# The model is a random llama of 490 million parameters in BF16, the mix like a Q4_K_M. Both read and write the page
# cache of a temporary folder; allot knows the model's checksum, as after the measurement of costs. What counts is the ratio within a pair; the median of the pairs is the result.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:-build}") pairs=${2:-3}
layers=8
work=$(mktemp -d "${TMPDIR:-/tmp}/allot-bench-XXXXXX")
trap 'rm -rf "$work"' EXIT
stock=$build/stock/llama-quantize
allot=$build/allot
threads=$(nproc)

"$build/tools/make-synthetic" "$work/in.gguf" $layers 2048 5632 32000 32 8 1
cat docs/*.md README.md > "$work/text"
"$allot" imatrix "$work/in.gguf" -f "$work/text" -o "$work/imatrix" --ctx 128 --chunks 2 --quiet > "$work/log"
# Costs, however rough, so that there is an archive, which remembers the checksum of the model.
"$allot" cost "$work/in.gguf" -f "$work/text" --imatrix "$work/imatrix" --types Q8_0 --sequences 1 --seq-len 64 \
    --quiet > "$work/log"
{
    echo '^token_embd\.weight$=Q4_K'
    echo '^output\.weight$=Q6_K'
    for ((l = 0; l < layers; l++)); do
        more=Q4_K v=Q5_K
        if ((l < 1 || l >= layers - 1 || l % 3 == 0)); then more=Q6_K v=Q6_K; fi
        for rule in attn_q=Q4_K attn_k=Q4_K attn_v=$v attn_output=Q4_K ffn_gate=Q4_K ffn_up=Q4_K ffn_down=$more; do
            echo "^blk\\.$l\\.${rule%=*}\\.weight\$=${rule#*=}"
        done
    done
} > "$work/recipe"

seconds() { # COMMAND...: its seconds; what it prints goes to the log
    local start end
    start=$(date +%s.%N)
    "$@" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    end=$(date +%s.%N)
    awk "BEGIN { print $end - $start }"
}
run_stock() { rm -f "$work/stock.gguf"; seconds "$stock" --imatrix "$work/imatrix" --tensor-type-file "$work/recipe" "$work/in.gguf" "$work/stock.gguf" Q4_K_M "$1"; }
run_allot() { rm -f "$work/allot.gguf"*; seconds "$allot" quantize "$work/in.gguf" "$work/allot.gguf" --recipe "$work/recipe" --imatrix "$work/imatrix" -t "$1" --quiet; }
middle() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

run_allot "$threads" > /dev/null # the page cache is warm for both
for ((i = 0; i < pairs; i++)); do
    s=$(run_stock "$threads") a=$(run_allot "$threads") one=$(run_allot 1)
    echo "$threads threads: llama-quantize $s s, allot $a s; allot with 1 thread $one s"
    awk "BEGIN { print $s / $a }" >> "$work/ratios"
    awk "BEGIN { print $one / $a }" >> "$work/scaling"
done
data=$(($(stat -c %s "$work/stock.gguf") - (1 << 21))) # all but the metadata
cmp <(tail -c $data "$work/stock.gguf") <(tail -c $data "$work/allot.gguf") || exit 1
echo "the same tensor data"
echo "allot is $(middle < "$work/ratios") times as fast as llama-quantize; with $threads threads $(middle < "$work/scaling") times as fast as with 1"
