# report: the page holds what the document says, whatever that is; no document breaks it.  SPDX-License-Identifier: MIT
result=$TESTS/data/search-result.json
check() { python3 "$TESTS/tools/check-report.py" "$@"; }
quick report "$result" -o page.html --markdown card.md 2>/dev/null
check "$result" page.html && echo 'the page is as the document'
awk '/^\|/ { n = gsub(/\|/, "|"); if (!table) columns = n; table = 1; if (n != columns) print NR ": " n " bars, not " columns; next } { table = 0 }' card.md
grep -c '^| ' card.md
# the check notices what is wrong
for change in 's/plan-Q2_K</plan-Q2_L</' 's/translate(\([0-9.]* \)[0-9]\([^>]*><title>plan-Q4_K_M \)/translate(\19\2/' \
    's|<path class="mark[^>]*><title>Q6_K .*</path>||' 's/spacing: within/spacing within/' 's/found lower/tie/' '/class="number"/d' \
    's/class="number" text-anchor="middle" x="[0-9.]*" y="[0-9.]*"/class="number" x="300" y="200"/' 's|<h2>Costs|<script/>&|' 's|<h2>Costs|<p onclick="x">a</p>&|' 's|<h2>Costs|<p>|' \
    's/blk.3.attn_v.weight: Q[0-9]/blk.3.attn_v.weight: Q9/' 's/class="tick" text-anchor="middle" x="[0-9.]*"/class="tick" x="300"/'; do
    sed "$change" page.html >changed.html
    cmp -s page.html changed.html && echo "no change: $change"
    check "$result" changed.html >/dev/null 2>&1 && echo "not noticed: $change"
done

# names and numbers as bad as they come
python3 - "$result" <<'PYTHON'
import json, sys
d = json.load(open(sys.argv[1]))
bad = ['<script>alert(1)</script>', '"\'><img src=x onerror=alert(1)>', '&amp;]]>-->', 'a\x01\x1f\x7f\ufffe\uffff', '\u202egnp.exe',
       'x' * 5000, '| a | `b` | [c](d) # *e*\n\n- f', '\t\n ', '%s%n', 'Ω≈ç√∫', '\U0001f600' * 40, '}</style><b>']
names = {}
for i, c in enumerate(d['candidates']):
    names[c['name']] = c['name'] = bad[i % len(bad)] + str(i)
    names[list(names)[-1]] = c['name']
old = [c['name'] for c in json.load(open(sys.argv[1]))['candidates']]
new = dict(zip(old, (c['name'] for c in d['candidates'])))
for i, c in enumerate(d['candidates']):
    if c.get('replaced_by'):
        c['replaced_by'] = new[c['replaced_by']]
    for key in ('source', 'reason'):
        if c.get(key) is not None:
            c[key] = bad[(i + 3) % len(bad)]
    if c.get('types'):
        c['types'] = {bad[k % len(bad)] + t if k % 3 == 0 else t.replace('ffn_down', bad[k % len(bad)][:40]): bad[k % 7] if k % 5 == 0 else v
                      for k, (t, v) in enumerate(c['types'].items())}
        c['types']['blk.999999999999999999999.attn_q.weight'] = 'Q4_K'
        c['types']['blk.-1.attn_q.weight'] = 'Q4_K'
        c['types']['blk.1023.attn_q.weight'] = 'Q4_K'
for a in d['anchors']:
    if a.get('found'):
        a['found'] = new[a['found']]
d['groups'] = bad
for key in ('calibration', 'evaluation'):
    for i, t in enumerate(d[key]):
        t['name'] = bad[i + 1]
for i, c in enumerate(d['costs']):
    c['tensor'] = bad[i % len(bad)] if i % 4 == 0 else c['tensor']
d['validation'] = [{'what': b, 'value': b} for b in bad]
d['model']['name'] = bad[0]
json.dump(d, open('names.json', 'w'))

d = json.load(open(sys.argv[1]))
for i, c in enumerate(d['candidates']):
    if c['kl']:
        c['kl'] = {'mean': [0, 1e-300, 1e9, 1e-5, 5e-324][i % 5], 'se': [0, 1e9, 1e-300][i % 3]}
        c['ln_ppl_ratio'] = {'mean': [-100, 100, 0][i % 3], 'se': 1e9}
    c['bytes'] = [1, 2 ** 62, 10 ** 9][i % 3]
    c['bits_per_weight'], c['predicted'] = 1e9, [0, 5e-324, 1e9][i % 3]
for c in d['costs']:
    c['cost'] = -c['cost']
json.dump(d, open('numbers.json', 'w'))

d = json.load(open(sys.argv[1]))  # many that lie close together
one = next(c for c in d['candidates'] if c['state'] == 'survivor')
d['candidates'] = [dict(one, name='n%d' % i, bytes=10 ** 8 + 10 ** 5 * (i // 3), kl={'mean': 0.01 + i % 7 * 1e-6, 'se': 1e-4}) for i in range(500)]
d['anchors'] = []
json.dump(d, open('many.json', 'w'))
for key in ('calibration', 'evaluation', 'groups', 'candidates', 'anchors', 'costs', 'validation'):
    d[key] = []
d['prediction'] = d['imatrix'] = None
json.dump(d, open('empty.json', 'w'))
PYTHON
for name in names numbers many empty; do
    quick report $name.json -o $name.html --markdown $name.md 2>/dev/null && check $name.json $name.html
done
grep -c '<script\|<img' names.html names.md

# every field, away or something else: one line that names it, or a page
python3 - "$result" <<'PYTHON'
import copy, json, os, subprocess, sys, xml.dom.minidom
d = json.load(open(sys.argv[1]))
d['candidates'] = [c for c in d['candidates'] if c['name'] in ('Q2_K', 'plan-Q2_K', 'hybrid-5')]
for c in d['candidates']:
    if c.get('types'):
        c['types'] = dict(list(c['types'].items())[:1])
for key in ('anchors', 'costs', 'validation', 'groups', 'calibration'):
    d[key] = d[key][:1]

def places(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], path + (key,))

def name(path):
    text = ''
    for key in path:
        text += '[%d]' % key if isinstance(key, int) else ('.' if text else '') + key
    return text or 'the document'

DELETE = object()
refused = written = 0
for path in list(places(d)):
    for value in (DELETE, None, -1, 0, 0.5, 1e300, 'x', [], {}):
        if value is DELETE and (not path or isinstance(path[-1], int)) or not path and not isinstance(value, (dict, list)):
            continue
        changed = copy.deepcopy(d)
        if path:
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            if value is DELETE:
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
        else:
            changed = value
        json.dump(changed, open('doc.json', 'w'))
        run = subprocess.run([os.environ['ALLOT'], 'report', 'doc.json', '-o', 'doc.html', '--markdown', 'doc.md'], capture_output=True, text=True)
        what = '%s = %r' % (name(path), 'deleted' if value is DELETE else value)
        if run.returncode == 0:
            written += 1
            xml.dom.minidom.parse('doc.html')
        elif run.returncode == 1 and run.stderr.count('\n') == 1 and run.stderr.startswith('allot: doc.json: '):
            refused += 1
            place = run.stderr.split(': ')[2]
            # the field, a part of it that is lacking, or what refers to it
            if not (not path or place.startswith(name(path)) or name(path).startswith(place) or place.endswith(('replaced_by', 'found', '.name', '.reason')) or
                    place.startswith('candidates[') and (path[0] == 'evaluation' or path[-1] == 'state')):
                print(what, '->', run.stderr.strip())
        else:
            print(what, '-> exit', run.returncode, run.stderr)
print('more than a hundred refused, more than a hundred written' if min(refused, written) > 100 else (refused, written))
PYTHON
# bytes cut or changed anywhere
python3 - "$result" <<'PYTHON'
import os, random, subprocess, sys
seed = 7
text, r = open(sys.argv[1], 'rb').read(), random.Random(seed)
for i in range(90):
    data = bytearray(text[:r.randrange(len(text))] if i % 3 == 0 else text)
    for _ in range(r.randrange(1, 6)):
        if data and i % 3:
            data[r.randrange(len(data))] = r.randrange(256)
    open('doc.json', 'wb').write(data)
    run = subprocess.run([os.environ['ALLOT'], 'report', 'doc.json', '-o', 'doc.html'], capture_output=True)
    if run.returncode not in (0, 1) or run.returncode == 1 and run.stderr.count(b'\n') != 1:
        print('seed', seed, 'round', i, run)
PYTHON
printf '[%.0s' {1..100000} >deep.json
: >nothing.json
mkdir folder
for file in deep.json nothing.json folder absent.json; do quick report $file -o doc.html; done
# what cannot be written; the document and what was there stay
cp "$result" r.json
for out in r.json absent/r.html folder; do quick report r.json -o $out; done
quick report r.json --markdown ./r.json
quick report r.json
quick report r.json -o a.html --markdown ./a.html
cmp "$result" r.json && echo 'the document is untouched'
quick report r.json --markdown only.md --json
