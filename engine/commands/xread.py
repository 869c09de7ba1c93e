"""XREAD: entries above given IDs, from several streams."""

from __future__ import annotations

from typing import Final

from streamkeep.engine.commands import reply_budget
from streamkeep.engine.commands.xrange import read_entries
from streamkeep.engine.tables.read_cursor import ReadCursor
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.format.core.errors import CommandError
from streamkeep.format.core.id_codec import MAX, Id, next_id, parse_id, previous_id, until_nul
from streamkeep.format.node.node import PAIRS, RESP
from streamkeep.format.node.ranges import MOST_SENT, Range

AFTER_LAST: Final = "$"
_CHUNK: Final = 128

ReadId = Id | str  # an ID, or one of the two above


def parse_read_id(text: bytes) -> ReadId:
    special = until_nul(text)
    if special == b">":
        raise CommandError(
            "The > ID can be specified only when calling XREADGROUP using the GROUP <group> "
            "<consumer> option."
        )
    if special in (b"$", b"+"):
        return special.decode()
    return parse_id(text, 0)


def resolve(stream: Stream | None, read_id: ReadId) -> Id:
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
    return previous_id(*record.last_live_id())


def xread(
    txn: Txn,
    streams: list[tuple[bytes, ReadId]],
    count: int,
    budget: reply_budget.ReplyBudget,
    shape: int,
) -> reply_budget.Found:
    """Return [name, entries] of each stream that has entries above its ID; `count` 0 for all."""
    result: reply_budget.Found = []
    for name, read_id in streams:
        if budget.used_up:
            break
        stream = txn.find_stream(name)
        after = resolve(stream, read_id)
        if stream is None or not has_above(stream, after):
            continue
        budget.begin_stream(name)
        entries, _ = read_above(txn, stream, after, count or reply_budget.NO_LIMIT, budget, shape)
        budget.end_stream(len(entries))
        result.append([name, entries])
    return result


def freeze(txn: Txn, streams: list[tuple[bytes, ReadId]]) -> list[tuple[bytes, ReadId]]:
    """Return the streams with `$` replaced by the last ID, which XREAD keeps while it waits."""
    frozen: list[tuple[bytes, ReadId]] = []
    for name, read_id in streams:
        if read_id == AFTER_LAST:
            read_id = resolve(txn.find_stream(name), read_id)
        frozen.append((name, read_id))
    return frozen


def ready(txn: Txn, streams: list[tuple[bytes, ReadId]]) -> bool:
    """Return whether `xread` would return something."""
    for name, read_id in streams:
        stream = txn.find_stream(name)
        if stream is not None and has_above(stream, resolve(stream, read_id)):
            return True
    return False


def has_above(stream: Stream, after: Id) -> bool:
    record = stream.record
    ms, seq = after
    if record.length == 0 or record.last_live_ms < ms:
        return False
    return record.last_live_ms > ms or record.last_live_seq > seq


def read_above(
    txn: Txn,
    stream: Stream,
    after: Id,
    most: int,
    budget: reply_budget.ReplyBudget,
    shape: int,
    extra: tuple[int, ...] = (),
    resume: ReadCursor | None = None,
) -> tuple[reply_budget.Entries, list[Id]]:
    """Return entries above an ID up to the limits of the reply, and their IDs.

    In the shape RESP the entries are one `SentEntries`, or pairs where the reply adds to each.

    Args:
        extra: numbers that the reply adds to each entry.
        resume: the cursor of a group; without one, the IDs are not returned.
    """
    if budget.max_size:
        return _read_by_size(txn, stream, after, most, budget, shape, extra)
    ms, seq = next_id(after[0], after[1])
    limit = budget.left(most)
    wanted = Range(
        ms, seq, MAX, MAX, limit, False, int(PAIRS) if extra and shape == RESP else shape
    )
    wanted.room = MOST_SENT - budget.sent
    ids: list[Id] = []
    out: reply_budget.Entries = []
    if resume is None:
        read_entries(txn, stream, wanted, out)
    else:
        wanted.ids = ids
        resume.read(txn, stream, after, wanted, out)
    count = limit - int(wanted.limit)
    if wanted.sent is not None:
        data = wanted.sent.data()
        budget.sent += len(data)
        out.append(reply_budget.SentEntries(count, data))
    budget.add(count)
    return out, ids


def _read_by_size(
    txn: Txn,
    stream: Stream,
    after: Id,
    most: int,
    budget: reply_budget.ReplyBudget,
    shape: int,
    extra: tuple[int, ...],
) -> tuple[reply_budget.Entries, list[Id]]:
    """As `read_above`, but count the size of each entry, and read a chunk at a time."""
    out: reply_budget.Entries = []
    ids: list[Id] = []
    while len(out) < most:
        chunk: reply_budget.Entries = []
        start = next_id(*(ids[-1] if ids else after))
        limit = min(_CHUNK, most - len(out))
        read_entries(txn, stream, Range(*start, MAX, MAX, limit, False, int(PAIRS)), chunk)
        for ms, seq, flat in chunk:
            if budget.used_up:
                return out, ids
            budget.add_entry(ms, seq, flat, *extra)
            ids.append((ms, seq))
            out.append(reply_budget.shape_entry(ms, seq, flat, shape))
        if len(chunk) < limit:
            break
    return out, ids
