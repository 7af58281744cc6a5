# Importance matrices of both forms, broken and not; what llama-quantize would do with them.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick imatrix m.gguf -f t.txt -o good.gguf --ctx 64 --chunks 4
printf '.*=Q4_K\n' >recipe
use() { quick quantize m.gguf "out-$1.gguf" --recipe recipe --imatrix "$1" | head -n 1; }
use good.gguf
# The magic decides, not the suffix.
cp good.gguf good.dat
use good.dat

# legacy VALUES-PER-ENTRY ENTRIES-SAID: one entry of ones for blk.0.attn_q.weight
legacy() {
    local name=blk.0.attn_q.weight
    le32 "$2" && le32 ${#name} && printf %s $name && le32 1 && le32 "$1"
    for ((i = 0; i < $1; i++)); do printf '\x00\x00\x80\x3f'; done
}
legacy 256 1 >legacy.gguf
run quantize m.gguf out-legacy.gguf --recipe recipe --imatrix legacy.gguf -t 2 | head -n 1
legacy 256 9 >count.dat
use count.dat
legacy 256 -1 >negative.dat
use negative.dat
legacy 5120 1 >long.dat
run quantize m.gguf out-long.gguf --recipe recipe --imatrix long.dat -t 2 | head -n 1
printf '^blk\\.0\\.attn_q\\.weight$=IQ2_XXS\n.*=Q4_K\n' >needs
quick quantize m.gguf out-needs.gguf --recipe needs --imatrix long.dat
quick quantize m.gguf out-needs.gguf --recipe needs
use absent.dat
use .
: >empty.dat
use empty.dat
printf 'plain text, no importances here' >text.dat
use text.dat
head -c 2000 good.gguf >cut.gguf
use cut.gguf
cp m.gguf model.dat
use model.dat
# Zeros across a whole 256-block must not give NaN blocks.
cp good.gguf zeros.gguf
head -c 1024 /dev/zero | patch zeros.gguf "$(tensor_offset good.gguf blk.0.attn_q.weight.in_sum2)"
use zeros.gguf
quick measure m.gguf out-zeros.gguf.gguf -f t.txt --ctx 64 --windows 1 | grep -c nan
printf '\x00\x00\xc0\x7f' | patch zeros.gguf "$(tensor_offset good.gguf blk.0.attn_q.weight.in_sum2)"
use zeros.gguf
ls out-*
