"""What a store holds, and what is stuck: the lists of streams and groups, and what needs attention.

All of it is read from records: no entry is read but the first pending ones.
"""

from __future__ import annotations

import time
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot
from streamkeep.engine.commands import keys
from streamkeep.engine.commands.glob import Glob
from streamkeep.engine.commands.xread import has_above
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.format.core.errors import NoSuchGroupError, NoSuchKeyError
from streamkeep.format.core.id_codec import parse_id
from streamkeep.format.core.json_form import JsonBytes, json_bytes, pending_json
from streamkeep.format.core.keys import KEYS
from streamkeep.jobs import queue_names
from streamkeep.jobs.layout import QUEUES_SPACE, Names
from streamkeep.server.access import User
from streamkeep.server.http.figures import bucket_edges, count_live

SPARK_BUCKETS: Final = 40
STUCK_MS: Final = 5 * 60_000  # without progress, a group that has work to do is stuck
_MOST_SCANNED: Final = 2000  # streams that one look at the whole store examines
_MOST_STUCK: Final = 50


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def list_streams(
    store: Store[bytes],
    user: User,
    *,
    after: bytes | None,
    match: bytes | None,
    count: int,
    span_ms: int | None,
) -> dict[str, Any]:
    """Return streams with keys above `after`, ascending by key.

    Args:
        match: only keys that contain this text, or match it as a pattern with `*`.
        span_ms: also count the entries of this many last milliseconds, for a sparkline.
    """
    found: list[dict[str, Any]] = []
    more = False
    edges = None
    pattern = Glob(match) if match and b"*" in match else None
    text = b"" if match is None or pattern is not None else match.lower()
    if span_ms is not None:
        end = now_ms()
        edges = bucket_edges(end - span_ms, end, SPARK_BUCKETS)
    with store.snapshot() as snapshot, translated():
        for name, _ in keys.iter_keys(snapshot.txn):
            if (after is not None and name <= after) or not user.sees(name):
                continue
            if pattern is not None and not pattern.matches(name):
                continue
            if text not in name.lower():
                continue
            if len(found) == count:
                more = True
                break
            found.append(_row(snapshot, name, edges))
        total = snapshot.txn.rows(KEYS)
    return {
        "streams": found,
        "next": found[-1]["key"] if more else None,
        "total": total if user.sees_all else None,
        "time_ms": now_ms(),
        "edges_ms": edges,
    }


def _row(snapshot: Snapshot[bytes], name: bytes, edges: list[int] | None) -> dict[str, Any]:
    stream = existing_stream(snapshot.txn, name)
    record = stream.record
    groups = [group_facts(snapshot, name, one) for one in snapshot.xinfo_groups(name)]
    retention = stream.retention()
    row: dict[str, Any] = {
        "key": json_bytes(name),
        "length": record.length,
        "entries_added": record.entries_added,
        "size_bytes": stream.node_bytes(),
        "first_ms": record.first_ms if record.length else None,
        "last_ms": record.last_live_ms if record.length else None,
        "archives": retention is not None and retention.archive,
        "groups": len(groups),
        "pending": sum(one["pending"] for one in groups),
        "waiting": max((one["waiting"] for one in groups), default=0),
        "exact_waiting": all(one["lag"] is not None for one in groups),
        "oldest_pending_id": min(
            (one["oldest_pending"]["id"] for one in groups if one["oldest_pending"] is not None),
            key=id_ms,
            default=None,
        ),
    }
    if edges is not None:
        counted = count_live(snapshot.txn, stream, edges)
        row["spark"], row["exact"] = counted.entries, counted.exact
    return row


def group_facts(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> dict[str, Any]:
    """Return one group of XINFO GROUPS in JSON, with its oldest pending entry.

    `waiting` is the lag, or an estimate of it where Redis's rules make it unknown: after a
    deletion, or in a group that began in the middle of the stream.
    """
    oldest = None
    if info["pending"]:
        rows = snapshot.xpending_range(key, info["name"], "-", "+", 1)
        oldest = pending_json(rows[0]) if rows else None
    return {
        "name": json_bytes(info["name"]),
        "consumers": info["consumers"],
        "pending": info["pending"],
        "last_delivered_id": info["last-delivered-id"].decode(),
        "entries_read": info["entries-read"],
        "lag": info["lag"],
        "waiting": _count_after(snapshot, key, info) if info["lag"] is None else info["lag"],
        "oldest_pending": oldest,
    }


def _count_after(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> int:
    """Return about how many entries a group has not been given; 0 only if there are none."""
    stream = existing_stream(snapshot.txn, key)
    after = parse_id(info["last-delivered-id"], 0)
    if not has_above(stream, after):
        return 0
    edges = [after[0], stream.record.last_live_ms + 1]
    return max(1, count_live(snapshot.txn, stream, edges).entries[0])


def id_ms(entry_id: str) -> int:
    return int(entry_id.partition("-")[0])


def stream_facts(store: Store[bytes], key: bytes) -> dict[str, Any]:
    """Return counters, retention, groups and archive of one stream.

    Raises:
        NoSuchKeyError: the stream does not exist.
    """
    with store.snapshot() as snapshot, translated():
        stream = existing_stream(snapshot.txn, key)
        record = stream.record
        facts: dict[str, Any] = {
            "key": json_bytes(key),
            "length": record.length,
            "entries_added": record.entries_added,
            "nodes": stream.nodes(),
            "size_bytes": stream.node_bytes(),
            "tombstones": record.tombstones,
            "first_id": _id_text(record.first_id()) if record.length else None,
            "last_id": _id_text(record.last_live_id()) if record.length else None,
            "last_generated_id": f"{record.last_ms}-{record.last_seq}",
            "groups": [group_facts(snapshot, key, one) for one in snapshot.xinfo_groups(key)],
            "retention": snapshot.retention(key)._asdict(),
            "time_ms": now_ms(),
        }
    segments = store.archived_segments(key)
    facts["archive"] = {
        "segments": len(segments),
        "entries": sum(one.entries for one in segments),
        "size_bytes": sum(one.size_bytes for one in segments),
        "erased_entries": sum(one.erased for one in segments),
        "first_id": _id_text(segments[0].first_id) if segments else None,
        "last_id": _id_text(segments[-1].last_id) if segments else None,
    }
    return facts


def _id_text(entry_id: tuple[int, int]) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


# --- what is stuck ------------------------------------------------------------------------------


def survey(store: Store[bytes], user: User) -> dict[str, Any]:
    """Return sums over the streams, and which groups need attention, the worst first."""
    entries = size = scanned = groups = pending = 0
    stuck: list[dict[str, Any]] = []
    complete = True
    with store.snapshot() as snapshot, translated():
        total = snapshot.txn.rows(KEYS)
        for name, _ in keys.iter_keys(snapshot.txn):
            if not user.sees(name):
                continue
            if scanned == _MOST_SCANNED:
                complete = False
                break
            scanned += 1
            stat = snapshot.stat(name)
            entries += stat.length
            size += stat.node_bytes
            for one in snapshot.xinfo_groups(name):
                groups += 1
                pending += one["pending"]
                stuck += _troubles(snapshot, name, one)
        stuck += _dead_letters(snapshot, user)
    stuck.sort(key=lambda one: -int(one["since_ms"] or 0))
    return {
        "streams": total if user.sees_all else scanned,
        "scanned": scanned,
        "complete": complete,
        "entries": entries,
        "size_bytes": size,
        "groups": groups,
        "pending": pending,
        "stuck": stuck[:_MOST_STUCK],
        "queues": sum(sees_queue(user, name) for name in queue_names(store)),
        "time_ms": now_ms(),
    }


def keys_of(queue: str) -> tuple[bytes, ...]:
    """Return the streams of a queue, of which each route may use any."""
    names = Names(queue)
    return (*names.streams, names.dead)


def sees_queue(user: User, name: str) -> bool:
    """Return whether a user may read a queue."""
    return all(map(user.sees, keys_of(name)))


def _dead_letters(snapshot: Snapshot[bytes], user: User) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for key, _ in snapshot.row_range(QUEUES_SPACE, count=_MOST_SCANNED):
        name = key.decode()
        letters = snapshot.xlen(Names(name).dead) if user.sees(Names(name).dead) else 0
        if letters:
            first = snapshot.xrange(Names(name).dead, count=1)[0]
            since = now_ms() - id_ms(first.id.decode())
            found.append({"kind": "dead", "queue": name, "since_ms": since, "letters": letters})
    return found


def _troubles(snapshot: Snapshot[bytes], key: bytes, info: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is stuck in one group: pending entries, and entries that no consumer reads."""
    found: list[dict[str, Any]] = []
    place: dict[str, JsonBytes] = {"key": json_bytes(key), "group": json_bytes(info["name"])}
    facts = group_facts(snapshot, key, info)
    oldest = facts["oldest_pending"]
    if oldest is not None:
        idle = oldest["idle_ms"]
        if idle is None or idle >= STUCK_MS:
            found.append({**place, "kind": "pending", "since_ms": idle, **_of(facts, oldest)})
    if facts["waiting"]:
        try:
            consumers = snapshot.xinfo_consumers(key, info["name"])
        except (NoSuchKeyError, NoSuchGroupError):
            consumers = []
        idle = min((one["idle"] for one in consumers), default=None)
        if idle is None or idle >= STUCK_MS:
            found.append(
                {
                    **place,
                    "kind": "unread",
                    "since_ms": idle,
                    "waiting": facts["waiting"],
                    "exact": facts["lag"] is not None,
                    "consumers": len(consumers),
                }
            )
    return found


def _of(facts: dict[str, Any], oldest: dict[str, Any]) -> dict[str, Any]:
    return {
        "pending": facts["pending"],
        "id": oldest["id"],
        "consumer": oldest["consumer"],
        "times_delivered": oldest["times_delivered"],
    }
