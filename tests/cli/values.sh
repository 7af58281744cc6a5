# Weights that are NaN or Inf are named with tensor and row; zeros and denormals are handled; so are logits that
# overflow.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
printf '.*=Q4_K\n' >recipe
name=blk.1.ffn_up.weight
row=$((256 * 2))
at=$(($(tensor_offset m.gguf $name) + 3 * row))
with() { # NAME HEX HEX: a BF16 value all over row 3
    cp m.gguf "$1.gguf"
    for ((i = 0; i < 256; i++)); do bytes "$2" "$3"; done | patch "$1.gguf" $at
    quick quantize "$1.gguf" "out-$1.gguf" --recipe recipe | head -n 1
    quick cost "$1.gguf" -f t.txt "${CHEAP[@]}" | head -n 1
}
with nan c0 7f
with inf 80 7f
with zero 00 00
with denormal 01 00
with huge 7f 7f # the largest: what comes of it is not finite
quick cost huge.gguf -f t.txt --types Q4_K --sequences 2 --seq-len 64 --no-imatrix --method probe | head -n 1
quick measure zero.gguf out-zero.gguf -f t.txt --ctx 64 --windows 1 --json | json windows
ls -- *out-*
