#!/usr/bin/env bash
# search.sh - a search on the tests' trained model: what survives is dominated by nothing that was measured, every
# removal has its reason, a layout made to be bad never survives, a plain mix does where it is best, predictions rank
# as measurements do, and a search that is killed, again and again, ends as if it had not been, measuring nothing
# twice; a survivor's file measures what the search said. SPDX-License-Identifier: MIT
set -euo pipefail
. "$(dirname "$0")/common.bash"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make_texts "$folder"
cp "$TESTS/data/tiny-llama-bf16.gguf" "$folder/model.gguf"
cd "$folder"

# Layouts made by hand. Bad: bits where they do little (attn_q, attn_k), none where they do much.
printf '%s\n' 'attn_(q|k)=Q8_0' 'token_embd=Q2_K' 'attn_v=Q2_K' 'ffn_up=Q2_K' 'output=Q6_K' '.*=Q5_K' >bad.recipe
# Good: values, the way down and token embeddings have more than the rest.
printf '%s\n' 'token_embd=Q5_K' 'output=Q4_K' 'attn_v=Q6_K' 'ffn_down=Q5_K' 'attn_(q|k)=Q3_K' '.*=Q4_K' >good.recipe
for layout in bad good; do
    run "$layout.log" "$ALLOT" quantize model.gguf $layout.gguf --recipe $layout.recipe --quiet
done
run learn.log "$ALLOT" learn bad.gguf good.gguf

search() { # ARGUMENTS...
    "$ALLOT" search model.gguf -f calib.txt --eval eval-docs.txt --eval eval-prose.txt --windows 6 --sequences 32 \
        --imatrix-chunks 32 --sources Q2_K,Q3_K_M,Q4_K_M,Q5_K_M,Q6_K,bad,good "$@"
}

measurements() { # ARCHIVE: how many it holds, 0 while there is none
    python3 -c 'import sqlite3, sys
try:
    print(sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True).execute("select count(*) from measurements").fetchone()[0])
except sqlite3.Error:
    print(0)' "$1"
}

# Killed after so many measurements, more each time, until one run ends by itself.
for n in 3 9 20; do
    search --archive killed.allot --quiet >killed.log 2>&1 &
    pid=$!
    for ((i = 0; i < 1200; i++)); do
        kill -0 $pid 2>/dev/null || break
        [ "$(measurements killed.allot)" -lt $n ] || break
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
done
run killed.log search --archive killed.allot -o killed --quiet
run whole.log search --archive whole.allot -o whole --quiet
run again.log search --archive whole.allot -o again --quiet --threads 1
# With few types a plan is no match for the mix that has more.
run few.log search --archive whole.allot -o few --quiet --types Q2_K,Q8_0 --builds 40
survivor=$(python3 - <<'PYTHON'
import json

def load(name):
    return json.load(open(name + "/result.json"))

def check(document, name):
    by_name = {c["name"]: c for c in document["candidates"]}
    measured = [c for c in document["candidates"] if c["kl"]]
    for c in measured:
        if c["state"] == "survivor":
            for other in measured:
                assert not (other["bytes"] <= c["bytes"] and other["kl"]["mean"] < c["kl"]["mean"] - 4 * (
                    other["kl"]["se"] + c["kl"]["se"])), (name, other["name"], "dominates", c["name"])
        else:
            assert c["reason"], (name, c["name"], "has no reason")
            end, steps = c, 0
            while end["state"] != "survivor":
                end, steps = by_name[end["replaced_by"]], steps + 1
                assert steps < 1000, (name, c["name"], "is replaced by nothing that survives")
    assert by_name["bad"]["state"] == "removed", (name, "the bad layout survives")
    return [c["name"] for c in measured if c["state"] == "survivor"]

whole, killed, again, few = (load(name) for name in ("whole", "killed", "again", "few"))
survivors = check(whole, "whole")
check(few, "few")
assert again["recalled"] == again["builds"] == whole["builds"], "something was measured twice"
assert killed["recalled"] >= 20, "what was measured before the kill was not kept"
for document in (whole, killed, again):
    del document["recalled"]
assert whole == again and whole == killed, "the results differ"
assert whole["prediction"]["spearman"] >= 0.95, whole["prediction"]
lost = [a["name"] for a in whole["anchors"] if a["verdict"] != "lower" and a["name"] not in ("bad", "good")]
assert not lost, ("not beaten", lost)
plain = [c["name"] for c in few["candidates"] if c["family"] == "plain" and c["state"] == "survivor"]
assert plain, "no plain mix survives where plans have few types"
print("%d builds; survivors %s; few types: plain %s; rank correlation %.4f" % (
    whole["builds"], " ".join(survivors), " ".join(plain), whole["prediction"]["spearman"]), file=open("said", "w"))
smallest = min((c for c in whole["candidates"] if c["state"] == "survivor"), key=lambda c: c["bytes"])
print(smallest["name"], smallest["bytes"], "%.9f" % smallest["kl"]["mean"])
PYTHON
) || fail 'the result of the search is not what it should be'
cat said

# The file of a survivor: its size, and its KL by another way through the same windows.
read -r name bytes kl <<<"$survivor"
cp whole/imatrix.gguf .
run quantize.log "$ALLOT" quantize model.gguf ours.gguf --recipe "whole/$name.recipe" --imatrix imatrix.gguf --quiet
got=$(stat -c %s ours.gguf)
[ "$got" = "$bytes" ] || fail "$name: $bytes bytes foretold, the file has $got"
run report.log "$ALLOT" report whole/result.json -o page.html
grep -q "$name" page.html || fail 'the page lacks a survivor'
echo "$name: $bytes bytes, KL $kl"
