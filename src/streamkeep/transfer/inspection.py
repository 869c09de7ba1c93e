"""The bytes of a store and its files with their meanings, for administrators.

Each function yields `Heading`s, each followed by the `Slot`s or `Piece`s of what it names. Damaged
bytes are described as far as they can be read: a piece of the name "damage" says where that ends.
Nothing here changes a store or a file.

Bytes, sound or damaged, become pieces in the order of their offsets, field by field, with the
layouts of the codecs. Checksums are computed, and shown beside a wrong one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.command_base import Id, Key
from streamkeep.engine.commands.arguments import to_bytes, to_id
from streamkeep.engine.system.files import path_of
from streamkeep.engine.tables.existing import existing_stream, group_in
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.segment_files import SegmentFile, open_named
from streamkeep.engine.txn.scan import rows_with
from streamkeep.format.core import keys
from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, CorruptionError, TransferError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.format.journal import checkpoint, journal
from streamkeep.format.node.envelope import (
    CHECKSUM_SIZE,
    ENVELOPE,
    Envelope,
    decode_envelope,
    trimmed_slots,
)
from streamkeep.format.node.listpack import Reader
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.node.node import slots
from streamkeep.format.quoting import named
from streamkeep.format.rows import batches, extension, group_records, nacks, producers, records
from streamkeep.format.segment import index as segment_index
from streamkeep.format.segment import manifest
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment
from streamkeep.transfer.stores import AnySource, reading

_TABLES: Final = {table.name: number for number, table in keys.TABLES.items()}
TABLE_NAMES: Final = tuple(_TABLES)
_MOST_FILE: Final = 1 << 30
_NUMBER: Final = Layout("number", (Field("number", "Q", ""),))
_PAGE_KEY: Final = Layout("page key", (Field("ms", "Q", ""), Field("seq", "Q", "")))
_GARBAGE: Final = Layout("garbage", (Field("kind", "B", ""), Field("number", "Q", "")))
# The parts of a row: layouts, of which NACK is repeated, and the name of the bytes after them.
_ROWS: Final[dict[int, tuple[Layout | str, ...]]] = {
    keys.KEYS: (_NUMBER, "name"),
    keys.GROUPS: (group_records.GROUP_RECORD, nacks.NACK, "name"),
    keys.CONSUMERS: (group_records.CONSUMER_RECORD, "name"),
    keys.PEL: (nacks.NACK,),
    keys.PEL_ORDER: (_PAGE_KEY,),
    keys.PRODUCERS: (producers.PRODUCER_ROW, "name"),
    keys.IDEMPOTENCY: (producers.MESSAGE_ROW, "message ID"),
    keys.IDEMPOTENCY_ORDER: (producers.MESSAGE_ROW, "message ID"),
    keys.GARBAGE: (_GARBAGE,),
    keys.SEGMENTS: (manifest.SEGMENT_RECORD, "path and key"),
    keys.ERASURES: (manifest.ERASURE,),
}
# Layouts whose checksum is that of the fields before it, and the size of these.
_SEALED: Final = {
    layout: layout.offset("checksum")
    for layout in (journal.FILE_HEADER, checkpoint.SLOT, segment_index.TRAILER)
}
_SLOTS: Final = ("own fields", "tombstone, own fields", "same fields", "tombstone, same fields")
_MAX_TEXT: Final = 48  # bytes of a string that are shown as text


class Heading(NamedTuple):
    """What the following items belong to.

    Attributes:
        kind: "row", "node", "segment", "block" or "file".
        text: a line for people.
        members: the same for programs; keys of streams are bytes, IDs are text.
    """

    kind: str
    text: str
    members: dict[str, object]


def _heading(kind: str, text: str, **members: object) -> Heading:
    """Return a heading; its text names the members that it shows."""
    return Heading(kind, text.format_map(members), members)


class Piece(NamedTuple):
    """Some bytes, their offset, the name of the field, and its value as text."""

    offset: int
    data: bytes
    name: str
    value: str


class Slot(NamedTuple):
    """One place of a macro node, whatever became of its entry.

    Attributes:
        number: of the place in its node, from 0 on.
        id: the ID of the entry.
        state: "live", "deleted" or "trimmed".
        same_fields: the fields have the names of the node's first entry, and are not stored again.
        pairs: (field, value) in their order.
    """

    number: int
    id: StreamId
    state: str
    same_fields: bool
    pairs: list[tuple[bytes, bytes]]


Item = Heading | Slot | Piece


# --- of a store ---------------------------------------------------------------------------------


def inspect_node(
    source: AnySource, key: Key, entry_id: Id, *, as_bytes: bool = False
) -> Iterator[Item]:
    """Yield the macro node that holds, or would hold, an ID: its slots, or its bytes.

    Args:
        source: an open store, a snapshot, or the path of a store.
        as_bytes: yield a `Piece` for each field of the bytes, in place of the slots.

    Raises:
        NoSuchKeyError: there is no such stream.
        TransferError: the stream has no macro nodes.
    """
    with reading(source) as snapshot:
        txn, name = snapshot.txn, to_bytes(key, "key")
        stream = existing_stream(txn, name)
        walk = NodeWalk(txn, stream)
        if not walk.seek(*to_id(entry_id)):
            raise TransferError(f"stream {named(name)} has no macro nodes")
        if walk.on_tail:
            table, db_key = keys.STREAMS, keys.pack_number(stream.number)
        else:
            table, db_key = keys.NODES, keys.node_key(stream.number, walk.ms, walk.seq)
        value = txn.get(table, db_key) or b""
        where = keys.TABLES[table].name
        if as_bytes:
            text = "{table}: {size_bytes:,} bytes"
            yield _heading("row", text, table=where, size_bytes=len(value))
            yield from describe_envelope(value)
        else:
            yield from _node(decode_envelope(value, f"envelope in {where}"), where)


def _node(envelope: Envelope, where: str) -> Iterator[Item]:
    trimmed = trimmed_slots(envelope.trimmed)
    yield _heading(
        "node",
        "macro node {node} in {where}: listpack of {size_bytes:,} bytes, "
        "epoch {epoch} commit {commit_number}",
        node=f"{envelope.ms}-{envelope.seq}",
        where=where,
        size_bytes=len(envelope.listpack),
        epoch=envelope.epoch,
        commit_number=envelope.commit_number,
    )
    for number, (ms, seq, flags, flat) in enumerate(
        slots(envelope.listpack, envelope.ms, envelope.seq)
    ):
        state = "live"
        if flags & 1:
            state = "trimmed" if number in trimmed else "deleted"
        pairs = list(zip(flat[0::2], flat[1::2], strict=True))
        yield Slot(number, StreamId(ms, seq), state, bool(flags & 2), pairs)


def inspect_group(source: AnySource, key: Key, group: Key) -> Iterator[Item]:
    """Yield the rows of a consumer group, byte by byte.

    Raises:
        NoSuchKeyError, NoSuchGroupError: there is no such stream or group.
    """
    with reading(source) as snapshot:
        txn, name = snapshot.txn, to_bytes(key, "key")
        stream = existing_stream(txn, name)
        found = group_in(txn, stream, to_bytes(group, "group"))
        db_key = keys.name_key(stream.db_key, found.record.name)
        yield from _row(keys.GROUPS, db_key, txn.get(keys.GROUPS, db_key) or b"")
        for table in (keys.CONSUMERS, keys.PEL, keys.PEL_ORDER, keys.CONSUMER_PEL):
            for row in rows_with(txn, table, found.prefix):
                yield from _row(table, *row)


def inspect_table(
    source: AnySource, table: str, *, key: Key | None = None, count: int | None = None
) -> Iterator[Item]:
    """Yield the rows of a table of the store (a sub-database of LMDB), byte by byte.

    Args:
        table: one of `TABLE_NAMES`.
        key: only the rows that begin with the number of this stream.
        count: how many rows at most.

    Raises:
        ArgumentError: there is no such table.
        NoSuchKeyError: there is no such stream.
    """
    if table not in TABLE_NAMES:
        raise ArgumentError(f"{table!r} is not a table; choose one of {', '.join(TABLE_NAMES)}")
    with reading(source) as snapshot:
        txn = snapshot.txn
        prefix = b""
        if key is not None:
            prefix = keys.pack_number(existing_stream(txn, to_bytes(key, "key")).number)
        for row in islice(rows_with(txn, _TABLES[table], prefix), count):
            yield from _row(_TABLES[table], *row)


def _row(table: int, db_key: bytes, value: bytes) -> Iterator[Item]:
    text, name = "{table} {db_key}: {size_bytes:,} bytes", keys.TABLES[table].name
    yield _heading("row", text, table=name, db_key=db_key.hex(), size_bytes=len(value))
    yield from describe_row(table, db_key, value)


# --- of files -----------------------------------------------------------------------------------


def inspect_journal(path: str | os.PathLike[str]) -> Iterator[Item]:
    """Yield the bytes of a log file of the journal; raise OSError where it cannot be read."""
    return _file(path, describe_journal)


def inspect_checkpoints(path: str | os.PathLike[str]) -> Iterator[Item]:
    """Yield the bytes of the file of checkpoints; raise OSError where it cannot be read."""
    return _file(path, describe_checkpoint)


def _file(
    path: str | os.PathLike[str], pieces_of: Callable[[bytes], list[Piece]]
) -> Iterator[Item]:
    file = path_of(path, "path")
    if file.stat().st_size > _MOST_FILE:
        raise TransferError(f"{file}: larger than 1 GiB, which no such file is")
    data = file.read_bytes()
    yield _heading("file", "{file}: {size_bytes:,} bytes", file=str(file), size_bytes=len(data))
    yield from pieces_of(data)


def inspect_segment(
    path: str | os.PathLike[str], *, as_bytes: bool = False, max_block_bytes: int = MAX_BLOCK_BYTES
) -> Iterator[Item]:
    """Yield a segment file of an archive: its description, its blocks, and their nodes.

    Args:
        as_bytes: yield a `Piece` for each field of the bytes, in place of the slots.
        max_block_bytes: refuse a block that takes more memory; a small file can hold much.

    Raises:
        CorruptionError: this is not a whole segment.
        FormatVersionError: a newer version of Streamkeep wrote it.
        OSError: the file cannot be read.
    """
    file = SegmentFile(open_named(path_of(path, "path")), str(path))
    segment = Segment.open(file.read_at, file.size, str(path), max_block_bytes)
    trailer, index = segment.trailer, segment.index
    held, span = _held(trailer)
    yield Heading(
        "segment",
        f"{path}: stream {named(index.key)}, {span}, {count_text(trailer.nodes, 'node')}, "
        f"{size_text(file.size)} for {size_text(trailer.raw_size)}",
        {
            "file": str(path),
            "key": index.key,
            "nodes": trailer.nodes,
            **held,
            "size_bytes": file.size,
            "raw_size_bytes": trailer.raw_size,
            "created_ms": trailer.created_ms,
            "epoch": trailer.epoch,
        },
    )
    for number, block in enumerate(index.blocks):
        held, span = _held(block)
        sizes = {"size_bytes": block.size, "raw_size_bytes": block.raw_size}
        yield Heading(
            "block",
            f"block {number}: bytes {block.offset}-{block.offset + block.size - 1}, "
            f"{span}, {size_text(block.raw_size)} uncompressed",
            {"block": number, "offset": block.offset, **sizes, **held},
        )
        try:
            yield from _block(segment, number, as_bytes=as_bytes)
        except CorruptionError as error:
            yield Piece(block.offset, b"", "damage", str(error))
    if as_bytes:
        at = trailer.blocks_size
        dictionary = file.read_at(at, trailer.dictionary_size)
        if dictionary:
            yield Piece(at, dictionary, "dictionary", f"{len(dictionary):,} bytes")
        at += len(dictionary)
        yield from describe_segment_end(file.read_at(at, file.size - at), at)


def _held(part: Any) -> tuple[dict[str, object], str]:
    first, last = ("{}-{}".format(*one) for one in (part.first_id, part.last_id))
    members: dict[str, object] = {"entries": part.entries, "first_id": first, "last_id": last}
    return members, f"{entries_text(part.entries)} from {first} to {last}"


def _block(segment: Segment, number: int, *, as_bytes: bool) -> Iterator[Item]:
    if not as_bytes:
        for envelope in segment.block(number):
            yield from _node(envelope, f"block {number}")
        return
    raw = segment.raw_block(number)
    length = ENVELOPE.offset("length")
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at + length : at + length + 4], "big")
        end = min(at + max(size, ENVELOPE.size), len(raw))
        yield from describe_envelope(raw[at:end], at)
        at = end


# --- pieces -------------------------------------------------------------------------------------


class _Bytes:
    """Bytes that are taken piece by piece, up to `end`."""

    def __init__(self, data: bytes, base: int) -> None:
        self.data, self.base, self.at, self.end = data, base, 0, len(data)
        self.pieces: list[Piece] = []

    def take(self, size: int, name: str, value: str | None = None) -> None:
        """Add the next bytes, with their meaning; None for themselves as text."""
        part = self.data[self.at : min(self.at + size, self.end)]
        self.pieces.append(
            Piece(self.base + self.at, part, name, _quoted(part) if value is None else value)
        )
        self.at += len(part)

    def rest(self, name: str, value: str | None = None) -> None:
        if self.at < self.end:
            self.take(self.end - self.at, name, value)

    def fields(self, layout: Layout, prefix: str = "") -> dict[str, Any]:
        """Add the fields of a layout, and return them by name."""
        start, found = self.at, dict[str, Any]()
        if self.end - start < layout.size:
            raise CorruptionError("", f"{prefix}{layout.name} is truncated")
        values = layout.struct.unpack_from(self.data, start)
        for field, value in zip(layout.fields, values, strict=True):
            found[field.name] = value
            if isinstance(value, bytes):
                value = _quoted(value) if value.isascii() and value.strip(b"\0") else value.hex()
            meaning = "  " + field.meaning.replace("`", "") if field.meaning else ""
            self.take(field.size, prefix + field.name, f"{value}{meaning}")
        computed = digest64(self.data[start : start + _SEALED.get(layout, 0)])
        if layout in _SEALED and found["checksum"] != int.from_bytes(computed, "big"):
            raise CorruptionError("", f"the checksum is wrong, computed {computed.hex()}")
        return found

    def checksum(self, computed: bytes) -> None:
        """Add the checksum that comes next, compared with the computed one."""
        right = self.data.startswith(computed, self.at)
        told = "right" if right else f"WRONG, computed {computed.hex()}"
        self.take(len(computed), "checksum", told)

    def element(self, name: str, show: Callable[[int], str] | None = None, after: str = "") -> Any:
        """Add the next element of a listpack; return its text, or, with `show`, its number."""
        stop = int(checked_step(self.data, self.at, self.end - 1))
        reader = Reader(self.data, self.at, self.end - 1)
        number = 0 if show is None else int(reader.integer())
        text = _quoted(reader.string()) if show is None else show(number)
        self.take(stop - self.at, name, text + after)
        return text if show is None else number

    def within(self, end: int, walk: Callable[[_Bytes], None]) -> None:
        """Add the bytes up to `end`; damage in them does not end what comes after."""
        outer, self.end = self.end, end
        try:
            walk(self)
            self.rest("damage", "too long")
        except CorruptionError as error:
            self.take(end - self.at, "damage", error.problem)
        self.end = outer


def _describer(walk: Callable[[_Bytes], None]) -> Callable[..., list[Piece]]:
    """Return a function of bytes, and of their offset in the file if they are not all of it."""

    def described(data: bytes, base: int = 0) -> list[Piece]:
        found = _Bytes(data, base)
        found.within(len(data), walk)
        return found.pieces

    return described


def _quoted(data: bytes) -> str:
    text = repr(data[:_MAX_TEXT])[1:]
    return text if len(data) <= _MAX_TEXT else f"{text} and {len(data) - _MAX_TEXT:,} more bytes"


# --- rows, and the nodes in them ------------------------------------------------------------------


def describe_row(table: int, db_key: bytes, value: bytes) -> list[Piece]:
    """Return the pieces of the value of a row; `table` is an index in `keys.TABLES`."""
    if table in (keys.STREAMS, keys.NODES, keys.RETIRED):
        return describe_envelope(value)
    end = max(0, len(value) - ROW_CHECKSUM_SIZE)
    parts = _ROWS.get(table, ("body",))
    is_number = table == keys.META and end == _NUMBER.size
    if table == keys.META and db_key.startswith(batches.PREFIX):
        parts, is_number = (batches.BATCH_ROW, "application"), False
    elif table in (keys.CONSUMERS, keys.PRODUCERS) and not keys.is_name_key(db_key):
        parts, is_number = ("body",), keys.is_lease_key(db_key)
    found = _Bytes(value, 0)
    found.within(end, partial(_fields, (_NUMBER,) if is_number else parts))
    found.checksum(row_checksum(table, db_key, value[:end]))
    return found.pieces


def _fields(parts: tuple[Layout | str, ...], found: _Bytes) -> None:
    head: dict[str, Any] = {}
    for part in parts:
        if isinstance(part, str):
            found.rest(part)
        elif part is nacks.NACK:  # of a group in its row, or a page of them
            end, number = found.at + head.get("inline_size", found.end - found.at), 0
            while found.at < end:
                found.fields(part, f"NACK {number} ")
                number += 1
        else:
            head = found.fields(part)


@_describer
def describe_envelope(found: _Bytes) -> None:
    head = found.fields(ENVELOPE)
    end = found.end - CHECKSUM_SIZE
    listpack_at = found.at + head["record_size"]
    bitmap_at = listpack_at + head["listpack_size"]
    if bitmap_at > end:
        raise CorruptionError("", "the sizes in the header do not fit the envelope")
    if head["record_size"]:
        found.within(listpack_at, _stream_record)
    if head["listpack_size"]:
        found.within(bitmap_at, partial(_listpack, head["ms"], head["seq"]))
    if bitmap_at < end:
        bits = int.from_bytes(found.data[bitmap_at:end], "little")
        slots = [str(slot) for slot in range(bits.bit_length()) if bits >> slot & 1]
        found.take(end - bitmap_at, "trimmed", f"slots {' '.join(slots)}")
    found.checksum(digest64(found.data[:end]))


def _stream_record(found: _Bytes) -> None:
    found.fields(records.STREAM_RECORD)
    while found.at < found.end:
        head = found.fields(extension.SECTION_HEAD, "section ")
        if head["tag"] == extension.IDEMPOTENCE:
            found.fields(extension.IDEMPOTENCE_SECTION)
        else:
            found.take(head["size"], "section", "not annotated")


def _listpack(ms: int, seq: int, found: _Bytes) -> None:
    """Add a listpack; `ms` and `seq` are the key of the macro node."""
    size, head = found.end - found.at, found.data[found.at : found.at + 6]
    total, count = (int.from_bytes(part, "little") for part in (head[:4], head[4:]))
    found.take(4, "total-bytes", f"{total}" + ("" if total == size else f", found {size}"))
    found.take(2, "num-elements", "unknown" if count == 65535 else str(count))
    if found.at >= found.end:
        raise CorruptionError("", f"{size} bytes, less than an empty listpack")
    found.element("master count", str)
    found.element("master deleted", str)
    width = found.element("master num-fields", str)
    names = [found.element(f"master field {number}") for number in range(width)]
    found.element("master end", str)
    number = 0
    while found.at < found.end - 1:
        _entry(found, f"slot {number} ", names, ms, seq)
        number += 1
    found.take(1, "end", "" if found.data[found.at] == 0xFF else "not FF")


def _entry(found: _Bytes, slot: str, names: list[str], ms: int, seq: int) -> None:
    flags = found.element(slot + "flags", lambda bits: f"{bits}  {_SLOTS[bits & 3]}")
    ms = (ms + found.element(slot + "ms-diff", str)) % (1 << 64)
    found.element(slot + "seq-diff", lambda diff: f"{diff}  ID {ms}-{(seq + diff) % (1 << 64)}")
    for name in names if flags & 2 else ():
        found.element(slot + "value", after=f"  of {name}")
    for _ in range(0 if flags & 2 else found.element(slot + "num-fields", str)):
        found.element(slot + "field")
        found.element(slot + "value")
    found.element(slot + "lp-count", str)


# --- files ----------------------------------------------------------------------------------------


@_describer
def describe_journal(found: _Bytes) -> None:
    found.fields(journal.FILE_HEADER)
    chain, number = journal.first_chain(found.data), 0
    while (record := journal.read_record(found.data, found.at, chain)) is not None:
        prefix = f"record {number} "
        found.fields(journal.RECORD_HEADER, prefix)
        found.take(8, prefix + "commit number", str(record.commit_number))
        found.within(record.end, partial(_operations, record.body, prefix))
        chain, number = record.chain, number + 1
    old = found.data[found.at :].strip(b"\0")
    told = "no valid record: old bytes or a torn write" if old else "zeros: reserved space"
    found.rest("rest", told)


def _operations(body: bytes, prefix: str, found: _Bytes) -> None:
    for change in journal.read_changes(body, keys.TABLES):
        text = f"{keys.TABLES[change.table].name} {change.db_key.hex()}"
        if change.kind == journal.MOVE:
            text += f", to {keys.TABLES[change.kept].name}"
        elif change.kind != journal.DELETE:
            text += f", {len(change.head) + change.kept + len(change.value):,} bytes"
        found.take(change.size(), prefix + journal.OPERATIONS[change.kind], text)


@_describer
def describe_checkpoint(found: _Bytes) -> None:
    def slot(number: int, found: _Bytes) -> None:
        found.fields(checkpoint.SLOT, f"slot {number} ")
        found.rest("unused", "")

    for number in range(checkpoint.SLOTS):
        found.within(min(found.at + checkpoint.SLOT_SIZE, found.end), partial(slot, number))
    found.rest("rest", "after the last slot")


@_describer
def describe_segment_end(found: _Bytes) -> None:
    """Index frame, trailer and seek table."""
    head = found.fields(segment_index.INDEX_HEADER)
    found.take(head["key_size"], "key")
    for number in range(head["block_count"]):
        found.fields(segment_index.INDEX_ROW, f"block {number} ")
    found.checksum(digest64(found.data[: found.at]))
    found.fields(segment_index.TRAILER)
    found.rest("seek table", f"{found.end - found.at:,} bytes in zstd's seekable format")
