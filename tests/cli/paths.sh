# Spaces, quotes and letters beyond ASCII in every path.  SPDX-License-Identifier: MIT
d="Želj ko's"
mkdir "$d"
synthetic "$d/m.gguf"
text 60 >"$d/t ž.txt"
quick imatrix "$d/m.gguf" -f "$d/t ž.txt" -o "$d/i.gguf" --ctx 64
quick cost "$d/m.gguf" -f "$d/t ž.txt" "${CHEAP[@]}" | head -n 1
quick quantize "$d/m.gguf" "$d/o.gguf" --bpw 5 -f "$d/t ž.txt" "${CHEAP[@]}" >report
grep '^written' report
tail -n 1 report
quick plan "$d/m.gguf" --like "$d/o.gguf" -o "$d/r" | grep '^written'
run verify "$d/o.gguf.recipe" "$d/o.gguf"
quick measure "$d/m.gguf" "$d/o.gguf" -f "$d/t ž.txt" --ctx 64 --windows 1 | grep -c 'PPL'
ls "$d"
