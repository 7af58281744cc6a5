#!/usr/bin/env bash
# run.sh - the command-line tests: each NAME.sh runs in an empty folder; what it prints, says on stderr and
# returns must be NAME.out, NAME.err (absent: nothing) and NAME.exit (absent: 0). SPDX-License-Identifier: MIT
#
# usage: run.sh BUILD_DIR [NAME...]     the environment may set ALLOT, TOOLS and STOCK_TOOLS
#        UPDATE=1 run.sh ... rewrites the expected files of tests that differ; look at the difference before you commit
#        run.sh --self-test
#
# In expected files a line `...` stands for any number of lines, `...` in a line for any text.
set -u
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
export TESTS=${here%/cli} LC_ALL=C

# matches EXPECTED-FILE ACTUAL-FILE: line by line, going back to the last `...` line when one does not match.
matches() {
    local expected=() actual=() i=0 j=0 star=-1 mark=0
    mapfile -t expected <"$1"
    mapfile -t actual <"$2"
    while ((j < ${#actual[@]})); do
        if ((i < ${#expected[@]})) && [ "${expected[i]}" = '...' ]; then
            star=$i mark=$j
            ((i++))
        elif ((i < ${#expected[@]})) && line_matches "${expected[i]}" "${actual[j]}"; then
            ((i++, j++))
        elif ((star >= 0)); then
            ((mark++))
            i=$((star + 1)) j=$mark
        else
            return 1
        fi
    done
    while ((i < ${#expected[@]})) && [ "${expected[i]}" = '...' ]; do ((i++)); done
    ((i == ${#expected[@]}))
}

line_matches() { # EXPECTED ACTUAL
    local pattern=${1//\\/\\\\}
    pattern=${pattern//\*/\\*}
    pattern=${pattern//\?/\\?}
    pattern=${pattern//\[/\\[}
    pattern=${pattern//(/\\(}
    pattern=${pattern//.../*}
    # shellcheck disable=SC2053
    [[ $2 == $pattern ]]
}

# compare NAME WHAT ACTUAL: prints a difference.
compare() {
    local expected=$here/$1.$2
    [ -f "$expected" ] || expected=/dev/null
    matches "$expected" "$3" && return 0
    echo "$1: $2 is not as expected:"
    diff -u --label "expected $2" --label "actual $2" "$expected" "$3" | sed 's/^/    /'
    return 1
}

run_test() { # NAME
    local name=$1 folder code=0 expected=0 ok=0
    folder=$(mktemp -d "${TMPDIR:-/tmp}/allot-cli-XXXXXX")
    mkdir "$folder/work"
    (cd "$folder/work" && timeout 600 bash -c '. "$TESTS/cli/common.bash"; . "$0"' "$here/$name.sh") \
        >"$folder/out" 2>"$folder/err" </dev/null || code=$?
    if [ "$code" = 77 ]; then
        echo "$name: skipped: $(tail -n 1 "$folder/out")"
        rm -rf "$folder"
        return 2
    fi
    [ ! -f "$here/$name.exit" ] || expected=$(<"$here/$name.exit")
    compare "$name" out "$folder/out" || ok=1
    compare "$name" err "$folder/err" || ok=1
    [ "$code" = "$expected" ] || { echo "$name: exit $code, expected $expected"; ok=1; }
    if [ "${UPDATE:-}" = 1 ] && [ $ok = 1 ]; then
        for what in out err; do
            if [ -s "$folder/$what" ]; then cp "$folder/$what" "$here/$name.$what"; else rm -f "$here/$name.$what"; fi
        done
    fi
    rm -rf "$folder"
    return $ok
}

self_test() {
    local folder failed=0 verdict text
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    while IFS='|' read -r verdict expected text; do
        printf '%b' "$expected" >"$folder/expected"
        printf '%b' "$text" >"$folder/actual"
        if matches "$folder/expected" "$folder/actual"; then result=same; else result=other; fi
        [ "$result" = "$verdict" ] || { echo "self-test: $result for '$expected' and '$text'"; failed=1; }
    done <<'ROWS'
same|a\nb\n|a\nb\n
other|a\nb\n|a\n
other|a\n|a\nb\n
other||a\n
same|...\n|a\nb\n
same|...\n|
same|a\n...\nd\n|a\nb\nc\nd\n
same|...\nb\n...\nb\n|b\na\nb\n
other|a\n...\nd\n|a\nb\n
other|...\nd\n|d\ne\n
same|in ... s\n|in 12 s\n
other|in ... s\n|in 12 m\n
other|a*\n|abc\n
same|a* [b]?\n|a* [b]?\n
same|(.+)+(.+)\n|(.+)+(.+)\n
other|a+(b)\n|ab\n
ROWS
    [ $failed = 0 ] && echo 'self-test passed'
    return $failed
}

[ "${1:-}" != --self-test ] || { self_test; exit; }
build=$(cd "${1:?usage: run.sh BUILD_DIR [NAME...]}" && pwd) || exit 2
shift
export ALLOT=${ALLOT:-$build/allot} TOOLS=${TOOLS:-$build/tools} STOCK_TOOLS=${STOCK_TOOLS:-$build/stock}
[ -x "$ALLOT" ] || { echo "run.sh: no allot in $build" >&2; exit 2; }
names=("$@")
if [ $# = 0 ]; then
    for file in "$here"/*.sh; do
        name=$(basename "$file" .sh)
        [ "$name" = run ] || names+=("$name")
    done
fi
passed=0 failed=0 skipped=0
for name in "${names[@]}"; do
    run_test "$name"
    case $? in
    0) passed=$((passed + 1)) ;;
    2) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
