# kill -9 at any moment of quantize: no file under the final name; the next run goes on and ends with the same
# bytes. SPDX-License-Identifier: MIT
printf '.*=Q5_K\n' >recipe
job=("$ALLOT" quantize "$MODEL" out.gguf --recipe recipe -t 1 --quiet --json)
"${job[@]}" >whole.json || exit 1
mv out.gguf whole.gguf

killed=0
for written in 300000 1000000 2000000; do
    "${job[@]}" >run.json &
    pid=$!
    while [ "$(bytes_of out.gguf.allot-partial)" -lt $written ] && kill -0 $pid 2>/dev/null; do :; done
    kill -9 $pid 2>/dev/null
    # A run that was quicker than the kill is the last.
    wait $pid 2>/dev/null && break
    killed=$((killed + 1))
    [ ! -e out.gguf ] || echo "a killed run left out.gguf"
done
[ -e out.gguf ] || "${job[@]}" >run.json
resumed=$(json resumed_tensors <run.json)
[ $killed -gt 0 ] && echo 'killed'
[ "$resumed" -gt 0 ] && echo 'resumed'
cmp out.gguf whole.gguf && echo 'same bytes'
ls
