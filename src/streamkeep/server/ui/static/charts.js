// Draws counts over time, as SVG with a text for screen readers.

import { clock, count, el, entries, span } from "./dom.js";

const NS = "http://www.w3.org/2000/svg";

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A small line with a filled area. Where entries were trimmed, so that nothing is known, it is dashed.
export function sparkline(counts, edges, firstMs) {
  const width = 120, height = 28, most = Math.max(1, ...counts);
  const step = width / counts.length;
  const points = counts.map((value, at) => [(at + 0.5) * step, height - 2 - (height - 4) * value / most]);
  const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");
  const total = counts.reduce((sum, one) => sum + one, 0);
  const label = `${entries(total)} in ${span(edges.at(-1) - edges[0])}, `
    + `at most ${count(Math.max(...counts))} in ${span(edges[1] - edges[0])}`;
  const drawn = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": label, preserveAspectRatio: "none" });
  drawn.append(svg("title", {}, label));
  if (total === 0) {
    drawn.append(svg("line", { class: "none", x1: 0, x2: width, y1: height - 2, y2: height - 2 }));
    return drawn;
  }
  drawn.append(
    svg("path", { class: "area", d: `M${points[0][0]},${height - 1} L${path} L${points.at(-1)[0]},${height - 1}Z` }),
    svg("path", { class: "line", d: `M${path}` }),
  );
  if (firstMs !== null && firstMs > edges[0]) {
    const x = width * Math.min(1, (firstMs - edges[0]) / (edges.at(-1) - edges[0]));
    drawn.append(svg("line", { class: "begin", x1: x, x2: x, y1: 2, y2: height - 1 }));
  }
  return drawn;
}

// Stacked bars. `series` is a list of [class, word, counts], the lowest part first. A part is as high
// as its share, so a small one may not be seen; the texts have the numbers. `onPick(from, to)` is
// called with a bucket's bounds.
export function bars(edges, series, { label, about = "", onPick = null }) {
  const sums = edges.slice(1).map((_, at) => series.reduce((sum, [, , counts]) => sum + counts[at], 0));
  const width = 1000, height = 130, gap = sums.length > 100 ? 0 : 1.5;
  const most = Math.max(1, ...sums);
  const step = width / sums.length;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "group", "aria-label": label });
  sums.forEach((both, at) => {
    const scale = both && Math.max(2, (height - 6) * both / most) / both; // a bar of few is seen, too
    const text = `${clock(edges[at])} to ${clock(edges[at + 1])}: ${about}`
      + (series.filter(([, , counts]) => counts[at]).map(([, word, counts]) => `${count(counts[at])} ${word}`).join(", ") || "nothing");
    const box = { x: (at * step + gap / 2).toFixed(2), width: Math.max(0.5, step - gap).toFixed(2) };
    const group = svg("g", { class: "bucket", ...(both && onPick && { role: "button", tabindex: at === sums.findIndex(Boolean) ? 0 : -1 }),
      "aria-label": text });
    group.append(svg("title", {}, text), svg("rect", { class: "hit", ...box, y: 0, height }));
    let top = height;
    for (const [className, , counts] of series) {
      const high = scale * counts[at];
      group.append(svg("rect", { class: className, ...box, y: (top -= high).toFixed(2), height: high.toFixed(2) }));
    }
    if (both && onPick) {
      const pick = () => onPick(edges[at], edges[at + 1] - 1);
      group.addEventListener("click", pick);
      group.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
        const move = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
        if (!move) return;
        event.preventDefault();
        let other = group[move];
        while (other && !other.hasAttribute("tabindex")) other = other[move];
        if (other) { group.setAttribute("tabindex", -1); other.setAttribute("tabindex", 0); other.focus(); }
      });
    }
    drawn.append(group);
  });
  return el("figure", { class: "bars" }, drawn,
    el("figcaption", {}, el("span", {}, clock(edges[0])), el("span", {}, `${span(edges[1] - edges[0])} per bar, UTC`),
      el("span", {}, clock(edges.at(-1)))));
}
