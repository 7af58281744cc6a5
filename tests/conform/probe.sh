#!/usr/bin/env bash
# probe.sh - costs of --method probe against the exact KL of every (tensor, type), measured on other text from files
# with that one tensor changed: for a random model of an architecture that lib/net does not have, which then goes
# the whole way to a file that llama.cpp's programs run; and for the trained model, beside Fisher costs.
# SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cd "$folder"
types=Q2_K,Q3_K,Q4_K,Q6_K

# spearman METHOD < ranks: as rank-costs prints it
spearman() { sed -n "s/^$1 .*Spearman //p"; }

"$TOOLS/make-synthetic" foreign.gguf 3 256 512 300 4 2 1 stablelm
"$ALLOT" quantize foreign.gguf out.gguf --bpw 4.5 -f calib.txt --types $types --method probe --quiet >quantize.txt ||
    fail 'allot quantize --method probe failed'
head -c 100000 eval-docs.txt >part.txt
run perplexity.log "$STOCK_TOOLS/llama-perplexity" -m out.gguf -f part.txt -c 512 --chunks 2 -t 1
"$TOOLS/rank-costs" foreign.gguf foreign.gguf.allot out.gguf.imatrix.gguf eval-docs.txt 128 8 one.gguf >ranks.txt
sed 's/^/stablelm: /' ranks.txt
below 0.97 "$(spearman probe <ranks.txt)" || fail 'probe costs of the foreign model do not rank as the exact ones'

cp "$TESTS/data/tiny-llama-bf16.gguf" tiny.gguf
"$ALLOT" imatrix tiny.gguf -f calib.txt -o imatrix.gguf --chunks 64 --quiet >/dev/null
for method in fisher probe; do
    "$ALLOT" cost tiny.gguf -f calib.txt --imatrix imatrix.gguf --types $types --method $method --quiet >cost.txt
done
"$TOOLS/rank-costs" tiny.gguf tiny.gguf.allot imatrix.gguf eval-docs.txt 128 8 one.gguf >ranks.txt
sed 's/^/tiny: /' ranks.txt
below 0.97 "$(spearman probe <ranks.txt)" || fail 'probe costs of the trained model do not rank as the exact ones'
below 0.97 "$(spearman fisher <ranks.txt)" || fail 'Fisher costs of the trained model do not rank as the exact ones'
