"""Finding envelopes and rows in the pages of `data.mdb`, without the trees that lead to them.

If branches of a tree are damaged, its leaves and overflow values are still in the file. An envelope
names its stream, node and commit. The checksum of a row covers its key and table, so trying each
table finds the right one. Every wanted page is read:

- as the first page of an overflow value: an envelope at byte 16, which may span several pages;
- as a leaf: its nodes by its pointers or, if those are damaged, at every even offset.

A page may have been overwritten by a copy of another page, or two pages may have been swapped. The
number in its header is accepted as its true number if the page with that number has the same
bytes, or has the number of this page in its header. Whether the page is free follows from its true
number.

A user's value may contain a copy of an envelope at any offset. So an envelope inside a page is only
accepted as the value of a leaf node with the matching key, and pages that belong to a sound
envelope are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.id_codec import Id
from streamkeep.format.core.keys import NODES, RETIRED, STREAMS, TABLES, fits, node_key, pack_number
from streamkeep.format.lmdb_file import lmdb_pages
from streamkeep.format.node.envelope import (
    ENVELOPE,
    FORMAT,
    HEADER_SIZE,
    MAGIC,
    Envelope,
    decode_envelope,
    encode_envelope,
)
from streamkeep.recovery.pages.tree import PageFile

_CHUNK: Final = 1 << 20
_START: Final = MAGIC + bytes([FORMAT])
_LENGTH_SIZE: Final = 4  # of the length of an envelope, which follows that
_NUMBER_SIZE: Final = 8
_FLAGS_AT: Final = 10
_ENVELOPES: Final = (STREAMS, NODES, RETIRED)


class RawEnvelope(NamedTuple):
    """A sound envelope, and the true number of its page."""

    page: int
    envelope: Envelope
    value: bytes
    headed: bool  # whether the page's header is right


class RawRow(NamedTuple):
    """A sound row, and the true number of its page."""

    page: int
    table: int
    db_key: bytes
    value: bytes


Raw = RawEnvelope | RawRow


def scan_pages(
    pages: PageFile, wanted: Callable[[int], bool], progress: Callable[[int], None]
) -> Iterator[Raw]:
    """Yield the envelopes and rows in the wanted pages, in the order of the file."""
    size = pages.page_size
    per_chunk = _CHUNK // size
    total = -(-pages.size() // size)
    covered = 0  # lower pages belong to an envelope that was yielded
    for first in range(0, total, per_chunk):
        chunk = b""
        for number in range(first, min(first + per_chunk, total)):
            if number < covered or not wanted(number):
                continue
            if not chunk:
                try:
                    chunk = pages.read(first, per_chunk * size)
                except CorruptionError:
                    chunk = bytes(per_chunk * size)
                    continue
            at = (number - first) * size
            if chunk.startswith(_START, at + lmdb_pages.HEADER_SIZE):
                found = _overflow(pages, number, chunk[at : at + size])
                if found is not None:
                    if found.page == number:
                        covered = number + lmdb_pages.overflow_pages(len(found.value), size)
                    yield found
                    continue
            yield from _leaf(pages, number, chunk, at)
        progress(per_chunk)


def envelope_at(pages: PageFile, number: int) -> bytes | None:
    """Return the sound envelope that begins in an overflow page; None if there is none.

    Its size is what its own header says, as that in the leaf may be damaged.
    """
    try:
        page = pages.read(number, pages.page_size)
    except CorruptionError:
        return None
    value, envelope = _begun_in(pages, page, number)
    return None if envelope is None else value


def _begun_in(pages: PageFile, page: bytes, number: int) -> tuple[bytes, Envelope | None]:
    """Return what begins in a page whose true number is given, and its envelope if it is sound."""
    value = page[lmdb_pages.HEADER_SIZE :]
    length = int.from_bytes(value[len(_START) : len(_START) + _LENGTH_SIZE], "big")
    if not value.startswith(_START) or length > pages.size():
        return b"", None
    try:
        if length > len(value):
            value += pages.read(number + 1, length - len(value))
    except CorruptionError:
        return b"", None
    value = value[:length]
    return value, readable_envelope(value)


def _overflow(pages: PageFile, number: int, page: bytes) -> RawEnvelope | None:
    """Return the envelope that begins in an overflow page with these bytes."""
    origin = _origin(pages, number, page)
    for place in dict.fromkeys((number, origin)):
        value, envelope = _begun_in(pages, page, place)
        if envelope is not None:
            header = lmdb_pages.decode_overflow_header(page, number)
            headed = header.number == origin and header.flags == lmdb_pages.OVERFLOW
            return RawEnvelope(origin, envelope, value, headed)
    return None


def _origin(pages: PageFile, number: int, data: bytes) -> int:
    """Return the true number of the page with these bytes at `number`; usually `number` itself."""
    stated = int.from_bytes(data[:_NUMBER_SIZE], "little")
    if stated == number or not lmdb_pages.META_PAGES <= stated < pages.size() // pages.page_size:
        return number
    try:
        other = pages.read(stated, pages.page_size)
    except CorruptionError:
        return number
    swapped = int.from_bytes(other[:_NUMBER_SIZE], "little") == number
    return stated if swapped or other == data else number


def _leaf(pages: PageFile, number: int, chunk: bytes, at: int) -> Iterator[Raw]:
    """Yield the envelopes and rows in the page at byte `at` of a chunk, if it may be a leaf."""
    size = pages.page_size
    data = chunk[at : at + size]
    if len(data) < pages.page_size or not any(data[: lmdb_pages.HEADER_SIZE]):
        return
    try:
        page = lmdb_pages.decode_tree_page(data, int.from_bytes(data[:_NUMBER_SIZE], "little"))
    except CorruptionError:
        if data[_FLAGS_AT] == lmdb_pages.OVERFLOW and int.from_bytes(data[:8], "little") == number:
            return
        nodes: list[lmdb_pages.LooseNode] = lmdb_pages.loose_nodes(data)
    else:
        if not page.leaf:
            return
        nodes = [
            lmdb_pages.LooseNode(key, b"", page.sizes[index], page.places[index])
            if page.flags[index] == lmdb_pages.BIG
            else lmdb_pages.LooseNode(key, page.inline(index), 0, 0)
            for index, key in enumerate(page.keys)
        ]
    origin = _origin(pages, number, data)
    end = pages.size() // pages.page_size
    for node in nodes:
        if node.big_size:  # an envelope in overflow pages is found there, not here
            there = at + (node.big_page - number) * size + lmdb_pages.HEADER_SIZE
            if there > 0 and chunk.startswith(_START, there):
                continue
        found = _node(pages, end, origin, node)
        if found is not None:
            yield found


def _node(pages: PageFile, end: int, number: int, node: lmdb_pages.LooseNode) -> Raw | None:
    """Return the row or envelope of a leaf node; None if no checksum matches."""
    value = node.value
    if node.big_size:
        if not lmdb_pages.META_PAGES <= node.big_page < end:
            return None
        if pages.read(node.big_page, len(_START), skip=lmdb_pages.HEADER_SIZE) == _START:
            return None
        try:
            value = pages.overflow(node.big_page, min(node.big_size, 1 << 24))
        except CorruptionError:
            return None
    if value.startswith(_START):
        return _inline_envelope(number, node.db_key, value)
    for table in TABLES:
        if table in _ENVELOPES:
            continue
        try:
            row_body(table, node.db_key, value, "page")
        except CorruptionError:
            continue
        return RawRow(number, table, node.db_key, value) if fits(table, node.db_key) else None
    return None


def _inline_envelope(number: int, db_key: bytes, value: bytes) -> RawEnvelope | None:
    envelope = readable_envelope(value)
    if envelope is None:
        return None
    own_keys = (pack_number(envelope.number), node_key(envelope.number, envelope.ms, envelope.seq))
    return RawEnvelope(number, envelope, value, True) if db_key in own_keys else None


def readable_envelope(value: bytes) -> Envelope | None:
    """Return a decoded envelope; None if it is damaged."""
    try:
        return decode_envelope(value, "page")
    except CorruptionError:
        return None


def record_only(value: bytes) -> bytes:
    """Return the row of a stream without its node, of one whose header and record are sound."""
    _, _, _, number, _, _, epoch, commit, size, _, _ = ENVELOPE.struct.unpack_from(value)
    record = value[HEADER_SIZE : HEADER_SIZE + size]
    return encode_envelope(number, 0, 0, epoch, commit, record, b"", b"")


def without_record(envelope: Envelope) -> bytes:
    """Return the envelope of a tail as a row of `nodes`: without a stream record."""
    key = envelope.number, envelope.ms, envelope.seq
    age = envelope.epoch, envelope.commit_number
    return encode_envelope(*key, *age, b"", envelope.listpack, envelope.trimmed)


def key_of(value: bytes) -> Id:
    """Return the node key that a damaged envelope states."""
    at = ENVELOPE.offset("ms")
    return int.from_bytes(value[at : at + 8], "big"), int.from_bytes(value[at + 8 : at + 16], "big")
