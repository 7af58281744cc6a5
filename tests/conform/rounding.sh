#!/usr/bin/env bash
# rounding.sh - compensated rounding on the tests' trained model, measured with libllama's kernels on text of other
# kinds than it was calibrated on: the whole model in one type, and plans of a size, are closer to the original by
# a stated factor; stock tools run the files, and what each type holds stays within its format.
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/model.gguf"
# Text far from both: code.
cat "$TESTS"/../lib/net/*.c >"$folder/eval-code.txt"
cd "$folder"
run imatrix.log "$ALLOT" imatrix model.gguf -f calib.txt -o imatrix.gguf --quiet

pair() { # NAME ARGUMENTS...: NAME-ggml.gguf and NAME-compensated.gguf
    local rounding
    for rounding in ggml compensated; do
        run quantize.log "$ALLOT" quantize model.gguf "$1-$rounding.gguf" "${@:2}" --imatrix imatrix.gguf \
            --rounding $rounding --quiet
    done
}

# Without costs --rounding ggml takes no text.
whole() { # TYPE
    echo ".*=$1" >"$1.recipe"
    run quantize.log "$ALLOT" quantize model.gguf "$1-ggml.gguf" --recipe "$1.recipe" --imatrix imatrix.gguf --quiet
    run quantize.log "$ALLOT" quantize model.gguf "$1-compensated.gguf" --recipe "$1.recipe" --imatrix imatrix.gguf \
        --rounding compensated -f calib.txt --quiet
    run verify.log "$ALLOT" verify "$1.recipe" "$1-compensated.gguf" --quiet
}

cat >limits <<'ROWS'
Q2_K 0.75
Q3_K 0.70
Q4_K 0.70
Q5_K 0.70
Q6_K 0.85
Q4_0 0.75
IQ4_XS 0.75
mix 0.85
plan 0.70
ROWS
while read -r name limit; do
    case $name in plan | mix) ;; *) whole "$name" ;; esac
done <limits
pair plan --size 3000000 -f calib.txt
# The stock tool's mix, and its codes chosen again.
run stock.log "$STOCK_TOOLS/llama-quantize" --imatrix imatrix.gguf model.gguf mix-ggml.gguf Q3_K_M 1
run quantize.log "$ALLOT" quantize model.gguf mix-compensated.gguf --requantize-codes mix-ggml.gguf --imatrix imatrix.gguf \
    --rounding compensated -f calib.txt --quiet

names=$(cut -d' ' -f1 limits)
files=()
for name in $names; do files+=("$name-ggml.gguf" "$name-compensated.gguf"); done
run measure.log "$ALLOT" measure model.gguf "${files[@]}" -f eval-docs.txt -f eval-prose.txt -f eval-code.txt --ctx 256 \
    --windows 16 --json --quiet
python3 - <<'PYTHON'
import json, sys
document = json.loads(open("measure.log").read())
limits = dict(line.split() for line in open("limits"))
by_file = {c["path"]: c for c in document["candidates"]}
failed = False
print("%-8s %-6s %-22s %-22s %6s %6s" % ("type", "text", "ggml KL", "compensated KL", "ratio", "limit"))
for name, limit in limits.items():
    plain, ours = by_file[name + "-ggml.gguf"], by_file[name + "-compensated.gguf"]
    for k, text in enumerate(("docs", "prose", "code")):
        a, b = plain["texts"][k]["kl"], ours["texts"][k]["kl"]
        most = 1.0 if text == "code" else float(limit)
        print("%-8s %-6s %-22s %-22s %6.3f %6.2f" % (name, text, "%.6f +- %.6f" % (a["mean"], a["se"]),
              "%.6f +- %.6f" % (b["mean"], b["se"]), b["mean"] / a["mean"], most))
        failed |= not b["mean"] < most * a["mean"]
sys.exit(failed)
PYTHON
# Stock tools run the file.
run stock.log "$STOCK_TOOLS/llama-perplexity" -m Q4_K-compensated.gguf -f eval-docs.txt -c 256 --chunks 4 -t 1
