#!/usr/bin/env bash
# moe.sh - mixtures of experts, end to end, on random models of which one expert is never taken: the importance
# matrix is llama-imatrix's, expert by expert; routers stay F32; the file is llama-quantize's; what an importance
# matrix lacks is told before work and not quantized to types that need it. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cd "$folder"
head -c 60000 calib.txt >text.txt
types=IQ3_XXS,Q3_K,IQ4_XS,Q4_K,Q6_K

for arch in qwen3moe qwen2moe; do
    echo "$arch"
    "$TOOLS/make-random" $arch.gguf $arch "$TESTS/data/tiny-llama-bf16.gguf" 1
    run stock.log "$STOCK_TOOLS/llama-imatrix" -m $arch.gguf -f text.txt -o stock.gguf -c 512 -t 1 --no-ppl
    "$ALLOT" imatrix $arch.gguf -f text.txt -o imatrix.gguf --ctx 512 --quiet
    result=$("$TOOLS/compare-imatrix" imatrix.gguf stock.gguf) || fail 'the two importance matrices differ in kind'
    echo "$result"
    below "${result##* }" 0.01 || fail 'an entry differs by more than 1 % (median over its columns)'

    # An expert without tokens is reported, and its stack has costs and a type.
    "$ALLOT" quantize $arch.gguf out.gguf --bpw 4.3 -f text.txt --imatrix imatrix.gguf --types $types \
        --sequences 16 >report.txt 2>notes.txt || { cat notes.txt >&2; fail 'allot quantize failed'; }
    grep -q 'no token of the calibration took expert 1 (1 of 4)' notes.txt || fail 'the idle expert is not reported'
    grep -q '^\^blk\\\.0\\\.ffn_up_exps\\\.weight\$=' out.gguf.recipe || fail 'the experts have no rule'
    "$TOOLS/gguf-facts" out.gguf >facts.txt
    [ "$(grep -c '^tensor blk.*ffn_gate_inp\.weight f32 ' facts.txt)" = 2 ] || fail 'a router is not F32'
    grep -q gate_inp out.gguf.recipe && fail 'the recipe has a rule for a router'
    grep -q '^tensor blk.*_exps\.weight f' facts.txt && fail 'a stack of experts was not quantized'

    # The printed command writes the same file.
    command=$(sed -nE 's/^ *(llama-quantize .*)/\1/p' report.txt)
    mv out.gguf ours.gguf
    eval "PATH=\$STOCK_TOOLS:\$PATH $command" >stock.log 2>&1 || { tail -5 stock.log >&2; fail "failed: $command"; }
    same_file ours.gguf out.gguf
    rm -f "$arch".gguf.allot out.gguf*
done

# One entry is missing, then a block's all.
"$TOOLS/drop-entries" imatrix.gguf one.gguf blk.0.ffn_up_exps
"$TOOLS/drop-entries" imatrix.gguf block.gguf blk.1.
for case in one block; do
    "$ALLOT" cost qwen2moe.gguf -f text.txt --imatrix $case.gguf --types IQ2_XXS,Q4_K --sequences 2 >costs.txt 2>notes.txt ||
        { cat notes.txt >&2; fail "allot cost with $case.gguf failed"; }
    "$ALLOT" plan qwen2moe.gguf --bpw 4.1 -o $case.recipe --quiet >plan.txt || fail "no plan with $case.gguf"
    sed "s/^/$case: /" notes.txt | grep 'the imatrix covers'
done >coverage.txt
cat coverage.txt
grep -q '^one: .* missing: blk\.0\.ffn_up_exps\.weight' coverage.txt || fail 'the missing entry is not named'
grep -q '^block: .*nothing for block 1' coverage.txt || fail 'the missing block is not named'
grep -q '^^blk\\\.0\\\.ffn_up_exps\\\.weight\$=Q4_K' one.recipe || fail 'a tensor without an entry got a type that needs one'
grep -q '^^blk\\\.0\\\..*=IQ2_XXS' one.recipe || fail 'no tensor with an entry got the small type'
grep '^^blk\\\.1\\\.' block.recipe | grep -v '=Q4_K' && fail 'a block without entries got types that need them'
echo 'the same tensors and keys as llama-quantize; routers F32; gaps of importance matrices told'
