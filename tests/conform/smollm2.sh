#!/usr/bin/env bash
# smollm2.sh - the demo on SmolLM2-135M: log-probabilities equal libllama's, allot's file at the size of the plain
# Q4_K_M is at least 15 % closer to the original and keeps the size, the printed llama-quantize command writes the
# same tensors, and a second size needs no new costs. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
build=$(dirname "$ALLOT")
dir=${DEMO_DIR:-$build/demo-test}
DEMO_DIR=$dir DEMO_WINDOWS=${DEMO_WINDOWS:-8} bash "$TESTS/../scripts/demo.sh" "$build" || fail 'the demo failed'
reference=$dir/SmolLM2-135M-Instruct-BF16.gguf plain=$dir/plain-Q4_K_M.gguf ours=$dir/allot.gguf

ALLOT_TEST_MODELS=$reference "$build/test_net_forward" || fail 'log-probabilities differ from libllama'

asked=$(stat -c %s "$plain") got=$(stat -c %s "$ours")
[ "$got" -le "$asked" ] && [ $((got * 1000)) -ge $((asked * 995)) ] || fail "$asked bytes asked for, $got written"
ratio=$(python3 -c '
import json, sys
plain, ours = (c["pooled"]["kl"]["mean"] for c in json.load(open(sys.argv[1]))["candidates"])
print("%.4f" % (ours / plain))' "$dir/measure.json")
echo "KL of allot's file over the plain mix's: $ratio (limit 0.85)"
below "$ratio" 0.85 || fail 'allot gained too little'

start=$(date +%s.%N)
"$ALLOT" plan "$reference" --size 90MB -o "$dir/second.recipe" --quiet >"$dir/second.txt" || fail 'plan for a second size failed'
echo "plan for a second size: $(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.2f", b - a }') seconds"

command=$(sed -nE 's/^ *(llama-quantize .*)/\1/p' "$dir/second.txt")
[ -n "$command" ] || fail 'no llama-quantize command was printed'
cd "$dir"
rm -f second.gguf second-stock.gguf
imatrix=$(sed -nE 's/.*--imatrix ([^ ]+) .*/\1/p' <<<"$command")
"$ALLOT" quantize "$reference" second.gguf --recipe second.recipe --imatrix "$imatrix" --quiet >second.log ||
    fail 'quantize with the second recipe failed'
eval "PATH=\$STOCK_TOOLS:\$PATH ${command/OUT.gguf/second-stock.gguf}" >stock.log 2>&1 ||
    { tail -n 5 stock.log >&2; fail "failed: $command"; }
same_file second.gguf second-stock.gguf
echo 'the same tensors and keys as llama-quantize'
