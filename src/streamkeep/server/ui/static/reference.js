// The routes, from /openapi.json.

import { get } from "./api.js";
import { el, fill } from "./dom.js";
import { problem, section } from "./ui.js";

export async function reference(main, state, signal) {
  fill(main, el("p", { class: "quiet" }, "Loading…"));
  let found;
  try { found = await get("openapi.json", signal); } catch (error) { problem(error); return; }
  if (signal.aborted) return;
  fill(main, el("div", { class: "title" }, el("h1", {}, "HTTP routes"),
    el("p", {}, "Every request but /health needs the header ", el("code", {}, "Authorization: Bearer TOKEN"), ". ",
      el("a", { href: "../openapi.json" }, "openapi.json"), " is this page for programs.")),
  Object.entries(found.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, one]) => route(path, method, one))));
}

function route(path, method, one) {
  const body = one.requestBody?.content["application/json"].schema.properties ?? {};
  const rows = [...one.parameters.filter((given) => given.in !== "path").map((given) => [given.name, given.in === "header" ? "header" : "query", given.description]),
    ...Object.entries(body).map(([name, given]) => [name, `body, ${given.type}`, given.description])];
  return section([el("span", { class: `method ${method}` }, method.toUpperCase()), " ", el("code", {}, path)], {},
    el("p", {}, marked(one.summary)),
    rows.length ? el("dl", { class: "members" }, rows.map(([name, place, text]) =>
      el("div", {}, el("dt", {}, el("code", {}, name), el("span", { class: "quiet" }, ` ${place}`)), el("dd", {}, marked(text))))) : null);
}

// Text with `code` between backticks.
function marked(text) {
  return text.split("`").map((part, at) => at % 2 ? el("code", {}, part) : part);
}
