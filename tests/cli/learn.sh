# Layouts of published files: kept with where they came from, listed, compared, rebuilt, mixed.
# SPDX-License-Identifier: MIT
synthetic m.gguf
printf '%s\n' 'token_embd=Q6_K' 'output=Q8_0' 'blk.1.ffn_down=BF16' 'ffn_down=Q5_K' 'attn_v=Q6_K' '.*=Q4_K' >recipe
quick quantize m.gguf a.gguf --recipe recipe >/dev/null
sed -i 's/attn_v=Q6_K/attn_(k|v)=Q3_K/; s/blk.1.ffn_down=BF16/blk.[12].ffn_down=F16/' recipe
quick quantize m.gguf b.gguf --recipe recipe >/dev/null
REVISION=0123456789abcdef0123456789abcdef01234567
run learn --list
run learn a.gguf absent.gguf
ls layouts.allot 2>/dev/null
run learn a.gguf b.gguf --source "someone/M-GGUF@$REVISION:x/M-UD-Q4.gguf" --source someone/M-GGUF@main:M-b.gguf
run learn --list
run learn --show M-UD-Q4
run learn --diff M-UD-Q4 M-b
run learn --diff M-b M-UD-Q4 --json | sed -n '/"differences"/,$p' | head -n 14
# Learned again: what the call does not say stays.
run learn a.gguf --learning-only
run learn a.gguf --name good
run learn b.gguf --name good
cp a.gguf twin.gguf
printf x | dd of=twin.gguf bs=1 seek=$(($(stat -c %s twin.gguf) - 1)) conv=notrunc status=none
run learn twin.gguf
run learn --list | awk '{ print $1, $NF }'
# Rebuilt: the types of the file it was learned from, what was kept exact as it is in the model.
quick plan m.gguf --layout good -o r | head -n 6
run verify r a.gguf
quick plan m.gguf --layout M-b -o r | tail -n 2
grep 'ffn_down.*bf16' -i r
quick quantize m.gguf again.gguf --layout good
cmp again.gguf a.gguf && echo same
# A hybrid: the base's types but for a group.
quick plan m.gguf --hybrid base=good,attn_kv=M-b,lm_head=M-b -o r | sed -n '/^layers/,/^others/p; /^[a-z_]*:.*from/p'
quick plan m.gguf --hybrid base=M-b,attn_kv=good --json | sed -n '/"layouts"/,/]/p'
# The mixes of llama-quantize are layouts too, and no other is called like one.
quick plan m.gguf --layout q4_k_m -o r | sed -n '1p; /^layers/,/^others/p'
quick plan m.gguf --hybrid base=good,ffn_up_gate=Q2_K -o r | sed -n '/^[a-z_]*:  /p; /^layers/,/^others/p'
run plan m.gguf --layout IQ2_XS -t 2 2>&1 >/dev/null | grep note
run learn b.gguf --name q4_k_m
# With costs on record their sum is printed, and the importance matrix goes with the recipe.
text 60 >t.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
quick plan m.gguf --layout M-b -o r2 | sed -n '/^costs/p; /^predicted/p; /^remark/p; /^written/p; $p'
quick quantize m.gguf again.gguf --layout M-b | sed -n '/^predicted/p; /^written/p'
# In the model's own archive they are found first.
run learn b.gguf --archive m.gguf.allot --name good
quick plan m.gguf --layout good | head -n 2 | tail -n 1
# What cannot be.
quick plan m.gguf --layout God
quick plan m.gguf --hybrid base=good,attn_qkv=M-b
quick plan m.gguf --hybrid base=good,attn=M-b
quick plan m.gguf --hybrid attn_kv=M-b
quick plan m.gguf --layout good --size 1MB
quick plan m.gguf --layout good --pin attn_v=Q8_0
quick plan m.gguf --layout good --hybrid base=good
quick plan m.gguf --size 1MB --scale-depth
quick quantize m.gguf o.gguf --layout good -f t.txt
quick quantize m.gguf o.gguf --layout good --recipe r
"$TOOLS/make-synthetic" deep.gguf 5 256 512 300 4 2 1
quick plan deep.gguf --layout good
quick plan deep.gguf --layout good --scale-depth | sed -n '1p; /^layers/,/^others/p'
run plan deep.gguf --layout good --scale-depth -t 2 2>&1 >/dev/null | grep note
"$TOOLS/make-synthetic" other.gguf 3 256 512 300 4 2 1 stablelm
quick plan other.gguf --layout good
run learn --show nothing
run learn --show
run learn --diff good
run learn --list good
run learn --list --diff
run learn
run learn a.gguf b.gguf --name x
run learn a.gguf b.gguf --source x
run learn a.gguf --source x@
run learn a.gguf --name x=y
run learn recipe
run learn a.gguf --archive a.gguf
