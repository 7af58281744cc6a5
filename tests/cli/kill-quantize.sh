# kill -9 at any moment of quantize: no file under the final name; the next run goes on and ends with the same
# bytes. SPDX-License-Identifier: MIT
printf '.*=Q5_K\n' >recipe
job=("$ALLOT" quantize "$MODEL" out.gguf --recipe recipe -t 1 --quiet --json)
"${job[@]}" >whole.json || exit 1
mv out.gguf whole.gguf

# The journal stands at the head of the partial file and changes with every finished tensor.
journal() { head -c 192 out.gguf.allot-partial 2>/dev/null | cksum; }
killed=0
for round in 1 2 3; do
    before=$(journal)
    "${job[@]}" >run.json &
    pid=$!
    changes=0
    while [ $changes -lt 3 ] && kill -0 $pid 2>/dev/null; do
        after=$(journal)
        [ "$before" = "$after" ] || changes=$((changes + 1))
        before=$after
    done
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
