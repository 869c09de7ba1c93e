// The overview: what the store holds, what is stuck, and its streams with their rates.

import { get, query } from "./api.js";
import { sparkline } from "./charts.js";
import { count, el, fill, idMs, keyed, many, named, percent, rate, setText, size, span, textOf, time } from "./dom.js";
import { button, empty, link, repeat, rows, section } from "./ui.js";

const SPANS = [["5 min", 300e3], ["1 hour", 3600e3], ["1 day", 86400e3], ["1 week", 604800e3]];
const before = new Map(); // key: when and how many entries had been added, for rates
let edges = [], asked = 0, late = new Set(); // of the newest reply
const COLUMNS = [
  { title: "Stream", class: "wide", make: (one) => el("a", { href: `#/stream?key=${percent(one.key)}` }, named(one.key)) },
  { title: "Activity", class: "spark-cell", show: (one) => sparkline(one.spark, edges, one.first_ms) },
  { title: "Rate", class: "num", text: (one) => rate(rateOf(one)) },
  { title: "Entries", class: "num", text: (one) => count(one.length), tip: (one) => `${size(one.size_bytes)}; ${count(one.entries_added)} added in all` },
  { title: "Newest", class: "num", show: (one, now) => time(one.last_ms, now) },
  { title: "Groups", class: "num", text: (one) => one.groups ? count(one.groups) : "–" },
  { title: "Lag", class: "num", hint: "entries that the slowest group has not been given", warn: (one) => late.has(`unread ${percent(one.key)}`),
    text: (one) => one.groups ? (one.exact_waiting || !one.waiting ? "" : "≈ ") + count(one.waiting) : "–" },
  { title: "Pending", class: "num", hint: "entries that were delivered, and not acknowledged", warn: (one) => late.has(`pending ${percent(one.key)}`),
    text: (one) => one.groups ? count(one.pending) : "–",
    tip: (one, now) => one.oldest_pending_id === null ? "" : `the oldest entry is ${span(now - idMs(one.oldest_pending_id))} old` },
];

export function overview(main, state, signal, address) {
  const tiles = el("dl", { class: "tiles" });
  const stuck = el("ul", { class: "stuck" });
  const calm = el("div");
  const list = rows("Streams", COLUMNS, { keyOf: (one) => percent(one.key), none: () => filter.value
    ? empty("No key contains this.", "A pattern may have * for any characters.")
    : empty("The store has no streams yet.", "The first entry that is added to a key makes its stream.") });
  const filter = el("input", { type: "search", placeholder: "Filter by key", "aria-label": "Filter streams by key",
    id: "filter", autocomplete: "off", spellcheck: "false", value: address.match === undefined ? "" : textOf(address.match) });
  const spans = el("select", { "aria-label": "Time that the activity shows" },
    SPANS.map(([title, ms]) => el("option", { value: ms, selected: ms === (Number(address.span) || 3600e3) }, title)));
  const more = button("Show more streams", () => { wanted += 50; again(); }, { hidden: true });
  let wanted = 50;
  const attention = section("Needs attention", { id: "attention" }, calm, stuck);
  fill(main, el("h1", { class: "hidden" }, "Overview"), tiles, attention,
    section("Streams", { id: "streams", tools: [filter, spans] }, list.box, more));

  async function refresh() {
    const [survey, streams] = await Promise.all([
      get("store/survey", signal),
      get(`streams?${query({ count: wanted, figures: spans.value, match: filter.value })}`, signal),
    ]);
    if (signal.aborted) return;
    state.onSurvey(survey);
    showTiles(tiles, survey);
    showStuck(calm, stuck, survey);
    attention.classList.toggle("alert", survey.stuck.length > 0);
    late = new Set(survey.stuck.map((one) => `${one.kind} ${percent(one.key ?? "")}`));
    [edges, asked] = [streams.edges_ms, streams.time_ms];
    list.show(streams.streams, asked);
    more.hidden = streams.next === null;
  }

  const again = repeat(signal, 5, refresh);
  let typing = null;
  const changed = () => {
    history.replaceState(null, "", link("/", { match: filter.value, span: spans.value })); // for Back, and to be shared
    again();
  };
  filter.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(changed, 200); });
  spans.addEventListener("change", changed);
}

function rateOf(one) {
  const key = percent(one.key), old = before.get(key), seconds = old && (asked - old.time) / 1000;
  if (!old || seconds > 4) {
    before.set(key, { time: asked, added: one.entries_added, rate: old ? Math.max(0, one.entries_added - old.added) / seconds : null });
  }
  return before.get(key).rate ?? recent(one.spark, edges);
}

// Until the page has seen two states of a stream, the rate is that of its last short bucket.
function recent(counts, edges) {
  const ms = edges.at(-1) - edges.at(-2);
  return ms <= 300e3 ? counts.at(-1) * 1000 / ms : null;
}

function showTiles(tiles, survey) {
  const about = survey.complete ? "" : "at least ";
  const facts = [
    ["Streams", count(survey.streams)],
    ["Entries", about + count(survey.entries), survey.archived ? `and ${count(survey.archived)} archived` : ""],
    ["Groups", about + count(survey.groups)],
    ["Pending", about + count(survey.pending)],
    ["Entry data", about + size(survey.size_bytes)],
    ["Free on disk", size(survey.disk_free_bytes)],
  ];
  keyed(tiles, facts, ([title]) => title, ([title]) => {
    const value = el("dd"), note = el("dd", { class: "quiet" });
    const made = el("div", {}, el("dt", {}, title), value, note);
    made.refresh = ([, text, more = ""]) => { setText(value, text); setText(note, more); };
    return made;
  });
}

function showStuck(calm, list, survey) {
  const quiet = survey.stuck.length === 0;
  fill(calm, quiet ? el("p", { class: "calm" }, survey.groups
    ? "Nothing is stuck: every group with work to do had an active consumer in the last 5 minutes."
    : "Nothing is stuck: no stream has consumer groups.") : null);
  list.hidden = quiet;
  calm.hidden = !quiet;
  keyed(list, survey.stuck, (one) => `${one.kind} ${percent(one.key ?? one.queue)} ${percent(one.group ?? "")}`, (one) => {
    const text = el("span", { class: "what" });
    const made = el("li", {}, el("span", { class: "badge" }, one.kind),
      one.queue ? el("a", { href: link("/queue", { name: one.queue, state: { dead: "dead", parked: "parked" }[one.kind] }) }, el("span", { class: "of" }, "queue "), named(one.queue)) : el("a", { href: `#/group?key=${percent(one.key)}&group=${percent(one.group)}`,
        "aria-label": `Group ${textOf(one.group)} of ${textOf(one.key)}` },
        named(one.group), el("span", { class: "of" }, " of "), named(one.key)), text);
    made.refresh = (now) => fill(text, sentence(now));
    return made;
  });
}

function sentence(one) {
  if (one.kind === "dead") return `${many(one.letters, "dead letter")}; the first job was given up ${span(one.since_ms)} ago.`;
  if (one.queue) {
    const waits = `${many(one.waiting, "job waits", "jobs wait")}${one.since_ms ? `, the oldest for ${span(one.since_ms)}` : ""}`;
    if (one.kind === "paused") return `The queue is paused; ${waits}.`;
    if (one.kind === "idle") return `${waits}; no worker is running.`;
    return `${waits}; no worker that took one has ${Object.keys(one.tasks).map((task) => `the task ${textOf(task)}`).join(", ")}.`;
  }
  if (one.kind === "pending") {
    return [`${many(one.pending, "entry is", "entries are")} not acknowledged; `,
      one.since_ms === null ? "the first waits to be claimed" : `the first was delivered ${span(one.since_ms)} ago`,
      one.consumer !== null && [" to ", named(one.consumer)],
      one.times_delivered > 1 && `, ${count(one.times_delivered)} times`, "."];
  }
  const waiting = `${one.exact ? "" : "about "}${many(one.waiting, "entry waits", "entries wait")} to be delivered`;
  if (!one.consumers) return `${waiting}; the group has no consumer.`;
  return `${waiting}; no consumer has read for ${span(one.since_ms)}.`;
}
