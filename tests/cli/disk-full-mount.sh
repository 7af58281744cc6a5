# A small file system, which needs a mount of one's own: the line has both numbers.  SPDX-License-Identifier: MIT
mkdir small
mount -t tmpfs -o size=1m tmpfs small 2>/dev/null || skip 'no right to mount'
synthetic m.gguf
printf '.*=Q8_0\n' >recipe
quick quantize m.gguf small/out.gguf --recipe recipe
# No costs are measured for what would not fit; the size asked is more than the types can fill.
text 60 >t.txt
quick quantize m.gguf small/out.gguf --size 2MB -f t.txt "${CHEAP[@]}"
quick quantize m.gguf small/out.gguf --size 1GB -f t.txt --types Q4_0,Q8_0
ls m.gguf.allot* 2>/dev/null
echo "small: [$(ls small)]"
mount -o remount,size=2200k small
quick quantize m.gguf small/out.gguf --size 1GB -f t.txt "${CHEAP[@]}" >/dev/null
ls small
rm -f small/* m.gguf.allot*
umount small

# A plan whose imatrix does not fit leaves no recipe that speaks of it.
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
mount -t tmpfs -o size=8k tmpfs small || exit 1
quick plan m.gguf --size 2MB -o small/r
echo "small: [$(ls -A small)]"
umount small
quick plan m.gguf --size 2MB -o small/r >/dev/null
ls small
