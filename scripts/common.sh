# common.sh - what the scripts share; sourced, not run. SPDX-License-Identifier: MIT
# shellcheck shell=bash

# say WORDS...: a line for people, on stderr.
say() {
    printf '%s\n' "$*" >&2
}

# die WORDS...: the same, then failure.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Prints allot's per-user cache folder and makes it.
cache_dir() {
    local home=${HOME:-}
    [ -n "$home" ] || home=$(getent passwd "$(id -u)" | cut -d: -f6)
    local dir=${XDG_CACHE_HOME:-$home/.cache}/allot
    mkdir -p "$dir" || die "cannot make the cache folder $dir (set XDG_CACHE_HOME to another place)"
    (cd "$dir" && pwd)
}

# retry TIMES COMMAND...: until it succeeds, a little longer apart each time.
retry() {
    local times=$1 attempt
    shift
    for ((attempt = 1; attempt <= times; attempt++)); do
        "$@" && return 0
        ((attempt == times)) || sleep $((attempt * 5))
    done
    return 1
}
