#!/usr/bin/env bash
# mix.sh - the types that lib/search tells of each of llama-quantize's mixes are those that llama-quantize gives,
# tensor by tensor, with an importance matrix and without: for the tests' trained model, for models of many
# kinds that have no weights, and for those of ALLOT_TEST_MODELS (a.gguf:b.gguf). SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# ---- What models are made of, as lines for make-header ----------------------------------------------------

# arch NAME LAYERS WIDTH HEADS KV_HEADS [KEY=VALUE...]
arch() {
    echo "general.architecture=$1"
    printf "$1.%s\n" block_count="$2" embedding_length="$3" attention.head_count="$4" \
        attention.head_count_kv="$5" context_length=1024 feed_forward_length=1024 \
        attention.layer_norm_rms_epsilon=1e-5 attention.layer_norm_epsilon=1e-5 "${@:6}"
}

# mats SHAPE NAME...; vectors LENGTH NAME...; maps LAYERS SHAPE PART...: blk.N.PART.weight
mats() {
    printf "%s $1 ${type:-bf16}\n" "${@:2}"
}
vectors() {
    printf "%s $1 f32\n" "${@:2}"
}
maps() {
    local l
    for ((l = 0; l < $1; l++)); do
        printf "blk.$l.%s.weight $2 ${type:-bf16}\n" "${@:3}"
    done
}

ends() { # WIDTH VOCABULARY [tied]
    mats "${1}x$2" token_embd.weight
    vectors "$1" output_norm.weight
    [ "${3:-}" = tied ] || mats "${1}x$2" output.weight
}

attention() { # LAYERS WIDTH Q_WIDTH KV_WIDTH
    maps "$1" "$2x$3" attn_q
    maps "$1" "$2x$4" attn_k attn_v
    maps "$1" "$3x$2" attn_output
    vectors "$2" blk.0.{attn,ffn}_norm.weight
}

feed_forward() { # LAYERS WIDTH FFN
    maps "$1" "$2x$3" ffn_gate ffn_up
    maps "$1" "$3x$2" ffn_down
}

experts() { # LAYERS WIDTH FFN EXPERTS
    maps "$1" "$2x$3x$4" ffn_gate_exps ffn_up_exps
    maps "$1" "$3x$2x$4" ffn_down_exps
    type=f32 maps "$1" "$2x$4" ffn_gate_inp
}

dense() { # ARCH LAYERS WIDTH FFN HEADS KV_HEADS VOCABULARY tied|untied [KEY=VALUE...]
    arch "$1" "$2" "$3" "$5" "$6" "${@:9}"
    ends "$3" "$7" "$8"
    attention "$2" "$3" "$3" $(($3 / $5 * $6))
    feed_forward "$2" "$3" "$4"
}

mixture() { # ARCH LAYERS WIDTH FFN HEADS KV_HEADS EXPERTS tied|untied [KEY=VALUE...]
    arch "$1" "$2" "$3" "$5" "$6" "expert_count=$7" expert_used_count=2 "${@:9}"
    ends "$3" 2048 "$8"
    attention "$2" "$3" "$3" $(($3 / $5 * $6))
    experts "$2" "$3" "$4" "$7"
}

# ---- Models -----------------------------------------------------------------------------------------------
# Layers, heads, experts and the lengths of rows decide. Where a real model has large multiples of 256, smaller ones
# stand here: sparse files, too, can be too large for some file systems.

model_smollm2_135m() { dense llama 30 576 1536 9 3 49152 tied; }
model_gemma3_270m() {
    arch gemma3 18 640 4 1 attention.key_length=256 attention.value_length=256
    ends 640 262144 tied
    attention 18 640 1024 256
    feed_forward 18 640 2048
    vectors 256 blk.{0..17}.attn_{q,k}_norm.weight
    vectors 640 blk.{0..17}.post_{attention,ffw}_norm.weight
}
model_llama_8b() { dense llama 32 2048 7168 32 8 128256 untied; }
model_llama_13b() { dense llama 40 1280 3456 40 40 4000 untied; }
model_llama_70b() { dense llama 80 1024 3584 64 8 4000 untied; }
model_llama_65b() { dense llama 80 1024 2752 64 64 4000 untied; }
model_llama_80_layers_gqa_2() { dense llama 80 1024 2048 16 8 4096 tied; }
model_llama_70b_with_nextn() { dense llama 81 1024 3584 64 8 4000 untied nextn_predict_layers=1; }
model_llama_embed() { dense llama-embed 80 1024 3584 64 8 4000 tied; }
model_qwen2_72b() { dense qwen2 80 1024 3696 64 8 4000 untied; }
model_qwen2_80_layers_mha() { dense qwen2 80 1024 2048 16 16 4096 tied; }
model_deci_lists() { # a first layer without attention
    local kv
    kv=$(printf ',%s' 0 $(printf '8%.0s ' {1..79}))
    arch deci 80 1024 "[$(printf '64,%.0s' {1..79})64]" "[${kv:1}]"
    ends 1024 4096
    attention 80 1024 1024 128
    feed_forward 80 1024 3584
}
model_deci_lists_gqa_8() {
    arch deci 8 1024 '[16,16,8,16,16,8,16,16]' '[2,4,0,4,4,8,16,16]'
    ends 1024 4096
    attention 8 1024 1024 128
    feed_forward 8 1024 2048
}
model_olmo() { dense olmo 80 1024 2048 16 16 4096 untied; }
model_jais2() { dense jais2 68 1024 2048 16 16 4096 untied; }
model_jais2_80_layers() { dense jais2 80 1024 2048 16 16 4096 untied; }
model_one_layer() { dense llama 1 256 512 4 2 1000 tied; }
model_seven_layers() { dense llama 7 512 1024 8 2 1000 untied; }
model_short_rows() { dense llama 16 96 160 6 2 300 tied; }
model_shorter_rows() { dense llama 16 48 80 6 2 300 untied; }
model_long_down() { dense llama 24 896 4864 14 2 151936 tied; }
model_half_precision() { type=f16 dense llama 17 512 1024 8 4 1000 untied; }
model_full_precision() { type=f32 dense llama 17 512 1024 8 4 1000 untied; }
model_quantized_before() { type=q8_0 dense llama 17 512 1024 8 4 1000 untied; }
model_without_kv_heads() { dense llama 80 512 1024 8 8 1000 untied | grep -v head_count_kv; }

model_mixtral() { mixture llama 32 1024 3584 32 8 8 untied; }
model_mixtral_mha_tied() { mixture llama 20 1024 1536 16 16 8 tied; }
model_mixtral_short_rows() { mixture llama 20 576 1536 9 3 8 tied; }
model_mixtral_by_expert() { # as before experts were stacked
    local l
    arch llama 32 1024 32 8 expert_count=8 expert_used_count=2
    ends 1024 4000
    attention 32 1024 1024 256
    for ((l = 0; l < 32; l++)); do
        mats 1024x3584 blk.$l.ffn_{gate,up}.{0..7}.weight
        mats 3584x1024 blk.$l.ffn_down.{0..7}.weight
    done
}
model_one_expert() {
    mixture llama 16 512 768 8 8 1 untied | sed s/used_count=2/used_count=1/
    maps 16 512x512 ffn_{gate,up,down}_shexp
}
model_two_experts() {
    mixture llama 16 512 768 8 8 2 untied
    maps 16 512x512 ffn_{gate,up,down}_shexp
}
model_three_experts() { mixture llama 16 512 768 8 8 3 untied; }
model_four_experts() { mixture llama 16 512 768 8 8 4 untied; }
model_sixteen_experts_tied() { mixture granitemoe 24 1024 512 16 8 16 tied logit_scale=6.0; }
model_qwen3moe() { mixture qwen3moe 48 512 192 32 4 128 untied expert_feed_forward_length=192; }
model_qwen2moe() {
    mixture qwen2moe 24 1024 704 16 16 60 untied expert_feed_forward_length=704
    maps 24 1024x2816 ffn_{gate,up}_shexp
    maps 24 2816x1024 ffn_down_shexp
    maps 24 1024 ffn_gate_inp_shexp
}
model_glm4moe_with_nextn() {
    mixture glm4moe 46 1024 352 64 8 32 untied expert_feed_forward_length=352 expert_shared_count=1 \
        leading_dense_block_count=1 nextn_predict_layers=1 | grep -v '^blk\.0\.ffn.*_exps'
    mats 1024x2736 blk.0.ffn_{gate,up}.weight
    mats 2736x1024 blk.0.ffn_down.weight
    mats 2048x1024 blk.45.nextn.eh_proj.weight
    mats 1024x4000 blk.45.nextn.{embed_tokens,shared_head_head}.weight
}
model_deepseek2() {
    arch deepseek2 27 2048 16 16 expert_count=16 expert_used_count=6 expert_feed_forward_length=1408 \
        expert_shared_count=2 leading_dense_block_count=1 attention.kv_lora_rank=512 attention.q_lora_rank=768
    ends 2048 102400
    maps 27 2048x3072 attn_q
    maps 27 2048x576 attn_kv_a_mqa
    maps 27 512x4096 attn_kv_b
    maps 27 128x512x16 attn_k_b
    maps 27 512x128x16 attn_v_b
    maps 27 2048x2048 attn_output
    experts 27 2048 1408 16
}
model_bailingmoe3() {
    arch bailingmoe3 24 1536 12 12 expert_count=32 expert_used_count=8 expert_feed_forward_length=512 \
        expert_shared_count=1 leading_dense_block_count=1 attention.kv_lora_rank=512 attention.key_length_mla=192 \
        attention.value_length_mla=128 ssm.conv_kernel=4 kda.head_dim=128 kda.gate_lower_bound=-5.0 expert_gating_func=2
    ends 1536 2048
    maps 24 128x512x12 attn_k_b
    maps 24 512x128x12 attn_v_b
    maps 24 1536x1536 attn_q attn_output
    experts 24 1536 512 32
}
model_expert_outside() { # a part of prediction further ahead that is no layer
    mixture qwen3moe 8 512 256 8 2 16 untied expert_feed_forward_length=256
    mats 512x256x16 mtp.ffn_up_exps.weight
}
model_expert_beyond() { mixture qwen3moe 8 512 256 8 2 16 untied expert_feed_forward_length=256 | sed 's/^blk\.7\./blk.8./'; }

model_falcon_7b() {
    arch falcon 32 4544 71 1
    ends 4544 65024
    maps 32 4544x4672 attn_qkv
    maps 32 4544x4544 attn_output
    maps 32 4544x4544 ffn_up
    maps 32 18176x1136 ffn_down
}
model_falcon_40b() {
    arch falcon 60 1024 128 8
    ends 1024 4000 tied
    maps 60 1024x1152 attn_qkv
    maps 60 1024x1024 attn_output
    maps 60 1024x4096 ffn_up
    maps 60 4096x1024 ffn_down
}
model_phi3() {
    arch phi3 32 1536 32 32
    ends 1536 32064
    maps 32 1536x4608 attn_qkv
    maps 32 1536x1536 attn_output
    maps 32 1536x8192 ffn_up
    maps 32 4096x1536 ffn_down
}
model_gemma3n() { # a second table of embeddings, and small matrices that stay
    dense gemma3n 30 1024 4096 8 2 2048 tied attention.sliding_window=512
    mats 7680x2048 per_layer_token_embd.weight
    type=f16 mats 1024x7680 per_layer_model_proj.weight
    type=f16 mats 1024x1024x3 altup_proj.weight altup_unembd_proj.weight
    maps 30 1024x256 inp_gate
    maps 30 256x1024 proj
    type=f32 maps 30 4x4 altup_correct_coef
    type=f32 maps 30 1024x64 laurel_l
}
model_gemma3n_untied() {
    model_gemma3n
    mats 1024x2048 output.weight
}
model_nanbeige() { dense nanbeige 20 1024 2048 16 4 4096 untied num_loops=3; }
model_graniteswitch() {
    dense graniteswitch 15 1024 2048 16 4 4096 untied logit_scale=6.0 adapters.count=1 adapters.lora_rank=8 \
        'adapters.token_ids_activate=[1]' 'adapters.token_ids_substitute=[2]'
}
model_mamba() {
    arch mamba 24 768 0 0 ssm.conv_kernel=4 ssm.inner_size=1536 ssm.state_size=16 ssm.time_step_rank=48
    ends 768 50280 tied
    maps 24 768x3072 ssm_in
    type=f32 maps 24 4x1536 ssm_conv1d
    maps 24 1536x80 ssm_x
    maps 24 48x1536 ssm_dt
    maps 24 1536x768 ssm_out
}
model_lfm2() { # attention in some of the layers
    arch lfm2 6 1024 16 '[0,0,8,0,0,8]' shortconv.l_cache=3
    ends 1024 65536 tied
    feed_forward 6 1024 4608
    mats 1024x1024 blk.{2,5}.attn_{q,output}.weight
    mats 1024x512 blk.{2,5}.attn_{k,v}.weight
    mats 1024x3072 blk.{0,1,3,4}.shortconv.in_proj.weight
    type=f32 mats 3x1024 blk.{0,1,3,4}.shortconv.conv.weight
}
model_t5() { # two stacks of layers, none of which is blk.N
    arch t5 12 768 12 12 attention.relative_buckets_count=32
    ends 768 32128
    mats 768x768 {enc,dec}.blk.{0..11}.attn_{q,k,v,o}.weight dec.blk.{0..11}.cross_attn_{q,k,v,o}.weight
    mats 768x2048 {enc,dec}.blk.{0..11}.ffn_{up,gate}.weight
    mats 2048x768 {enc,dec}.blk.{0..11}.ffn_down.weight
    type=f32 mats 12x32 {enc,dec}.blk.0.attn_rel_b.weight
}
model_bert() {
    dense bert 12 384 1536 12 12 30522 tied
    mats 384x512 position_embd.weight
    type=f32 mats 384x2 token_types.weight
}

# ---- Comparing --------------------------------------------------------------------------------------------

# An importance matrix in the older format: one entry, x, of a single 1.
printf '\1\0\0\0\1\0\0\0x\1\0\0\0\1\0\0\0\0\0\200?' >imatrix.dat

# stock_types MODEL MIX...: what mix-types prints, by llama-quantize.
stock_types() {
    local mix with
    for mix in "${@:2}"; do
        for with in alone with-imatrix; do
            echo "== $mix $with"
            options=(--dry-run)
            [ $with = alone ] || options+=(--imatrix imatrix.dat)
            "$STOCK_TOOLS/llama-quantize" "${options[@]}" "$1" "$mix" 1 2>&1 || true
        done
    done >stock.log
    sed -nE -e '/^== /p;/failed to quantize: .*(determine layer|Bad layer|no tensor type fallback)/s/.*/refused/p' \
        -e 's/^\[ *[0-9]+\/ *[0-9]+\] (.*[^ ]) +- \[.*\(([a-zA-Z0-9_]+)\)$/\1 \2/p;t' \
        -e 's/^\[ *[0-9]+\/ *[0-9]+\] (.*[^ ]) +- \[.* type = +([a-zA-Z0-9_]+), size = .*/\1 \2/p' \
        -e 's/.*actually completing this quantization will require an imatrix.*/imatrix needed/p' stock.log
}

# The mixes, by llama-quantize itself.
"$STOCK_TOOLS/llama-quantize" --help >usage.txt || true
sed -nE '/allowed quantization types/,$s/^ +([0-9]+ +or)? +([A-Z][A-Z0-9_]+) *: *(.*)$/\2 \3/p' usage.txt >offered.txt
mapfile -t offered < <(cut -d ' ' -f 1 offered.txt)
[ ${#offered[@]} -ge 30 ] || fail 'no mixes found in what llama-quantize --help prints'
diff <("$TOOLS/mix-types" | sort) <(grep -v ' alias for ' offered.txt | cut -d ' ' -f 1 | sort) ||
    fail 'these are not the mixes that llama-quantize offers'

n_models=0 n_types=0 n_refused=0
compare() { # MODEL
    stock_types "$1" "${offered[@]}" >stock.txt
    "$TOOLS/mix-types" "$1" "${offered[@]}" >ours.txt 2>ours.log || fail "$1: $(tail -n 1 ours.log)"
    diff -U 10000 stock.txt ours.txt >difference.txt || {
        grep -m 20 '^[-+@]' difference.txt >&2
        grep 'failed to quantize: ' stock.log | sort -u | head -n 5 >&2
        fail "$1: the types differ (-: llama-quantize's), first with $(grep -e '^ ==' -m 1 -e '^[-+][^-+]' difference.txt)"
    }
    n_models=$((n_models + 1))
    n_types=$((n_types + $(grep -vc -e '^== ' -e '^refused' ours.txt || true)))
    n_refused=$((n_refused + $(grep -c '^refused' ours.txt || true)))
}

cp "$TESTS/data/tiny-llama-bf16.gguf" tiny-llama.gguf
IFS=: read -ra own <<<"${ALLOT_TEST_MODELS:-}"
for model in tiny-llama.gguf "${own[@]}"; do
    compare "$model"
done
mapfile -t models < <(compgen -A function model_)
for model in "${models[@]}"; do
    name=${model#model_}.gguf
    $model | "$TOOLS/make-header" "$name" || fail "there is no $name"
    compare "$name"
    rm "$name"
done
[ "$n_refused" -gt 0 ] || fail 'llama-quantize refused nothing'

# What a dry run prints is what the tool writes.
"$STOCK_TOOLS/llama-quantize" tiny-llama.gguf written.gguf Q3_K_M 1 >stock.log 2>&1
diff <("$TOOLS/gguf-facts" written.gguf | sed -n 's/^tensor \([^ ]* [^ ]*\) .*/\1/p') \
    <("$TOOLS/mix-types" tiny-llama.gguf Q3_K_M | sed -n '2,/^==/{/^==/!p}') ||
    fail 'the file that llama-quantize wrote has other types'
# And the comparison sees a difference.
diff <(stock_types tiny-llama.gguf Q4_K_S | grep -v ==) <("$TOOLS/mix-types" tiny-llama.gguf Q4_K_M | grep -v ==) \
    >difference.txt && fail 'Q4_K_S and Q4_K_M are not told apart'
echo "${#offered[@]} names of mixes, $n_models models: $n_types types as llama-quantize's, $n_refused refusals"
