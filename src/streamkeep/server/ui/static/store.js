// The store as a whole: disk, durability, backup, archive, and checks.

import { get, post } from "./api.js";
import { ago, clock, count, el, entries, fill, many, size, time } from "./dom.js";
import { button, command, empty, facts, problem, repeat, rows, section } from "./ui.js";

const FINDINGS = [{ title: "Severity", make: (one) => one.severity }, { title: "Code", make: (one) => el("code", {}, one.code) },
  { title: "Where", class: "wide", make: (one) => one.where },
  { title: "Problem", class: "wide", make: (one) => [one.problem, one.advice && el("p", { class: "quiet" }, one.advice)] }];

export function store(main, state, signal) {
  const problems = el("ul", { class: "stuck" });
  const disk = el("div"), durable = el("div"), archive = el("div"), check = el("div");
  const quick = button("Check now", () => begin(true), { disabled: true });
  const full = button("Check every entry", () => begin(false), { disabled: true });
  const attention = section("Health", { id: "health" }, problems);
  const title = el("div", { class: "title" });
  fill(main, title, attention,
    section("Check", { id: "check", note: ["as ", command("streamkeep fsck STORE"), ": reads, and changes nothing"], tools: [quick, full] }, check),
    el("div", { class: "columns" },
      section("Disk", { id: "disk" }, disk), section("Durability", { id: "durable" }, durable),
      section("Archive", { id: "archive" }, archive)));

  async function begin(isQuick) {
    try { await post("store/check", { quick: isQuick }); again(); } catch (error) { problem(error); }
  }

  async function refresh() {
    const found = await get("store", signal);
    if (signal.aborted) return;
    fill(title, el("h1", {}, el("bdi", {}, found.name)), el("p", { class: "quiet" }, el("code", {}, found.path)));
    const told = troubles(found);
    attention.classList.toggle("alert", told.length > 0);
    fill(problems, told.length ? told.map((text) => el("li", {}, el("span", { class: "badge" }, "problem"), el("span", { class: "what" }, text)))
      : el("li", { class: "calm" }, "No problem is known."));
    fill(disk, facts([
      ["Free", size(found.disk_free_bytes)], ["Data file", size(found.data_bytes)],
      ["Of it reusable", size(found.reusable_bytes)], ["Journal", size(found.journal_bytes)]]));
    const last = found.last_recovery;
    fill(durable, facts([
      ["Commits", count(found.last_commit)],
      ["After the checkpoint", count(found.last_commit - (found.checkpoint_commit ?? 0))],
      ["Sync mode", found.sync],
      ["Last backup", found.backup === null ? "none is known" : [time(found.backup.time_ms, found.time_ms),
        el("span", { class: "quiet" }, `, ${many(found.backup.commits_since, "commit")} before now`)]],
      ...found.copies.map((one) => ["Copy elsewhere", [el("code", {}, one.target), el("span", { class: "quiet" },
        one.behind ? `, ${many(one.behind, "commit")} behind` : ", has every commit")]]),
      ...(found.redis === null ? [] : [["Follows", [el("code", {}, found.redis.source), el("span", { class: "quiet" },
        `, ${many(found.redis.commands, "command")}, the last one `), time(found.redis.time_ms, found.time_ms)]]]),
      ["Last recovery", last === null ? "never" : `${clock(last.time_ms)} UTC, ${many(last.replayed, "commit")} replayed${last.lost ? `, ${many(last.lost, "commit")} lost` : ""}`]]));
    const kept = found.archive;
    fill(archive, kept.segments || kept.retired_entries ? facts([
      ["Archived", entries(kept.entries)], ["Segments", count(kept.segments)], ["Size", size(kept.size_bytes)],
      ["To be archived", entries(kept.retired_entries)]])
      : empty("Nothing is archived.", [command("streamkeep retention set STORE KEY --archive"), " keeps what is trimmed."]));
    showCheck(check, found);
    const running = Boolean(found.check?.running);
    quick.disabled = full.disabled = running;
    if (running) setTimeout(again, 500);
  }

  const again = repeat(signal, 5, refresh);
}

function troubles(found) {
  return [
    found.low_disk && `The disk has only ${size(found.disk_free_bytes)} left; entries may soon be refused.`,
    ...found.failures.map((text) => `A background task failed, and tries again: ${text}`),
    ...found.old_readers.map((one) => `Process ${one.process} reads a state ${many(one.commits, "commit")} old, so that freed pages cannot be used again.`),
    ...found.copies.filter((one) => one.behind && found.time_ms - one.shipped_ms > 60000)
      .map((one) => `The copy in ${one.target} lacks ${many(one.behind, "commit")}, and nothing has shipped for a minute.`),
    found.redis && found.time_ms - found.redis.time_ms > 60000
      && `Nothing has come from ${found.redis.source} for a minute: streamkeep follow must be running.`,
    found.check && !found.check.running && found.check.errors > 0 && `The last check found ${many(found.check.errors, "error")}.`,
    found.check?.failed && `The last check could not end: ${found.check.failed}`,
  ].filter(Boolean);
}

function showCheck(parent, found) {
  const last = found.check;
  if (last === null) {
    fill(parent, empty("Not checked since this server was started.", "A quick check reads all rows, and the ends of each stream. The other reads every entry."));
    return;
  }
  if (last.running) {
    fill(parent, el("label", { class: "progress" }, "Checking… ",
      el("progress", last.total ? { max: last.total, value: last.done } : {})));
    return;
  }
  const verdict = last.failed ? "The check could not end." : last.errors + last.warnings === 0 ? "Sound: nothing was found."
    : `Damaged: ${many(last.errors, "error")}, ${many(last.warnings, "warning")}.`;
  fill(parent, el("p", { class: last.errors + last.warnings || last.failed ? "verdict bad" : "verdict good" }, verdict,
    el("span", { class: "quiet" }, ` ${last.quick ? "Quick check" : "Full check"}, ${ago(last.ended_ms, found.time_ms)}.`)));
  if (!last.findings.length) return;
  const list = rows("Findings", FINDINGS, { keyOf: (one) => String(last.findings.indexOf(one)), none: "" });
  list.show(last.findings, 0);
  parent.append(...list.box);
}
