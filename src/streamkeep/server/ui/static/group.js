// One group: its consumers, and its pending entries with their age; with --write also what to do.

import { Failed, get, groupPath, post, streamPath } from "./api.js";
import { count, el, fill, idMs, keyed, many, named, percent, setText, span, textOf } from "./dom.js";
import { fieldsBox } from "./entry.js";
import { ask, button, empty, facts, link, missing, notice, problem, repeat, rows, section } from "./ui.js";

const PAGE = 50;
const CONSUMERS = [{ title: "Consumer", class: "wide", make: (one) => named(one.name) },
  { title: "Pending", class: "num", text: (one) => count(one.pending) },
  { title: "Last attempt", class: "num", text: (one) => `${span(one.idle_ms)} ago` },
  { title: "Last entry", class: "num", text: (one) => one.inactive_ms === null ? "never" : `${span(one.inactive_ms)} ago` }];
const PENDING = [{ title: "Entry", make: (one) => el("code", {}, one.id) },
  { title: "Age", class: "num", text: (one, now) => span(now - idMs(one.id)) },
  { title: "Consumer", class: "wide", text: (one) => one.consumer === null ? "none: to be claimed" : textOf(one.consumer) },
  { title: "Delivered", class: "num", text: (one) => one.idle_ms === null ? "–" : `${span(one.idle_ms)} ago` },
  { title: "Times", class: "num", text: (one) => count(one.times_delivered), warn: (one) => one.times_delivered > 3 }];
const IDLE = [["any time", ""], ["over 1 min ago", 60e3], ["over 5 min ago", 300e3], ["over 1 hour ago", 3600e3], ["over 1 day ago", 86400e3]];

export function group(main, state, signal, address) {
  const { key, group: name } = address;
  const head = el("div", { class: "title" });
  const summary = el("div");
  const consumers = rows("Consumers", CONSUMERS, { keyOf: (one) => percent(one.name), none: "No consumers. A consumer appears when it reads for the first time." });
  const pending = rows("Pending entries", state.write ? [...PENDING, { title: "Actions", class: "actions", make: actions }] : PENDING,
    { keyOf: (one) => one.id, detail, none: () => empty(any ? "No pending entry is like this." : "Nothing is pending: every delivered entry was acknowledged.") });
  let any = false, shown = [];
  const idle = el("select", { "aria-label": "Delivered" }, IDLE.map(([title, ms]) => el("option", { value: ms, selected: String(ms) === address.idle }, `delivered ${title}`)));
  const owner = el("select", { "aria-label": "Consumer" });
  const more = button("Show more", () => { wanted += PAGE; again(); }, { hidden: true });
  let wanted = PAGE;
  const names = new Map();

  head.append(el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Streams"), " / ",
    el("a", { href: `#/stream?key=${percent(key)}` }, named(key))),
  el("h1", {}, el("span", { class: "of" }, "Group "), named(name)), summary);
  fill(main, head,
    section("Consumers", { id: "consumers" }, consumers.box),
    section("Pending entries", { id: "pending", note: "delivered, and not acknowledged",
      tools: [owner, idle, state.write ? button("Claim all of these…", claimMany) : null] }, pending.box, more));

  async function refresh() {
    const asked = { count: wanted, min_idle_ms: idle.value, consumer: names.get(owner.value) ?? null };
    const [info, found] = await Promise.all([get(groupPath(key, name), signal), get(groupPath(key, name, "pending", asked), signal)]);
    if (signal.aborted) return;
    const oldest = info.oldest_pending;
    fill(summary, facts([
      ["Lag", info.lag === null && info.waiting ? "about " : "", count(info.waiting), el("span", { class: "quiet" }, " to be delivered")],
      ["Pending", count(info.pending)],
      oldest && ["Oldest pending", `${span(info.time_ms - idMs(oldest.id))} old`, el("span", { class: "quiet" },
        oldest.idle_ms === null ? ", to be claimed" : `, delivered ${span(oldest.idle_ms)} ago`)],
      ["Entries read", info.entries_read === null ? "unknown" : count(info.entries_read)],
      ["Last delivered", el("code", {}, info.last_delivered_id)],
    ]));
    consumers.show(info.members, info.time_ms);
    const options = info.members.filter((one) => one.pending || `=${percent(one.name)}` === owner.value);
    for (const one of options) names.set(`=${percent(one.name)}`, one.name);
    keyed(owner, [null, ...options], (one) => one === null ? "" : `=${percent(one.name)}`, (one) => {
      const made = el("option", { value: one === null ? "" : `=${percent(one.name)}` });
      made.refresh = (now) => setText(made, now === null ? "any consumer" : `${textOf(now.name)} (${count(now.pending)})`);
      return made;
    });
    any = info.pending > 0;
    shown = found.pending;
    pending.show(shown, info.time_ms);
    more.hidden = found.next === null;
  }

  async function detail(one) {
    const { entries: [entry] } = await get(streamPath(key, "", { start: one.id, end: one.id, count: 1, history: true, shape: "pairs" }), signal);
    if (!entry) throw new Failed(404, "");
    return [fieldsBox(entry.pairs), el("p", {}, el("a", { href: link("/stream", { key, start: one.id, end: one.id, history: true }) }, "The entry in its stream"))];
  }

  function actions(one) {
    return [button("Acknowledge", () => act("ack", one.id, "Acknowledge this entry?", "The group counts it as done.", "Acknowledge")),
      button("Claim…", () => claim([one.id])),
      button("Return", () => act("nack", one.id, "Return this entry to the group?", "Any consumer may then claim it.", "Return"))];
  }

  async function act(action, id, title, text, word) {
    if (await ask(title, `${id}: ${text}`, { action: word }) === null) return;
    try {
      await post(groupPath(key, name, action), { ids: [id] });
      notice(`${word}: done.`);
      again();
    } catch (error) { problem(error); }
  }

  async function claim(ids) {
    const consumer = await ask(`Claim ${many(ids.length, "entry", "entries")}`,
      "The consumer gets them when it reads its pending entries.",
      { field: { title: "Consumer" }, action: "Claim" });
    if (consumer === null) return;
    try {
      const { entries } = await post(groupPath(key, name, "claim"), { consumer, ids, min_idle_ms: Number(idle.value) || 0 });
      notice(`${many(entries.length, "entry", "entries")} claimed for ${consumer}.`);
      again();
    } catch (error) { problem(error); }
  }

  function claimMany() {
    const ids = shown.map((one) => one.id);
    if (ids.length) claim(ids);
  }

  const again = repeat(signal, 5, refresh, () => missing(main, "group", name, link("/stream", { key }), "The groups of the stream"));
  idle.addEventListener("change", () => { history.replaceState(null, "", link("/group", { key, group: name, idle: idle.value })); again(); });
  owner.addEventListener("change", again);
}
