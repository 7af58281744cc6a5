#!/usr/bin/env bash
# measure.sh - `allot measure --json` gives llama-perplexity --kl-divergence's numbers on the same windows.
# SPDX-License-Identifier: MIT
#
# Needs ALLOT, STOCK_TOOLS and TESTS, as ctest sets them. The tolerances are derived in
# tests/unit/measure/test_measure_stock.c: the tool keeps the base's log-probabilities in steps of 16/65535
# nats, so a mean over n tokens is right to 4 * 7.05e-5 / sqrt(n) and its printed digits.
set -euo pipefail
: "${ALLOT:?the allot program}" "${STOCK_TOOLS:?the folder of llama-perplexity}" "${TESTS:?the tests folder}"
folder=$(mktemp -d "${TMPDIR:-/tmp}/allot-measure-XXXXXX")
trap 'rm -rf "$folder"' EXIT
cd "$folder"
failed=0

# A text of English sentences, with escapes that must stay as they are (hence --no-escape).
awk 'BEGIN {
    n = split("The program|A small file|This function|The user|Every license|The first section|The server", subject, "|")
    m = split("returns|is part of|may not change|writes|depends on|can be used with|does not contain", verb, "|")
    k = split("the source code|a list of values|the same rights|an error message|all of the data", object, "|")
    for (i = 0; i < 360; i++)
        printf "%s %s %s%s", subject[1 + (i * 5 + int(i / 7)) % n], verb[1 + (i * 3 + int(i / 11)) % m],
            object[1 + (i * 2 + int(i / 13)) % k], i % 6 ? ". " : ", as in \"a\\nb\" or \"\\t\".\n"
}' >text.txt
cp "$TESTS/data/tiny-llama-bf16.gguf" base.gguf

# value FILE KEY: a number, or the mean of a pair, from the pooled results of one candidate.
value() {
    tr -d ' \n' <"$1" | sed 's/.*"pooled"://' |
        grep -oE "\"$2\":(\{\"mean\":)?-?[0-9.eE+-]+" | head -n 1 | grep -oE -- '-?[0-9][0-9.eE+-]*$'
}

# stock FILE LABEL: the number after "LABEL  :".
stock() {
    awk -v label="$2" 'index($0, label) == 1 { sub(/^[^:]*: */, ""); print $1; exit }' "$1"
}

# The tool rarely ends before it prints its last table: run it again, and say so.
perplexity() { # OUTPUT LAST-LINE ARGUMENTS...
    local output=$1 last=$2 run
    shift 2
    for run in 1 2 3 4 5; do
        "$STOCK_TOOLS/llama-perplexity" "$@" >"$output" 2>&1 || true
        grep -aqF "$last" "$output" && return 0
        echo "llama-perplexity ended before \"$last\", run $run of 5"
    done
    echo "llama-perplexity never printed \"$last\""
    tail -n 5 "$output"
    exit 1
}

near() { # WHAT OURS THEIRS TOLERANCE
    if awk -v a="$2" -v b="$3" -v t="$4" 'BEGIN { d = a - b; exit !(a != "" && b != "" && d <= t && -d <= t) }'; then
        echo "ok: $1: $2, llama-perplexity $3"
    else
        echo "FAILED: $1: $2, llama-perplexity $3, tolerance $4"
        failed=1
    fi
}

of() { # AWK-EXPRESSION
    awk "BEGIN { printf \"%.9g\", $1 }"
}

for context in 512 256; do
    perplexity base.log 'Final estimate: PPL =' -m base.gguf -f text.txt --no-escape -c $context -b $context -t 1 \
        --kl-divergence-base base.kld
    for type in Q5_K_M IQ4_XS; do
        candidate=$type.gguf
        [ -f $candidate ] || "$STOCK_TOOLS/llama-quantize" base.gguf $candidate $type 1 >quantize.log 2>&1
        "$ALLOT" measure base.gguf $candidate -f text.txt --ctx $context -t 1 --json --quiet >measure.json
        perplexity table.log 'Same top p:' -m $candidate -c $context -b $context -t 1 --kl-divergence \
            --kl-divergence-base base.kld
        n=$(value measure.json tokens)
        mean=$(of "4 * 7.05e-5 / sqrt($n)")
        what="$type, context $context"
        near "$what: KL" "$(value measure.json kl)" "$(stock table.log 'Mean    KLD')" "$(of "$mean + 1e-6")"
        near "$what: error of KL" "$(value measure.json kl_se_tokens)" \
            "$(awk 'index($0, "Mean    KLD") == 1 { print $NF }' table.log)" "$(of "$mean / 2 + 1e-6")"
        near "$what: 99% of KL" "$(value measure.json kl_p99)" "$(stock table.log '99.0%   KLD')" 2.442e-4
        near "$what: ln PPL" "$(of "log($(value measure.json ppl))")" \
            "$(of "log($(stock table.log 'Mean PPL(Q) '))")" 2e-6
        near "$what: ln PPL of the base" "$(of "log($(value measure.json ppl_base))")" \
            "$(of "log($(stock table.log 'Mean PPL(base) '))")" "$(of "$mean + 2e-6")"
        near "$what: same top, tokens" "$(of "$n * $(value measure.json same_top)")" \
            "$(of "$n * $(stock table.log 'Same top p') / 100")" 3.1
    done
done

# A file against itself is a tie without any error.
"$ALLOT" measure base.gguf Q5_K_M.gguf Q5_K_M.gguf -f text.txt --windows 2 -t 1 --json --quiet >measure.json
near 'a file against itself: paired difference' "$(value measure.json kl_minus_first)" 0 0
tr -d ' \n' <measure.json | sed 's/.*"pooled"://' | grep -q '"tie_with_first":true' ||
    { echo 'FAILED: a file against itself is no tie'; failed=1; }
exit $failed
