# The printed llama-quantize command is for a shell, whatever the paths, and does what it says.
# SPDX-License-Identifier: MIT
[ -x "$STOCK_TOOLS/llama-quantize" ] || skip 'no llama-quantize (STOCK_TOOLS)'
d="Želj ko's"
mkdir "$d"
synthetic "$d/m.gguf"
text 60 >"$d/t ž.txt"
quick quantize "$d/m.gguf" "$d/o.gguf" --bpw 5 -f "$d/t ž.txt" "${CHEAP[@]}" >report
rm "$d/o.gguf"
(PATH=$STOCK_TOOLS:$PATH && eval "$(tail -n 1 report)") >log 2>&1 || cat log
run verify "$d/o.gguf.recipe" "$d/o.gguf"
