"""status: what is known of a store, in one look."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import is_held
from streamkeep.engine.whole_store import scrub
from streamkeep.format import quoting
from streamkeep.format.core import durations
from streamkeep.format.core.errors import RecoveryNeededError, StoreLockedError
from streamkeep.format.humanize import count_text, entries_text, size_text, time_text
from streamkeep.format.rows.meta_rows import INTERRUPTED, BackupRow
from streamkeep.metrics import figures
from streamkeep.metrics.figures import Figures, QueueFigures, StoreFigures
from streamkeep.recovery.backups.backup import last_backup, source_of
from streamkeep.recovery.fsck.last_check import last_check
from streamkeep.server.http.overview import stuck_in_queue
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import Ms, Natural, StorePath
from streamkeep.tools.base.command import command
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import open_store
from streamkeep.tools.commands.doctor_cmd import processes_with
from streamkeep.tools.commands.queue_cmds import parked_texts
from streamkeep.tools.commands.stream_cmds import durability, durability_rows

_WORTH_SAYING: Final = 1 << 20  # bytes that `compact` would free
LATE_MS: Final = 60_000  # without news, after which a copy elsewhere needs attention

Problems = list[tuple[str, str]]  # the state that each puts the store in, and in words


@command()
def status(
    store_path: StorePath,
    backup_path: Path | None = None,
    max_backup_age: Ms | None = None,
    max_lag: Natural | None = None,
) -> None:
    """Print what is known of STORE, in one look.

    The state is `ok` (no problem is known), `damaged` (the last `streamkeep fsck` has found
    damage), `recovering` (the store was not closed, and has not been opened for writing since),
    `locked` (by `compact`, for instance), `full` (the disk has less than 64 MiB free), `parked`
    (jobs wait whose task no worker has, such as those of a schedule after its task was renamed),
    `dead` (a queue has dead letters), `idle` (jobs have waited for five minutes, and no worker
    lives), `erasure` (one is unfinished), `copy` (one elsewhere does not follow STORE, or STORE no
    copy), `redis` (no news for a minute, or entries were lost), `lagging` or `backup` (see
    --max-lag and --max-backup-age). Below it: sizes, processes that have the store open, the last
    recovery, groups, queues, what waits to be archived, the backup, and when the store was last
    checked. This command checks nothing itself; `streamkeep fsck` does that.

    Exit status: 0  no problem is known
                 3  not a store, or of a newer version
                 4  damaged, as this command or the last check has found
                 6  there is no such store
                 8  it needs attention: see the state

    Examples:
      streamkeep status orders.store
      streamkeep status orders.store --max-lag 100000 --json
      streamkeep status orders.store --backup backup.store --max-backup-age 1d

    Args:
        backup_path (--backup TARGET): Look at the backup there, not at the newest one that STORE
            knows of.
        max_backup_age: A newest backup that is older needs attention, and no backup at all.
        max_lag: A group that has more entries to read needs attention.
    """
    problems: Problems = []
    checked = last_check(store_path)
    if checked is not None and checked.damaged():
        counted = count_text(checked.errors, "error")
        if checked.warnings:
            counted += f" and {count_text(checked.warnings, 'warning')}"
        following = f"next: streamkeep fsck {shlex.quote(str(store_path))}"
        problems.append(("damaged", f"the last check found {counted}; {following}"))
    newest: BackupRow | None = None
    uuid: str | None = None
    facts: dict[str, Any] = {"path": str(store_path), "open_by": processes_with(store_path)}
    try:
        with open_store(store_path, readonly=True) as store, store.snapshot() as snapshot:
            found = figures.figures_of(store)
            facts |= {**durability(store), **_copies(store, found.store, problems)}
            if store._environment.read(scrub.is_unfinished):
                problems.append(("erasure", scrub.UNFINISHED))
            facts |= _groups(found, max_lag, problems)
            kept = ("segments", "archived_entries", "archive_bytes", "retired_entries")
            facts |= zip((*kept, "retired_bytes"), found.archive, strict=True)
            facts["queues"] = {one.name: one.stats._asdict() for one in found.queues}
            for queue in found.queues:
                problems += _of_queue(snapshot, queue, store_path)
            newest, uuid = last_backup(snapshot), store.uuid
    except RecoveryNeededError as error:
        problems.append(("recovering", str(error)))
    except StoreLockedError as error:
        problems.append(("locked", str(error)))
    disk = os.statvfs(store_path)
    free = disk.f_bavail * disk.f_frsize
    if free < figures.LOW_DISK:
        problems.append(("full", f"the disk has {size_text(free)} left"))
    facts |= {"data_bytes": (store_path / DATA_FILE).stat().st_size, "disk_free_bytes": free}
    facts |= _backup(backup_path, uuid, newest, max_backup_age, facts.get("last_commit"), problems)
    facts["last_check"] = None if checked is None else asdict(checked)
    state = problems[0][0] if problems else "ok"
    if common.as_json():
        output.summary(state=state, problems=[text for _, text in problems], **facts)
    else:
        _print(store_path, state, facts, problems)
    if problems:
        ending = Exit.DAMAGED if state == "damaged" else Exit.ATTENTION
        click.get_current_context().exit(ending)


# --- what there is to say -----------------------------------------------------------------------


def _copies(store: Store[bytes], found: StoreFigures, problems: Problems) -> dict[str, Any]:
    now_ms = time.time() * 1000
    folder = store._environment.folder.folder(JOURNAL_FOLDER)
    follows, redis = found.follows, found.redis
    uris = [one.target for one in found.copies] + ([follows.source] if follows else [])
    at_work = {uri: is_held(folder, uri) for uri in uris}
    here = shlex.quote(str(store.path))
    for one in found.copies:
        ship = f"streamkeep ship {here} {shlex.quote(one.target)}"
        if one.taken_over:
            text = f"another store, or a later state of this one, has the copy in {one.target}"
            problems.append(("copy", f"{text}; next: use that one, or {ship} --forget"))
        elif not one.shipped_ms:
            text = f"the copy in {one.target}, of an earlier state of the store, does not follow it"
            following = f"{ship} if it takes the place of the store before, otherwise with --forget"
            problems.append(("copy", f"{text}; next: {following}"))
        elif one.behind and now_ms - one.shipped_ms > LATE_MS:
            text = f"the copy in {one.target} lacks {count_text(one.behind, 'commit')}"
            following = "see what `streamkeep ship` warns of" if at_work[one.target] else ship
            problems.append(("copy", f"{text}; next: {following}"))
        if one.missing_segments:
            missing = count_text(one.missing_segments, "segment")
            problems.append(("copy", f"the copy in {one.target} lacks {missing}"))
    if follows and not at_work[follows.source] and now_ms - follows.time_ms > LATE_MS:
        source = shlex.quote(follows.source)
        following = f"streamkeep standby {source} {here}, or streamkeep promote {here}"
        problems.append(("copy", f"no process follows {source}; next: {following}"))
    if redis is not None and now_ms - redis.time_ms > LATE_MS:
        since = durations.duration_text(now_ms - redis.time_ms)
        text = f"the store has nothing that came from {redis.source} in the last {since}"
        following = "next: `streamkeep follow` must be running, or end with --detach"
        problems.append(("redis", f"{text}; {following}"))
    if redis is not None and redis.lost:
        text = f"{redis.source} had trimmed or deleted {entries_text(redis.lost)} before they came"
        following = "next: a larger repl-backlog-size; `streamkeep follow --resync` forgets this"
        problems.append(("redis", f"{text}; {following}"))
    return {
        "copies": [one._asdict() | {"at_work": at_work[one.target]} for one in found.copies],
        "follows": follows and follows._asdict() | {"at_work": at_work[follows.source]},
        "redis": None if redis is None else redis._asdict(),
    }


def _of_queue(
    snapshot: Snapshot[bytes], queue: QueueFigures, store_path: Path
) -> Iterator[tuple[str, str]]:
    """Yield what needs attention in a queue, by the rules of the page."""
    name = f"queue {queue.name!r}"
    for text in parked_texts(snapshot, queue.name, store_path):
        yield ("parked", text)
    for one in stuck_in_queue(snapshot, queue.name):
        if one["kind"] == "dead":
            at = f"{shlex.quote(str(store_path))} --queue {shlex.quote(queue.name)}"
            letters = count_text(one["letters"], "dead letter")
            yield ("dead", f"{name} has {letters}; next: streamkeep queue dead {at}")
        elif one["kind"] == "idle":
            jobs = count_text(one["waiting"], "job waits", "jobs wait")
            since = durations.duration_text(one["since_ms"])
            text = f"{jobs}, the oldest for {since}, and no worker lives; next: streamkeep work"
            yield ("idle", f"{name}: {text}")


def _groups(found: Figures, max_lag: int | None, problems: Problems) -> dict[str, Any]:
    """Return sums over the groups, and which has most to read; an unknown lag counts as none."""
    groups = [(one, stream.key) for stream in found.streams for one in stream.groups]
    highest = max(groups, key=lambda one: one[0].lag or 0, default=None)
    lag = 0 if highest is None else highest[0].lag or 0
    if highest is not None and max_lag is not None and lag > max_lag:
        where = f"group {quoting.named(highest[0].name)} of {quoting.named(highest[1])}"
        problems.append(("lagging", f"{where} has {entries_text(lag)} to read"))
    lagging = highest if lag else None
    pending = [one for one in groups if one[0].pending]
    stuck = max(pending, key=lambda one: one[0].oldest_pending_ms, default=None)
    return {
        "streams": len(found.streams),
        "groups": len(groups),
        "pending": sum(one.pending for one, _ in groups),
        "highest_lag": lag,
        "lagging_key": lagging[1] if lagging else None,
        "lagging_group": lagging[0].name if lagging else None,
        "oldest_pending_ms": stuck[0].oldest_pending_ms if stuck else 0,
        "oldest_pending_key": stuck[1] if stuck else None,
        "oldest_pending_group": stuck[0].name if stuck else None,
    }


def _backup(
    target: Path | None,
    uuid: str | None,
    newest: BackupRow | None,
    max_age: int | None,
    last_commit: int | None,
    problems: Problems,
) -> dict[str, Any]:
    """Return what is known of the backup at `target`, or of the newest that the store knows of."""
    row = newest
    if target is not None:
        with open_store(target, readonly=True) as store, store.snapshot() as snapshot:
            row = source_of(snapshot)
        if row is None:
            hint = f"streamkeep backup STORE {shlex.quote(str(target))}"
            raise Failure(f"{target}: not a backup", hint=hint, status=Exit.UNREADABLE)
        if uuid not in (None, store.uuid):  # of a store that could be opened
            hint = "name a backup of this one with --backup"
            problem = f"{target}: a backup of another store ({store.uuid})"
            raise Failure(problem, hint=hint, status=Exit.UNREADABLE)
    if row is None:
        if max_age is not None:
            problems.append(("backup", "the store knows of no backup"))
        return {"backup": None}
    age = max(0, round(time.time() * 1000) - row.time_ms)
    if max_age is not None and age > max_age:
        problems.append(("backup", f"the backup is {durations.duration_text(age)} old"))
    since = None if last_commit is None else last_commit - row.commit_number
    if since and newest is not None and newest.commit_number == row.commit_number:
        since -= 1  # the commit that recorded the backup
    return {
        "backup": {
            "path": None if target is None else str(target),
            "time_ms": row.time_ms,
            "commit": row.commit_number,
            "commits_since": since,
        }
    }


# --- text ---------------------------------------------------------------------------------------


def _print(path: Path, state: str, facts: dict[str, Any], problems: Problems) -> None:
    now_ms, last_commit = time.time() * 1000, facts.get("last_commit")

    def ago(time_ms: int) -> str:
        return f"{durations.duration_text(max(0, now_ms - time_ms))} ago" if time_ms else "never"

    output.line(f"{path}: {'no problem is known' if state == 'ok' else state}")
    rows = [("problem", text) for _, text in problems]
    free = size_text(facts["disk_free_bytes"])
    less = facts.get("reusable_bytes", 0)
    frees = f" (`compact` would free {size_text(less)})" if less >= _WORTH_SAYING else ""
    rows.append(("sizes", f"data {size_text(facts['data_bytes'])}{frees}, {free} free on the disk"))
    if last_commit is not None:  # it could be opened
        rows += _rows_of_streams(facts)
    names = [f"{one['process']} ({one['name']})" for one in facts["open_by"]]
    rows.append(("open by", ", ".join(names) or "no other process"))
    if (backup := facts["backup"]) is not None:
        age = durations.duration_text(max(0, now_ms - backup["time_ms"]))
        since = backup["commits_since"]
        later = "" if since is None else f", {count_text(since, 'commit')} ago"
        rows.append(("backup", f"{time_text(backup['time_ms'])}, {age} old{later}"))
    else:
        rows.append(("backup", "none known"))
    for one in facts.get("copies", ()):
        is_behind = one["behind"] and one["shipped_ms"]
        behind = f"{count_text(one['behind'], 'commit')} behind, " if is_behind else ""
        text = f"{behind}shipped {ago(one['shipped_ms'])}, proved {ago(one['proved_ms'])}"
        text += "" if one["at_work"] else "; no process ships it"
        rows.append(("copy", f"{one['target']}: {text}"))
    if (follows := facts.get("follows")) is not None:
        text = f"commit {follows['commit_number']} was made {ago(follows['time_ms'])}"
        text += "" if follows["at_work"] else "; no process follows"
        rows.append(("standby", f"of {follows['source']}: {text}"))
    if (redis := facts.get("redis")) is not None:
        done = f"{count_text(redis['commands'], 'command')}, "
        done += f"the last one came {ago(redis['time_ms'])}"
        done += f"; all streams were taken {count_text(redis['full'], 'time')}"
        anew = redis["replication_id"] in ("", INTERRUPTED)
        done += "; all streams are to be taken anew" * anew
        rows.append(("follows", f"{redis['source']}: {done}"))
    checked = facts["last_check"]
    if checked is None:
        rows.append(("checked", f"never; next: streamkeep fsck {shlex.quote(str(path))}"))
    else:
        result = "damaged" if checked["errors"] + checked["warnings"] else "clean"
        how = ", quickly" if checked["quick"] else ""
        since = (last_commit or 0) - checked["commit"]
        later = f", {count_text(since, 'commit')} before now" if since > 0 else ""
        when = f"{time_text(checked['time_ms'])}, {ago(checked['time_ms'])}"
        rows.append(("checked", f"{result}{how}, {when}{later}"))
    for name, text in rows:
        output.line(f"  {name:<9}  {text}")


def _rows_of_streams(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = durability_rows(facts)
    text = f"{count_text(facts['groups'], 'group')}, {facts['pending']:,} pending"
    rows.append(("groups", f"{count_text(facts['streams'], 'stream')}, {text}"))

    def place(kind: str) -> str:
        group, key = (quoting.named(facts[f"{kind}_{one}"]) for one in ("group", "key"))
        return f"group {group} of {key}"

    if facts["highest_lag"]:
        lag = entries_text(facts["highest_lag"])
        rows.append(("lag", f"{place('lagging')} has {lag} to read"))
    if facts["oldest_pending_ms"]:
        since = durations.duration_text(facts["oldest_pending_ms"])
        rows.append(("pending", f"{place('oldest_pending')}: an entry for {since}"))
    for name, stats in facts["queues"].items():
        states = ("waiting", "running", "delayed")
        counts = [f"{stats[one]:,} {one}" for one in states if stats[one]]
        counts += [count_text(stats["failed"], "dead letter")] if stats["failed"] else []
        counts.append(count_text(stats["workers"], "worker") if stats["workers"] else "no worker")
        rows.append(("queue", f"{quoting.named(name.encode())}: {', '.join(counts)}"))
    kept = f"{count_text(facts['segments'], 'segment')}, {size_text(facts['archive_bytes'])}"
    waits = entries_text(facts["retired_entries"])
    rows.append(("archive", f"{kept}; {waits} to be archived"))
    return rows
