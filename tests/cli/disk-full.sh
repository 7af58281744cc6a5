# No room: said before work where it can be known, named where it cannot, no partial file left.
# SPDX-License-Identifier: MIT
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
# A limit on file size is a disk that is full at some byte, for everybody.
(ulimit -f 1000 && quick quantize m.gguf out.gguf --recipe recipe)
ls
# An archive that has no room, when it is made, when a hash is stored, when costs are.
text 60 >t.txt
for blocks in 1 60 200; do
    (ulimit -f $blocks && quick cost m.gguf -f t.txt --types Q4_K --sequences 2 --seq-len 64 --no-imatrix)
    rm -f m.gguf.allot*
done
# No room for what is printed.
for words in --version help 'help cost' 'cost -h' 'inspect m.gguf'; do
    # shellcheck disable=SC2086
    "$ALLOT" $words >/dev/full
    echo "exit $?"
done
