"""The rows of a store as LMDB has them, to damage them with checksums that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages, read_page
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.format.core.checksum import row_body, with_checksum
from streamkeep.format.core.keys import TABLES
from streamkeep.format.journal.checkpoint import (
    SLOT_SIZE,
    CheckpointSlot,
    decode_slot,
    root_checksum,
)
from streamkeep.format.lmdb_file.meta_page import MetaPage


class RawStore:
    """One write transaction of LMDB on a store that no process has open."""

    def __init__(self, environment: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> None:
        self._txn = txn
        self._tables = {
            number: environment.open_db(table.name.encode(), txn, create=False)
            for number, table in TABLES.items()
        }

    def value(self, table: int, db_key: bytes) -> bytes:
        """Return the value of a row that is there."""
        value = self._txn.get(db_key, db=self._tables[table])
        assert value is not None, (TABLES[table].name, db_key)
        return value

    def body(self, table: int, db_key: bytes) -> bytes:
        """Return the checked body of a row that is there."""
        return row_body(table, db_key, self.value(table, db_key), "test")

    def keys(self, table: int, prefix: bytes = b"") -> list[bytes]:
        """Return the keys of a table that begin with a prefix."""
        cursor = self._txn.cursor(self._tables[table])
        keys = cursor.iternext(keys=True, values=False)
        return [bytes(key) for key in keys if bytes(key).startswith(prefix)]

    def put(self, table: int, db_key: bytes, body: bytes) -> None:
        """Store a row with the checksum that it must have."""
        self.put_value(table, db_key, with_checksum(table, db_key, body))

    def put_value(self, table: int, db_key: bytes, value: bytes) -> None:
        """Store a value as it is."""
        self._txn.put(db_key, value, db=self._tables[table])

    def delete(self, table: int, db_key: bytes) -> None:
        """Remove a row that is there."""
        assert self._txn.delete(db_key, db=self._tables[table])

    def move(self, table: int, db_key: bytes, to: bytes) -> None:
        """Move a row to another key; its checksum holds there, too."""
        self.put(table, to, self.body(table, db_key))
        self.delete(table, db_key)

    def flip_bit(self, table: int, db_key: bytes) -> None:
        """Damage a row so that its checksum does not hold."""
        value = self.value(table, db_key)
        self.put_value(table, db_key, bytes([value[0] ^ 1]) + value[1:])


@contextmanager
def raw_store(path: Path) -> Iterator[RawStore]:
    """Open a store for damage, all of which is done at the end.

    That of a closed store is in its checkpoint then: a recovery would go back to the one before.
    """
    slot = _checkpoint(path)
    closed = slot is not None and slot.meta_page[8:] == _newest_meta(path).data[8:]
    with (
        lmdb.open(str(path), max_dbs=len(TABLES)) as environment,
        environment.begin(write=True) as txn,
    ):
        yield RawStore(environment, txn)
    if slot is not None and closed:
        newest = _newest_meta(path)
        with (path / DATA_FILE).open("rb") as file:
            slot = slot._replace(
                main_root_checksum=root_checksum(
                    read_page(file.fileno(), newest, newest.main_root)
                ),
                free_root_checksum=root_checksum(
                    read_page(file.fileno(), newest, newest.free_root)
                ),
                meta_page=newest.data,
            )
        (path / CHECKPOINT_FILE).write_bytes(slot.encode().ljust(2 * SLOT_SIZE, b"\0"))


Damage = Callable[[RawStore], None]
Recipe = Callable[[Path], object]  # how a store is damaged


def put(table: int, db_key: bytes, body: bytes) -> Damage:
    return lambda raw: raw.put(table, db_key, body)


def delete(table: int, *db_keys: bytes) -> Damage:
    def damage(raw: RawStore) -> None:
        for db_key in db_keys:
            raw.delete(table, db_key)

    return damage


def move(table: int, db_key: bytes, to: bytes) -> Damage:
    return lambda raw: raw.move(table, db_key, to)


def each(*damages: Damage) -> Damage:
    def damage(raw: RawStore) -> None:
        for one in damages:
            one(raw)

    return damage


def rows(change: Damage) -> Recipe:
    """Change rows of LMDB, with checksums that hold."""

    def recipe(path: Path) -> None:
        with raw_store(path) as raw:
            change(raw)

    return recipe


def _checkpoint(path: Path) -> CheckpointSlot | None:
    data = (path / CHECKPOINT_FILE).read_bytes()
    found = [slot for at in (0, SLOT_SIZE) if (slot := decode_slot(data[at:])) is not None]
    return max(found, key=lambda one: one.commit_number, default=None)


def _newest_meta(path: Path) -> MetaPage:
    with (path / DATA_FILE).open("rb") as file:
        return read_meta_pages(file.fileno())[-1]


def codes(path: Path) -> list[str]:
    """Return the codes of what is wrong with a store, each once."""
    return sorted({finding.code for finding in recovery.check(path)})
