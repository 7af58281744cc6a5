# --mem: what does not fit goes to a nameless file, and the costs are the same; too little is refused with what would
# do. SPDX-License-Identifier: MIT
[ "$(stat -f -c %T .)" != tmpfs ] || skip 'this folder is memory'
"$TOOLS/make-synthetic" m.gguf 64 128 512 300 2 1 1 || exit 1
text 200 >t.txt
job=(cost m.gguf -f t.txt --no-imatrix --types Q4_0,Q8_0 --sequences 2 --seq-len 256)
mib=$((1024 * 1024))
states=$((64 * 2 * 256 * 128 * 4)) # layers, sequences, tokens, width, bytes
costs() { sed -n '/"tensors"/,$p' doc; }
# least THREADS: the least limit that would do, by the message, in MiB.
least() { "$ALLOT" "${job[@]}" --quiet --archive none -t "$1" --mem 1MiB 2>&1 | sed -n 's/.* at least \([0-9]*\)MiB .*/\1/p'; }

quick "${job[@]}" --archive none --mem 1MiB
quick imatrix m.gguf -f t.txt -o i.gguf --chunks 2 --mem 1MiB
printf '.*=Q4_0\n' >recipe
quick quantize m.gguf out.gguf --recipe recipe --mem 1MiB
# Known before anything is measured: no archive is left.
quick quantize m.gguf out.gguf -f t.txt --no-imatrix --types Q8_0 --size 20MB --method probe --sequences 1 --mem 1MiB
ls

"$ALLOT" "${job[@]}" --quiet --archive a --json -t 2 >doc || exit 1
echo "$(json temporary_file_bytes <doc) bytes in a file"
costs >whole
for threads in 1 2 3; do
    low=$(least $threads) # what a process has at its start varies a little: 4 MiB at most, which is below 5
    "$ALLOT" "${job[@]}" --quiet --archive low$threads --json -t $threads --mem $((low + 5))MiB >doc || exit 1
    spilled=$(json temporary_file_bytes <doc)
    [ "$spilled" -gt "$states" ] && echo 'states and activations in the file'
    costs | cmp - whole && echo 'same costs'
    # Room for the activations, and for half of the states.
    middle=$((low * mib + spilled - states / 2))
    "$ALLOT" "${job[@]}" --quiet --archive middle$threads --json -t $threads --mem $middle >doc || exit 1
    [ "$(json temporary_file_bytes <doc)" = "$states" ] && echo 'states in the file'
    costs | cmp - whole && echo 'same costs'
done
ls -A

# The importance matrix.
job_i=(imatrix m.gguf -f t.txt --quiet -t 2)
low=$("$ALLOT" "${job_i[@]}" -o i.gguf --mem 1MiB 2>&1 | sed -n 's/.* at least \([0-9]*\)MiB .*/\1/p')
"$ALLOT" "${job_i[@]}" -o i.gguf >/dev/null || exit 1
"$ALLOT" imatrix m.gguf -f t.txt -t 2 -o j.gguf --mem $((low + 5))MiB 2>&1 >/dev/null | grep -c 'in a temporary file'
cmp i.gguf j.gguf && echo 'same importances'

# Interrupted with little memory, ended with more, and the other way round.
low=$(least 1)
stop_at TERM 200000 b-wal "${job[@]}" --archive b --mem $((low + 5))MiB 2>/dev/null
"$ALLOT" "${job[@]}" --quiet --archive b --json >doc || exit 1
[ "$(json resumed <doc)" -gt 0 ] && echo 'resumed'
costs | cmp - whole && echo 'same costs'
stop_at TERM 200000 c-wal "${job[@]}" --archive c 2>/dev/null
"$ALLOT" "${job[@]}" --quiet --archive c --json --mem $((low + 40))MiB >doc || exit 1
costs | cmp - whole && echo 'same costs'
# Not only the costs: every chunk's u, to the last bit.
"$TOOLS/archive-values" m.gguf a >whole.values
wc -l <whole.values
for archive in low1 low2 low3 middle1 middle2 middle3 b c; do
    "$TOOLS/archive-values" m.gguf $archive | cmp - whole.values || echo "$archive differs"
done
