#!/usr/bin/env python3
# check-report.py - a page of `allot report` beside the document it is of. SPDX-License-Identifier: MIT
#
# usage: check-report.py RESULT PAGE     prints what is wrong; nothing else is known of how the page was made.
import json
import math
import re
import sys
import xml.etree.ElementTree as tree

result = json.load(open(sys.argv[1], encoding='utf-8'))
page = open(sys.argv[2], encoding='utf-8').read()
XHTML = '{http://www.w3.org/1999/xhtml}'
faults = []


def require(condition, what):
    if not condition:
        faults.append(what)


def shown(text):  # as a page can hold it
    return re.sub('[\x00-\x1f\x7f\ufffe\uffff]', '\ufffd', re.sub('[\n\t]', ' ', text))


def text_of(element):
    return ''.join(element.itertext())


root = tree.fromstring(page)

# ---- Nothing is run or loaded
for element in root.iter():
    require(element.tag not in (XHTML + t for t in ('script', 'iframe', 'link', 'img', 'object', 'a', 'form')), element.tag)
    for name, value in element.items():
        require(not re.match('on|href|src', name.split('}')[-1]), f'attribute {name}')
        require(not re.search(r'\b(nan|inf)\b', value, re.I) or name == 'aria-label', f'{name}="{value}"')
require('url(' not in page and '@import' not in page, 'something is loaded')
require(page.count('http://') == 1 and 'https://' not in page, 'an address besides that of XHTML')


# ---- Tables, by the heading before them
def section(title):
    body, inside, found = root.find(XHTML + 'body'), False, []
    for element in body:
        if element.tag == XHTML + 'h2':
            inside = text_of(element) == title
        elif inside:
            found.append(element)
    return found


def rows(title, which=0):
    tables = [t for e in section(title) for t in e.iter(XHTML + 'table')]
    return [[text_of(c) for c in r.iter(XHTML + 'td')] for r in tables[which].iter(XHTML + 'tr')][1:] if tables else []


def mean(m, form='%.6f ± %.6f'):
    return form % (m['mean'], m['se']) if m else '-'


survivors = sorted((c for c in result['candidates'] if c['state'] == 'survivor'), key=lambda c: c['bytes'])
others = [c for c in result['candidates'] if c['state'] != 'survivor']
table = rows('Survivors')
require([r[1] for r in table] == [shown(c['name']) for c in survivors], 'names of the survivors')
require([r[6] for r in table] == [mean(c['kl']) for c in survivors], 'KL of the survivors')
require([r[3] for r in table] == [shown(c.get('source') or '-') for c in survivors], 'sources of the survivors')
if survivors and result['evaluation']:
    for row, c in zip(rows('Survivors', 1)[1:], survivors):
        require(row[2::2] == [mean(t['kl']) for t in c['texts']], f"KL by text of {c['name']}")
table = rows('Removed')
require([r[0] for r in table] == [shown(c['name']) for c in others], 'names of what was removed')
require(all(r[4].endswith(shown(c['reason'])) for r, c in zip(table, others)), 'reasons')
require([r[5] for r in table] == [shown(c.get('replaced_by') or '-') for c in others], 'replacements')
verdicts = {'lower': 'found lower', 'tie': 'tie', 'lost': 'tried and lost', 'none': 'nothing of its size'}
require(('ended by its budget' in page) == (result.get('complete') is False), 'whether it was complete')
require([r[3] for r in rows('Anchors')] == [verdicts[a['verdict']] for a in result['anchors']], 'verdicts')
require([r[5] for r in rows('Anchors')] == [mean(a.get('difference'), '%+.6f ± %.6f') for a in result['anchors']],
        'differences to the anchors')
identities = {t['sha256'] for t in result['calibration'] + result['evaluation']} | {result['model']['sha256']}
require(identities <= {r[2] for r in rows('Manifest')}, 'identities')


# ---- The plot: a mark for each KL above 0, where it belongs, and no text on another
def svgs(title):
    return [s for e in section(title) for s in e.iter(XHTML + 'svg')]


def marks_of(svg):  # (x, y, title) of what is no legend
    legend = {m for g in svg.iter(XHTML + 'g') if g.get('class') == 'legend' for m in g}
    for m in svg.iter(XHTML + 'path'):
        if m.get('class', '').startswith('mark') and m not in legend:
            x, y = map(float, re.search(r'translate\((\S+) (\S+)\)', m.get('transform')).groups())
            yield x, y, text_of(m)


def boxes_of(svg):
    for t in svg.iter(XHTML + 'text'):
        if t.get('transform'):
            continue
        size = 11 if t.get('class') == 'tick' else 12
        text = (t.text or '') if t.find(XHTML + 'title') is None else ''.join(s.tail or '' for s in t)
        x, y, width = float(t.get('x')), float(t.get('y')), 0.56 * size * len(text)
        left = x - {'middle': width / 2, 'end': width}.get(t.get('text-anchor'), 0)
        yield left, y - 0.75 * size, left + width, y, text, t.get('class')


def meet(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


for svg in root.iter(XHTML + 'svg'):
    boxes = list(boxes_of(svg))
    if len(boxes) < 2000:
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                require(not meet(a, b), f'"{a[4]}" lies on "{b[4]}"')


def line_through(points, what):  # all on one straight line, as an axis makes them
    points = sorted(points)
    if not points or points[0][0] == points[-1][0]:
        return
    slope = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    for value, place in points:
        require(abs(points[0][1] + slope * (value - points[0][0]) - place) < 0.2, f'{what}: {value} at {place}')


for title, value in (('Survivors', lambda c: c['bytes']), ('Prediction', lambda c: math.log(c['predicted']))):
    drawn = [c for c in result['candidates'] if c['kl'] and c['kl']['mean'] > 0 and
             (title == 'Survivors' or (c.get('predicted') or 0) > 0)]
    if not drawn:
        continue
    svg = svgs(title)[0]
    marks = list(marks_of(svg))
    require(len(marks) == len(drawn), f'{title}: {len(marks)} marks of {len(drawn)}')
    frame = next(r for r in svg.iter(XHTML + 'rect') if r.get('class') == 'frame')
    left, top, width, height = (float(frame.get(k)) for k in ('x', 'y', 'width', 'height'))
    require(all(left <= x <= left + width and top <= y <= top + height for x, y, _ in marks), f'{title}: outside the frame')
    # by rank of both axes: names need not tell marks apart
    line_through(zip(sorted(math.log(c['kl']['mean']) for c in drawn), sorted(-y for _, y, _ in marks)), f'{title}: KL')
    line_through(zip(sorted(value(c) for c in drawn), sorted(x for x, _, _ in marks)), title)
    for c in drawn:
        require(any(t.startswith(shown(c['name']) + ' (') for _, _, t in marks), f"{title}: no mark of {c['name']}")
    if title == 'Survivors':
        numbers = [b for b in boxes_of(svg) if b[5] == 'number']
        for box in numbers:
            require(not any(meet(box, (x - 4, y - 4, x + 4, y + 4)) for x, y, _ in marks), f'{box[4]} lies on a mark')
        require(len(numbers) == sum(c['kl']['mean'] > 0 for c in survivors) or len(survivors) > 20, 'survivors without number')

# ---- Maps: every tensor with its type
maps = [s for e in section('Types of the survivors') for s in e.iter(XHTML + 'section')]
require(len(maps) == sum(bool(c.get('types')) for c in survivors), 'maps')
for element, c in zip(maps, (c for c in survivors if c.get('types'))):
    cells = {text_of(g.find(XHTML + 'title')) for g in element.iter(XHTML + 'g')}
    outside = ' '.join(text_of(p) for p in element.iter(XHTML + 'p'))
    for tensor, type_name in c['types'].items():
        require(f'{shown(tensor)}: {shown(type_name)}' in cells or f'{shown(tensor)} {shown(type_name)}' in outside,
                f"{c['name']}: no cell of {tensor}")

for fault in faults[:20]:
    print('page:', fault)
sys.exit(bool(faults))
