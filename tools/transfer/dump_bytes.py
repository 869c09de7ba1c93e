"""Bytes as they stand in a store and its files, annotated: for people who look after them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from streamkeep.engine.model.existing import existing_stream
from streamkeep.engine.model.group import find_group
from streamkeep.engine.model.node_walk import NodeWalk
from streamkeep.engine.model.segment_files import SegmentFile, open_named
from streamkeep.engine.txn.txn import Txn
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GROUPS,
    NODES,
    PEL,
    PEL_ORDER,
    STREAMS,
    TABLES,
    name_key,
    node_key,
    pack_number,
)
from streamkeep.format.describe import (
    Piece,
    describe_checkpoint,
    describe_envelope,
    describe_journal,
    describe_row,
    describe_segment_end,
)
from streamkeep.format.node.envelope import ENVELOPE, Envelope, decode_envelope, trimmed_slots
from streamkeep.format.node.node import slots
from streamkeep.format.segment.segment import Segment
from streamkeep.tools.base import output
from streamkeep.tools.base.command import Failure

TABLE_NAMES: Final = {table.name: number for number, table in TABLES.items()}
_HEX: Final = 16  # bytes of a field that are shown
_MOST_FILE: Final = 1 << 30
_FRAME_HEX: Final = 8


class Printer:
    """Prints described bytes as text or JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.damaged = 0

    def heading(self, kind: str, text: str, **members: object) -> None:
        """Print what the following bytes are."""
        if self.as_json:
            output.json_line(kind, **members)
        else:
            output.line(text)

    def pieces(self, pieces: Iterable[Piece]) -> None:
        """Print pieces, a line each."""
        for piece in pieces:
            self.damaged += piece.name == "damage"
            if self.as_json:
                output.json_line(
                    "field",
                    offset=piece.offset,
                    size=len(piece.data),
                    hex=piece.data.hex(),
                    name=piece.name,
                    value=piece.value,
                )
                continue
            last = piece.offset + max(len(piece.data), 1) - 1
            place = f"{piece.offset}-{last}"
            cut = piece.data[:_HEX].hex() + (".." if len(piece.data) > _HEX else "")
            value = output.shown(piece.value.encode()) if piece.value else ""
            output.line(f"{place:>11}  {cut:<34} {piece.name:<24} {value}".rstrip())

    def end(self) -> None:
        """Print the summary."""
        if self.as_json:
            output.json_summary("dump", damaged=self.damaged)


# --- of a store ---------------------------------------------------------------------------------


def print_node(txn: Txn, key: bytes, wanted: StreamId, printer: Printer, *, as_bytes: bool) -> None:
    """Print the macro node that holds an ID."""
    stream = existing_stream(txn, key)
    walk = NodeWalk(txn, stream)
    if not walk.seek(*wanted):
        raise Failure(f"stream {output.named(key)} has no macro nodes")
    if walk.on_tail:
        table, db_key = STREAMS, pack_number(stream.number)
    else:
        table, db_key = NODES, node_key(stream.number, walk.ms, walk.seq)
    value = txn.get(table, db_key) or b""
    _print_envelope(value, printer, as_bytes=as_bytes, table=TABLES[table].name)


def _print_envelope(value: bytes, printer: Printer, *, as_bytes: bool, table: str) -> None:
    if as_bytes:
        printer.heading("row", f"{table}: {len(value):,} bytes", table=table, size_bytes=len(value))
        printer.pieces(describe_envelope(value))
        return
    envelope = decode_envelope(value, f"envelope in {table}")
    _print_slots(envelope, printer, table)


def _print_slots(envelope: Envelope, printer: Printer, where: str) -> None:
    """Print every slot of a node, whatever became of it."""
    node_id = f"{envelope.ms}-{envelope.seq}"
    trimmed = trimmed_slots(envelope.trimmed)
    written = f"epoch {envelope.epoch} commit {envelope.commit_number}"
    printer.heading(
        "node",
        f"macro node {node_id} in {where}: listpack of {len(envelope.listpack):,} bytes, {written}",
        node=node_id,
        where=where,
        size_bytes=len(envelope.listpack),
        epoch=envelope.epoch,
        commit_number=envelope.commit_number,
    )
    for number, (ms, seq, flags, flat) in enumerate(
        slots(envelope.listpack, envelope.ms, envelope.seq)
    ):
        pairs = list(zip(flat[0::2], flat[1::2], strict=True))
        state = "live"
        if flags & 1:
            state = "trimmed" if number in trimmed else "deleted"
        if printer.as_json:
            output.json_line(
                "slot",
                slot=number,
                id=f"{ms}-{seq}",
                state=state,
                same_fields=bool(flags & 2),
                fields=output.json_pairs(pairs),
            )
        else:
            output.line(f"{number:>4}  {state:<7}  {ms}-{seq}  {output.brief_pairs(pairs)}")


def rows_of_group(txn: Txn, key: bytes, name: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield table, LMDB key and value of every row of a group."""
    stream = existing_stream(txn, key)
    group = find_group(txn, stream, name)
    if group is None:
        raise Failure(
            f"stream {output.named(key)} has no group {output.named(name)}",
            hint="streamkeep group list STORE",
        )
    db_key = name_key(stream.db_key, name)
    yield GROUPS, db_key, txn.get(GROUPS, db_key) or b""
    for table in (CONSUMERS, PEL, PEL_ORDER, CONSUMER_PEL):
        yield from _rows(txn, table, group.prefix)


def _rows(txn: Txn, table: int, prefix: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    cursor = txn.cursor(table)
    found = cursor.set_range(prefix) if prefix else cursor.first()
    while found and (db_key := cursor.key()).startswith(prefix):
        yield table, db_key, cursor.value()
        found = cursor.next()


def rows_of_table(txn: Txn, name: str, key: bytes | None) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the rows of a table; with a key those that begin with the number of its stream."""
    prefix = b"" if key is None else pack_number(existing_stream(txn, key).number)
    return _rows(txn, TABLE_NAMES[name], prefix)


def print_rows(rows: Iterable[tuple[int, bytes, bytes]], printer: Printer) -> None:
    """Print rows, field by field."""
    for table, db_key, value in rows:
        name = TABLES[table].name
        printer.heading(
            "row",
            f"{name} {db_key.hex()}: {len(value):,} bytes",
            table=name,
            db_key=db_key.hex(),
            size_bytes=len(value),
        )
        printer.pieces(describe_row(table, db_key, value))


# --- of files -----------------------------------------------------------------------------------


def print_file(path: Path, kind: str, printer: Printer) -> None:
    """Print a journal file, or the file of checkpoints."""
    if path.stat().st_size > _MOST_FILE:
        raise Failure(f"{path}: larger than 1 GiB, which no such file is")
    data = path.read_bytes()
    printer.heading("file", f"{path}: {len(data):,} bytes", file=str(path), size_bytes=len(data))
    printer.pieces(describe_journal(data) if kind == "journal" else describe_checkpoint(data))


def print_segment(path: Path, printer: Printer, *, as_bytes: bool, max_block_bytes: int) -> None:
    """Print a segment: what it says of itself, and its blocks; with its bytes, node by node."""
    file = SegmentFile(open_named(path), str(path))
    segment = Segment.open(file.read_at, file.size, str(path), max_block_bytes)
    trailer, index = segment.trailer, segment.index
    first, last = ("{}-{}".format(*one) for one in (trailer.first_id, trailer.last_id))
    printer.heading(
        "segment",
        f"{path}: stream {output.named(index.key)}, {output.entries_text(trailer.entries)} "
        f"from {first} to {last}, {output.count_text(trailer.nodes, 'node')}, "
        f"{output.size_text(file.size)} for {output.size_text(trailer.raw_size)}",
        file=str(path),
        key=output.json_bytes(index.key),
        entries=trailer.entries,
        nodes=trailer.nodes,
        first_id=first,
        last_id=last,
        size_bytes=file.size,
        raw_size_bytes=trailer.raw_size,
        created_ms=trailer.created_ms,
        epoch=trailer.epoch,
    )
    for number, block in enumerate(index.blocks):
        first, last = ("{}-{}".format(*one) for one in (block.first_id, block.last_id))
        printer.heading(
            "block",
            f"block {number}: bytes {block.offset}-{block.offset + block.size - 1}, "
            f"{output.entries_text(block.entries)} from {first} to {last}, "
            f"{output.size_text(block.raw_size)} uncompressed",
            block=number,
            offset=block.offset,
            size_bytes=block.size,
            raw_size_bytes=block.raw_size,
            entries=block.entries,
            first_id=first,
            last_id=last,
        )
        try:
            _print_block(segment, number, printer, as_bytes=as_bytes)
        except CorruptionError as error:
            printer.pieces([Piece(block.offset, b"", "damage", str(error))])
    if as_bytes:
        at = trailer.blocks_size
        dictionary = file.read_at(at, trailer.dictionary_size)
        if dictionary:
            printer.pieces([Piece(at, dictionary, "dictionary", f"{len(dictionary):,} bytes")])
        at += len(dictionary)
        printer.pieces(describe_segment_end(file.read_at(at, file.size - at), at))


def _print_block(segment: Segment, number: int, printer: Printer, *, as_bytes: bool) -> None:
    if not as_bytes:
        for envelope in segment.block(number):
            _print_slots(envelope, printer, f"block {number}")
        return
    raw = segment.raw_block(number)
    length = ENVELOPE.offset("length")
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at + length : at + length + 4], "big")
        end = min(at + max(size, ENVELOPE.size), len(raw))
        printer.pieces(describe_envelope(raw[at:end], at))
        at = end
