# kill -9 and a signal in the middle of validate: the same command goes on, and ends with the same report.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
text 100 7 >e.txt
"$ALLOT" cost m.gguf -f t.txt "${CHEAP[@]}" --quiet -t 2 >/dev/null
job=(validate m.gguf --eval e.txt --windows 4 --ctx 128 --methods fisher)
cp m.gguf.allot whole.allot
"$ALLOT" "${job[@]}" --archive whole.allot --json --quiet -t 2 >whole.json || exit 1
# each ends some measurements later
stop_at KILL $(($(bytes_of m.gguf.allot-wal) + 30000)) m.gguf.allot-wal "${job[@]}"
stop_at INT $(($(bytes_of m.gguf.allot-wal) + 30000)) m.gguf.allot-wal "${job[@]}"
"$ALLOT" "${job[@]}" --json --quiet -t 1 >run.json || exit 1
resumed=$(json resumed <run.json)
[ "$resumed" -gt 0 ] && [ "$resumed" -lt "$(json measurements <run.json)" ] && echo resumed
report() { grep -v -e '"resumed"' -e '"archive"' "$1"; }
cmp <(report whole.json) <(report run.json) && echo 'the same report'
"$ALLOT" "${job[@]}" --json --quiet -t 1 >all.json
[ "$(json resumed <all.json)" = "$(json measurements <all.json)" ] && echo 'nothing is measured again'
