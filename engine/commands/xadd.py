"""XADD: IDs, and the choice between the tail node and a new one.

Redis decides before it encodes: a new node begins when the listpack so far plus the raw size of
the new fields and values reaches stream-node-max-bytes, or the slots reach
stream-node-max-entries. Streams with limits set by the user follow that rule exactly. By default
Streamkeep decides after encoding, so that envelope and listpack fill one LMDB page run: an entry
that makes the tail too big is taken out again and begins the next node.

An entry that is too big for any node is alone in one. It goes to `nodes` at once, since a tail is
written again with every append. Compiled by mypyc.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.engine.commands.retention import WITH_APPEND, check_room, enforce
from streamkeep.engine.commands.xtrim import TrimSpec, trim_stream
from streamkeep.engine.tables.node_walk import NodeWalk, add_newest_node, seal_tail, trimmed_above
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, IdTooSmallError
from streamkeep.format.core.id_codec import MAX, cut_id, id_text, next_id, parse_number, until_nul
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.node.envelope import PAGE_LISTPACK
from streamkeep.format.rows.records import PAGE_FIT

AUTO: Final = 0  # *
AUTO_SEQ: Final = 1  # ms-*
EXPLICIT: Final = 2

_MAX_ENTRY_BYTES: Final[i64] = 1 << 30
_NO_LIMIT: Final[i64] = 1 << 30  # Redis uses it for 0 and for all higher limits
_PAGE_LISTPACK: Final[i64] = PAGE_LISTPACK


class NewId:
    """The ID argument of XADD."""

    def __init__(self, kind: int, ms: int, seq: int) -> None:
        self.kind = kind
        self.ms = ms
        self.seq = seq


ANY_ID: Final = NewId(AUTO, 0, 0)


def parse_new_id(text: bytes) -> NewId:
    """Parse `*`, `ms-*`, `ms-seq` or `ms`; raise InvalidIdError."""
    if until_nul(text) == b"*":
        return ANY_ID
    text = cut_id(text)
    dash = text.find(b"-")
    if dash < 0:
        return NewId(EXPLICIT, parse_number(text, text), 0)
    ms = parse_number(text[:dash], text)
    if text[dash + 1 :] == b"*":
        return NewId(AUTO_SEQ, ms, 0)
    return NewId(EXPLICIT, ms, parse_number(text[dash + 1 :], text))


class Message:
    """The options IDMP and IDMPAUTO of XADD: the producer of an entry, and its message ID."""

    def __init__(self, producer: bytes, iid: bytes) -> None:
        self.producer = producer
        self.iid = iid


def xadd(
    txn: WriteTxn,
    name: bytes,
    pairs: list[bytes],
    new_id: NewId,
    nomkstream: bool,
    trim: TrimSpec | None,
    message: Message | None,
) -> bytes | None:
    """Append one entry; return its ID, or None if the stream is missing and must not be made.

    A known message adds nothing; the ID of its entry is returned.
    """
    check_not_zero(new_id)
    check_size(pairs)
    stream = txn.find_stream(name)
    if stream is None:
        if nomkstream:
            return None
        stream = txn.create_stream(name)
    tracker: Tracker | None = None
    if message is not None:
        tracker = Tracker(txn, stream)
        known = tracker.find(message.producer, message.iid, txn.now_ms())
        if known is not None:
            tracker.expire(message.producer, txn.now_ms())
            tracker.state.duplicates += 1
            tracker.save()
            return id_text(known[0], known[1])
    record = stream.record
    ms, seq = choose_id(txn, record.last_ms, record.last_seq, new_id)
    if record.extension:
        check_room(txn, stream)
    if tracker is not None and message is not None:  # if the entry is refused, nothing has changed
        tracker.expire(message.producer, txn.now_ms())
        tracker.track(message.producer, message.iid, ms, seq)
        tracker.save()
    append_entry(txn, stream, ms, seq, pairs)
    txn.note_added(name, 1)
    if trim is not None:
        trim_stream(txn, stream, trim)
    if record.extension:
        enforce(txn, stream, WITH_APPEND)
    return id_text(ms, seq)


def xadd_many(
    txn: WriteTxn, name: bytes, entries: list[list[bytes]], ids: list[NewId] | None
) -> list[bytes]:
    for pairs in entries:
        check_size(pairs)
    for new_id in ids or ():
        check_not_zero(new_id)
    stream = txn.find_stream(name)
    ms = seq = 0
    if stream is not None:
        ms, seq = stream.record.last_ms, stream.record.last_seq
    chosen: list[tuple[int, int]] = []
    for index in range(len(entries)):  # all of them, before anything changes
        try:
            ms, seq = choose_id(txn, ms, seq, ANY_ID if ids is None else ids[index])
        except CommandError as error:
            error.entry_index = index
            raise
        chosen.append((ms, seq))
    if stream is None:
        stream = txn.create_stream(name)
    elif stream.record.extension:
        check_room(txn, stream)
    added: list[bytes] = []
    for index, pairs in enumerate(entries):
        ms, seq = chosen[index]
        append_entry(txn, stream, ms, seq, pairs)
        added.append(id_text(ms, seq))
    txn.note_added(name, len(added))
    if stream.record.extension:
        enforce(txn, stream, WITH_APPEND + len(added))
    return added


def check_not_zero(new_id: NewId) -> None:
    """Raise for the ID 0-0, which Redis refuses before it looks at the stream."""
    if new_id.kind == EXPLICIT and new_id.ms == 0 and new_id.seq == 0:
        raise IdTooSmallError("The ID specified in XADD must be greater than 0-0")


def check_size(pairs: list[bytes]) -> None:
    """Raise when an entry has more than 1 GiB of fields and values."""
    total: i64 = 0
    for element in pairs:
        total += len(element)
    if total > _MAX_ENTRY_BYTES:
        raise CommandError("Elements are too large to be stored")


def choose_id(txn: WriteTxn, last_ms: int, last_seq: int, new_id: NewId) -> tuple[int, int]:
    """Return the ID of the entry after `last_ms-last_seq`.

    Raises:
        CommandError: no ID is left, or the given one is too small.
    """
    if last_ms == MAX and last_seq == MAX:
        raise CommandError(
            "The stream has exhausted the last possible ID, unable to add more items"
        )
    ms: int
    seq: int
    if new_id.kind == AUTO:
        ms = txn.now_ms()
        if ms > last_ms:
            return ms, 0
        return next_id(last_ms, last_seq)
    ms = new_id.ms
    seq = new_id.seq
    if new_id.kind == AUTO_SEQ:
        if ms == last_ms:
            if last_seq == MAX:
                raise _too_small()
            seq = last_seq + 1
        else:
            seq = 0
    if ms < last_ms or (ms == last_ms and seq <= last_seq):
        raise _too_small()
    return ms, seq


def _too_small() -> IdTooSmallError:
    return IdTooSmallError(
        "The ID specified in XADD is equal or smaller than the target stream top item"
    )


def append_entry(txn: WriteTxn, stream: Stream, ms: int, seq: int, pairs: list[bytes]) -> None:
    """Append the entry `ms-seq`, which is above all others, and count it."""
    limit: i64 = _PAGE_LISTPACK
    tail = _tail_or_reopened(txn, stream)
    if stream.record.node_max_bytes == PAGE_FIT:  # the default: a listpack fills its page run
        accepted = tail is not None and tail.append_within(ms, seq, pairs, _PAGE_LISTPACK)
    else:  # by Redis's rule and the limits of this stream
        limit = i64(stream.record.node_max_bytes)
        if limit == 0 or limit > _NO_LIMIT:
            limit = _NO_LIMIT
        accepted = tail is not None and _accepts(stream, tail.size(), tail.slots(), pairs, limit)
        if accepted and tail is not None:
            tail.append(ms, seq, pairs)
    if accepted:
        stream.tail_grew()
    else:
        _start_node(txn, stream, ms, seq, pairs, limit)
    stream.entry_appended(ms, seq)


def _accepts(stream: Stream, size: i64, slots: i64, pairs: list[bytes], limit: i64) -> bool:
    """Return whether Redis would append to a node of this size."""
    most: i64 = i64(stream.record.node_max_entries)
    if most > 0 and slots >= most:
        return False
    for element in pairs:
        size += len(element)
    return size < limit


def _tail_or_reopened(txn: WriteTxn, stream: Stream) -> NodeBuilder | None:
    """Return the node to append to: the tail, or the newest sealed node brought back.

    A node is not brought back when trimmed nodes above it are retired or archived: its range would
    then contain theirs, and ranges of nodes never overlap.
    """
    if stream.may_reopen():
        stream.keep_sealed()
        walk = NodeWalk(txn, stream)
        if walk.last() and not trimmed_above(txn, stream.number, walk.ms, walk.seq):
            walk.make_tail()
    return stream.tail_builder()


def _start_node(
    txn: WriteTxn, stream: Stream, ms: int, seq: int, pairs: list[bytes], limit: i64
) -> None:
    """Begin a new node with this entry; one that is full with it is sealed at once."""
    seal_tail(txn, stream)
    builder = NodeBuilder(ms, seq, pairs[0::2])
    builder.append(ms, seq, pairs)
    stream.keep_sealed()
    if builder.size() < limit or limit == _NO_LIMIT:
        stream.start_tail(builder)
        return
    add_newest_node(txn, stream, builder.ms, builder.seq, builder.listpack(), b"")
