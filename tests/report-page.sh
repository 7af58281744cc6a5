#!/usr/bin/env bash
# report-page.sh - pages of `allot report` in headless Chromium: nothing on the console, no text on another, both colour
# schemes, no page wider than its window. SPDX-License-Identifier: MIT
#
# usage: report-page.sh ALLOT [FOLDER]     FOLDER keeps the screenshots. Exit 77: there is no Chromium.
set -uo pipefail
tests=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
allot=$(readlink -f "${1:?usage: report-page.sh ALLOT [FOLDER]}")
browser=
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
    [ -n "$browser" ] || browser=$(command -v $name)
done
[ -n "$browser" ] || { echo "skipped: there is no Chromium (apt-get install chromium-headless-shell)"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
shots=${2:-$folder}
failed=0
complain() { echo "$*"; failed=1; }

# visit PAGE OPTION...: what it prints; the log beside it.
visit() {
    local page=$1
    shift
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
        --user-data-dir="$folder/profile" --enable-logging=stderr "$@" "file://$page" 2>"$folder/log"
}
console() { grep CONSOLE "$folder/log"; }
brightness() { # PNG: mean of all bytes of the pixels, 0 to 255 (8 bits, not interlaced)
    python3 - "$1" <<'PYTHON'
import struct, sys, zlib
data, at, parts = open(sys.argv[1], 'rb').read(), 8, b''
while at < len(data):
    n, kind = struct.unpack('>I4s', data[at:at + 8])
    body = data[at + 8:at + 8 + n]
    if kind == b'IHDR':
        width, height, depth, colour = struct.unpack('>IIBB', body[:10])
    parts += body if kind == b'IDAT' else b''
    at += 12 + n
raw, channels, total = zlib.decompress(parts), {2: 3, 6: 4}[colour], 0
stride, before = width * channels, bytearray(width * channels)
for y in range(height):
    kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
    for i in range(stride):
        a = line[i - channels] if i >= channels else 0
        b, c = before[i], before[i - channels] if i >= channels else 0
        if kind == 4:
            p = a + b - c
            a = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
        line[i] = (line[i] + (0, a, b, (a + b) // 2, a)[kind]) & 255
    before = line
    total += sum(line[0::channels]) + sum(line[1::channels]) + sum(line[2::channels])
print(total // (3 * width * height))
PYTHON
}

# With scripts let in, the page tells what it looks like, in the browser's own measure.
probe='<script>
const faults = [];
for (const svg of document.querySelectorAll("svg")) {
    const texts = [...svg.querySelectorAll("text")].map(t => [t, t.getBoundingClientRect()]), all = svg.getBoundingClientRect();
    texts.forEach(([t, a], i) => {
        if (a.left < all.left - 1 || a.right > all.right + 1 || a.top < all.top - 1 || a.bottom > all.bottom + 1)
            faults.push("outside its drawing: " + t.textContent);
        for (const [u, b] of texts.slice(0, i))
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
                faults.push(t.textContent + " lies on " + u.textContent);
    });
}
if (document.documentElement.scrollWidth > document.documentElement.clientWidth)
    faults.push("wider than the window: " + document.documentElement.scrollWidth);
document.body.innerHTML = "<pre>Found " + document.querySelectorAll("svg").length + " drawings\n" +
    faults.slice(0, 10).map(f => "fault: " + f + "\n").join("") + "</pre>";
</script>'
look() { # PAGE WIDTH
    local text
    text=$(sed '/Content-Security-Policy/{N;d}' "$1" | probe=$probe awk '/<\/body>/ { print ENVIRON["probe"] } { print }' >"$folder/probe.html"
        visit "$folder/probe.html" --window-size="$2",1400 --dump-dom | sed -n '/<pre>Found/,/<\/pre>/p')
    grep -q 'Found [1-9][0-9]* drawings' <<<"$text" || echo "no answer of the page: $text"
    grep fault: <<<"$text"
}

"$allot" report "$tests/data/search-result.json" -o "$folder/page.html" >/dev/null || exit 1
python3 - "$tests/data/search-result.json" "$folder" <<'PYTHON'
import json, sys
for name, layers in (('deep', 126), ('wide', 48)):
    d = json.load(open(sys.argv[1]))
    for c in d['candidates']:
        c['types'] = {'blk.%d.%s.weight' % (l, r): 'Q4_K' for l in range(layers)
                      for r in ('attn_q', 'ffn_down', 'ffn_gate_inp_shared_experts_of_a_long_name')}
        c['source'] = 'x' * 200 if name == 'deep' else 'a source'
    d['candidates'] = [c for c in d['candidates'] if not c.get('replaced_by')]
    d['anchors'] = []
    json.dump(d, open('%s/%s.json' % (sys.argv[2], name), 'w'))
    one = d['candidates'][0]
d['candidates'] = [dict(one, name='n%d' % i, bytes=10 ** 9 + 10 ** 6 * (i // 3), types=None,
                        kl={'mean': 0.01 + i % 7 * 1e-6, 'se': 1e-4}) for i in range(60)]
json.dump(d, open(sys.argv[2] + '/many.json', 'w'))
PYTHON
for name in deep wide many; do "$allot" report "$folder/$name.json" -o "$folder/$name.html" >/dev/null || exit 1; done

# What is to be found is found.
echo '<!DOCTYPE html><html><body><script>console.error("x")</script></body></html>' >"$folder/bad.html"
visit "$folder/bad.html" --dump-dom >/dev/null
console >/dev/null || complain 'an error on the console is not seen'
sed 's|</body>|<img src="http://localhost:9/x.png"/>&|' "$folder/page.html" >"$folder/bad.html"
visit "$folder/bad.html" --dump-dom >/dev/null
console >/dev/null || complain 'a page that loads something is not seen'
sed 's/class="number" text-anchor="middle" x="[0-9.]*"/class="number" x="200"/; s/class="number"\(.*\) y="[0-9.]*"/class="number"\1 y="200"/' \
    "$folder/page.html" >"$folder/bad.html"
look "$folder/bad.html" 1180 | grep -q 'lies on' || complain 'numbers on each other are not seen'
sed 's|<h2>Costs|<div style="width:3000px">a</div>&|' "$folder/page.html" >"$folder/bad.html"
look "$folder/bad.html" 1180 | grep -q 'wider' || complain 'a wide page is not seen'

for name in page deep wide many; do
    visit "$folder/$name.html" --window-size=1180,1400 --screenshot="$shots/$name.png" >/dev/null || complain "$name: Chromium failed"
    console && complain "$name: something on the console"
    for width in 1180 400; do
        faults=$(look "$folder/$name.html" $width)
        [ -z "$faults" ] || complain "$name, $width pixels: $faults"
    done
done
visit "$folder/page.html" --window-size=600,400 --screenshot="$shots/light.png" >/dev/null
visit "$folder/page.html" --window-size=600,400 --screenshot="$shots/dark.png" --blink-settings=preferredColorScheme=0 >/dev/null
console && complain 'dark: something on the console'
light=$(brightness "$shots/light.png") dark=$(brightness "$shots/dark.png")
((light > 200 && dark < 60)) || complain "brightness: light $light, dark $dark"
[ $failed = 0 ] && echo 'the pages are as they should be'
exit $failed
