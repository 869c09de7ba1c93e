"""Streams for the tests of the archive: filled, and read with their history."""

from __future__ import annotations

from pathlib import Path

from streamkeep.engine.api.store import Store


def fill(store: Store, count: int, key: str = "s") -> list[bytes]:
    many: list[bytes] = []
    for start in range(0, count, 50):
        numbers = range(start, min(start + 50, count))
        many += store.xadd_many(key, [{"n": number, "x": "y" * 30} for number in numbers])
    return many


def rows(store: Store, table: int) -> int:
    with store.snapshot() as snapshot:
        return snapshot.txn.rows(table)


def segments(store: Store) -> list[Path]:
    return sorted(store.path.glob("archive/*/*.seg"))


def shown(store: Store, key: str = "s") -> list[bytes]:
    """Return the IDs of a stream and its history."""
    return [entry.id for entry in store.xrange(key, history=True)]


def sum_of(store: Store) -> int:
    """Return how many entries the segments hold."""
    return sum(record.entries for record in store.archived_segments("s"))
