# common.bash - what the conformance tests share; sourced. SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# Environment: ALLOT, STOCK_TOOLS (folder), TESTS (the tests' folder), TOOLS (the helper programs' folder).
# One thread for the stock tools and for measuring: their threads busy-wait for each other, and
# a test may share its processors.
: "${ALLOT:?}" "${STOCK_TOOLS:?}" "${TESTS:?}" "${TOOLS:?}"

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# run LOG COMMAND...: shows the end of the log if the command fails.
run() {
    local log=$1
    shift
    "$@" >"$log" 2>&1 || { tail -n 15 "$log" >&2; fail "failed: $*"; }
}

# Makes calib.txt, eval-prose.txt and eval-docs.txt in a folder: those of ALLOT_TEST_TEXTS (a folder with
# calib.txt, eval-wiki.txt or eval-prose.txt, and eval-docs.txt) if it is set, else the demo's.
make_texts() { # FOLDER
    if [ -n "${ALLOT_TEST_TEXTS:-}" ]; then
        cp "$ALLOT_TEST_TEXTS/calib.txt" "$ALLOT_TEST_TEXTS/eval-docs.txt" "$1/"
        cp "$ALLOT_TEST_TEXTS/eval-prose.txt" "$1/" 2>/dev/null || cp "$ALLOT_TEST_TEXTS/eval-wiki.txt" "$1/eval-prose.txt"
    else
        run "$1/texts.log" bash "$TESTS/../scripts/demo-texts.sh" "$1"
    fi
}

# below VALUE LIMIT: is VALUE a number and at most LIMIT?
below() {
    awk -v value="$1" -v limit="$2" 'BEGIN { exit !(value ~ /^[0-9.eE+-]+$/ && value + 0 <= limit + 0) }'
}

# demo MODEL MIX...: runs the demo, in a folder of its own beside the build's, and leaves that in $demo. The
# reference's log-probabilities must be libllama's; and at the size of every mix allot's file must keep the size.
demo() {
    local build mix
    build=$(dirname "$ALLOT")
    demo=${DEMO_DIR:-$build/demo-test}/$1
    DEMO_DIR=$demo DEMO_MODEL=$1 DEMO_MIXES="${*:2}" DEMO_WINDOWS=${DEMO_WINDOWS:-8} \
        bash "$TESTS/../scripts/demo.sh" "$build" || fail 'the demo failed'
    ALLOT_TEST_MODELS=$(echo "$demo"/*-BF16.gguf) "$build/test_net_forward" ||
        fail 'log-probabilities differ from libllama'
    for mix in "${@:2}"; do
        local asked got
        asked=$(stat -c %s "$demo/plain-$mix.gguf") got=$(stat -c %s "$demo/allot-$mix.gguf")
        [ "$got" -le "$asked" ] && [ $((got * 1000)) -ge $((asked * 995)) ] || fail "$asked bytes asked for, $got written"
    done
}

# gains MIX LIMIT: is the KL of allot's file, over that of the plain mix, at most the limit?
gains() {
    local ratio
    ratio=$(python3 -c '
import json, sys
plain, ours = (c["pooled"]["kl"]["mean"] for c in json.load(open(sys.argv[1]))["candidates"])
print("%.4f" % (ours / plain))' "$demo/measure-$1.json")
    echo "$1: KL of allot's file over the plain mix's: $ratio (limit $2)"
    below "$ratio" "$2" || fail "allot gained too little at the size of $1"
}

# same_file OURS STOCK: the same keys but for allot's own, the same tensors, and data sections equal byte for byte.
# Leaves what gguf-facts says of the two in ours.txt and stock.txt.
same_file() {
    local ours stock
    "$TOOLS/gguf-facts" "$1" >ours.txt
    "$TOOLS/gguf-facts" "$2" >stock.txt
    grep -q '^kv allot\.' ours.txt || fail 'the file does not say what it was made from'
    diff <(grep -v -e '^kv allot\.' -e '^data ' ours.txt) <(grep -v '^data ' stock.txt) >difference.txt ||
        { cat difference.txt >&2; fail "$1 and $2 differ in more than allot's own keys"; }
    ours=$(sed -n 's/^data \([0-9]*\) .*/\1/p' ours.txt)
    stock=$(sed -n 's/^data \([0-9]*\) .*/\1/p' stock.txt)
    cmp <(tail -c "+$((ours + 1))" "$1") <(tail -c "+$((stock + 1))" "$2") || fail "the data sections of $1 and $2 differ"
}
