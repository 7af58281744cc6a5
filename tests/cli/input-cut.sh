# An input that is cut short while it is read: a line says so, whichever thread meets it, and nothing takes the
# output's name. SPDX-License-Identifier: MIT
printf '.*=IQ4_XS\n' >recipe
for threads in 1 3; do
    cp "$MODEL" m.gguf
    "$ALLOT" quantize m.gguf out.gguf --recipe recipe --quiet -t $threads &
    pid=$!
    while [ "$(bytes_of out.gguf.allot-partial)" = 0 ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done
    # Stopped, so that it cannot finish before the cut.
    kill -STOP $pid
    truncate -s 4096 m.gguf
    kill -CONT $pid
    wait $pid
    echo "exit $?"
    ls -A
    rm -f out.gguf*
done
