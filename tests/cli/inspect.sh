# What is in a file, as text, as JSON, and tensor by tensor.  SPDX-License-Identifier: MIT
ln -s "$MODEL" m.gguf
run inspect m.gguf
run inspect --tensors m.gguf | sed -n '/^tensor/,$p' | head -n 5
run inspect --json m.gguf >doc
for key in architecture parameters bytes files bits_per_weight general.name; do
    echo "$key: $(json "$key" <doc)"
done
[ "$(grep -c '"offset"' doc)" = 57 ] && echo '57 tensors'
if perl -MJSON::PP -e 1 2>/dev/null; then
    perl -MJSON::PP -0777 -ne 'decode_json($_)' doc || echo 'no valid JSON'
fi
run inspect m.gguf m.gguf | grep -c architecture
