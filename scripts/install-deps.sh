#!/usr/bin/env bash
# install-deps.sh - installs the Debian packages that building, testing and the demo need and that are
# not there yet. SPDX-License-Identifier: MIT
#
# usage: install-deps.sh            what is needed
#        install-deps.sh browser    a headless Chromium (some 100 MB), which one test wants and is skipped without
#
# Asks nothing and changes nothing when all is there. As root, or through sudo without a password,
# it installs; otherwise it prints the one command to run and fails.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# Wanted as packages: headers and libraries.
packages=(libopenblas-dev libopenblas0-pthread libsqlite3-dev libpcre2-dev libssl-dev libjansson-dev libcmocka-dev)
# Wanted as programs, wherever they come from: "COMMAND THAT PROVES IT = PACKAGES".
programs=(
    'git --version = git'
    'cmake --version = cmake'
    'ninja --version = ninja-build'
    'make --version = make'
    'gcc --version = gcc libc6-dev'
    'g++ --version = g++'
    'pkg-config --version = pkg-config'
    'npm --version = npm'
    'python3 -m pip --version = python3 python3-pip'
    'unzip -v = unzip'
    'flock --version = util-linux'
    'perl -v = perl-base'
)
if [ "${1:-}" = browser ]; then
    packages=() programs=('chromium-headless-shell --version = chromium-headless-shell')
    ! command -v chromium chromium-browser google-chrome >/dev/null || exit 0
fi

missing=()
installed() { # PACKAGE
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}
for package in "${packages[@]}"; do
    installed "$package" || missing+=("$package")
done
for row in "${programs[@]}"; do
    read -ra command <<<"${row%% = *}"
    "${command[@]}" >/dev/null 2>&1 </dev/null && continue
    read -ra wanted <<<"${row##* = }"
    missing+=("${wanted[@]}")
done
[ -f /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || die "these are missing, and this is not a Debian system: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo)
    sudo -n true 2>/dev/null ||
        die "packages are missing; run:  sudo apt-get install -y --no-install-recommends ${missing[*]}"
fi
say "installing: ${missing[*]}"
install() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "${missing[@]}" >&2
}
# Package lists may be absent or stale; a second try refreshes them.
if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null || ! install; then
    retry 3 "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=300 update -q >&2
    retry 2 install || die "apt-get could not install: ${missing[*]}"
fi
