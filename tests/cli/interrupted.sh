# SIGTERM and SIGINT: exit 130, the line says what was kept, and the same command goes on; a second signal ends at
# once. SPDX-License-Identifier: MIT
ln -s "$MODEL" m.gguf
text 200 >t.txt
# stopped SIGNAL SECONDS ARGUMENTS...
stopped() {
    local signal=$1 delay=$2 code=0
    shift 2
    timeout -s "$signal" --preserve-status "$delay" "$ALLOT" "$@" --quiet -t 1 || code=$?
    echo "exit $code"
}
job=(cost m.gguf -f t.txt --sequences 4 --no-imatrix --seed 5)
stopped TERM 2 "${job[@]}" --types Q2_K,Q3_K,Q4_K,Q5_K,Q4_1,Q5_1,IQ4_XS
quick "${job[@]}" --types Q4_K --json >doc
[ "$(json resumed <doc)" -gt 0 ] && [ "$(json resumed <doc)" -lt 44 ] && echo 'went on'
echo "$(json measured <doc) tensors"

printf '.*=Q5_K\n' >recipe
stopped INT 0.5 quantize m.gguf out.gguf --recipe recipe
ls out*
quick quantize m.gguf out.gguf --recipe recipe --json >doc
[ "$(json resumed_tensors <doc)" -gt 0 ] && echo 'went on'
ls out*

"$ALLOT" "${job[@]}" --types Q2_K,Q3_K,Q4_1,Q5_1 --seed 6 --quiet -t 1 2>/dev/null &
sleep 1
kill -TERM $!
sleep 0.05
kill -TERM $! 2>/dev/null
wait $!
echo "exit $?"
ls -A | grep -v '^m.gguf.allot'
