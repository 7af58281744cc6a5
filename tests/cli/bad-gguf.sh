# Files that are not what they should be: one line that names the file and the cause, exit 1, no crash.
# SPDX-License-Identifier: MIT
cp "$MODEL" whole.gguf && chmod u+w whole.gguf
size=$(stat -c %s whole.gguf)
# broken NAME OFFSET HEX...
broken() {
    local name=$1 offset=$2
    shift 2
    cp whole.gguf "$name.gguf"
    bytes "$@" | patch "$name.gguf" "$offset"
    run inspect "$name.gguf"
}
run inspect absent.gguf
run inspect .
: >empty.gguf
run inspect empty.gguf
printf GGU >short.gguf
run inspect short.gguf
printf 'not a model, but a text long enough for a header' >text.gguf
run inspect text.gguf
head -c 5000 whole.gguf >header-cut.gguf
run inspect header-cut.gguf
head -c $((size - 100)) whole.gguf >data-cut.gguf
run inspect data-cut.gguf
broken magic 0 47 47 55 47
broken version 4 07 00 00 00
broken tensor-count 8 ff ff ff ff ff ff ff 7f
broken kv-count 16 ff ff ff ff ff ff ff 7f
broken key-length 24 ff ff ff ff 00 00 00 00
# After a tensor's name: dimensions (4), each of them (8), type (4), offset (8).
name=blk.0.ffn_down.weight
info=$(($(offset_of whole.gguf $name) + ${#name}))
broken dimensions $info 05 00 00 00
broken zero-width $((info + 4)) 00 00 00 00 00 00 00 00
broken negative-width $((info + 4)) 00 00 00 00 00 00 00 80
broken huge-width $((info + 4)) 00 00 00 00 00 00 00 40
broken type $((info + 20)) 63 00 00 00
broken removed-type $((info + 20)) 04 00 00 00
broken wider $((info + 4)) 01 03 00 00 00 00 00 00
broken far-offset $((info + 24)) 00 00 00 00 00 00 00 10
broken odd-offset $((info + 24)) 01 00 00 00 00 00 00 00
broken overlap $((info + 24)) 00 00 00 00 00 00 00 00
same=$(offset_of whole.gguf blk.1.attn_k.weight)
broken duplicate $((same + 4)) 30
rm -- *.gguf
ls
