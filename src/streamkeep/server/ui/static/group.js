// One group: its consumers, and its pending entries with their age; with --write also what to do.

import { get, groupPath, post } from "./api.js";
import { count, el, fill, idMs, keyed, many, named, percent, setText, span, textOf } from "./dom.js";
import { ask, button, cell, empty, facts, notice, problem, repeat, section, table } from "./ui.js";

const PAGE = 50;
const CONSUMERS = [{ title: "Consumer", class: "wide" }, { title: "Pending", class: "num" },
  { title: "Last attempt", class: "num" }, { title: "Last entry", class: "num" }];
const PENDING = [{ title: "Entry" }, { title: "Age", class: "num" }, { title: "Consumer", class: "wide" },
  { title: "Delivered", class: "num" }, { title: "Times", class: "num" }, { title: "Actions", class: "actions" }];
const IDLE = [["any time", ""], ["over 1 min ago", 60e3], ["over 5 min ago", 300e3], ["over 1 hour ago", 3600e3], ["over 1 day ago", 86400e3]];

export function group(main, state, signal, address) {
  const { key, group: name } = address;
  const head = el("div", { class: "title" });
  const summary = el("div");
  const consumers = table("Consumers", CONSUMERS);
  const pending = table("Pending entries", state.write ? PENDING : PENDING.slice(0, -1));
  const noConsumers = el("div");
  const noPending = el("div");
  const idle = el("select", { "aria-label": "Delivered" }, IDLE.map(([title, ms]) => el("option", { value: ms }, `delivered ${title}`)));
  const owner = el("select", { "aria-label": "Consumer" });
  const more = button("Show more", () => { wanted += PAGE; again(); }, { hidden: true });
  let wanted = PAGE;
  const names = new Map();

  head.append(el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Streams"), " / ",
    el("a", { href: `#/stream?key=${percent(key)}` }, named(key))),
  el("h1", {}, el("span", { class: "of" }, "Group "), named(name)), summary);
  fill(main, head,
    section("Consumers", { id: "consumers" }, consumers.box, noConsumers),
    section("Pending entries", { id: "pending", note: "delivered, and not acknowledged",
      tools: [owner, idle, state.write ? button("Claim all of these…", claimMany) : null] }, pending.box, noPending, more));

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
    keyed(consumers.body, info.members, (one) => percent(one.name), consumerRow);
    consumers.table.hidden = !info.members.length;
    fill(noConsumers, info.members.length ? null : empty("No consumers.", "A consumer appears when it reads for the first time."));
    const options = info.members.filter((one) => one.pending || `=${percent(one.name)}` === owner.value);
    for (const one of options) names.set(`=${percent(one.name)}`, one.name);
    keyed(owner, [null, ...options], (one) => one === null ? "" : `=${percent(one.name)}`, (one) => {
      const made = el("option", { value: one === null ? "" : `=${percent(one.name)}` });
      made.refresh = (now) => setText(made, now === null ? "any consumer" : `${textOf(now.name)} (${count(now.pending)})`);
      return made;
    });
    keyed(pending.body, found.pending, (one) => one.id, (one) => pendingRow(one));
    pending.body.childNodes.forEach((one, at) => one.refresh(found.pending[at], info.time_ms));
    pending.table.hidden = !found.pending.length;
    more.hidden = found.next === null;
    fill(noPending, found.pending.length ? null : info.pending
      ? empty("No pending entry is like this.") : empty("Nothing is pending.", "Every delivered entry was acknowledged."));
  }

  function consumerRow() {
    const cells = CONSUMERS.map((one) => cell(one));
    const made = el("tr", {}, cells);
    made.refresh = (one) => {
      if (!cells[0].firstChild) cells[0].append(named(one.name));
      setText(cells[1], count(one.pending));
      setText(cells[2], `${span(one.idle_ms)} ago`);
      setText(cells[3], one.inactive_ms === null ? "never" : `${span(one.inactive_ms)} ago`);
    };
    return made;
  }

  function pendingRow(first) {
    const cells = PENDING.map((one) => cell(one));
    const [entry, age, consumer, delivered, times, actions] = cells;
    entry.append(el("code", {}, first.id));
    actions.append(
      button("Acknowledge", () => act("ack", first.id, "Acknowledge this entry?", "The group counts it as done.", "Acknowledge")),
      button("Claim…", () => claim([first.id])),
      button("Return", () => act("nack", first.id, "Return this entry to the group?", "Any consumer may then claim it.", "Return")));
    const made = el("tr", {}, state.write ? cells : cells.slice(0, -1));
    made.refresh = (one, now) => {
      if (now === undefined) return;
      setText(age, span(now - idMs(one.id)));
      fill(consumer, one.consumer === null ? el("span", { class: "quiet" }, "none: to be claimed") : named(one.consumer));
      setText(delivered, one.idle_ms === null ? "–" : `${span(one.idle_ms)} ago`);
      setText(times, count(one.times_delivered));
      times.classList.toggle("warn", one.times_delivered > 3);
    };
    return made;
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
    const ids = [...pending.body.children].map((one) => one.dataset.itemKey);
    if (ids.length) claim(ids);
  }

  const again = repeat(signal, 5, refresh);
  idle.addEventListener("change", again);
  owner.addEventListener("change", again);
}
