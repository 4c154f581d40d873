"""Writes the profile as one HTML file. A browser can show it without a network.

The page shows the lanes of all ranks on one time axis. Drag to move, turn the wheel to zoom, and
point at a span to read its details. Messages are drawn as arrows, but only if fewer than 500
messages are in view. The report is below the lanes. When all is drawn, the page sets <body
data-drawn="number of spans">. The test reads this attribute in a headless browser.

Test: tests/profile/test_page.py
"""

import html
import json
from pathlib import Path

from minidl.profile import report, trace

COLOURS = {"forward": "#3182bd", "backward": "#08519c", "input": "#e6550d", "optimizer": "#756bb1",
           "collective": "#31a354", "message": "#74c476", "wait": "#a1d99b", "offload": "#fdae6b",
           "snapshot": "#fd8d3c", "kernel": "#6baed6", "launch": "#9ecae1", "module": "#d9d9d9",
           "user": "#969696", "step": "#bdbdbd"}


def write(path, ranks, summary):
    """Writes the page. ranks: the Records. summary: the dict that summary.of() returns."""
    lanes, rows, spans, ends = [], {}, [], {}
    for e in trace.events(ranks):
        key = e["pid"], e.get("tid")
        if e["name"] == "thread_name":
            rows[key] = len(lanes)
            lanes.append(f"rank {e['pid']}: {e['args']['name']}")
        elif e["ph"] == "X":
            more = ", ".join(f"{k} {v}" for k, v in e["args"].items())
            spans.append([rows[key], e["ts"], e["dur"], e["name"], e["cat"], more])
        elif e["ph"] in "sf":
            ends.setdefault(e["id"], {})[e["ph"]] = [rows[key], e["ts"]]
    data = {"lanes": lanes, "spans": spans, "colours": COLOURS,
            "arrows": [[*both["s"], *both["f"]] for both in ends.values()]}
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    text = PAGE.replace("@REPORT@", html.escape(report.text(summary))).replace("@DATA@", text)
    Path(path).write_text(text, encoding="utf-8")


PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>minidl profile</title>
<style>body{font:14px sans-serif;margin:1em}pre{font-size:13px}canvas{width:100%;cursor:grab}
#tip{height:2.6em;overflow:hidden}</style></head><body>
<div id="tip">Drag to move. Turn the wheel to zoom. Point at a span to read its details.</div>
<canvas id="c"></canvas>
<pre>@REPORT@</pre><script type="application/json" id="data">@DATA@</script><script>
const id = name => document.getElementById(name), d = JSON.parse(id("data").textContent);
const c = id("c"), g = c.getContext("2d"), LEFT = 170, DEEP = 12, tops = [];
const open = d.lanes.map(() => []), depth = d.lanes.map(() => 1);  // levels of nested spans
let first = Infinity, last = 0, height = 24, held = null;
for (const s of d.spans) {  // by start time
  const o = open[s[0]], end = s[1] + s[2];
  while (o.length && o[o.length - 1] <= s[1] + 1e-6) o.pop();
  s.push(o.length); o.push(end); depth[s[0]] = Math.max(depth[s[0]], o.length);
  first = Math.min(first, s[1]); last = Math.max(last, end);
}
for (const n of depth) { tops.push(height); height += n * DEEP + 8; }
if (!(last > first)) { first = 0; last = 1; }
let from = first, to = last;
const x = t => LEFT + (t - from) / (to - from) * (c.width - LEFT);
const y = s => tops[s[0]] + s[6] * DEEP;
function draw() {
  c.width = c.clientWidth; c.height = height; g.font = "11px sans-serif";
  let drawn = 0;
  for (const s of d.spans) if (s[1] + s[2] >= from && s[1] <= to) {
    const a = Math.max(x(s[1]), LEFT), w = Math.max(x(s[1] + s[2]) - a, 0.5);
    g.fillStyle = d.colours[s[4]]; g.fillRect(a, y(s), w, DEEP - 1); drawn++;
    g.fillStyle = s[4] == "module" || s[4] == "step" ? "#000" : "#fff";
    if (w > 40) g.fillText(s[3], a + 2, y(s) + 9, w - 4);
  }
  const seen = d.arrows.filter(m => m[3] >= from && m[1] <= to);
  g.strokeStyle = "#cb181d";
  if (seen.length < 500) for (const [a, left, b, came] of seen) {
    g.beginPath(); g.moveTo(x(left), tops[a] + 6); g.lineTo(x(came), tops[b] + 6);
    g.arc(x(came), tops[b] + 6, 2, 0, 7); g.stroke();
  }
  g.fillStyle = "#fff"; g.fillRect(0, 0, LEFT - 2, height); g.fillStyle = "#000";
  d.lanes.forEach((name, i) => g.fillText(name, 2, tops[i] + 10, LEFT - 6));
  g.fillText(`${(from / 1e3).toFixed(3)} to ${(to / 1e3).toFixed(3)} ms`, LEFT, 14);
  return drawn;
}
const time = e => from + (e.offsetX - LEFT) / (c.width - LEFT) * (to - from);
c.onwheel = e => { e.preventDefault(); const t = time(e), f = e.deltaY > 0 ? 1.25 : 0.8;
  from = Math.max(first, t - (t - from) * f); to = Math.min(last, t + (to - t) * f); draw(); };
c.onmousedown = e => { held = [e.offsetX, from, to]; };
window.onmouseup = () => { held = null; };
c.onmousemove = e => {
  if (held) { const by = (held[0] - e.offsetX) / (c.width - LEFT) * (held[2] - held[1]);
    from = held[1] + by; to = held[2] + by; draw(); return; }
  const t = time(e), s = d.spans.findLast(s => s[1] <= t && t <= s[1] + s[2]
    && e.offsetY >= y(s) && e.offsetY < y(s) + DEEP);
  if (s) id("tip").textContent = `${s[4]} ${s[3]}: ${s[2].toFixed(1)} us. ${s[5]}`;
};
window.onresize = draw;
document.body.dataset.drawn = draw();
</script></body></html>
"""
