#!/usr/bin/env bash
# quantize.sh - the file that allot quantize writes is the one that the printed llama-quantize command writes.
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/a model.gguf"
cd "$folder"
model='a model.gguf'

# A text of varied words, the same on every run, and the stock imatrix of it.
awk 'BEGIN {
    n = split("the a tensor of model token is and row type bits each layer file reads not writes for with block", w, " ")
    x = 12345
    for (i = 0; i < 6000; i++) {
        x = (x * 1103515245 + 12345) % 2147483648
        printf "%s%s", w[int(x / 65536) % n + 1], i % 12 == 11 ? ".\n" : " "
    }
}' >words.txt
"$STOCK_TOOLS/llama-imatrix" -m "$model" -f words.txt -o i.gguf -c 128 --chunks 12 >imatrix.log 2>&1 ||
    { cat imatrix.log >&2; fail 'llama-imatrix failed'; }

# One type after the other. IQ1_S, IQ1_M and IQ2_S take ggml long to prepare; the unit tests have them.
types=(q1_0 tq1_0 tq2_0 iq2_xxs q2_0 iq2_xs q2_K iq3_xxs q3_K iq3_s iq4_xs mxfp4 q4_0 iq4_nl q4_K nvfp4 q4_1
    q5_0 q5_K q5_1 q6_K q8_0 f16 bf16 f32)
"$TOOLS/gguf-facts" "$model" >facts.txt
i=0
while read -r name; do
    case $name in
    token_embd.weight) type=iq3_s ;; # llama-imatrix has no entry for these two
    output.weight) type=q6_K ;;
    *) type=${types[i++ % ${#types[@]}]} ;;
    esac
    echo "^${name//./\\.}\$=$type"
done < <(sed -nE 's/^tensor ([^ ]*weight) [^ ]+ [0-9]+x([2-9]|[0-9]{2,})x.*/\1/p' facts.txt) >mixed.recipe
[ "$(wc -l <mixed.recipe)" -ge "${#types[@]}" ] || fail 'the recipe does not hold every type'

# A recipe of loose patterns, in which the first match counts.
printf '%s\n' 'blk\.[0-2]\.ffn=Q3_K' 'attn_(q|k)=q4_k' 'ffn_down=Q5_K' 'token_embd=Q4_0' 'output\.weight=Q6_K' \
    'weight=IQ4_XS' >loose.recipe

compare() { # RECIPE [OPTION...]
    local recipe=$1 command ours stock
    shift
    rm -f out.gguf ours.gguf
    "$ALLOT" quantize "$model" out.gguf --recipe "$recipe" --quiet "$@" >report.txt ||
        fail "allot quantize --recipe $recipe $* failed"
    mv out.gguf ours.gguf
    command=$(sed -nE 's/^ *(llama-quantize .*)/\1/p' report.txt)
    [ -n "$command" ] || { cat report.txt >&2; fail 'no llama-quantize command was printed'; }
    eval "PATH=\$STOCK_TOOLS:\$PATH $command" >stock.log 2>&1 ||
        { tail -5 stock.log >&2; fail "failed: $command"; }

    same_file ours.gguf out.gguf
    [ -z "$(find . -name '*.allot-partial')" ] || fail 'a partial file was left'
}

compare mixed.recipe --imatrix i.gguf
grep -q '^kv quantize.imatrix.file str i.gguf$' ours.txt || fail 'the imatrix is not named in the file'
compare loose.recipe --imatrix i.gguf
compare loose.recipe
compare loose.recipe -t 1

# The comparison notices a difference: another imatrix.
"$STOCK_TOOLS/llama-imatrix" -m "$model" -f words.txt -o other.gguf -c 128 --chunks 3 >imatrix.log 2>&1
"$ALLOT" quantize "$model" first.gguf --recipe loose.recipe --imatrix i.gguf --quiet >/dev/null
cp other.gguf i.gguf
"$ALLOT" quantize "$model" second.gguf --recipe loose.recipe --imatrix i.gguf --quiet >/dev/null
diff <("$TOOLS/gguf-facts" first.gguf | grep '^tensor') <("$TOOLS/gguf-facts" second.gguf | grep '^tensor') >/dev/null &&
    fail 'another imatrix made no difference'
echo 'the same tensors and keys as llama-quantize'
