# kill -9 and a signal in the middle of --refine: the same command goes on, and ends with the same file.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 400 >t.txt
"$ALLOT" cost m.gguf -f t.txt "${CHEAP[@]}" --quiet -t 2 >/dev/null
job=(quantize m.gguf out.gguf --size 1.1MB -f t.txt "${CHEAP[@]}" --refine 2)
cp m.gguf.allot whole.allot
"$ALLOT" "${job[@]}" --archive whole.allot --json --quiet -t 2 >whole.json || exit 1
mv out.gguf whole.gguf
passes() {
    python3 -c 'import sqlite3, sys
print(sqlite3.connect(sys.argv[1]).execute("select count(*) from blobs where kind like ?", ("plan-%",)).fetchone()[0])' "$1"
}
# stop_behind SIGNAL N: once N passes are kept.
stop_behind() {
    local code=0
    env --default-signal=INT "$ALLOT" "${job[@]}" --quiet -t 1 &
    local pid=$!
    while [ "$(passes m.gguf.allot)" -lt "$2" ] && kill -0 $pid 2>/dev/null; do :; done
    kill -"$1" $pid 2>/dev/null
    { wait $pid || code=$?; } 2>/dev/null
    echo "exit $code"
}
all=$(passes whole.allot)
stop_behind KILL 1
first=$(passes m.gguf.allot)
stop_behind INT $((first + 1))
[ "$first" -lt "$all" ] && [ "$(passes m.gguf.allot)" -gt "$first" ] && echo kept
"$ALLOT" "${job[@]}" --json --quiet -t 1 >run.json || exit 1
cmp out.gguf whole.gguf && echo 'the same file'
[ "$(passes m.gguf.allot)" = "$all" ] && echo 'no pass twice'
rm out.gguf
"$ALLOT" "${job[@]}" -t 1 2>log >/dev/null && cmp out.gguf whole.gguf && { grep -c 'forward:' log || true; }
