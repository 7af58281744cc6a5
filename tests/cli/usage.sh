# Usage errors: exit 2, one line, the nearest name suggested.  SPDX-License-Identifier: MIT
run inspct x
run frobnicate
run help costt
run inspect
run inspect --tensor x
run inspect -x
run inspect --tensors=yes x
run plan m --size
run plan m --size 6XB
run plan m --size 0
run plan m --size=-5
run plan m --bpw -1
run plan m --bpw nan
run plan m
run plan m --size 1GB --bpw 4
run plan m extra --size 1GB
run cost m -f t --chunk 0
run cost m -f t --chunk 7
run cost m -f t --seed 1.5
run cost m -f t --imatrix i --no-imatrix
run cost m -f t -t -1
run imatrix m -f t
run measure m -f t
run measure m m -f t --ctx 33
run quantize m o
run quantize m o --size 1GB --recipe r
run quantize m o --size 1GB --strict
run quantize m o --recipe r -f t
run quantize m o --recipe r --types Q4_K
for option in --seed --sequences --chunk --seq-len --imatrix-chunks; do
    run quantize m o --recipe r $option 8
done
run cost m -f t --imatrix i --imatrix-chunks 8
run cost m -f t --no-imatrix --imatrix-chunks=8
run verify r
run inspect ''
run verify -- --help
for option in --pin --min --max --tie --budget --compat; do run quantize m o --recipe r $option x=1; done
run quantize m o --size 1GB --size 2GB --min Q4_X
run quantize m o --size 1GB,2GB
run quantize m o --size 1GB --compat nothing
