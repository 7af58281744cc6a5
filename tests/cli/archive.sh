# archive merge: what two archives hold is in one, once, and what plan takes does not change.
# SPDX-License-Identifier: MIT
synthetic m.gguf
text 100 >t.txt
text 100 7 >e.txt
quick cost m.gguf -f t.txt "${CHEAP[@]}" --archive a.allot >/dev/null
quick cost m.gguf -f e.txt "${CHEAP[@]}" --archive b.allot >/dev/null
quick validate m.gguf --eval e.txt --windows 2 --ctx 64 --archive b.allot >/dev/null
cp b.allot before
run archive
run archive split a.allot b.allot
run archive merge a.allot
run archive merge a.allot b.allot ./a.allot
run archive merge new.allot a.allot absent.allot
run archive merge new.allot t.txt
ls new.allot 2>/dev/null
run archive merge both.allot a.allot b.allot
run archive merge both.allot b.allot a.allot --json
cmp b.allot before && echo 'the other is as it was'
predicted() { "$ALLOT" plan m.gguf --bpw 4.5 --json --quiet --archive "$1" | json predicted_kl; }
[ "$(predicted both.allot)" = "$(predicted a.allot)" ] && echo 'what a has is the newest'
run archive merge b.allot a.allot
[ "$(predicted b.allot)" != "$(predicted a.allot)" ] && echo 'what b had is still the newest'
run archive merge other.allot b.allot a.allot >/dev/null
quick validate m.gguf --eval e.txt --windows 2 --ctx 64 --archive other.allot --json --methods fisher >all.json
[ "$(json resumed <all.json)" -gt 0 ] && echo 'measurements came along'
quick plan m.gguf --bpw 4.5 --interactions --archive both.allot | grep -c interactions
# others whose tables are made up, or whose values are none
hostile() { # SQL
    cp a.allot hostile.allot
    python3 -c 'import sqlite3, sys
d = sqlite3.connect("hostile.allot"); d.executescript(sys.argv[1]); d.commit()' "$1"
    run archive merge victim.allot hostile.allot
}
hostile "DROP TABLE measurements; CREATE VIEW measurements AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x, x, x, x, x, x FROM c"
hostile "UPDATE costs SET cost = 'abc'"
hostile "UPDATE costs SET bytes = -1"
hostile "INSERT INTO blobs VALUES ('layout', 'k', 'text')"
: >empty.allot
run archive merge victim.allot empty.allot
cp a.allot file:a.allot
run archive merge victim.allot file:a.allot
ls | grep -c '^a.allot$'
