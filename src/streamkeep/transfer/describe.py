"""Annotating stored bytes field by field, for `dump --bytes`, with the layouts of the codecs.

Each function takes bytes, sound or damaged, and returns `Piece`s in the order of their offsets. A
piece named `damage` says which bytes do not fit the format and why. Nothing is raised. Checksums
are computed, and shown beside a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from streamkeep.format.core import keys
from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.journal import checkpoint, journal
from streamkeep.format.node.envelope import CHECKSUM_SIZE, ENVELOPE
from streamkeep.format.node.listpack import Reader
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.rows import batches, extension, group_records, nacks, producers, records
from streamkeep.format.segment import index, manifest

_NUMBER: Final = Layout("number", (Field("number", "Q", ""),))
_ROWS: Final[dict[int, tuple[Layout, str]]] = {  # layout, and name of the bytes after it
    keys.KEYS: (_NUMBER, "name"),
    keys.CONSUMERS: (group_records.CONSUMER_RECORD, "name"),
    keys.PRODUCERS: (producers.PRODUCER_ROW, "name"),
    keys.PEL_ORDER: (Layout("page key", (Field("ms", "Q", ""), Field("seq", "Q", ""))), ""),
    keys.IDEMPOTENCY: (producers.MESSAGE_ROW, "message ID"),
    keys.IDEMPOTENCY_ORDER: (producers.MESSAGE_ROW, "message ID"),
    keys.GARBAGE: (Layout("garbage", (Field("kind", "B", ""), Field("number", "Q", ""))), ""),
    keys.SEGMENTS: (manifest.SEGMENT_RECORD, "path and key"),
    keys.ERASURES: (manifest.ERASURE, ""),
}
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
        self.data = data
        self.base = base
        self.at = 0
        self.end = len(data)
        self.pieces: list[Piece] = []

    def take(self, size: int, name: str, value: str | None = None) -> None:
        """Add the next bytes, with their meaning; None for themselves as text."""
        part = self.data[self.at : min(self.at + size, self.end)]
        text = _quoted(part) if value is None else value
        self.pieces.append(Piece(self.base + self.at, part, name, text))
        self.at += len(part)

    def rest(self, name: str, value: str | None = None) -> None:
        """Add the bytes up to `end`, if there are some."""
        if self.at < self.end:
            self.take(self.end - self.at, name, value)

    def fields(self, layout: Layout, prefix: str = "") -> dict[str, Any]:
        """Add the fields of a layout, and return them by name."""
        start = self.at
        for field in layout.fields:
            if self.end - self.at < field.size:
                raise CorruptionError("", f"{layout.name}: {prefix}{field.name} is truncated")
            part = self.data[self.at : self.at + field.size]
            meaning = "  " + field.meaning.replace("`", "") if field.meaning else ""
            self.take(field.size, prefix + field.name, _value(field, part) + meaning)
        found = layout.struct.unpack_from(self.data, start)
        return dict(zip((field.name for field in layout.fields), found, strict=True))

    def checksum(self, computed: bytes) -> None:
        """Add the checksum that comes next, compared with the computed one."""
        right = self.data.startswith(computed, self.at)
        self.take(
            len(computed), "checksum", "right" if right else f"WRONG, computed {computed.hex()}"
        )

    def element(self, name: str, after: str = "") -> bytes:
        """Add the next element of a listpack; return it."""
        stop = int(checked_step(self.data, self.at, self.end - 1))
        found = Reader(self.data, self.at, self.end - 1).string()
        self.take(stop - self.at, name, _quoted(found) + after)
        return found

    def number(self, name: str, show: Callable[[int], str] = str) -> int:
        """Add the next element of a listpack, which must be an integer; return it."""
        stop = int(checked_step(self.data, self.at, self.end - 1))
        found = int(Reader(self.data, self.at, self.end - 1).integer())
        self.take(stop - self.at, name, show(found))
        return found

    def within(self, end: int, walk: Callable[[_Bytes], None]) -> None:
        """Add the bytes up to `end`; damage in them does not end what comes after."""
        outer, self.end = self.end, end
        try:
            walk(self)
            self.rest("damage", "too long")
        except CorruptionError as error:
            self.take(end - self.at, "damage", error.problem)
        self.end = outer


class _Describe(Protocol):
    def __call__(self, data: bytes, base: int = 0) -> list[Piece]: ...


def _describing(walk: Callable[[_Bytes], None]) -> _Describe:
    def describe(data: bytes, base: int = 0) -> list[Piece]:
        """Return the pieces of bytes; `base` is their offset in the file."""
        found = _Bytes(data, base)
        found.within(len(data), walk)
        return found.pieces

    return describe


def _quoted(data: bytes) -> str:
    text = repr(data[:_MAX_TEXT])[1:]
    return text if len(data) <= _MAX_TEXT else f"{text} and {len(data) - _MAX_TEXT:,} more bytes"


def _value(field: Field, part: bytes) -> str:
    if field.code.endswith("s"):
        return _quoted(part) if part.isascii() and part.strip(b"\0") else part.hex()
    return f"{int.from_bytes(part, 'big', signed=field.code == 'q')}"


# --- envelopes, and the nodes in them -------------------------------------------------------------


@_describing
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
        found.within(bitmap_at, partial(_node, head["ms"], head["seq"]))
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


def _node(ms: int, seq: int, found: _Bytes) -> None:
    """Add a listpack; `ms` and `seq` are the key of the macro node."""
    size = found.end - found.at
    total = int.from_bytes(found.data[found.at : found.at + 4], "little")
    found.take(4, "total-bytes", f"{total}" + ("" if total == size else f", found {size}"))
    count = int.from_bytes(found.data[found.at : found.at + 2], "little")
    found.take(2, "num-elements", "unknown" if count == 65535 else str(count))
    if found.at >= found.end:
        raise CorruptionError("", f"{size} bytes, less than an empty listpack")
    found.number("master count")
    found.number("master deleted")
    width = found.number("master num-fields")
    names = [_quoted(found.element(f"master field {number}")) for number in range(width)]
    found.number("master end")
    slot = 0
    while found.at < found.end - 1:
        _slot(found, f"slot {slot} ", names, ms, seq)
        slot += 1
    found.take(1, "end", "" if found.data[found.at] == 0xFF else "not FF")


def _slot(found: _Bytes, slot: str, names: list[str], ms: int, seq: int) -> None:
    words = ("own fields", "tombstone, own fields", "same fields", "tombstone, same fields")
    flags = found.number(slot + "flags", lambda bits: f"{bits}  {words[bits & 3]}")
    ms = (ms + found.number(slot + "ms-diff")) % (1 << 64)
    found.number(slot + "seq-diff", lambda diff: f"{diff}  ID {ms}-{(seq + diff) % (1 << 64)}")
    if flags & 2:
        for name in names:
            found.element(slot + "value", f"  of {name}")
    else:
        for _ in range(found.number(slot + "num-fields")):
            found.element(slot + "field")
            found.element(slot + "value")
    found.number(slot + "lp-count")


# --- rows -----------------------------------------------------------------------------------------


def describe_row(table: int, db_key: bytes, value: bytes) -> list[Piece]:
    """Return the pieces of the value of a row; `table` is an index in `keys.TABLES`."""
    if table in (keys.STREAMS, keys.NODES, keys.RETIRED):
        return describe_envelope(value)

    @_describing
    def describe(found: _Bytes) -> None:
        end = found.end - ROW_CHECKSUM_SIZE
        if end < 0:
            raise CorruptionError("", f"{found.end} bytes, expected {ROW_CHECKSUM_SIZE} or more")
        found.within(end, partial(_body, table, db_key))
        found.checksum(row_checksum(table, db_key, value[:end]))

    return describe(value)


def _body(table: int, db_key: bytes, found: _Bytes) -> None:
    layout, after = _ROWS.get(table, (None, ""))
    if table in (keys.CONSUMERS, keys.PRODUCERS) and not keys.is_name_key(db_key):
        layout, after = (_NUMBER if keys.is_lease_key(db_key) else None), ""
    elif table == keys.META and db_key.startswith(batches.PREFIX):
        layout, after = batches.BATCH_ROW, "application"
    elif table == keys.META and found.end == _NUMBER.size:
        layout = _NUMBER
    if table == keys.GROUPS:
        head = found.fields(group_records.GROUP_RECORD)
        _nacks(found, found.at + head["inline_size"])
        found.rest("name")
    elif table == keys.PEL:
        _nacks(found, found.end)
    elif layout is not None:
        found.fields(layout)
        if after:
            found.rest(after)
    else:
        found.rest("body")


def _nacks(found: _Bytes, end: int) -> None:
    number = 0
    while found.at < end:
        found.fields(nacks.NACK, f"NACK {number} ")
        number += 1


# --- files ----------------------------------------------------------------------------------------


def _sealed(found: _Bytes, layout: Layout, prefix: str = "") -> bool:
    """Add a layout with a checksum of the fields before it; return whether it is right."""
    start = found.at
    stated = found.fields(layout, prefix)["checksum"]
    sealed = found.data[start : start + layout.offset("checksum")]
    if stated == int.from_bytes(digest64(sealed), "big"):
        return True
    found.take(0, "damage", f"the checksum is wrong, computed {digest64(sealed).hex()}")
    return False


@_describing
def describe_journal(found: _Bytes) -> None:
    data = found.data
    if not _sealed(found, journal.FILE_HEADER):
        found.rest("damage", "no record can be checked")
        return
    chain = journal.first_chain(data[: found.at])
    number = 0
    while found.end - found.at >= journal.RECORD_HEADER.size:
        size, checksum = journal.RECORD_HEADER.struct.unpack_from(data, found.at)
        start = found.at + journal.RECORD_HEADER.size
        body = data[start : start + size]
        whole = len(body) == size >= _NUMBER.size
        if not whole or journal.record_checksum(body, chain) != checksum:
            break
        found.fields(journal.RECORD_HEADER, f"record {number} ")
        found.take(8, f"record {number} commit number", str(int.from_bytes(body[:8], "big")))
        found.within(start + size, partial(_operations, body, f"record {number} "))
        chain, number = checksum, number + 1
    zeros = not data[found.at :].strip(b"\0")
    found.rest(
        "rest", "zeros: reserved space" if zeros else "no valid record: old bytes or a torn write"
    )


def _operations(body: bytes, prefix: str, found: _Bytes) -> None:
    for change in journal.read_changes(body, keys.TABLES):
        text = f"{keys.TABLES[change.table].name} {change.db_key.hex()}"
        if change.kind == journal.MOVE:
            text += f", to {keys.TABLES[change.kept].name}"
        elif change.kind != journal.DELETE:
            text += f", {len(change.head) + change.kept + len(change.value):,} bytes"
        found.take(change.size(), prefix + journal.OPERATIONS[change.kind], text)


@_describing
def describe_checkpoint(found: _Bytes) -> None:
    def slot(number: int, found: _Bytes) -> None:
        _sealed(found, checkpoint.SLOT, f"slot {number} ")
        found.rest("unused", "")

    for number in range(checkpoint.SLOTS):
        found.within(min(found.at + checkpoint.SLOT_SIZE, found.end), partial(slot, number))
    found.rest("rest", "after the last slot")


@_describing
def describe_segment_end(found: _Bytes) -> None:
    """Add an index frame with its trailer and seek table."""
    head = found.fields(index.INDEX_HEADER)
    found.take(head["key_size"], "key")
    for number in range(head["block_count"]):
        found.fields(index.INDEX_ROW, f"block {number} ")
    found.checksum(digest64(found.data[: found.at]))
    _sealed(found, index.TRAILER)
    rest = found.end - found.at
    found.rest("seek table", f"{rest:,} bytes in zstd's seekable format")
