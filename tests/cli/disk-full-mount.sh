# A small file system, which needs a mount of one's own: the line has both numbers.  SPDX-License-Identifier: MIT
mkdir small
mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || skip 'no right to mount'
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
quick quantize m.gguf small/out.gguf --recipe recipe
echo "small: [$(ls small)]"
umount small

# A plan whose imatrix does not fit leaves no recipe that speaks of it.
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
mount -t tmpfs -o size=8k tmpfs small || exit 1
quick plan m.gguf --size 2MB -o small/r
echo "small: [$(ls -A small)]"
umount small
quick plan m.gguf --size 2MB -o small/r >/dev/null
ls small
