#!/usr/bin/env bash
# layouts.sh - a file of llama-quantize, learned and rebuilt from the same model with the same importances, is that
# file: by allot, and by the printed llama-quantize command. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/model.gguf"
cd "$folder"
awk 'BEGIN {
    n = split("a layout is what each tensor of some published file became when one made it small for others", w, " ")
    x = 54321
    for (i = 0; i < 4000; i++) {
        x = (x * 1103515245 + 12345) % 2147483648
        printf "%s%s", w[int(x / 65536) % n + 1], i % 12 == 11 ? ".\n" : " "
    }
}' >words.txt
run imatrix.log "$STOCK_TOOLS/llama-imatrix" -m model.gguf -f words.txt -o i.gguf -c 128 --chunks 8

# rebuild NAME MIX [OPTION...]: the stock mix with the options, learned as NAME, equals what is rebuilt of it.
rebuild() {
    local name=$1 mix=$2 command
    shift 2
    run stock.log "$STOCK_TOOLS/llama-quantize" --imatrix i.gguf "$@" model.gguf "$name.gguf" "$mix"
    run learn.log "$ALLOT" learn "$name.gguf" --source "stock/tiny@$(printf '%040d' 7):$name.gguf"
    run report.txt "$ALLOT" quantize model.gguf ours.gguf --layout "$name" --imatrix i.gguf
    "$TOOLS/gguf-facts" ours.gguf | grep '^tensor' >ours.txt
    "$TOOLS/gguf-facts" "$name.gguf" | grep '^tensor' >stock.txt
    cmp ours.txt stock.txt || fail "$name: other tensors"
    cmp <(data ours.gguf) <(data "$name.gguf") || fail "$name: the data sections differ"

    run plan.txt "$ALLOT" plan model.gguf --layout "$name" -o recipe
    command=$(sed -nE 's/^ *llama-quantize (.*)/\1/p' plan.txt)
    rm -f OUT.gguf
    eval "run stock.log \"\$STOCK_TOOLS/llama-quantize\" --imatrix i.gguf $command"
    cmp <(data OUT.gguf) <(data "$name.gguf") || fail "$name: the recipe makes another file"
}

data() { # FILE: its data section
    tail -c "+$(("$("$TOOLS/gguf-facts" "$1" | sed -n 's/^data \([0-9]*\) .*/\1/p')" + 1))" "$1"
}

# A mix by its name alone, without a file to learn from.
for mix in Q2_K Q3_K_L Q4_K_M; do
    run stock.log "$STOCK_TOOLS/llama-quantize" --imatrix i.gguf model.gguf stock.gguf $mix
    run report.txt "$ALLOT" quantize model.gguf ours.gguf --layout $mix --imatrix i.gguf
    cmp <(data ours.gguf) <(data stock.gguf) || fail "$mix is not the stock mix"
done
same_file ours.gguf stock.gguf
for mix in Q2_K Q4_K_M Q4_0 Q5_K_S IQ4_XS IQ3_M Q8_0; do rebuild "plain-$mix" $mix; done
same_file ours.gguf plain-Q8_0.gguf

# Nothing quantized at all, in F16: what is kept exact is rebuilt as the model's own type.
run stock.log "$STOCK_TOOLS/llama-quantize" model.gguf half.gguf F16
run learn.log "$ALLOT" learn half.gguf
run report.txt "$ALLOT" quantize model.gguf ours.gguf --layout half --imatrix i.gguf
tensors() { "$TOOLS/gguf-facts" "$1" | awk '/^tensor/ { print $2, $3, $4, $NF }' | sort; } # wherever they stand
cmp <(tensors ours.gguf) <(tensors model.gguf) || fail 'F16 was not taken as exact'

# A file whose general.file_type says Q4_K_M while most of its bytes are of 2 bits.
rebuild lies Q4_K_M --tensor-type ffn=q2_k --tensor-type attn_v=q2_k --token-embedding-type q2_k --output-tensor-type q2_k
"$TOOLS/gguf-facts" lies.gguf >facts.txt
grep -q '^kv general.file_type [^ ]* 15' facts.txt || fail 'the file does not say Q4_K_M'
"$ALLOT" learn --show lies --json >lies.json
python3 - <<'PYTHON'
import json
document = json.load(open("lies.json"))
types = {t["type"]: t for t in document["types"]}
assert document["types"][0]["type"] == "Q2_K", document["types"]
assert types["Q4_K"]["bytes"] < types["Q2_K"]["bytes"] / 2, types
for t in document["layout"]:
    small = t["group"] in ("ffn_up_gate", "ffn_down", "embeddings", "lm_head") or "attn_v" in t["name"]
    wanted = "F32" if t["group"] == "other" else "Q2_K" if small else "Q4_K"
    assert t["type"] == wanted, t
PYTHON

# The comparison notices a difference: another layout.
"$ALLOT" quantize model.gguf other.gguf --hybrid base=plain-Q4_K_M,attn_q=plain-Q2_K --imatrix i.gguf --quiet >/dev/null
cmp -s <(data other.gguf) <(data plain-Q4_K_M.gguf) && fail 'another layout made no difference'
echo 'learned layouts are rebuilt byte for byte'
