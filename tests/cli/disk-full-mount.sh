# A small file system, which needs a mount of one's own: the line has both numbers.  SPDX-License-Identifier: MIT
mkdir small
mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || skip 'no right to mount'
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
quick quantize m.gguf small/out.gguf --recipe recipe
echo "small: [$(ls small)]"
umount small
