"""Streams as keys: list, find, delete and rename them, and remove the rows of deleted ones.

Deleting a stream removes its name and record at once. Its nodes become garbage: later
transactions remove them in bounded steps. So deleting ten million entries holds the write lock no
longer than deleting ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from streamkeep.engine.notify.wait_table import removed, replaced
from streamkeep.engine.tables.existing import existing_stream
from streamkeep.engine.tables.group import destroy_group, groups_of
from streamkeep.engine.tables.manifest import iter_segments
from streamkeep.engine.tables.node_walk import NodeWalk, put_retired
from streamkeep.engine.tables.scan import bodies_with, has_rows, rows_with
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.stream import Stream
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import keys as db_keys
from streamkeep.format.core.checksum import row_body
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.envelope import decode_envelope, has_bitmap
from streamkeep.format.node.node import live_ids
from streamkeep.format.node.tombstones import mark
from streamkeep.format.rows import records
from streamkeep.format.rows.extension import idempotence_of
from streamkeep.format.rows.retired import decode_former_name, encode_former_name, former_name_key

GARBAGE_STEP: Final = 2000  # rows removed per transaction


def iter_keys(txn: Txn) -> Iterator[tuple[bytes, int]]:
    """Yield (name, stream number) of every stream, ascending by name."""

    def rows(prefix: bytes) -> Iterator[tuple[bytes, int]]:
        for _, body in bodies_with(txn, db_keys.KEYS, prefix, "key row"):
            number, name = records.decode_key_row(body, "key row")
            yield name, number

    long_names = sorted(rows(b"\1"))  # rare; their LMDB keys do not sort by the whole name
    yield from heapq.merge(rows(b"\0"), long_names)


def names_from(txn: Txn, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield (stream number, name) of every stream from a number on, ascending by number."""
    for db_key, value in rows_with(txn, db_keys.NAMES, b"", db_keys.pack_number(number)):
        yield db_keys.unpack_number(db_key), row_body(db_keys.NAMES, db_key, value, "name row")


def last_number(txn: Txn) -> int:
    """Return the number of the stream that was created last; 0 if there is none."""
    cursor = txn.cursor(db_keys.NAMES)
    return db_keys.unpack_number(cursor.key()) if cursor.last() else 0


def name_of(txn: Txn, number: int) -> bytes | None:
    """Return the key of a stream; None when it does not exist."""
    return txn.get_row(db_keys.NAMES, db_keys.pack_number(number), f"name of stream {number}")


def find_numbered(txn: Txn, number: int) -> Stream | None:
    """Return the stream with a number under its present name; None if it was deleted."""
    name = name_of(txn, number)
    stream = None if name is None else txn.find_stream(name)
    if stream is None and txn.get(db_keys.STREAMS, db_keys.pack_number(number)) is not None:
        raise CorruptionError(f"stream {number}", "it has no name")
    return stream


def exists(txn: Txn, names: list[bytes]) -> int:
    """Return how many of `names` are streams, duplicates counted each time (EXISTS)."""
    return sum(txn.find_stream(name) is not None for name in names)


def delete(txn: WriteTxn, names: list[bytes]) -> int:
    deleted = 0
    for name in names:
        stream = txn.find_stream(name)
        if stream is not None:
            _remove(txn, stream)
            txn.events.append(removed(name, None))
            deleted += 1
    return deleted


def _remove(txn: WriteTxn, stream: Stream) -> None:
    for group in groups_of(txn, stream):
        destroy_group(txn, stream, group)
    messages = idempotence_of(stream.record.extension, f"stream {stream.number}").number
    if messages:
        txn.add_garbage(records.encode_garbage(records.IDEMPOTENCE_ROWS, messages))
    if stream.archiving_deleted():
        walk = NodeWalk(txn, stream)
        while walk.first():
            walk.load()
            walk.retire()
    if stream.trimmed:
        _put_owed(
            txn, stream.number, stream.tail_ms, stream.tail_seq, stream.tail_data(), stream.trimmed
        )
    if stream.retention() is not None or any(
        has_rows(txn, table, stream.db_key) for table in (db_keys.RETIRED, db_keys.SEGMENTS)
    ):
        name_row = encode_former_name(stream.number, stream.name)
        txn.put(db_keys.RETIRED, former_name_key(stream.number), name_row)
    txn.remove_stream(stream)


def rename(txn: WriteTxn, source: bytes, target: bytes, keep_target: bool) -> bool:
    """Rename a stream; the former stream of the target is deleted (RENAME) or kept (RENAMENX).

    Returns:
        False when the target exists and is to be kept.
    """
    stream = existing_stream(txn, source)
    former = txn.find_stream(target)
    if former is not None and keep_target:
        return False
    if former is stream:
        return True
    if former is not None:
        _remove(txn, former)
    txn.rename_stream(stream, target)
    txn.events += [removed(source, None), replaced(target)]
    return True


# By kind of garbage: the tables with rows whose keys begin with its number.
_ROWS_OF: Final = {
    records.STREAM_NODES: (db_keys.NODES,),
    records.IDEMPOTENCE_ROWS: (db_keys.PRODUCERS, db_keys.IDEMPOTENCY, db_keys.IDEMPOTENCY_ORDER),
    records.GROUP_ROWS: (db_keys.PEL, db_keys.PEL_ORDER, db_keys.CONSUMER_PEL, db_keys.CONSUMERS),
}


def collect_garbage(txn: WriteTxn) -> bool:
    """Remove up to GARBAGE_STEP rows of garbage; return whether there may be more.

    `archive.garbage` removes files.
    """
    for db_key, body in bodies_with(txn, db_keys.GARBAGE, b"", "garbage"):
        kind, number = records.decode_garbage(body, "garbage")
        if kind == records.ARCHIVE_FILE:
            continue
        tables = _ROWS_OF.get(kind)
        if tables is None:
            raise CorruptionError("garbage", f"unknown kind {kind}")
        left = GARBAGE_STEP
        for table in tables:
            rows = islice(rows_with(txn, table, db_keys.pack_number(number)), left)
            doomed = [db_key for db_key, _ in rows]
            for row_key in doomed:
                value = txn.get(table, row_key) if table == db_keys.NODES else None
                if value is not None and has_bitmap(value):  # the archive gets what was trimmed
                    node = decode_envelope(value, "a macro node of a deleted stream")
                    _put_owed(txn, node.number, node.ms, node.seq, node.listpack, node.trimmed)
                txn.delete(table, row_key)
            left -= len(doomed)
        if left:
            txn.delete(db_keys.GARBAGE, db_key)
            if kind == records.STREAM_NODES:
                forget_name(txn, number)
        return True
    return False


def former_name(txn: Txn, number: int) -> bytes | None:
    """Return the last key of a deleted stream that is not in its segments, or not yet."""
    row = txn.get(db_keys.RETIRED, former_name_key(number))
    where = f"former name of stream {number}"
    return None if row is None else decode_former_name(number, row, where)


def forget_name(txn: WriteTxn, number: int) -> None:
    """Remove the name of a deleted stream, unless nodes or segments of another name are left."""
    prefix, first = db_keys.pack_number(number), db_keys.node_key(number, 0, 1)
    name = former_name(txn, number)
    if (
        name is not None
        and not any(
            has_rows(txn, table, prefix, first) for table in (db_keys.NODES, db_keys.RETIRED)
        )
        and all(record.key == name for record in iter_segments(txn, number))
    ):
        txn.delete(db_keys.RETIRED, former_name_key(number))


def _put_owed(txn: WriteTxn, number: int, ms: int, seq: int, data: bytes, trimmed: bytes) -> None:
    """Retire the trimmed entries of a node whose live entries are deleted."""
    ids = live_ids(data, ms, seq)
    if ids:
        data = mark(data, ms, seq, ids, 0).data
    put_retired(txn, number, ms, seq, data, trimmed)
