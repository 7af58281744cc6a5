# Shards: any one opens all; a missing one is named before work; the output is one file without split keys.
# SPDX-License-Identifier: MIT
synthetic whole.gguf
"$TOOLS/split-gguf" whole.gguf part 3 || exit 1
run inspect part-00001-of-00003.gguf | grep 'size:'
run inspect part-00003-of-00003.gguf | grep -c ' BF16\| F32'
printf '.*=Q4_K\n' >recipe
for source in whole.gguf part-00002-of-00003.gguf; do
    quick quantize $source joined-$source --recipe recipe >report
    grep '^written' report
    run inspect --json joined-$source >doc
    grep -c '"split\.' doc
    run inspect --tensors joined-$source | sed -n '/^tensor/,$p' | awk '{ print $1, $2, $(NF - 2) }' >tensors-$source
done
cmp tensors-whole.gguf tensors-part-00002-of-00003.gguf && echo 'same tensors'
quick quantize part-00001-of-00003.gguf part-00002-of-00003.gguf --recipe recipe
quick quantize part-00001-of-00003.gguf part-00001-of-00003.gguf --recipe recipe
mv part-00002-of-00003.gguf elsewhere
run inspect part-00001-of-00003.gguf
quick quantize part-00003-of-00003.gguf never.gguf --recipe recipe
mv part-00001-of-00003.gguf elsewhere-too
run inspect part-00003-of-00003.gguf
[ ! -e never.gguf ] || echo 'an output was made of half a model'
mv elsewhere renamed.gguf
run inspect renamed.gguf
