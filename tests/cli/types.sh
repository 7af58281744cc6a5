# Type names: case does not matter, unknown ones are errors that list the known.  SPDX-License-Identifier: MIT
synthetic m.gguf
for type in Q8_0 q8_0 Q6_0 ''; do
    printf '.*=%s\n' "$type" >recipe
    quick quantize m.gguf out.gguf --recipe recipe | head -n 1
done
printf 'attn_v=q6_k\n' >recipe
quick quantize m.gguf out.gguf --recipe recipe
quick quantize m.gguf out.gguf --recipe recipe --base Q6_0
quick quantize m.gguf out.gguf --recipe recipe --base q4_k | head -n 1
run verify recipe out.gguf
run verify out.gguf.recipe out.gguf
run cost m.gguf -f absent --types q4_K,Q6_0
run plan m.gguf --size 1MB --types Q4_K,,Q5_K
printf 'attn_v=Q6_K trailing\n' >recipe
run verify recipe out.gguf
# A rule whose matching does not end is no rule that does not match, unless an earlier one settles the matter.
printf '(.+)+(.+)+(.+)+[!?]=Q6_K\n.*=Q8_0\n' >recipe
run verify recipe out.gguf
quick quantize m.gguf hard.gguf --recipe recipe
sort -r recipe >settled
quick quantize m.gguf settled.gguf --recipe settled | head -n 1
printf 'attn_(=Q6_K\n' >recipe
run verify recipe out.gguf
