"""Streams as keys: list, find, delete, rename; and the removal of what deleted streams leave.

Deleting a stream removes its name and record at once. Its nodes become garbage, a row that later
transactions work off in bounded steps, so that deleting ten million entries holds the write lock
no longer than deleting ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from streamkeep.engine.board import removed, replaced
from streamkeep.engine.group import destroy_group, groups_of
from streamkeep.engine.stream import Stream
from streamkeep.engine.txn import Txn, WriteTxn
from streamkeep.format.checksum import open_row
from streamkeep.format.errors import CorruptionError, NoSuchKeyError
from streamkeep.format.extension import idempotence_of
from streamkeep.format.keys import (
    CONSUMER_PEL,
    CONSUMERS,
    GARBAGE,
    IDEMPOTENCY,
    IDEMPOTENCY_ORDER,
    KEYS,
    NODES,
    PEL,
    PEL_ORDER,
    PRODUCERS,
    pack_number,
)
from streamkeep.format.records import (
    ARCHIVE_FILE,
    GROUP_ROWS,
    IDEMPOTENCE_ROWS,
    STREAM_NODES,
    decode_garbage,
    decode_key_row,
    encode_garbage,
)

GARBAGE_STEP: Final = 2000  # rows removed per transaction


def iter_keys(txn: Txn) -> Iterator[tuple[bytes, int]]:
    """Yield (name, stream number) of every stream, ascending by name."""
    cursor = txn.cursor(KEYS)

    def rows(prefix: bytes) -> Iterator[tuple[bytes, int]]:
        found = cursor.set_range(prefix)
        while found and (db_key := cursor.key())[:1] == prefix:
            body = open_row(KEYS, db_key, cursor.value(), "key row")
            number, name = decode_key_row(body, "key row")
            yield name, number
            found = cursor.next()

    long_names = sorted(rows(b"\1"))  # rare; their LMDB keys do not sort by the whole name
    cursor = txn.cursor(KEYS)
    yield from heapq.merge(rows(b"\0"), long_names)


def exists(txn: Txn, names: list[bytes]) -> int:
    """Return how many of `names` are streams, duplicates counted each time (EXISTS)."""
    return sum(txn.find_stream(name) is not None for name in names)


def delete(txn: WriteTxn, names: list[bytes]) -> int:
    """Delete streams; return how many there were (DEL)."""
    deleted = 0
    for name in names:
        stream = txn.find_stream(name)
        if stream is not None:
            _remove(txn, stream)
            txn.events.append(removed(name, None))
            deleted += 1
    return deleted


def _remove(txn: WriteTxn, stream: Stream) -> None:
    """Remove a stream and its groups."""
    for group in groups_of(txn, stream):
        destroy_group(txn, stream, group)
    messages = idempotence_of(stream.record.extension, f"stream {stream.number}").number
    if messages:
        txn.add_garbage(encode_garbage(IDEMPOTENCE_ROWS, messages))
    txn.remove_stream(stream)


def rename(txn: WriteTxn, source: bytes, target: bytes, keep_target: bool) -> bool:
    """Rename a stream; the target's former stream is deleted (RENAME), or kept (RENAMENX).

    Returns:
        False when the target exists and is to be kept.
    """
    stream = txn.find_stream(source)
    if stream is None:
        raise NoSuchKeyError("no such key")
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


def iter_garbage(txn: Txn) -> Iterator[tuple[bytes, int, int]]:
    """Yield (LMDB key, kind, number) of every garbage row."""
    for db_key, value in txn.cursor(GARBAGE):
        kind, number = decode_garbage(open_row(GARBAGE, db_key, value, "garbage"), "garbage")
        yield db_key, kind, number


# What is left of each kind of garbage: tables whose keys begin with its number.
_ROWS_OF: Final = {
    STREAM_NODES: (NODES,),
    IDEMPOTENCE_ROWS: (PRODUCERS, IDEMPOTENCY, IDEMPOTENCY_ORDER),
    GROUP_ROWS: (PEL, PEL_ORDER, CONSUMER_PEL, CONSUMERS),
}


def collect_garbage(txn: WriteTxn) -> bool:
    """Remove up to GARBAGE_STEP rows of what was deleted; say whether more may be there.

    Files are left to `segment_files.remove_garbage`.
    """
    for db_key, kind, number in iter_garbage(txn):
        if kind == ARCHIVE_FILE:
            continue
        tables = _ROWS_OF.get(kind)
        if tables is None:
            raise CorruptionError("garbage", f"unknown kind {kind}")
        left = GARBAGE_STEP
        for table in tables:
            left -= _drop_rows(txn, table, pack_number(number), left)
        if left:
            txn.delete(GARBAGE, db_key)
        return True
    return False


def _drop_rows(txn: WriteTxn, table: int, prefix: bytes, most: int) -> int:
    """Remove up to `most` rows of a table whose keys begin with `prefix`; return how many."""
    cursor = txn.cursor(table)
    found = cursor.set_range(prefix)
    doomed: list[bytes] = []
    while found and len(doomed) < most and (db_key := cursor.key())[:8] == prefix:
        doomed.append(db_key)
        found = cursor.next()
    for db_key in doomed:
        txn.delete(table, db_key)
    return len(doomed)
