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

// Stacked bars of live, trimmed, archived and erased entries. `onPick(from, to)` is called with a bucket's bounds.
export function bars(figures, onPick) {
  const { edges_ms: edges, live, trimmed, archived, erased } = figures;
  const sums = live.map((value, at) => value + trimmed[at] + archived[at] + erased[at]);
  const width = 1000, height = 130, gap = live.length > 100 ? 0 : 1.5;
  const most = Math.max(1, ...sums);
  const step = width / live.length;
  const drawn = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "group",
    "aria-label": "Entries over time; each bar shows its part of the stream" });
  live.forEach((value, at) => {
    const both = sums[at];
    const scaled = (part) => part ? Math.max(2, (height - 6) * part / most) : 0;
    const high = scaled(value), middle = scaled(trimmed[at]), low = scaled(archived[at]), gone = scaled(erased[at]);
    const about = figures.exact ? "" : "about ";
    const text = `${clock(edges[at])} to ${clock(edges[at + 1])}: ${about}${entries(both)}`
      + (trimmed[at] ? `, ${count(trimmed[at])} trimmed` : "") + (archived[at] ? `, ${count(archived[at])} archived` : "")
      + (erased[at] ? `, ${count(erased[at])} erased` : "");
    const box = { x: (at * step + gap / 2).toFixed(2), width: Math.max(0.5, step - gap).toFixed(2) };
    const group = svg("g", { class: "bucket", ...(both && { role: "button", tabindex: at === sums.findIndex(Boolean) ? 0 : -1 }),
      "aria-label": text });
    group.append(
      svg("title", {}, text),
      svg("rect", { class: "hit", ...box, y: 0, height }),
      svg("rect", { class: "live", ...box, y: height - high, height: high }),
      svg("rect", { class: "trimmed", ...box, y: height - high - middle, height: middle }),
      svg("rect", { class: "archived", ...box, y: height - high - middle - low, height: low }),
      svg("rect", { class: "erased", ...box, y: height - high - middle - low - gone, height: gone }),
    );
    if (both) {
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
