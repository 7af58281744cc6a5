# Half a set of costs is not used: neither the tensors nor the types that an interrupted run got to, whatever was
# measured before. SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >t.txt
quick imatrix m.gguf -f t.txt -o i.gguf --chunks 2 >/dev/null
cost=(cost m.gguf -f t.txt --sequences 8 --imatrix i.gguf)
planned() { quick plan m.gguf --bpw 5 --json "$@" | sed -n '/"tensors"/,/}/s/.*: "\(.*\)".*/\1/p' | sort -u | xargs; }
some_resumed() { quick "$@" --json >doc; [ "$(json resumed <doc)" -gt 0 ] && [ "$(json resumed <doc)" -lt 23 ] && echo 'went on'; }

# Types that need an importance matrix count as well as others.
stop_at KILL 140000 m.gguf.allot-wal "${cost[@]}" --types IQ2_XXS,IQ3_XXS
planned
quick quantize m.gguf out.gguf --bpw 5
quick quantize m.gguf out.gguf --bpw 5 --no-imatrix
some_resumed "${cost[@]}" --types IQ2_XXS,IQ3_XXS
planned

# A set that is finished for some types and half done for others offers the first.
rm m.gguf.allot*
quick "${cost[@]}" --types Q3_K,Q6_K >/dev/null
planned
stop_at KILL 140000 m.gguf.allot-wal "${cost[@]}"
planned
some_resumed "${cost[@]}"
quick "${cost[@]}" --types Q3_K,Q6_K --json >doc
echo "$(json resumed <doc) of $(json measured <doc)"
ls
