# No room: said before work where it can be known, named where it cannot, no partial file left.
# SPDX-License-Identifier: MIT
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
# A limit on file size is a disk that is full at some byte, for everybody.
(ulimit -f 1000 && quick quantize m.gguf out.gguf --recipe recipe)
ls
# A small file system needs a mount of one's own.
mkdir small
if ! mount -t tmpfs -o size=1m tmpfs small 2>/dev/null; then
    cat <<'LINES'
exit 1
small: []
LINES
    printf '$ allot quantize m.gguf small/out.gguf --recipe recipe --quiet -t 2\nallot: small/out.gguf: no mount here\n' >&2
    exit 0
fi
quick quantize m.gguf small/out.gguf --recipe recipe
echo "small: [$(ls small)]"
umount small
