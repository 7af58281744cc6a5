# measure says how much of an evaluation text calibration saw.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 60 >seen.txt
text 60 2 | tr a-m n-z >other.txt
{ head -n 30 other.txt; head -n 10 seen.txt; } >mixed.txt
printf '.*=Q4_K\n' >recipe
quick quantize m.gguf q.gguf --recipe recipe >/dev/null
measure=(measure m.gguf q.gguf --ctx 64)
shares() { sed -n '/"calibration_overlap"/,/\]/s/.*"\(text\|share\|seen_by\)": \(.*[^,]\),*$/\2/p' | xargs -n 3 -d '\n'; }
# nothing is known
quick "${measure[@]}" -f seen.txt --json | shares
quick cost m.gguf -f seen.txt --types Q4_K --sequences 200 --seq-len 32 --no-imatrix >/dev/null
quick "${measure[@]}" -f seen.txt -f other.txt -f mixed.txt | grep remark
quick "${measure[@]}" -f seen.txt -f other.txt -f mixed.txt --json | shares
# only what is measured counts
quick "${measure[@]}" -f mixed.txt --windows 1 | grep -c remark
# an imatrix saw a text as well as costs did
quick cost m.gguf -f other.txt --types Q4_K --sequences 1 --seq-len 32 --imatrix-chunks 1 >/dev/null
quick "${measure[@]}" -f other.txt --json | shares
# another archive knows nothing of it; one that is none does not stop a measurement
quick "${measure[@]}" -f seen.txt --json --archive new.allot | shares
echo 'no archive' >bad.allot
quick "${measure[@]}" -f seen.txt --json --archive bad.allot | shares
