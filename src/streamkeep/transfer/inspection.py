"""Rows, nodes and files of a store as they are stored, for administrators.

Each function yields `Heading`s, each followed by the `Slot`s or `Piece`s of what it names. Damaged
bytes are described as far as they can be read: a piece of the name "damage" says where that ends.
Nothing here changes a store or a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.command_base import Id, Key
from streamkeep.engine.commands.arguments import to_bytes, to_id
from streamkeep.engine.system.files import path_of
from streamkeep.engine.tables.existing import existing_stream, group_in
from streamkeep.engine.tables.node_walk import NodeWalk
from streamkeep.engine.tables.scan import rows_with
from streamkeep.engine.tables.segment_files import SegmentFile, open_named
from streamkeep.format.core import keys
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import ArgumentError, CorruptionError, TransferError
from streamkeep.format.humanize import count_text, entries_text, size_text
from streamkeep.format.node.envelope import ENVELOPE, Envelope, decode_envelope, trimmed_slots
from streamkeep.format.node.node import slots
from streamkeep.format.quoting import named
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment
from streamkeep.transfer import describe
from streamkeep.transfer.describe import Piece, describe_row, pieces_of
from streamkeep.transfer.stores import AnySource, reading

_TABLES: Final = {table.name: number for number, table in keys.TABLES.items()}
TABLE_NAMES: Final = tuple(_TABLES)
_MOST_FILE: Final = 1 << 30


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
            yield from pieces_of(describe.envelope, value)
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
    return _file(path, describe.journal_file)


def inspect_checkpoints(path: str | os.PathLike[str]) -> Iterator[Item]:
    """Yield the bytes of the file of checkpoints; raise OSError where it cannot be read."""
    return _file(path, describe.checkpoint_file)


def _file(path: str | os.PathLike[str], walk: describe.Walk) -> Iterator[Item]:
    file = path_of(path, "path")
    if file.stat().st_size > _MOST_FILE:
        raise TransferError(f"{file}: larger than 1 GiB, which no such file is")
    data = file.read_bytes()
    yield _heading("file", "{file}: {size_bytes:,} bytes", file=str(file), size_bytes=len(data))
    yield from pieces_of(walk, data)


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
        yield from pieces_of(describe.segment_end, file.read_at(at, file.size - at), at)


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
        yield from pieces_of(describe.envelope, raw[at:end], at)
        at = end
