"""Annotating stored bytes field by field, for `dump --bytes`, with the layouts of the codecs.

Each function takes bytes, sound or damaged, and yields `Piece`s in the order of their offsets: the
bytes, their name and their meaning. A piece named `damage` says which bytes do not fit the format
and why; bytes after it are a piece named `rest`. Nothing is raised. Checksums are computed, and
shown beside a wrong one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from streamkeep.format.core.checksum import ROW_CHECKSUM_SIZE, digest64, row_checksum
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    ERASURES,
    GARBAGE,
    GROUPS,
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    KEYS,
    META,
    NODES,
    PEL,
    PEL_ORDER,
    PRODUCERS,
    RETIRED,
    SEGMENTS,
    STREAMS,
    TABLES,
    is_lease_key,
    is_name_key,
)
from streamkeep.format.core.layout import Field, Layout
from streamkeep.format.journal.checkpoint import SLOT, SLOT_SIZE, SLOTS
from streamkeep.format.journal.journal import (
    DELETE,
    MOVE,
    OPERATIONS,
    RECORD_HEADER,
    first_chain,
    read_changes,
    record_checksum,
)
from streamkeep.format.journal.journal import FILE_HEADER as JOURNAL_HEADER
from streamkeep.format.node.envelope import CHECKSUM_SIZE, ENVELOPE, HEADER_SIZE
from streamkeep.format.node.listpack import HEADER_SIZE as LISTPACK_HEADER
from streamkeep.format.node.listpack import Reader
from streamkeep.format.node.listpack_check import checked_step
from streamkeep.format.rows.batches import BATCH_ROW
from streamkeep.format.rows.batches import PREFIX as BATCH_PREFIX
from streamkeep.format.rows.extension import IDEMPOTENCE, IDEMPOTENCE_SECTION, SECTION_HEAD
from streamkeep.format.rows.group_records import CONSUMER_RECORD, GROUP_RECORD
from streamkeep.format.rows.nacks import NACK
from streamkeep.format.rows.producers import MESSAGE_ROW, PRODUCER_ROW
from streamkeep.format.rows.records import STREAM_RECORD
from streamkeep.format.segment.index import INDEX_HEADER, INDEX_ROW, TRAILER
from streamkeep.format.segment.manifest import ERASURE, SEGMENT_RECORD

NUMBER: Final = Layout("number", (Field("number", "Q", ""),))
PAGE_KEY: Final = Layout("page key", (Field("ms", "Q", ""), Field("seq", "Q", "")))
GARBAGE_ROW: Final = Layout("garbage row", (Field("kind", "B", ""), Field("number", "Q", "")))
_MAX_TEXT: Final = 48  # bytes of a string that are shown as text


class Piece(NamedTuple):
    """Some bytes and their meaning.

    Attributes:
        offset: offset of the first byte.
        data: the bytes.
        name: name of the field.
        value: the decoded value as text.
    """

    offset: int
    data: bytes
    name: str
    value: str


def quoted_text(data: bytes) -> str:
    """Return bytes as quoted text; only the first 48 bytes of a long string."""
    text = repr(data[:_MAX_TEXT])[1:]
    return text if len(data) <= _MAX_TEXT else f"{text} and {len(data) - _MAX_TEXT:,} more bytes"


def describe_layout(layout: Layout, data: bytes, at: int, prefix: str = "") -> Iterator[Piece]:
    """Yield the fields of a layout at an offset, as far as the bytes go."""
    for field in layout.fields:
        part = data[at : at + field.size]
        if len(part) < field.size:
            yield _damage(data, at, f"{layout.name}: {prefix}{field.name} is truncated")
            return
        value = _value(field, part)
        meaning = "  " + field.meaning.replace("`", "") if field.meaning else ""
        yield Piece(at, part, prefix + field.name, f"{value}{meaning}")
        at += field.size


def _value(field: Field, part: bytes) -> str:
    if field.code.endswith("s"):
        return quoted_text(part) if part.isascii() and part.strip(b"\0") else part.hex()
    return f"{int.from_bytes(part, 'big', signed=field.code == 'q')}"


def _damage(data: bytes, at: int, problem: str) -> Piece:
    return Piece(at, data[at:], "damage", problem)


def _fits(layout: Layout, data: bytes, at: int) -> bool:
    return len(data) - at >= layout.size


def _members(layout: Layout, data: bytes, at: int) -> dict[str, Any]:
    """Return the fields of a layout by name; all of its bytes must be there."""
    names = [field.name for field in layout.fields]
    return dict(zip(names, layout.struct.unpack_from(data, at), strict=True))


def _checksum(data: bytes, at: int, computed: bytes) -> Piece:
    """Return the checksum stored at an offset, compared with the computed one."""
    stored = data[at : at + len(computed)]
    value = "right" if stored == computed else f"WRONG, computed {computed.hex()}"
    return Piece(at, stored, "checksum", value)


# --- envelopes and nodes ------------------------------------------------------------------------


def describe_envelope(data: bytes, base: int = 0) -> Iterator[Piece]:
    """Yield the pieces of an envelope: header, stream record, node, bitmap, checksum."""
    for piece in _envelope(data):
        yield piece._replace(offset=base + piece.offset)


def _envelope(data: bytes) -> Iterator[Piece]:
    yield from describe_layout(ENVELOPE, data, 0)
    if not _fits(ENVELOPE, data, 0):
        return
    head = _members(ENVELOPE, data, 0)
    end = len(data) - CHECKSUM_SIZE
    listpack_at = HEADER_SIZE + head["record_size"]
    bitmap_at = listpack_at + head["listpack_size"]
    if not listpack_at <= bitmap_at <= end:
        yield _damage(data, HEADER_SIZE, "the sizes in the header do not fit the envelope")
        return
    if head["record_size"]:
        yield from _stream_record(data[:listpack_at], HEADER_SIZE)
    if head["listpack_size"]:
        yield from describe_node(data[:bitmap_at], listpack_at, head["ms"], head["seq"])
    if bitmap_at < end:
        bitmap = data[bitmap_at:end]
        slots = [str(slot) for slot in range(8 * len(bitmap)) if bitmap[slot // 8] >> slot % 8 & 1]
        yield Piece(bitmap_at, bitmap, "trimmed", f"slots {' '.join(slots)}")
    yield _checksum(data, end, digest64(data[:end]))


def _stream_record(data: bytes, at: int) -> Iterator[Piece]:
    yield from describe_layout(STREAM_RECORD, data, at)
    at += STREAM_RECORD.size
    while at < len(data):
        if not _fits(SECTION_HEAD, data, at):
            yield _damage(data, at, "a section is truncated")
            return
        yield from describe_layout(SECTION_HEAD, data, at, "section ")
        head = _members(SECTION_HEAD, data, at)
        at += SECTION_HEAD.size
        section = data[at : at + head["size"]]
        if head["tag"] == IDEMPOTENCE:
            yield from describe_layout(IDEMPOTENCE_SECTION, data[: at + head["size"]], at)
        else:
            yield Piece(at, section, "section", "not annotated")
        at += len(section)


def describe_node(data: bytes, at: int, ms: int, seq: int) -> Iterator[Piece]:
    """Yield the pieces of the listpack that begins at an offset and ends with `data`.

    Args:
        ms, seq: key of the macro node.
    """
    if len(data) - at < LISTPACK_HEADER + 1:
        yield _damage(data, at, f"{len(data) - at} bytes, less than an empty listpack")
        return
    total = data[at : at + 4]
    size = int.from_bytes(total, "little")
    wrong = "" if size == len(data) - at else f", found {len(data) - at}"
    yield Piece(at, total, "total-bytes", f"{size}{wrong}")
    count = data[at + 4 : at + 6]
    number = int.from_bytes(count, "little")
    yield Piece(at + 4, count, "num-elements", "unknown" if number == 65535 else str(number))
    walk = _Elements(data, at + LISTPACK_HEADER)
    try:
        yield from _master(walk)
        slot = 0
        while walk.more():
            yield from _slot(walk, slot, ms, seq)
            slot += 1
    except CorruptionError as error:
        yield _damage(data, walk.at, error.problem)
        return
    yield Piece(walk.at, data[walk.at :], "end", "" if data[walk.at] == 0xFF else "not FF")


class _Elements:
    """The elements of a listpack that ends with the data."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at
        self.names: list[str] = []  # field names of the master entry, as text

    def more(self) -> bool:
        """Return whether there is another element."""
        return self.at < len(self.data) - 1

    def next(self, name: str) -> tuple[Piece, bytes]:
        """Return the next element as a piece and as bytes; raise CorruptionError."""
        end = len(self.data) - 1
        stop = int(checked_step(self.data, self.at, end))
        text = Reader(self.data, self.at, end).string()
        piece = Piece(self.at, self.data[self.at : stop], name, quoted_text(text))
        self.at = stop
        return piece, text

    def number(self, name: str) -> tuple[Piece, int]:
        """Return the next element, which must be an integer, as a piece and as a number."""
        end = len(self.data) - 1
        checked_step(self.data, self.at, end)
        number = int(Reader(self.data, self.at, end).integer())
        piece, _ = self.next(name)
        return piece._replace(value=str(number)), number


def _master(walk: _Elements) -> Iterator[Piece]:
    """Yield the master entry."""
    yield walk.number("master count")[0]._replace(name="master count")
    yield walk.number("master deleted")[0]
    piece, width = walk.number("master num-fields")
    yield piece
    for index in range(width):
        piece, name = walk.next(f"master field {index}")
        walk.names.append(quoted_text(name))
        yield piece
    yield walk.number("master end")[0]


def _slot(walk: _Elements, slot: int, ms: int, seq: int) -> Iterator[Piece]:
    """Yield one slot."""
    prefix = f"slot {slot}"
    piece, flags = walk.number(f"{prefix} flags")
    names = [text for bit, text in ((1, "tombstone"), (2, "same fields")) if flags & bit]
    yield piece._replace(value=f"{flags}  {', '.join(names) or 'own fields'}")
    piece, ms_diff = walk.number(f"{prefix} ms-diff")
    yield piece
    piece, seq_diff = walk.number(f"{prefix} seq-diff")
    top = 1 << 64
    yield piece._replace(value=f"{seq_diff}  ID {(ms + ms_diff) % top}-{(seq + seq_diff) % top}")
    if flags & 2:
        for name in walk.names:
            piece, _ = walk.next(f"{prefix} value")
            yield piece._replace(value=f"{piece.value}  of {name}")
    else:
        piece, width = walk.number(f"{prefix} num-fields")
        yield piece
        for _ in range(width):
            yield walk.next(f"{prefix} field")[0]
            yield walk.next(f"{prefix} value")[0]
    yield walk.number(f"{prefix} lp-count")[0]


# --- rows ---------------------------------------------------------------------------------------

_LAYOUTS: Final[dict[int, tuple[Layout, str]]] = {  # layout, and name of the bytes after it
    KEYS: (NUMBER, "name"),
    PEL_ORDER: (PAGE_KEY, ""),
    IDEMPOTENCY: (MESSAGE_ROW, "message ID"),
    IDEMPOTENCY_ORDER: (MESSAGE_ROW, "message ID"),
    GARBAGE: (GARBAGE_ROW, ""),
    SEGMENTS: (SEGMENT_RECORD, "path and key"),
    ERASURES: (ERASURE, ""),
}
_MEMBERS: Final = {CONSUMERS: CONSUMER_RECORD, PRODUCERS: PRODUCER_ROW}


def describe_row(table: int, db_key: bytes, value: bytes) -> Iterator[Piece]:
    """Yield the pieces of the value of a row; `table` is an index in `keys.TABLES`."""
    if table in (STREAMS, NODES, RETIRED):
        yield from describe_envelope(value)
        return
    end = len(value) - ROW_CHECKSUM_SIZE
    if end < 0:
        problem = f"{len(value)} bytes, expected at least {ROW_CHECKSUM_SIZE}"
        yield _damage(value, 0, f"row of {TABLES[table].name}: {problem}")
        return
    body = value[:end]
    if table == GROUPS:
        yield from _group(body)
    elif table == PEL:
        yield from _nacks(body, 0, end)
    elif table == CONSUMERS and is_lease_key(db_key):
        yield from _with_rest(NUMBER, body, "")
    elif table in _MEMBERS and is_name_key(db_key):
        yield from _with_rest(_MEMBERS[table], body, "name")
    elif table in _LAYOUTS:
        layout, rest = _LAYOUTS[table]
        yield from _with_rest(layout, body, rest)
    elif table == META and db_key.startswith(BATCH_PREFIX):
        yield from _with_rest(BATCH_ROW, body, "application")
    elif table == META and end == NUMBER.size:
        yield from describe_layout(NUMBER, body, 0)
    elif body or table != CONSUMER_PEL:
        yield Piece(0, body, "body", quoted_text(body))
    yield _checksum(value, end, row_checksum(table, db_key, body))


def _with_rest(layout: Layout, body: bytes, rest: str) -> Iterator[Piece]:
    yield from describe_layout(layout, body, 0)
    if len(body) > layout.size or (rest and len(body) == layout.size):
        part = body[layout.size :]
        yield Piece(layout.size, part, rest or "damage", quoted_text(part) if rest else "too long")


def _group(body: bytes) -> Iterator[Piece]:
    yield from describe_layout(GROUP_RECORD, body, 0)
    if _fits(GROUP_RECORD, body, 0):
        size = _members(GROUP_RECORD, body, 0)["inline_size"]
        name_at = GROUP_RECORD.size + size
        yield from _nacks(body, GROUP_RECORD.size, min(name_at, len(body)))
        if name_at <= len(body):
            yield Piece(name_at, body[name_at:], "name", quoted_text(body[name_at:]))
        else:
            found = len(body) - GROUP_RECORD.size
            yield _damage(body, len(body), f"inline_size is {size}, found {found} bytes")


def _nacks(body: bytes, at: int, end: int) -> Iterator[Piece]:
    index = 0
    while at < end:
        yield from describe_layout(NACK, body[:end], at, f"NACK {index} ")
        at += NACK.size
        index += 1


# --- files --------------------------------------------------------------------------------------


def describe_journal(data: bytes) -> Iterator[Piece]:
    """Yield the pieces of a journal file: header, records, and the operations in them."""
    yield from describe_layout(JOURNAL_HEADER, data, 0)
    if not _fits(JOURNAL_HEADER, data, 0):
        return
    sealed = JOURNAL_HEADER.size - CHECKSUM_SIZE
    if data[sealed : JOURNAL_HEADER.size] != digest64(data[:sealed]):
        yield _damage(
            data,
            JOURNAL_HEADER.size,
            f"the checksum is wrong, computed {digest64(data[:sealed]).hex()}",
        )
        return
    chain = first_chain(data[: JOURNAL_HEADER.size])
    at = JOURNAL_HEADER.size
    number = 0
    while _fits(RECORD_HEADER, data, at):
        head = _members(RECORD_HEADER, data, at)
        body_at = at + RECORD_HEADER.size
        body = data[body_at : body_at + head["length"]]
        whole = len(body) == head["length"] >= NUMBER.size
        if not whole or record_checksum(body, chain) != head["checksum"]:
            break
        prefix = f"record {number} "
        yield from describe_layout(RECORD_HEADER, data, at, prefix)
        commit = int.from_bytes(body[:8], "big")
        yield Piece(body_at, body[:8], f"{prefix}commit number", str(commit))
        yield from _operations(body, body_at, prefix)
        at, chain, number = body_at + len(body), head["checksum"], number + 1
    rest = data[at:]
    if rest:
        zeros = not rest.strip(b"\0")
        meaning = "zeros: reserved space" if zeros else "no valid record: old bytes or a torn write"
        yield Piece(at, rest, "rest", meaning)


def _operations(body: bytes, base: int, prefix: str) -> Iterator[Piece]:
    at = NUMBER.size
    try:
        for change in read_changes(body, TABLES):
            size = change.size()
            text = f"{TABLES[change.table].name} {change.db_key.hex()}"
            if change.kind == MOVE:
                text += f", to {TABLES[change.kept].name}"
            elif change.kind != DELETE:
                text += f", {len(change.head) + change.kept + len(change.value):,} bytes"
            part = body[at : at + size]
            yield Piece(base + at, part, prefix + OPERATIONS[change.kind], text)
            at += size
    except CorruptionError as error:
        yield _damage(body, at, error.problem)._replace(offset=base + at)


def describe_checkpoint(data: bytes) -> Iterator[Piece]:
    """Yield the pieces of the checkpoint file `steady`: its two slots."""
    for slot in range(SLOTS):
        at = slot * SLOT_SIZE
        if at > len(data):
            return
        yield from describe_layout(SLOT, data, at, f"slot {slot} ")
        if _fits(SLOT, data, at):
            end = at + SLOT.size - CHECKSUM_SIZE
            if data[end : end + CHECKSUM_SIZE] != digest64(data[at:end]):
                yield Piece(
                    end + CHECKSUM_SIZE,
                    b"",
                    "damage",
                    f"the checksum of slot {slot} is wrong",
                )
            unused = data[end + CHECKSUM_SIZE : at + SLOT_SIZE]
            if unused:
                yield Piece(end + CHECKSUM_SIZE, unused, "unused", "")
    rest = data[SLOTS * SLOT_SIZE :]
    if rest:
        yield Piece(SLOTS * SLOT_SIZE, rest, "rest", "after the last slot")


def describe_segment_end(data: bytes, base: int) -> Iterator[Piece]:
    """Yield the pieces of an index frame with its trailer and seek table, the end of a segment.

    Args:
        data: from the index frame to the end of the file.
        base: offset of the index frame in the file.
    """
    for piece in _segment_end(data):
        yield piece._replace(offset=base + piece.offset)


def _segment_end(data: bytes) -> Iterator[Piece]:
    yield from describe_layout(INDEX_HEADER, data, 0)
    if not _fits(INDEX_HEADER, data, 0):
        return
    head = _members(INDEX_HEADER, data, 0)
    at = INDEX_HEADER.size
    key = data[at : at + head["key_size"]]
    yield Piece(at, key, "key", quoted_text(key))
    at += len(key)
    for number in range(head["block_count"]):
        if not _fits(INDEX_ROW, data, at):
            yield _damage(data, at, f"the row of block {number} is truncated")
            return
        yield from describe_layout(INDEX_ROW, data, at, f"block {number} ")
        at += INDEX_ROW.size
    yield _checksum(data, at, digest64(data[:at]))
    at += CHECKSUM_SIZE
    if at > len(data):
        return
    yield from describe_layout(TRAILER, data, at)
    if _fits(TRAILER, data, at):
        sealed = at + TRAILER.offset("checksum")
        if data[sealed : sealed + CHECKSUM_SIZE] != digest64(data[at:sealed]):
            yield Piece(at + TRAILER.size, b"", "damage", "the checksum of the trailer is wrong")
        at += TRAILER.size
        text = f"{len(data) - at:,} bytes in zstd's seekable format"
        yield Piece(at, data[at:], "seek table", text)
