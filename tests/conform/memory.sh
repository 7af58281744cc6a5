#!/usr/bin/env bash
# memory.sh - `allot cost` of a random llama model of 1.1 billion parameters with 4,096 calibration tokens stays
# under 3 GiB of its own memory (anonymous and shared pages; those of the mapped file belong to the page cache).
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d -p "${ALLOT_TEST_SCRATCH:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cd "$folder"
limit_kib=$((3 * 1024 * 1024))

run make.log "$TOOLS/make-synthetic" model.gguf 22 2048 5632 32000 32 4 1
# Two types: their number hardly counts for memory, and much for time.
"$ALLOT" cost model.gguf -f calib.txt --no-imatrix --sequences 32 --seq-len 128 --types Q4_K,Q8_0 --quiet \
    >cost.txt 2>cost.err &
pid=$!
peak=0
while kill -0 $pid 2>/dev/null; do
    now=$(awk '/^(RssAnon|RssShmem):/ { sum += $2 } END { print sum + 0 }' /proc/$pid/status 2>/dev/null || echo 0)
    [ "${now:-0}" -le "$peak" ] || peak=$now
    sleep 0.1
done
wait $pid || { cat cost.err >&2; fail 'allot cost failed'; }
cat cost.txt
echo "model $(stat -c %s model.gguf) bytes; peak of own memory $((peak / 1024)) MiB, limit $((limit_kib / 1024)) MiB"
[ "$peak" -gt 0 ] && [ "$peak" -lt $limit_kib ] || fail 'too much memory'
grep -q '^Q4_K ' cost.txt || fail 'no costs were printed'
