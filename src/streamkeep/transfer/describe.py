"""Bytes of a store with their meanings, field by field, as the layouts of the codecs have them.

Bytes, sound or damaged, become pieces in the order of their offsets, without a gap: a piece of the
name "damage" says where they can no longer be read. Checksums are computed, and shown beside a
wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from streamkeep.format.core import keys
from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Layout
from streamkeep.format.journal import checkpoint, journal
from streamkeep.format.node.envelope import CHECKSUM_SIZE, ENVELOPE
from streamkeep.format.node.listpack import Reader
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.row_schemas import SECTIONS, Repeated, parts_of
from streamkeep.format.rows.extension import SECTION_HEAD
from streamkeep.format.rows.records import STREAM_RECORD
from streamkeep.format.segment import index as segment_index

Walk = Callable[["_Bytes"], None]

# Layouts whose checksum is that of the fields before it, and the size of these.
_SEALED: Final = {
    layout: layout.offset("checksum")
    for layout in (journal.FILE_HEADER, checkpoint.SLOT, segment_index.TRAILER)
}
_SLOTS: Final = ("own fields", "tombstone, own fields", "same fields", "tombstone, same fields")
_MAX_TEXT: Final = 48  # bytes of a string that are shown as text


class Piece(NamedTuple):
    """Some bytes, their offset, the name of the field, and its value as text."""

    offset: int
    data: bytes
    name: str
    value: str


class _Bytes:
    """Bytes that are taken piece by piece, up to `end`."""

    def __init__(self, data: bytes, base: int) -> None:
        self.data, self.base, self.at, self.end = data, base, 0, len(data)
        self.pieces: list[Piece] = []

    def take(self, size: int, name: str, value: str | None = None) -> None:
        """Add the next bytes, with their meaning; None for themselves as text."""
        part = self.data[self.at : min(self.at + size, self.end)]
        text = _quoted(part) if value is None else value
        self.pieces.append(Piece(self.base + self.at, part, name, text))
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
        wrong = "" if self.data.startswith(computed, self.at) else computed.hex()
        self.take(len(computed), "checksum", f"WRONG, computed {wrong}" if wrong else "right")

    def element(self, name: str, show: Callable[[int], str] | None = None, after: str = "") -> Any:
        """Add the next element of a listpack; return its text, or, with `show`, its number."""
        stop = int(checked_step(self.data, self.at, self.end - 1))
        reader = Reader(self.data, self.at, self.end - 1)
        number = 0 if show is None else int(reader.integer())
        text = _quoted(reader.string()) if show is None else show(number)
        self.take(stop - self.at, name, text + after)
        return text if show is None else number

    @contextmanager
    def within(self, end: int) -> Iterator[None]:
        """Take the bytes up to `end` in a block; damage in them does not end what comes after."""
        outer, self.end = self.end, end
        try:
            yield
            self.rest("damage", "too long")
        except CorruptionError as error:
            self.take(end - self.at, "damage", error.problem)
        self.end = outer


def pieces_of(walk: Walk, data: bytes, base: int = 0) -> list[Piece]:
    """Return the pieces of bytes, which begin at the offset `base` of a file or block."""
    found = _Bytes(data, base)
    with found.within(len(data)):
        walk(found)
    return found.pieces


def _quoted(data: bytes) -> str:
    text = repr(data[:_MAX_TEXT])[1:]
    return text if len(data) <= _MAX_TEXT else f"{text} and {len(data) - _MAX_TEXT:,} more bytes"


def describe_row(table: int, db_key: bytes, value: bytes) -> list[Piece]:
    """Return the pieces of the value of a row; `table` is an index in `keys.TABLES`."""
    if table in (keys.STREAMS, keys.NODES, keys.RETIRED):
        return pieces_of(envelope, value)
    end = max(0, len(value) - ROW_CHECKSUM_SIZE)
    found, head = _Bytes(value, 0), dict[str, Any]()
    with found.within(end):
        for part in parts_of(table, db_key, end):
            if isinstance(part, str):
                found.rest(part)
            elif isinstance(part, Repeated):
                stop, number = found.at + head.get(part.size, found.end - found.at), 0
                while found.at < stop:
                    found.fields(part.layout, f"{part.layout.name} {number} ")
                    number += 1
            else:
                head = found.fields(part)
    found.checksum(row_checksum(table, db_key, value[:end]))
    return found.pieces


def envelope(found: _Bytes) -> None:
    head = found.fields(ENVELOPE)
    end = found.end - CHECKSUM_SIZE
    listpack_at = found.at + head["record_size"]
    bitmap_at = listpack_at + head["listpack_size"]
    if bitmap_at > end:
        raise CorruptionError("", "the sizes in the header do not fit the envelope")
    if head["record_size"]:
        with found.within(listpack_at):
            _stream_record(found)
    if head["listpack_size"]:
        with found.within(bitmap_at):
            _listpack(found, head["ms"], head["seq"])
    if bitmap_at < end:
        bits = int.from_bytes(found.data[bitmap_at:end], "little")
        slots = [str(slot) for slot in range(bits.bit_length()) if bits >> slot & 1]
        found.take(end - bitmap_at, "trimmed", f"slots {' '.join(slots)}")
    found.checksum(digest64(found.data[:end]))


def _stream_record(found: _Bytes) -> None:
    found.fields(STREAM_RECORD)
    while found.at < found.end:
        head = found.fields(SECTION_HEAD, "section ")
        with found.within(min(found.at + head["size"], found.end)):
            if head["tag"] in SECTIONS:
                found.fields(SECTIONS[head["tag"]])
            else:
                found.rest("section", "not annotated")


def _listpack(found: _Bytes, ms: int, seq: int) -> None:
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


def journal_file(found: _Bytes) -> None:
    found.fields(journal.FILE_HEADER)
    chain, number = journal.first_chain(found.data), 0
    while (record := journal.read_record(found.data, found.at, chain)) is not None:
        prefix = f"record {number} "
        found.fields(journal.RECORD_HEADER, prefix)
        commit_number = int.from_bytes(record.body[:8], "big")  # the record's has a sign
        found.take(8, prefix + "commit number", str(commit_number))
        with found.within(record.end):
            _operations(found, record.body, prefix)
        chain, number = record.chain, number + 1
    old = found.data[found.at :].strip(b"\0")
    told = "no valid record: old bytes or a torn write" if old else "zeros: reserved space"
    found.rest("rest", told)


def _operations(found: _Bytes, body: bytes, prefix: str) -> None:
    for change in journal.read_changes(body, keys.TABLES):
        text = f"{keys.TABLES[change.table].name} {change.db_key.hex()}"
        if change.kind == journal.MOVE:
            text += f", to {keys.TABLES[change.kept].name}"
        elif change.kind != journal.DELETE:
            text += f", {len(change.head) + change.kept + len(change.value):,} bytes"
        found.take(change.size(), prefix + journal.OPERATIONS[change.kind], text)


def checkpoint_file(found: _Bytes) -> None:
    for number in range(checkpoint.SLOTS):
        with found.within(min(found.at + checkpoint.SLOT_SIZE, found.end)):
            found.fields(checkpoint.SLOT, f"slot {number} ")
            found.rest("unused", "")
    found.rest("rest", "after the last slot")


def segment_end(found: _Bytes) -> None:
    """Index frame, trailer and seek table."""
    head = found.fields(segment_index.INDEX_HEADER)
    found.take(head["key_size"], "key")
    for number in range(head["block_count"]):
        found.fields(segment_index.INDEX_ROW, f"block {number} ")
    found.checksum(digest64(found.data[: found.at]))
    found.fields(segment_index.TRAILER)
    found.rest("seek table", f"{found.end - found.at:,} bytes in zstd's seekable format")
