# No room: said before work where it can be known, named where it cannot, no partial file left.
# SPDX-License-Identifier: MIT
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
# A limit on file size is a disk that is full at some byte, for everybody.
(ulimit -f 1000 && quick quantize m.gguf out.gguf --recipe recipe)
ls
