#!/usr/bin/env bash
# smollm2.sh - the demo on SmolLM2-135M: log-probabilities equal libllama's, allot's files at the sizes of two plain
# mixes are at least 15 % closer to the original and keep the size, the printed llama-quantize command writes the
# same tensors, and another size needs no new costs. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
demo smollm2 Q4_K_M Q3_K_M
gains Q4_K_M 0.85
gains Q3_K_M 0.85
reference=$demo/SmolLM2-135M-Instruct-BF16.gguf

start=$(date +%s.%N)
"$ALLOT" plan "$reference" --size 90MB -o "$demo/other.recipe" --quiet >"$demo/other.txt" || fail 'plan for another size failed'
echo "plan for another size: $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.2f", b - a }') seconds"

command=$(sed -nE 's/^ *(llama-quantize .*)/\1/p' "$demo/other.txt")
[ -n "$command" ] || fail 'no llama-quantize command was printed'
cd "$demo"
rm -f other.gguf other-stock.gguf
imatrix=$(sed -nE 's/.*--imatrix ([^ ]+) .*/\1/p' <<<"$command")
"$ALLOT" quantize "$reference" other.gguf --recipe other.recipe --imatrix "$imatrix" --quiet >other.log ||
    fail 'quantize with its recipe failed'
eval "PATH=\$STOCK_TOOLS:\$PATH ${command/OUT.gguf/other-stock.gguf}" >stock.log 2>&1 ||
    { tail -n 5 stock.log >&2; fail "failed: $command"; }
same_file other.gguf other-stock.gguf
echo 'the same tensors and keys as llama-quantize'
