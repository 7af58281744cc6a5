#!/usr/bin/env bash
# imatrix.sh - allot's importance matrix is llama-imatrix's on the same text and windows.
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/model.gguf"
cd "$folder"
head -c 60000 calib.txt >text.txt
run stock.log "$STOCK_TOOLS/llama-imatrix" -m model.gguf -f text.txt -o stock.gguf -c 512 -t 1 --no-ppl
"$ALLOT" imatrix model.gguf -f text.txt -o ours.gguf --ctx 512 --quiet || fail 'allot imatrix failed'
result=$("$TOOLS/compare-imatrix" ours.gguf stock.gguf) || fail 'the two differ in kind'
echo "$result"
below "${result##* }" 0.01 || fail 'an entry differs by more than 1 % (median over its columns)'
# and llama-quantize takes ours
run quantize.log "$STOCK_TOOLS/llama-quantize" --imatrix ours.gguf model.gguf out.gguf IQ2_XS 1
