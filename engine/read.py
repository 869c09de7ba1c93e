"""XREAD: entries above given IDs, from several streams."""

from __future__ import annotations

from typing import Any, Final

from streamkeep.engine.scan import read_entries
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn
from streamkeep.format.errors import ArgumentError
from streamkeep.format.id_codec import MAX, clean, next_id, parse_id, previous_id
from streamkeep.format.node import Range

AFTER_LAST: Final = "$"
LAST_ENTRY: Final = "+"

ReadId = tuple[int, int] | str  # an ID, or one of the two above


def parse_read_id(text: bytes) -> ReadId:
    """Parse an ID argument of XREAD."""
    if text == b">":
        raise ArgumentError(
            "The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
            "<consumer> option."
        )
    special = clean(text)
    if special in (b"$", b"+"):
        return special.decode()
    return parse_id(text, 0)


def resolve(stream: Stream | None, read_id: ReadId) -> tuple[int, int]:
    """Return the ID that entries must be above."""
    if isinstance(read_id, tuple):
        return read_id
    if stream is None:
        return 0, 0
    record = stream.record
    if read_id == AFTER_LAST:
        return record.last_ms, record.last_seq
    if not record.length:
        return 0, 0
    return previous_id(record.last_live_ms, record.last_live_seq)


def xread(txn: Txn, streams: list[tuple[bytes, ReadId]], count: int, shape: int) -> list[list[Any]]:
    """Return [name, entries] of each stream that has entries above its ID; `count` 0 for all."""
    result: list[list[Any]] = []
    for name, read_id in streams:
        stream = txn.find_stream(name)
        after = resolve(stream, read_id)
        if stream is None or not has_above(stream, after):
            continue
        start = next_id(*after)
        out: list[Any] = []
        read_entries(txn, stream, Range(*start, MAX, MAX, count or 1 << 62, False, shape), out)
        result.append([name, out])
    return result


def has_above(stream: Stream, after: tuple[int, int]) -> bool:
    """Say whether a live entry has an ID above `after`."""
    record = stream.record
    return record.length > 0 and (record.last_live_ms, record.last_live_seq) > after
