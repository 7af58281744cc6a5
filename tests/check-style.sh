#!/usr/bin/env bash
# check-style.sh - rules about every file that a reader would rather not have to enforce.
# SPDX-License-Identifier: MIT
#
# usage: check-style.sh [--self-test | FOLDER]
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
max_lines=600

# The project's files below a folder: what git tracks or would add, or all where there is no git.
list() { # FOLDER
    git -C "$1" ls-files --cached --others --exclude-standard 2>/dev/null ||
        (cd "$1" && find . -type f -not -path './build*' -not -path './demo/*' -printf '%P\n')
}

# complain MESSAGE PATTERN FILE...: prints each line of the files that matches (-P).
complain() {
    local message=$1 pattern=$2
    shift 2
    [ $# = 0 ] || grep -nHP -- "$pattern" "$@" | sed "s|\$|    <- $message|" || true
}

check_files() { # FILE..., relative
    local file code=() scripts=()
    complain 'left undone' '\b(TODO|FIXME|XXX)\b|#if 0\b|\b(not |un)implemented\b' "$@"
    complain 'a path of one machine' '(^|[^\w.}*$)-])/(home|root|work|farm)/|/tmp/(?!\S*XXXXXX)\w' "$@"
    complain 'a package registry host (use its client and the package name)' \
        'registry[.]npmjs|(deb|security)[.]debian[.]org|pypi[.]org|pythonhosted|proxy[.]golang[.]org' "$@"
    complain 'a carriage return' '\r$' "$@"
    for file in "$@"; do
        case $file in
        *.c | *.h) code+=("$file") ;;
        *.sh | Makefile | .ci/run) scripts+=("$file") ;;
        esac
    done
    complain 'trailing blanks' '[ \t]+$' "${code[@]}" "${scripts[@]}"
    complain 'a tab' '^\s*\t' "${code[@]}"
    for file in "${code[@]}" "${scripts[@]}"; do
        head -n 6 "$file" | grep -q 'SPDX-License-Identifier: MIT' || echo "$file: no SPDX-License-Identifier: MIT in its first lines"
    done
    [ ${#code[@]} = 0 ] || wc -l "${code[@]}" | awk -v max="$max_lines" \
        '$2 != "total" && $1 > max { print $2 ": " $1 " lines, over " max ": make two files of it" }'
}

check_tree() { # FOLDER
    local file faults files=()
    faults=$(
        cd "$1"
        while IFS= read -r file; do
            # This file names what it looks for; data is not prose; a listed file may be deleted.
            case $file in tests/check-style.sh | *.gguf | *.dat | tests/fuzz/*/*) continue ;; esac
            [ ! -f "$file" ] || files+=("$file")
        done < <(list . | sort -u)
        check_files "${files[@]}"
    )
    [ -z "$faults" ] && return 0
    printf '%s\n' "$faults"
    return 1
}

self_test() {
    local folder failed=0 expected name text result
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    local spdx='/* x. SPDX-License-Identifier: MIT */\n'
    try() { # EXPECTED NAME TEXT
        find "$folder" -type f -delete
        printf '%b' "$3" >"$folder/$2"
        if check_tree "$folder" >/dev/null; then result=clean; else result=caught; fi
        [ "$result" = "$1" ] && return
        echo "self-test: expected $1, got $result, for $2: ${3:0:80}"
        failed=1
    }
    while IFS='|' read -r expected name text; do
        try "$expected" "$name" "${text/SPDX/$spdx}"
    done <<'ROWS'
clean|a.c|SPDXint x;\n
caught|a.c|int x;\n
caught|a.h|SPDX/* TODO: more */\n
caught|a.c|SPDX#if 0\n#endif\n
caught|a.md|see /home/me/model\n
caught|a.md|see \x2fwork/x\n
clean|a.md|a network\x2fwork/x, and $(pwd)\x2fwork/\n
caught|a.sh|# SPDX-License-Identifier: MIT\ncp a /tmp/x\n
clean|a.sh|# SPDX-License-Identifier: MIT\ncd "${TMPDIR:-/tmp}"\n
clean|a.c|SPDXchar t[] = "/tmp/allot-XXXXXX";\n
caught|a.md|https://pypi\x2eorg/x\n
caught|a.c|SPDXint x;  \n
caught|a.c|SPDX\tint x;\n
caught|a.md|line\r\n
ROWS
    try caught a.c "$spdx$(printf 'int x;\\n%.0s' {1..600})"
    try clean a.c "$spdx$(printf 'int x;\\n%.0s' {1..599})"
    [ "$failed" = 0 ] && echo "self-test passed"
    return "$failed"
}

if [ "${1:-}" = --self-test ]; then
    self_test
else
    check_tree "${1:-$root}" && echo "style check passed"
fi
