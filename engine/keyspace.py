"""Streams as keys: list, find, delete, rename; and the removal of what deleted streams leave.

Deleting a stream removes its name and record at once. Its nodes become garbage, a row that later
transactions work off in bounded steps, so that deleting ten million entries holds the write lock
no longer than deleting ten.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

from streamkeep.engine.txn import Txn, WriteTxn
from streamkeep.format.checksum import open_row
from streamkeep.format.errors import CorruptionError, NoSuchKeyError
from streamkeep.format.keys import GARBAGE, KEYS, NODES, node_key, pack_number
from streamkeep.format.records import STREAM_NODES, decode_garbage, decode_key_row

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
            txn.remove_stream(stream)
            deleted += 1
    return deleted


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
        txn.remove_stream(former)
    txn.rename_stream(stream, target)
    return True


def iter_garbage(txn: Txn) -> Iterator[tuple[bytes, int, int]]:
    """Yield (LMDB key, kind, number) of every garbage row."""
    for db_key, value in txn.cursor(GARBAGE):
        kind, number = decode_garbage(open_row(GARBAGE, db_key, value, "garbage"), "garbage")
        yield db_key, kind, number


def collect_garbage(txn: WriteTxn) -> bool:
    """Remove up to GARBAGE_STEP rows that deleted streams left; say whether more are there."""
    for db_key, kind, number in iter_garbage(txn):
        if kind != STREAM_NODES:
            raise CorruptionError("garbage", f"unknown kind {kind}")
        if _drop_nodes(txn, number) < GARBAGE_STEP:
            txn.delete(GARBAGE, db_key)
        return True
    return False


def _drop_nodes(txn: WriteTxn, number: int) -> int:
    """Remove up to GARBAGE_STEP nodes of the stream `number`; return how many there were."""
    prefix = pack_number(number)
    cursor = txn.cursor(NODES)
    found = cursor.set_range(node_key(number, 0, 0))
    doomed: list[bytes] = []
    while found and len(doomed) < GARBAGE_STEP and (db_key := cursor.key())[:8] == prefix:
        doomed.append(db_key)
        found = cursor.next()
    for db_key in doomed:
        txn.delete(NODES, db_key)
    return len(doomed)
