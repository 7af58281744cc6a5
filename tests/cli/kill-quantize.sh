# kill -9 at any moment of quantize: no file under the final name; the next run goes on and ends with the same
# bytes. SPDX-License-Identifier: MIT
printf '.*=Q5_K\n' >recipe
job=("$ALLOT" quantize "$MODEL" out.gguf --recipe recipe -t 1 --quiet --json)
"${job[@]}" >whole.json || exit 1
mv out.gguf whole.gguf

killed=0 resumed=0
for delay in 0.05 0.1 0.15 0.2 0.25 0.3 0.35 0.4 0.5 0.6 0.7 0.8; do
    "${job[@]}" >run.json &
    pid=$!
    sleep $delay
    if kill -9 $pid 2>/dev/null; then
        wait $pid 2>/dev/null
        killed=$((killed + 1))
        [ ! -e out.gguf ] || cmp out.gguf whole.gguf || exit 1
        [ ! -e out.gguf ] || break
    else
        wait $pid
        break
    fi
done
if [ ! -e out.gguf ]; then "${job[@]}" >run.json; fi
[ -s run.json ] && resumed=$(json resumed_tensors <run.json)
[ $killed -gt 0 ] && echo 'killed'
# The last run found tensors of the killed ones, unless every kill came too early for one.
[ "$resumed" -gt 0 ] && echo 'resumed'
cmp out.gguf whole.gguf && echo 'same bytes'
ls
