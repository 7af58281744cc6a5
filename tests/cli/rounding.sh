# rounding: compensated codes: what it wants, the same bytes for any threads and after a kill. SPDX-License-Identifier: MIT
synthetic m.gguf
ln -s "$MODEL" tiny.gguf
text 200 >t.txt
text 100 7 >e.txt
printf '%s\n' 'ffn_down=Q5_K' 'attn_v=IQ4_NL' 'token_embd=Q8_0' '.*=Q3_K' >r
quick quantize m.gguf a.gguf --recipe r --rounding nearest -f t.txt
quick quantize m.gguf a.gguf --recipe r --rounding compensated
quick quantize m.gguf a.gguf --recipe r -f t.txt
quick quantize m.gguf a.gguf --recipe r --rounding compensated -f t.txt --sequences 8
quick quantize m.gguf a.gguf --recipe r --rounding compensated -f t.txt --imatrix-chunks 1
quick quantize m.gguf plain.gguf --recipe r >/dev/null
rounded=(--recipe r --rounding compensated -f t.txt --imatrix-chunks 8)
quick quantize m.gguf a.gguf "${rounded[@]}" | grep -e '^rounding' -e 'rounded as ggml' | sed 's/; [0-9]* of/; N of/'
run quantize m.gguf b.gguf "${rounded[@]}" --quiet -t 1 >/dev/null
cmp a.gguf b.gguf && echo 'the same bytes for any number of threads'
cmp -s a.gguf plain.gguf || echo 'other bytes than plain rounding'
quick verify r a.gguf | tail -n 1
"$ALLOT" inspect a.gguf | grep -c 'allot.rounding.*compensated'
# killed after a few tensors, and gone on with
journal() { head -c 192 "$1.allot-partial" 2>/dev/null | cksum; }
kill_after() { # CHANGES OUT ARGUMENTS...: of the journal, one with each finished tensor
    local changes=0 wanted=$1 out=$2 before after
    shift 2
    before=$(journal "$out")
    "$ALLOT" quantize m.gguf "$out" "$@" -t 1 --quiet >/dev/null 2>&1 &
    local pid=$!
    while [ $changes -lt "$wanted" ] && kill -0 $pid 2>/dev/null; do
        after=$(journal "$out")
        [ "$before" = "$after" ] || changes=$((changes + 1))
        before=$after
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null || true
}
kill_after 8 c.gguf "${rounded[@]}"
quick quantize m.gguf c.gguf "${rounded[@]}" --json >run.json
[ "$(json resumed_tensors <run.json)" -gt 0 ] && echo 'resumed'
cmp a.gguf c.gguf && echo 'the same bytes after a kill'
# what a plain run has left is not gone on with
kill_after 8 d.gguf --recipe r
quick quantize m.gguf d.gguf "${rounded[@]}" --json >run.json
echo "resumed tensors: $(json resumed_tensors <run.json)"
cmp a.gguf d.gguf && echo 'nothing of a plain file is taken'

# costs of this rounding are costs of their own; plans of them say so
quick quantize m.gguf p.gguf --size 1500000 --rounding compensated -f t.txt "${CHEAP[@]}" --method exact
quick quantize m.gguf p.gguf --size 1500000 --rounding compensated -f t.txt "${CHEAP[@]}" --refine 1
quick cost m.gguf -f t.txt "${CHEAP[@]}" --json | json params
quick cost m.gguf -f t.txt "${CHEAP[@]}" --rounding compensated --json | json params | sed 's/:[0-9a-f]*"/:TEXT"/'
quick cost m.gguf -f t.txt "${CHEAP[@]}" --rounding compensated --json | json resumed
rm -f m.gguf.allot*
quick cost m.gguf -f t.txt "${CHEAP[@]}" --rounding compensated >/dev/null
quick plan m.gguf --size 1500000
quick quantize m.gguf p.gguf --size 1500000 --rounding compensated -f t.txt "${CHEAP[@]}" | grep -e '^rounding' | sed 's/; [0-9]* of/; N of/'

# another file's types, with better codes
quick quantize m.gguf q.gguf --requantize-codes plain.gguf
quick quantize m.gguf q.gguf --requantize-codes plain.gguf --recipe r --rounding compensated -f t.txt
quick quantize m.gguf q.gguf --requantize-codes absent.gguf --rounding compensated -f t.txt
quick quantize m.gguf q.gguf --requantize-codes "tiny.gguf" --rounding compensated -f t.txt
quick quantize m.gguf plain.gguf --requantize-codes plain.gguf --rounding compensated -f t.txt
quick quantize m.gguf q.gguf --requantize-codes plain.gguf --rounding compensated -f t.txt --imatrix-chunks 8 >/dev/null
cmp a.gguf q.gguf && echo 'as by the recipe'
