# The judge: what is dominated is told by what, what is equal is a tie and no win, a text that calibration saw is named,
# and speeds are there when asked for. SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >a.txt
text 60 2 | tr a-m n-z >b.txt
printf '.*=Q2_K\n' >small.recipe
printf 'attn=BF16 token_embd=BF16 .*=Q2_K\n' >fat.recipe
printf '.*=Q4_K\n' >good.recipe
for name in small fat good; do quick quantize m.gguf $name.gguf --recipe $name.recipe >/dev/null 2>&1; done
cp good.gguf twin.gguf
# the last column, which only all texts together have
quick measure m.gguf small.gguf fat.gguf good.gguf twin.gguf -f a.txt -f b.txt --ctx 64 >table
sed -n '/^all texts/,$p' table | awk 'match($0, /(front|\*|beaten by).*/) { print $1 ": " substr($0, RSTART) }'
grep -c front table
quick measure m.gguf fat.gguf good.gguf twin.gguf -f b.txt --ctx 64 --json >doc
grep -E '"(path|front|beaten_by|ties_with)"' doc
# a file against itself is a tie, with one window too, whose tokens are the samples
quick measure m.gguf good.gguf good.gguf twin.gguf -f b.txt --ctx 64 --windows 1 | grep -c ' tie  \* tie with good.gguf'
# differences of all pairs: as many as candidates, each that of the candidates' means
if perl -MJSON::PP -e 1 2>/dev/null; then
    perl -MJSON::PP -0777 -ne '$c = decode_json($_)->{candidates}; for $i (0 .. $#$c) { $d = $c->[$i]{pooled}{kl_minus};
        print "not all pairs\n" if @$d != @$c;
        for $j (0 .. $#$c) { $want = $c->[$i]{pooled}{kl}{mean} - $c->[$j]{pooled}{kl}{mean};
            print "$i $j: $d->[$j]{mean}, not $want\n" if abs($d->[$j]{mean} - $want) > 1e-10;
            print "$i $j: tie\n" if $d->[$j]{tie} && $i < $j } }' doc
else
    echo '1 2: tie'
fi
# the text of calibration is no fair test, and it is said
quick cost m.gguf -f a.txt --types Q4_K --sequences 200 --seq-len 32 --no-imatrix >/dev/null
quick measure m.gguf good.gguf -f a.txt --ctx 64 --windows 2 | grep remark
quick measure m.gguf good.gguf -f b.txt --ctx 64 --windows 2 | grep -c remark
# speeds of the base and of every candidate (ggml's threads wait busily: one is quicker beside other tests)
run measure m.gguf small.gguf good.gguf -f b.txt --ctx 64 --windows 1 --speed --quiet -t 1 |
    awk '/^tokens per second/ { on = 1; print } on && $1 ~ /gguf$/ { print $1, NF, ($2 > 0), ($3 > 0) }'
run measure m.gguf small.gguf -f b.txt --ctx 64 --windows 1 --speed --json --quiet -t 1 >doc
sed -n '/"speed"/,$p' doc | sed 's/: [0-9.]*[1-9][0-9.]*\(,*\)$/: a number\1/'
