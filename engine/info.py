"""XINFO STREAM and XSETID, and the figures that `stat` shows."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from streamkeep.engine.scan import read_entries
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn, WriteTxn
from streamkeep.format.entry import Entry
from streamkeep.format.errors import ArgumentError, CommandError, NoSuchKeyError
from streamkeep.format.id_codec import MAX, id_text
from streamkeep.format.node import ENTRY, Range

NO_SUCH_KEY: Final = "no such key"


def find_existing(txn: Txn, name: bytes) -> Stream:
    """Return the stream `name`; raise NoSuchKeyError when it is missing."""
    stream = txn.find_stream(name)
    if stream is None:
        raise NoSuchKeyError(NO_SUCH_KEY)
    return stream


def end_entry(txn: Txn, stream: Stream, *, newest: bool, shape: int = ENTRY) -> Any:
    """Return the first or the last live entry of a stream, or None."""
    out: list[object] = []
    read_entries(txn, stream, Range(0, 0, MAX, MAX, 1, newest, shape), out)
    return out[0] if out else None


def xinfo_stream(txn: Txn, name: bytes, shape: int) -> dict[str, Any]:
    """Return XINFO STREAM in redis-py's shape."""
    stream = find_existing(txn, name)
    return {
        **_summary(stream),
        "groups": 0,
        "first-entry": end_entry(txn, stream, newest=False, shape=shape),
        "last-entry": end_entry(txn, stream, newest=True, shape=shape),
    }


def xinfo_stream_full(txn: Txn, name: bytes, count: int, shape: int) -> dict[str, Any]:
    """Return XINFO STREAM FULL in redis-py's shape; `count` 0 for all entries."""
    stream = find_existing(txn, name)
    out: list[Any] = []
    read_entries(txn, stream, Range(0, 0, MAX, MAX, count or 1 << 62, False, shape), out)
    entries: list[Entry] = out
    return {
        **_summary(stream),
        "entries": {entry.id: entry.fields for entry in entries},
        "groups": [],
    }


def _summary(stream: Stream) -> dict[str, Any]:
    """Return the fields that both forms of XINFO STREAM begin with."""
    record = stream.record
    nodes = stream.nodes()
    return {
        "length": record.length,
        "radix-tree-keys": nodes,
        "radix-tree-nodes": nodes + 1,
        "last-generated-id": id_text(record.last_ms, record.last_seq),
        "max-deleted-entry-id": id_text(record.max_deleted_ms, record.max_deleted_seq),
        "entries-added": record.entries_added,
        "recorded-first-entry-id": id_text(record.first_ms, record.first_seq),
    }


def xsetid(
    txn: WriteTxn,
    name: bytes,
    last_id: tuple[int, int],
    entries_added: int | None,
    max_deleted_id: tuple[int, int] | None,
) -> bool:
    """Set last_generated_id, and entries_added and max_deleted_id where given (XSETID)."""
    if entries_added is not None and entries_added < 0:
        raise ArgumentError("entries_added must be positive")
    if max_deleted_id is not None and last_id < max_deleted_id:
        raise ArgumentError(
            "The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
        )
    stream = find_existing(txn, name)
    record = stream.record
    if last_id < (record.max_deleted_ms, record.max_deleted_seq):
        raise CommandError(
            "The ID specified in XSETID is smaller than current max_deleted_entry_id"
        )
    if record.length:
        if last_id < (record.last_live_ms, record.last_live_seq):
            raise CommandError(
                "The ID specified in XSETID is smaller than the target stream top item"
            )
        if entries_added is not None and entries_added < record.length:
            raise CommandError(
                "The entries_added specified in XSETID is smaller than the target stream length"
            )
    record.last_ms, record.last_seq = last_id
    if entries_added is not None:
        record.entries_added = entries_added
    if max_deleted_id is not None and max_deleted_id != (0, 0):
        record.max_deleted_ms, record.max_deleted_seq = max_deleted_id
    stream.changed = True
    return True


class StreamStat(NamedTuple):
    """How much a stream holds, and how much room it takes."""

    name: bytes
    length: int
    nodes: int
    tombstones: int
    node_bytes: int
    first_ms: int | None
    last_ms: int | None


def stream_stat(stream: Stream) -> StreamStat:
    """Return the figures of one stream; they are all in its record."""
    record = stream.record
    empty = record.length == 0
    return StreamStat(
        stream.name,
        record.length,
        stream.nodes(),
        record.tombstones,
        stream.node_bytes(),
        None if empty else record.first_ms,
        None if empty else record.last_live_ms,
    )
