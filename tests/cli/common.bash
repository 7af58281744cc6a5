# common.bash - helpers of the command-line tests.  SPDX-License-Identifier: MIT
# shellcheck shell=bash
MODEL=$TESTS/data/tiny-llama-bf16.gguf

# run ARGUMENTS...: allot with its exit code on stdout, and the call on stderr before what it says.
run() {
    local code=0
    printf '$ allot %s\n' "$*" >&2
    "$ALLOT" "$@" || code=$?
    [ $code = 0 ] || echo "exit $code"
}

# quick ARGUMENTS...: the same without progress, threads kept low.
quick() { run "$@" --quiet -t 2; }

skip() { # REASON
    echo "$1"
    exit 77
}

# text LINES [SEED]: words that tokenize to some 15 tokens a line.
text() {
    awk -v n="$1" -v seed="${2:-1}" 'BEGIN {
        split("the model reads a line of text and then it prints what was left in memory for every tensor of", w, " ")
        for (i = 0; i < n; i++) {
            line = ""
            for (k = 0; k < 12; k++) { seed = (seed * 1103515245 + 12345) % 2147483648; line = line w[seed % 19 + 1] " " }
            print line i
        }
    }'
}

# synthetic FILE: three layers, every row a multiple of 256; quick to cost.
synthetic() { "$TOOLS/make-synthetic" "$1" 3 256 512 300 4 2 1; }

# Few tokens and types: costs in about a second.
CHEAP=(--types Q3_K,Q4_K,Q6_K,Q8_0 --sequences 2 --seq-len 64 --imatrix-chunks 2)

# bytes HEX...: raw bytes; le32 N: a little-endian integer.
bytes() {
    local byte
    for byte in "$@"; do printf "\\x$byte"; done
}
le32() { bytes $(printf '%02x %02x %02x %02x' $(($1 & 255)) $(($1 >> 8 & 255)) $(($1 >> 16 & 255)) $(($1 >> 24 & 255))); }

# bytes_of FILE...: allocated bytes, 0 for what is not there.
bytes_of() { stat -c '%b' "$@" 2>/dev/null | awk '{ n += $1 } END { print 512 * n }'; }

# stop_at SIGNAL BYTES FILE ARGUMENTS...: allot on one thread, sent the signal once FILE has that many bytes; prints
# the exit code.
stop_at() {
    local signal=$1 bytes=$2 file=$3 code=0
    shift 3
    env --default-signal=INT "$ALLOT" "$@" --quiet -t 1 &
    local pid=$!
    while [ "$(bytes_of "$file")" -lt "$bytes" ] && kill -0 $pid 2>/dev/null; do sleep 0.02; done
    kill -"$signal" $pid 2>/dev/null
    { wait $pid || code=$?; } 2>/dev/null
    echo "exit $code"
}

# patch FILE OFFSET < BYTES: overwrites in place.
patch() { dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }

# offset_of FILE TEXT: where TEXT starts, first occurrence.
offset_of() { grep -abo -m1 -F -- "$2" "$1" | head -n 1 | cut -d: -f1; }

# tensor_offset FILE NAME: where the tensor's data starts.
tensor_offset() { "$ALLOT" inspect --tensors "$1" | awk -v name="$2" '$1 == name { print $NF }'; }

# json KEY < DOCUMENT: the first value of a key, as printed.
json() { sed -n "s/^ *\"$1\": \(.*[^,]\),\{0,1\}\$/\1/p" | head -n 1; }
