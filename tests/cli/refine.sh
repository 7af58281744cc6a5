# Plans improved beyond the sum of costs: --interactions, --refine.  SPDX-License-Identifier: MIT
synthetic m.gguf
text 400 >t.txt
text 40 >short.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" >/dev/null
quick plan m.gguf --size 1.2MB --interactions | sed -n '/^interactions/p; /^  with them/p'
quick plan m.gguf --size 1.2MB --interactions --json >doc
grep -c '"interactions"' doc
[ "$(json file_bytes <doc)" -le 1200000 ] || echo 'over the size'
quick cost m.gguf --method weight --imatrix none.gguf
quick cost m.gguf --method weight --no-imatrix --types Q4_K --archive w.allot >/dev/null
quick plan m.gguf --size 1.2MB --interactions --archive w.allot
quick plan m.gguf --size 1.2MB --interactions --budget 'blk=1MB'
# The plan that measures best is kept, and is what is written.
quick quantize m.gguf out.gguf --size 1.1MB -f t.txt "${CHEAP[@]}" --refine 2 --json >doc
python3 - <<'PYTHON'
import json
document = json.load(open("doc"))
tries = document["refinement"]
kept = [t for t in tries if t["kept"]]
print(len(kept), kept[0]["kl"] == min(t["kl"] for t in tries), tries[0]["round"], all(t["kl"] > 0 for t in tries))
print(document["file_bytes"] <= 1100000, document["exact"] in (True, False))
PYTHON
run verify out.gguf.recipe out.gguf
# Threads do not matter.
run quantize m.gguf again.gguf --size 1.1MB -f t.txt "${CHEAP[@]}" --refine 2 --json --quiet -t 1 --archive 1.allot >doc1
python3 - <<'PYTHON'
import json
print(json.load(open("doc"))["refinement"] == json.load(open("doc1"))["refinement"])
PYTHON
quick quantize m.gguf out.gguf --size 1.1MB -f t.txt "${CHEAP[@]}" --refine 1 | grep -c 'by costs:'
quick quantize m.gguf out.gguf --size 1.1MB -f short.txt "${CHEAP[@]}" --refine 1
quick quantize m.gguf out.gguf --size 1.1MB --refine 1
quick quantize m.gguf out.gguf --size 1.1MB --refine 99 -f t.txt
quick quantize m.gguf out.gguf --recipe out.gguf.recipe --interactions
