# SIGTERM and SIGINT in the middle of work: exit 130, the line says what was kept, and the same command goes on; a
# second signal ends at once. SPDX-License-Identifier: MIT
ln -s "$MODEL" m.gguf
text 200 >t.txt
# A signal at the first tensor still lets that one finish.
job=(cost m.gguf -f t.txt --sequences 4 --no-imatrix)
stop_at TERM 200000 m.gguf.allot-wal "${job[@]}" --types Q2_K,Q3_K,Q4_K,Q5_K,Q4_1,Q5_1,IQ4_XS
quick "${job[@]}" --types Q4_K --json >doc
[ "$(json resumed <doc)" -gt 0 ] && [ "$(json resumed <doc)" -lt 44 ] && echo 'went on'
echo "$(json measured <doc) tensors"

printf '.*=IQ4_XS\n' >recipe
stop_at INT 1 out.gguf.allot-partial quantize m.gguf out.gguf --recipe recipe
ls out*
quick quantize m.gguf out.gguf --recipe recipe --json >doc
[ "$(json resumed_tensors <doc)" -gt 0 ] && echo 'went on'
ls out*

"$ALLOT" "${job[@]}" --types Q2_K,Q3_K,Q4_1,Q5_1,IQ4_XS --archive other --quiet -t 1 2>/dev/null &
while [ ! -e other ]; do sleep 0.02; done
kill -TERM $!
kill -TERM $! 2>/dev/null
wait $!
echo "exit $?"
ls -A | grep -v '^m.gguf.allot\|^other'
