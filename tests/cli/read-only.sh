# A model and an archive on a read-only file system: what only reads works, what writes says why it cannot.
# SPDX-License-Identifier: MIT
mkdir ro
if mount -t tmpfs -o size=16m tmpfs ro 2>/dev/null; then
    protect() { mount -o remount,ro ro; }
    unprotect() { mount -o remount,rw ro; }
    trap 'umount ro' EXIT
elif [ "$(id -u)" != 0 ]; then
    protect() { chmod a-w ro/* ro; }
    unprotect() { chmod u+w ro ro/*; }
else
    skip 'no right to mount'
fi
model='ro/m %23?#.gguf'
synthetic "$model"
text 60 >t.txt
printf '.*=Q4_K\n' >recipe
quick cost "$model" -f t.txt "${CHEAP[@]}" >/dev/null
quick plan "$model" --size 2MB -o expected >/dev/null
protect
quick plan "$model" --size 2MB -o r >/dev/null
cmp r expected && cmp r.imatrix.gguf expected.imatrix.gguf && echo 'same plan'
quick quantize "$model" out.gguf --size 2MB >/dev/null
quick quantize "$model" other.gguf --recipe recipe >/dev/null
quick quantize "$model" other.gguf --recipe recipe --archive "$model.allot" >/dev/null
quick imatrix "$model" -f t.txt --chunks 2 -o i.gguf >/dev/null
quick cost "$model" -f t.txt "${CHEAP[@]}" --seed 2 >/dev/null
quick quantize "$model" third.gguf --size 2MB -f t.txt "${CHEAP[@]}" >/dev/null
ls

# What nobody asked for does not stop a job that can do without.
unprotect
echo 'no archive' >"$model.allot"
quick quantize "$model" third.gguf --recipe recipe >/dev/null
quick quantize "$model" third.gguf --recipe recipe --archive "$model.allot" >/dev/null
quick plan "$model" --size 2MB
protect
quick plan "$model" --size 2MB
unprotect
ls ro
