#!/usr/bin/env bash
# demo-texts.sh - makes calib.txt, eval-prose.txt and eval-docs.txt from documents of Debian packages.
# SPDX-License-Identifier: MIT
#
# usage: demo-texts.sh OUTDIR
#
# Calibration mixes prose, manuals and Python code. The evaluation texts are other documents: one of prose
# (hackers' lore), one of manuals with Perl code. The same package versions give the same bytes.
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ $# = 1 ] || die "usage: demo-texts.sh OUTDIR"
mkdir -p "$1"
out=$(cd "$1" && pwd)
store=$(cache_dir)/texts
mkdir -p "$store"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lays a package's files under $work/PACKAGE; installs nothing, so that root is not needed.
get() { # PACKAGE
    local deb
    deb=$(compgen -G "$store/$1_*.deb" | head -n 1) || true
    if [ -z "$deb" ]; then
        mkdir -p "$work/download"
        retry 3 env -C "$work/download" apt-get -q -o APT::Sandbox::User=root download "$1" >>"$work/log" 2>&1 ||
            { cat "$work/log" >&2; die "apt-get could not download $1"; }
        mv "$work/download/$1"_*.deb "$store/"
        deb=$(compgen -G "$store/$1_*.deb")
    fi
    dpkg-deb -x "$deb" "$work/$1"
}

# Prints the named files below a package's folder, in the order given, as UTF-8 without page furniture.
show() { # PACKAGE FOLDER FILE...
    local package=$1 folder=$2 file
    shift 2
    for file in "$@"; do
        # The folder may hold a version number: a pattern.
        file=$(compgen -G "$work/$package/$folder/$file") || die "$package has no $folder/$file any more"
        if [[ $file == *.gz ]]; then zcat "$file"; else cat "$file"; fi
        echo
    done | iconv -c -f UTF-8 -t UTF-8 | tr -d '\r\f' | sed -E 's/[ \t]+$//; s/^%$//' | cat -s
}

# Takes back the margin of paragraphs that were laid out for printing.
unindent() {
    sed -E 's/^ {3,4}(\S)/\1/'
}

# The first BYTES of standard input, whole lines; all of it is read, so that the writer is not cut off.
first() { # BYTES
    LC_ALL=C awk -v limit="$1" '{ n += length($0) + 1 } n <= limit'
}

# Interleaves files by pieces of about 8 KB, so that any part of the result is a mixture.
interleave() { # FILE...
    local file round=0 found=1
    for file in "$@"; do
        split -C 8k -d -a 3 "$file" "$file.part"
    done
    while [ "$found" = 1 ]; do
        found=0
        for file in "$@"; do
            file=$file.part$(printf %03d "$round")
            [ -f "$file" ] || continue
            cat "$file"
            echo
            found=1
        done
        round=$((round + 1))
    done
}

if ! compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null; then
    [ "$(id -u)" -eq 0 ] || die "there are no package lists: run  sudo apt-get update"
    retry 3 apt-get update -q >&2
fi
for package in debian-history fortunes debian-faq git-doc python3.11-examples jargon-text perl-doc; do
    get "$package"
done

cd "$work"
show debian-history usr/share/doc/debian-history/docs project-history.en.txt.gz | unindent >history
show fortunes usr/share/games/fortunes wisdom education science | first 130000 >sayings
show debian-faq usr/share/doc/debian/FAQ debian-faq.en.txt.gz | unindent | first 90000 >faq
show git-doc usr/share/doc/git-doc gittutorial.txt giteveryday.txt gitworkflows.txt glossary-content.txt \
    git-bisect-lk2009.txt >manual
show python3.11-examples usr/share/doc/python3.11/examples demo/life.py demo/sortvisu.py demo/spreadsheet.py \
    ccbench/ccbench.py scripts/fixdiv.py scripts/pindent.py stringbench/stringbench.py >code
interleave history sayings faq manual code >"$out/calib.txt"

# The Jargon File, from the middle of its entries (before that stands its index).
show jargon-text usr/share/doc/jargon-text jargon.txt.gz | unindent | LC_ALL=C awk '{ n += length($0) + 1 } n > 900000' |
    first 200000 >"$out/eval-prose.txt"
show perl-doc 'usr/share/perl/5.*/pod' perlreftut.pod perldsc.pod perlootut.pod perlretut.pod perlopentut.pod \
    perlpacktut.pod | first 220000 >"$out/eval-docs.txt"
wc -c "$out/calib.txt" "$out/eval-prose.txt" "$out/eval-docs.txt" >&2
