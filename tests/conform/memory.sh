#!/usr/bin/env bash
# memory.sh - `allot cost` of a random llama of 8 billion parameters (16 GB in BF16) keeps to --mem 6GiB, and
# `allot quantize` of an embedding of 2 GB in float32 to 192 MiB: peaks of own memory, which is anonymous and shared
# pages. Those of mapped files belong to the page cache; they are printed. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d -p "${ALLOT_TEST_SCRATCH:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cd "$folder"
free=$(df --output=avail -B1 . | tail -n 1)
[ "$free" -ge 20000000000 ] || fail "20 GB of free disk are needed, $folder has $free bytes (ALLOT_TEST_SCRATCH names another folder)"

# peak NAME LIMIT_MIB COMMAND...: runs it and fails if its own memory was ever above the limit.
peak() {
    local name=$1 limit=$2 pid own=0 file=0 now_own now_file
    shift 2
    "$@" >"$name.txt" 2>"$name.err" &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        read -r now_own now_file < <(awk '/^Rss(Anon|Shmem):/ { own += $2 } /^RssFile:/ { file = $2 }
            END { print own + 0, file + 0 }' "/proc/$pid/status" 2>/dev/null || echo 0 0)
        [ "${now_own:-0}" -le "$own" ] || own=$now_own
        [ "${now_file:-0}" -le "$file" ] || file=$now_file
        sleep 0.1
    done
    wait $pid || { cat "$name.err" >&2; fail "failed: $*"; }
    echo "$name: peak of own memory $((own / 1024)) MiB, limit $limit MiB; of pages of files $((file / 1024)) MiB"
    [ "$own" -gt 1024 ] && [ "$own" -lt $((limit * 1024)) ] || fail 'too much memory'
}

# finite FILE: every cost in a JSON document is a positive number.
finite() {
    awk '/"cost":/ { n++; if ($2 + 0 <= 0 || $2 !~ /^[0-9.e+-]+,?$/) bad++ } END { print n + 0; exit bad > 0 }' "$1"
}

start=$SECONDS
run make.log "$TOOLS/make-synthetic" model.gguf 1 1024 1024 500000 8 8 1
printf '.*=Q4_0\n' >recipe
peak quantize 192 "$ALLOT" quantize model.gguf out.gguf --recipe recipe --mem 192MiB -t 2 --quiet
run inspect.txt "$ALLOT" inspect --tensors out.gguf
grep -q '^token_embd.weight .*Q4_0' inspect.txt || fail 'the embedding is not Q4_0'
rm -f model.gguf* out.gguf*
echo "$((SECONDS - start)) s"

start=$SECONDS
run make.log "$TOOLS/make-synthetic" model.gguf 32 4096 14336 128256 32 8 1
echo "model of $(stat -c %s model.gguf) bytes written in $((SECONDS - start)) s"
start=$SECONDS
# Two sequences: what grows with them is tested with small models, where little memory is enough to make it spill.
peak cost 6144 "$ALLOT" cost model.gguf -f calib.txt --no-imatrix --sequences 2 --seq-len 128 --types Q8_0,Q4_0,Q5_0 \
    --mem 6GiB --json --quiet
echo "$((SECONDS - start)) s"
n=$(finite cost.txt) || fail 'a cost is not a positive number'
[ "$n" = $((3 * (32 * 7 + 2))) ] || fail "$n costs were measured"
