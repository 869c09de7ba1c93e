// Shows the view that the address names, and asks for the token where it is needed.

import { get, setSecret, takeToken } from "./api.js";
import { el, fill, setText } from "./dom.js";
import { group } from "./group.js";
import { overview } from "./overview.js";
import { queue, queues } from "./queues.js";
import { reference } from "./reference.js";
import { store } from "./store.js";
import { stream } from "./stream.js";
import { empty, notice } from "./ui.js";

const VIEWS = { "/": overview, "/stream": stream, "/group": group, "/queues": queues, "/queue": queue, "/store": store, "/api": reference };
const PARENTS = { "/stream": "/", "/group": "/", "/queue": "/queues" };
const main = document.getElementById("main");
const state = { write: false, onSurvey };
let ended = null;
let shown = { of: "", moved: null }; // a view that takes another address of the same subject itself

function onSurvey(survey) {
  state.write = survey.write;
  setText(document.getElementById("store-name"), survey.name);
  document.getElementById("nav-queues").hidden = !survey.queues && !location.hash.startsWith("#/queue");
  setText(document.getElementById("mode"), survey.write ? "may write" : "read-only");
}

// A name in the address may be any bytes, which `decodeURIComponent` would refuse.
function nameIn(text) {
  try { return decodeURIComponent(text); } catch { /* not UTF-8 */ }
  const bytes = text.replace(/%([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(parseInt(hex, 16)));
  return { base64: btoa(bytes) };
}

function addressOf(hash) {
  const [path, rest = ""] = hash.slice(1).split("?");
  const members = rest.split("&").filter(Boolean).map((one) => [one.slice(0, one.indexOf("=")), nameIn(one.slice(one.indexOf("=") + 1))]);
  return { path: path || "/", ...Object.fromEntries(members) };
}

async function show(tried = false) {
  if (location.hash.startsWith("#token=")) takeToken();
  if (location.hash === "#main") return;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  const address = addressOf(location.hash);
  const of = JSON.stringify([address.path, address.key, address.group, address.name]);
  if (shown.of === of && shown.moved) { shown.moved(address); return; }
  shown = { of: "", moved: null };
  ended?.abort();
  ended = new AbortController();
  notice("");
  for (const link of document.querySelectorAll("#nav a")) {
    const here = link.getAttribute("href") === `#${PARENTS[address.path] ?? address.path}`;
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const view = VIEWS[address.path];
  if (!view) { fill(main, empty("There is no such view.", el("a", { href: "#/" }, "Go to the overview"))); return; }
  const mine = ended;
  try {
    onSurvey(await get("store/survey", mine.signal));
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error.status === 401) { askToken(tried); return; }
    fill(main, empty(error.message, error.next));
    if (error.status !== 403) return;
  }
  if (mine.signal.aborted) return;
  shown = { of, moved: view(main, state, mine.signal, address) };
  window.scrollTo(0, 0);
  document.title = address.path === "/" ? `${document.getElementById("store-name").textContent} – Streamkeep` : "Streamkeep";
}

function askToken(wrong = false) {
  const user = el("input", { name: "user", autocomplete: "username", id: "user" });
  const secret = el("input", { type: "password", name: "token", required: true, autocomplete: "current-password", id: "token" });
  fill(main, el("form", { class: "login", onsubmit: (event) => {
    event.preventDefault();
    setSecret(user.value, secret.value.trim());
    show(true);
  } },
  el("h1", {}, "Token or password"),
  el("p", {}, "streamkeep ui prints its token at the end of the address. A server with users has a password for each."),
  wrong && el("p", { class: "warn", role: "alert" }, "The server did not accept this."),
  el("label", {}, "User, if the server has users", user), el("label", {}, "Token or password", secret),
  el("button", { class: "primary" }, "Open the store")));
  secret.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    const filter = document.getElementById("filter");
    if (filter) { event.preventDefault(); filter.focus(); }
  }
});
window.addEventListener("hashchange", () => show());
takeToken();
show();
