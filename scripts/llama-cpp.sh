#!/usr/bin/env bash
# llama-cpp.sh - prints the folder (include/, lib/, bin/) of the pinned llama.cpp and builds it when
# absent. SPDX-License-Identifier: MIT
#
# Only that folder goes to stdout; everything else to stderr. Source, in this order: LLAMA_CPP_DIR (a
# checkout of one's own), the per-user cache, the npm package that carries the release's git bundle,
# and, where npm cannot give it, a clone of the tag from its home. Whatever the way, the commit is
# verified. The build happens once per release, compiler, options and processor.
set -euo pipefail
. "$(dirname "$0")/common.sh"

release=v0.4.0
commit=80fb11ac73e66d89eae2c6a91d8a77428fa733ed
npm_package=node-llama-cpp@3.21.1
home_url=https://github.com/ggml-org/llama.cpp
targets=(llama llama-quantize llama-imatrix llama-perplexity)
programs=(llama-quantize llama-imatrix llama-perplexity)
libraries=(libllama.a libggml.a libggml-cpu.a libggml-base.a)
options=(-DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_OPENMP=OFF
    -DGGML_CCACHE=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF)

exec 3>&1 1>&2
# gcc 12 tells its optimizer that loading the tile configuration reads 8 of its 64 bytes, and then leaves out the
# rest: ggml's AMX kernels, which -march=native switches on, crash. Without them all is as on other processors.
no_amx=(-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
# Flags from outside would change the arithmetic that allot's kernels have to repeat bit by bit.
unset CFLAGS CXXFLAGS CPPFLAGS LDFLAGS
cc=${CC:-cc}
cxx=${CXX:-c++}
cache=$(cache_dir)
work=
if "$cc" "${no_amx[@]}" -E -x c /dev/null >/dev/null 2>&1; then
    options+=("-DCMAKE_C_FLAGS=${no_amx[*]}" "-DCMAKE_CXX_FLAGS=${no_amx[*]}")
fi

cleanup() {
    local status=$?
    trap - EXIT
    [ -z "${builder:-}" ] || kill "$builder" 2>/dev/null || true
    [ -z "$work" ] || rm -rf "$work"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# What -march=native means to this compiler on this processor.
native_flags() {
    "$cc" -march=native -dM -E -x c /dev/null 2>/dev/null || "$cc" -dM -E -x c /dev/null
}

# key WORDS...: 12 hexadecimal digits that stand for all a build depends on.
key() {
    { printf '%s\n' "$@" "${options[@]}" "$(uname -m)" "$("$cc" --version | head -n 1)" \
        "$("$cxx" --version | head -n 1)"; native_flags | sort; } | sha256sum | cut -c 1-12
}

complete() { # PREFIX
    local file
    for file in "${libraries[@]/#/lib/}" "${programs[@]/#/bin/}" include/llama.h include/ggml.h; do
        [ -f "$1/$file" ] || return 1
    done
}

# The npm package's git bundle, verified, as the cache keeps it.
bundle_from_npm() { # BUNDLE
    command -v npm >/dev/null || return 1
    say "getting $npm_package (35 MB), which carries the source of llama.cpp $release"
    mkdir -p "$work/npm"
    retry 4 env -C "$work/npm" npm pack --silent --ignore-scripts --cache "$work/npm-cache" "$npm_package" || return 1
    tar -xzf "$work"/npm/*.tgz -C "$work/npm" package/llama/gitRelease.bundle || return 1
    bundle_is_release "$work/npm/package/llama/gitRelease.bundle" || return 1
    mv "$work/npm/package/llama/gitRelease.bundle" "$1"
}

bundle_is_release() { # BUNDLE
    [ "$(git bundle list-heads "$1" HEAD 2>/dev/null)" = "$commit HEAD" ] && return 0
    say "warning: $1 does not hold commit $commit; not used"
    return 1
}

source_is_release() { # DIR
    [ "$(git -C "$1" rev-parse HEAD)" = "$commit" ] && git -C "$1" fsck --no-progress --no-dangling &&
        [ -z "$(git -C "$1" status --porcelain)" ] && return 0
    say "warning: the clone is not commit $commit; not used"
    return 1
}

clone() { # FROM DIR [OPTIONS]
    rm -rf "$2"
    git -c advice.detachedHead=false -c core.autocrlf=false clone --quiet "${@:3}" "$1" "$2" && source_is_release "$2"
}

# Lays the release's source at DIR.
get_source() { # DIR
    local bundle=$cache/llama.cpp-$release.bundle
    if [ -f "$bundle" ] && bundle_is_release "$bundle" && clone "$bundle" "$1"; then
        return 0
    fi
    rm -f "$bundle"
    if bundle_from_npm "$bundle" && clone "$bundle" "$1"; then
        return 0
    fi
    say "npm did not give $npm_package; cloning $home_url"
    retry 2 clone "$home_url" "$1" --depth 1 --branch "$release" && return 0
    die "no source of llama.cpp $release: neither npm nor $home_url gave it. Set LLAMA_CPP_DIR to a checkout of commit $commit"
}

# Builds the targets; says now and then how far it is, for the log of a build server.
build() { # SOURCE BUILD
    local generator=() log=$work/build.log ticks=0
    command -v ninja >/dev/null && generator=(-G Ninja)
    say "building llama.cpp $release, once for this user and compiler (about 4 minutes on 2 cores)"
    CC=$cc CXX=$cxx cmake -S "$1" -B "$2" "${generator[@]}" "${options[@]}" >"$log" 2>&1 ||
        { tail -n 30 "$log"; die "cmake could not configure llama.cpp"; }
    cmake --build "$2" --parallel "$(nproc)" --target "${targets[@]}" >>"$log" 2>&1 &
    builder=$!
    while kill -0 "$builder" 2>/dev/null; do
        sleep 1
        ((++ticks % 30)) || say "  $(tail -n 1 "$log" | cut -c 1-60)"
    done
    wait "$builder" || { builder=; tail -n 60 "$log"; die "llama.cpp did not build"; }
    builder=
}

# Copies what allot needs of a build to a prefix, whole or not at all.
install_prefix() { # SOURCE BUILD PREFIX
    local new=$work/prefix name
    mkdir -p "$new/include" "$new/lib" "$new/bin"
    cp "$1"/include/*.h "$1"/ggml/include/*.h "$new/include/"
    for name in "${libraries[@]}"; do
        cp "$(find "$2" -name "$name" -print -quit)" "$new/lib/"
    done
    for name in "${programs[@]}"; do
        cp "$2/bin/$name" "$new/bin/"
    done
    cp "$1/LICENSE" "$new/"
    rm -rf "$3"
    mv "$new" "$3"
}

name=llama.cpp-$release
own=${LLAMA_CPP_DIR:-}
if [ -n "$own" ]; then
    [ -f "$own/include/llama.h" ] || die "LLAMA_CPP_DIR=$own is not a checkout of llama.cpp (no include/llama.h)"
    own=$(cd "$own" && pwd -P)
    head=$(git -C "$own" rev-parse HEAD 2>/dev/null || echo unknown)
    [ "$head" = "$commit" ] || say "warning: LLAMA_CPP_DIR=$own is at commit $head, not $release ($commit)"
    changes=$(git -C "$own" diff HEAD 2>/dev/null | sha256sum)
    prefix=$cache/$name-own-$(key "$own" "$head" "$changes")
else
    prefix=$cache/$name-$(key "$commit")
fi

if ! complete "$prefix"; then
    exec 9>"$cache/lock"
    flock -n 9 || { say "waiting for another build of llama.cpp"; flock 9; }
fi
if ! complete "$prefix"; then
    rm -rf "$cache"/build.* # of runs that were killed: whoever builds holds the lock
    work=$(mktemp -d "$cache/build.XXXXXX")
    if [ -z "$own" ]; then
        own=$work/source
        get_source "$own"
    fi
    # The lock must not outlive this script in a child.
    { build "$own" "$work/build" && install_prefix "$own" "$work/build" "$prefix"; } 9>&-
    complete "$prefix" || die "the build of llama.cpp left no complete $prefix"
fi
printf '%s\n' "$prefix" >&3
