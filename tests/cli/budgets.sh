# Budgets of groups of tensors beside the size of the file: kept, used, and refused where they cannot be.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
# bytes PATTERN FILE: of these tensors, padded as in the file (each a multiple of 32).
bytes() { "$ALLOT" inspect --tensors "$2" | awk -v re="$1" '$1 ~ re && NF > 4 { n += $(NF - 2) } END { print n }'; }

quick quantize m.gguf all.gguf --size 1.4MB --json >doc
free=$(bytes '^blk.[01]' all.gguf)
quick quantize m.gguf o.gguf --size 1.4MB --budget 'blk\.[01]=640kB' --json >limited
used=$(bytes '^blk.[01]' o.gguf)
[ "$free" -gt 640000 ] && [ "$used" -le 640000 ] && [ "$used" -gt 630000 ] || echo "of 640000 bytes $used, free $free"
[ "$(json planned_bytes <limited)" = "$used" ] || echo "planned $(json planned_bytes <limited), are $used"
[ "$(stat -c %s o.gguf)" -le 1400000 ] || echo 'the file is too large'
[ "$(stat -c %s o.gguf)" -gt 1380000 ] || echo 'the rest does not use what is left'
json exact <limited
awk -v a="$(json predicted_kl <doc)" -v b="$(json predicted_kl <limited)" 'BEGIN { print (b > a) ? "a limit costs" : b " <= " a }'
# Limits that do not bind change nothing.
quick plan m.gguf --size 1.4MB -o free >/dev/null
quick plan m.gguf --size 1.4MB --budget 'blk\.[01]=10MB' --budget 'blk=10MB' -o limited >/dev/null && cmp free limited
# A tensor counts for the first that matches, and without a size the rest stays as it is.
quick plan m.gguf --budget 'blk\.0=300kB' --budget 'blk=600kB' -o recipe | sed -n '/^budget/p; /^optimality/p; /^size/p; /^others/p'
quick plan m.gguf --budget '.=900000' -o recipe | sed -n '/^budget/p'
quick plan m.gguf --budget '.=900000' --json | json budget_bytes
# What cannot be.
quick plan m.gguf --budget 'blk\..*=100kB'
quick plan m.gguf --budget 'blk\..*=800kB' --min blk=Q4_K
quick plan m.gguf --budget 'blk\..*=766464' --json | json planned_bytes
quick plan m.gguf --budget 'blk\..*=766463'
quick plan m.gguf --size 800kB --budget 'blk\..*=770000'
quick plan m.gguf --budget blk=
quick plan m.gguf --budget 1MB
quick plan m.gguf --budget blk=1XB
quick plan m.gguf --budget blk.9=1MB
quick plan m.gguf --size 1MB --bpw 4 --budget blk=1MB
