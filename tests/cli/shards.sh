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
# A shard that is a link to another file of equal size, older and so no newer than the model: it is another model.
for seed in 2 1; do
    mkdir set$seed
    "$TOOLS/make-synthetic" whole$seed.gguf 3 256 512 300 4 2 $seed
    (cd set$seed && "$TOOLS/split-gguf" ../whole$seed.gguf part 3)
done
mkdir links
ln -s "$PWD"/set1/* links
text 60 >t.txt
quick cost links/part-00001-of-00003.gguf -f t.txt "${CHEAP[@]}" --archive a | head -n 1
quick plan links/part-00001-of-00003.gguf --size 1.2MB --archive a | grep 'size asked'
ln -sf "$PWD/set2/part-00002-of-00003.gguf" links
quick plan links/part-00001-of-00003.gguf --size 1.2MB --archive a
# The archive lies beside the first file, whichever was given.
cp -r set1 named
quick cost named/part-00002-of-00003.gguf -f t.txt "${CHEAP[@]}" | head -n 1
quick plan named/part-00003-of-00003.gguf --size 1.2MB | grep 'size asked'
