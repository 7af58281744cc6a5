# search: usage, what it starts from, its budget, what it leaves in the folder. SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
text 100 7 >e.txt
few=(--windows 2 --ctx 64 "${CHEAP[@]}")
quick search m.gguf -f t.txt
quick search m.gguf --eval e.txt
quick search m.gguf --eval e.txt --seq-len 64
quick search m.gguf --eval absent.txt -f t.txt
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M,guess
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M,,Q6_K
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M,Q4_K_M
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M -o t.txt
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M -o absent/folder
rm -f m.gguf.allot*

# a source of which only groups are used, from another file
printf '%s\n' 'ffn_down=Q6_K' '.*=Q3_K' >r
quick quantize m.gguf other.gguf --recipe r >/dev/null
quick learn other.gguf --learning-only >/dev/null
quick search m.gguf -f t.txt --eval e.txt "${few[@]}" --sources Q4_K_M,Q6_K,other -o out >said.txt
grep -v -e '^ ' -e '^[a-zA-Z0-9_-]* *\(plain\|hybrid\|plan\|learned\) ' -e '^Q' said.txt | sed -E 's/[0-9.]+/X/g; s/ +/ /g'
survivors=$(sed -n '/^Survivors/,/^$/p' said.txt | grep -c -e plain -e plan -e hybrid)
[ "$survivors" -gt 0 ] && [ "$(ls out | grep -c recipe)" = "$survivors" ] && echo 'a recipe for each survivor'
ls out | grep -v recipe
grep -c 'only learned from' out/result.json
recipe=$(ls out/*.recipe | head -n 1)
quick quantize m.gguf ours.gguf --recipe "$recipe" --imatrix out/imatrix.gguf >/dev/null
quick verify "$recipe" ours.gguf | tail -n 1
quick report out/result.json --markdown card.md | sed -E 's/[0-9]+/N/g'
# nothing but what is only learned from
quick search m.gguf --eval e.txt --windows 2 --ctx 64 --sources other | sed -n 3p
# names that would be one: of a layout and of what is tried, and of files
printf '%s\n' 'ffn_down=Q8_0' '.*=Q4_K' >r
quick quantize m.gguf second.gguf --recipe r >/dev/null
quick learn second.gguf --name allot-Q4_K_M >/dev/null
again=(--eval e.txt --windows 2 --ctx 64 --types Q3_K,Q4_K,Q6_K,Q8_0)
quick search m.gguf "${again[@]}" --sources Q4_K_M,allot-Q4_K_M -o twins >/dev/null
quick report twins/result.json --markdown card.md | sed -E 's/[0-9]+/N/g'
quick search m.gguf "${again[@]}" --sources Q4_K_M,q4_k_m
quick search m.gguf "${again[@]}" --eval e.txt --sources Q4_K_M
# nothing that is read is written over, through links neither
mkdir danger
text 100 9 >danger/result.json
cp danger/result.json kept.txt
quick search m.gguf "${again[@]}" --eval danger/result.json --sources Q4_K_M -o danger
cmp kept.txt danger/result.json
rm danger/result.json
ln -s ../m.gguf danger/Q4_K_M.recipe
quick search m.gguf "${again[@]}" --sources Q4_K_M -o danger
ln -sf ../m.gguf.allot danger/Q4_K_M.recipe
quick search m.gguf "${again[@]}" --sources Q4_K_M -o danger
"$ALLOT" inspect m.gguf | head -n 1
quick plan m.gguf --layout other -o layouts.allot
# again, from the archive alone, on one thread: the same, and nothing is measured
quick search m.gguf --eval e.txt --windows 2 --ctx 64 --types Q3_K,Q4_K,Q6_K,Q8_0 --sources Q4_K_M,Q6_K,other -t 1 --json >again.json
[ "$(json recalled <again.json)" = "$(json builds <again.json)" ] && echo 'nothing is measured again'
states() { grep -e '"name"' -e '"state"' -e '"replaced_by"' "$1" | sed 's/^ *//'; }
cmp <(states out/result.json | sed 1,3d) <(states again.json | sed 1,3d) && echo 'the same survivors'
# a budget
quick search m.gguf --eval e.txt --windows 2 --ctx 64 --sources Q4_K_M,Q6_K,other --builds 3 | sed -n '1s/.*: //p;$p'
quick search m.gguf --eval e.txt --windows 3 --ctx 64 --sources Q4_K_M,Q6_K --hours 1e-9 | sed -n '1s/.*: //p;$p'
# replayed: with the same texts the same, with others it says so
rm -f fresh.allot
run replay out/result.json m.gguf -f t.txt --eval e.txt --archive fresh.allot --quiet -t 1
quick replay out/result.json m.gguf -f t.txt --eval t.txt --json | grep -A 1 -e '"same"' -e '"what": "eval' | sed 's/^ *//; s/[0-9a-f]\{64\}/HASH/'
quick replay out/result.json m.gguf
quick replay said.txt m.gguf --eval e.txt
echo '{"format":"allot search result","arguments":["x"],"candidates":[]}' >bad.json
quick replay bad.json m.gguf --eval e.txt
echo '{"format":"allot search result","arguments":["--windows=0",3],"candidates":[]}' >bad.json
quick replay bad.json m.gguf --eval e.txt
# the page of a search that its budget ended says so
quick search m.gguf --eval e.txt --windows 2 --ctx 64 --sources Q4_K_M,Q6_K,other --builds 3 -o cut >/dev/null
"$ALLOT" report cut/result.json -o cut.html >/dev/null && python3 "$TESTS/tools/check-report.py" cut/result.json cut.html && echo 'the page is right'
