#!/usr/bin/env bash
# check-includes.sh - which part may know of which, enforced from the #include lines; and what library
# code must not do. SPDX-License-Identifier: MIT
#
# usage: check-includes.sh [--self-test | FOLDER]     (FOLDER holds lib/, cli/ and include/; default: this project)
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")

# PART: the parts whose headers it may include besides its own and allot.h (docs/design.md, section 2).
allowed_parts='
base:
archive:  base
plan:     base
gguf:     base
text:     gguf base
quant:    gguf base
net:      gguf base
cost:     net quant measure text archive gguf base
measure:  text gguf base
search:   cost plan measure net quant text archive gguf base
cli:      search cost plan measure net quant text archive gguf base
'
# HEADER PATTERN: the parts that may include it. Others (the C library, POSIX) are free to all.
allowed_libraries='
cblas\.h:              base
sqlite3\.h:            archive
pcre2\.h:              plan
openssl/.*:            base
jansson\.h:            cli
llama\.h:              text measure quant cost cli
(ggml|gguf)(-.*)?\.h:  gguf text quant net cost measure search cli
'
# What library code must not call or name: it returns a status and reports through callbacks.
forbidden='\b(printf|vprintf|puts|putchar|perror|stderr|stdout|exit|_exit|_Exit|quick_exit|abort|assert)\b'

# The table's right side for a name; fails if there is no such row.
row() { # TABLE NAME
    awk -F: -v name="$2" '$1 == name { print $2; found = 1 } END { exit !found }' <<<"$1"
}

# Code without comments and string contents, line by line.
strip() { # FILE
    perl -0777 -pe 's{(/\*.*?\*/|//[^\n]*)|("(?:\\.|[^"\\\n])*")|(\x27(?:\\.|[^\x27\\\n])*\x27)}
                     {my $s = $&; my $n = ($s =~ tr/\n//); defined $1 ? "\n" x $n . " " : "\"\""}gsex' "$1"
}

check_file() { # PART FILE
    local part=$1 file=$2 line header other pattern parts
    while IFS=: read -r line header; do
        if [[ $header == \"*/* ]]; then # "PART/NAME.h" (without a slash: beside the file, allot.h, or a library's)
            other=${header#\"}
            other=${other%%/*}
            if [ "$other" = .. ] || { [ "$other" != "$part" ] && row "$allowed_parts" "$other" >/dev/null &&
                [[ " $(row "$allowed_parts" "$part") " != *" $other "* ]]; }; then
                echo "$file:$line: $part must not include $header"
            fi
        fi
        header=${header//[<>\"]/}
        while IFS=: read -r pattern parts; do
            if [ -n "$pattern" ] && [[ $header =~ ^$pattern$ && " $parts " != *" $part "* ]]; then
                echo "$file:$line: $part must not include $header (only:$(tr -s " " <<<"$parts"))"
            fi
        done <<<"$allowed_libraries"
    done < <(sed -nE 's/^[ \t]*#[ \t]*include[ \t]*(<[^>]+>|"[^"]+").*/\1/;t show;b;:show;=;p' "$file" | paste -d: - -)
    [ "$part" = cli ] || strip "$file" | sed 's/\bformat(printf,//' | grep -nE "$forbidden" | sed "s|^|$file: library code must not print or end the program: line |" || true
}

check_tree() { # FOLDER
    local part file faults
    faults=$(
        for file in "$1"/lib/*/*.[ch] "$1"/cli/*.[ch]; do
            [ -f "$file" ] || continue
            part=$(basename "$(dirname "$file")")
            if row "$allowed_parts" "$part" >/dev/null; then
                check_file "$part" "$file"
            else
                echo "$file: the part $part is not in the table of $0"
            fi
        done
    )
    [ -z "$faults" ] && return 0
    printf '%s\n' "$faults"
    return 1
}

# Proves that each rule can fail, and that what is allowed passes.
self_test() {
    local folder failed=0 part code name
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    try() { # EXPECTED PART CODE
        rm -rf "${folder:?}/lib" "${folder:?}/cli"
        mkdir -p "$folder/lib/$2" "$folder/cli"
        name=$folder/lib/$2/probe.c
        [ "$2" != cli ] || name=$folder/cli/probe.c
        printf '%b\n' "$3" >"$name"
        if check_tree "$folder" >/dev/null; then result=clean; else result=caught; fi
        [ "$result" = "$1" ] && return
        echo "self-test: expected $1, got $result, for $2: $3"
        failed=1
    }
    while IFS='|' read -r expected part code; do
        try "$expected" "$part" "$code"
    done <<'ROWS'
clean|base|#include "base/error.h"\n#include <stdio.h>
caught|base|#include "gguf/model.h"
caught|net|#include "quant/quant.h"
caught|net|  #  include "quant/quant.h"
caught|quant|#include "net/net.h"
caught|plan|#include "gguf/model.h"
caught|archive|#include "../gguf/model.h"
clean|cost|#include "net/net.h"\n#include "quant/quant.h"
caught|cost|#include "plan/plan.h"
clean|search|#include "plan/plan.h"\n#include "cost/fisher.h"
caught|cost|#include "search/mix.h"
clean|search|#include "cost/candidates.h"\n#include "plan/plan.h"
caught|plan|#include "search/dominance.h"
caught|measure|#include <jansson.h>
caught|net|#include <llama.h>
caught|cost|#include <cblas.h>
caught|plan|#include "ggml.h"
caught|newpart|int x;
clean|cli|#include <jansson.h>\nint main(void) { printf("x"); exit(1); }
caught|gguf|void f(void) { printf("x"); }
caught|gguf|void f(void) { fprintf(stderr, "x"); }
caught|gguf|void f(void)\n{\n    exit(1);\n}
caught|gguf|void f(int x) { assert(x); }
clean|gguf|void f(char *s) { snprintf(s, 2, "exit(1) abort()"); } /* printf, then\n exit */ // assert
clean|gguf|_Static_assert(sizeof(int) == 4, "x");
ROWS
    [ "$failed" = 0 ] && echo "self-test passed"
    return "$failed"
}

if [ "${1:-}" = --self-test ]; then
    self_test
else
    check_tree "${1:-$root}" && echo "include check passed"
fi
