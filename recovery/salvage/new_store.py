"""A new store that repair builds row by row.

The store is built in the folder `NAME.unfinished`, without a journal and without syncs. `finish`
syncs all of it, writes the first checkpoint and renames the folder. If the process is killed, the
folder `NAME.unfinished` remains and may be removed.

Rows can be read while the store is built. `rows` reads in pieces, so the caller may change rows
during the iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from streamkeep.engine.api.store import Store
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import translate, translate_os
from streamkeep.engine.system.lock_file import LOCK_FILE
from streamkeep.engine.system.modes import Modes
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import StoreError
from streamkeep.format.core.keys import TABLES

_SUFFIX: Final = ".unfinished"
_BATCH_BYTES: Final = 32 << 20  # bytes changed in one LMDB transaction
_PIECE: Final = 256  # rows read at a time
_MAPS: Final = tuple(1 << bits for bits in (40, 36, 33, 31))  # map sizes to try
SCRATCH: Final = b"scratch"  # a table for notes, which `finish` removes

Row = tuple[bytes, bytes]


class BulkStore:
    """A store that is being built; `finish` puts it in place, `abandon` removes it."""

    def __init__(self, path: Path, modes: Modes) -> None:
        """Begin a store at `path`, which must not exist or must be an empty folder.

        Args:
            modes: of its files; those of the store that is saved.

        Raises:
            StoreError: `path` is not empty, or cannot be written.
        """
        self.path = path
        self._name = path.name + _SUFFIX
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path}: exists and is not empty; name a new folder")
        try:
            files.create_folder(path.parent)
            self._parent = Folder(path.parent, outside=True, like=modes.copied())
            self._parent.remove_folder(self._name)
            self.folder = self._parent.make_folder(self._name)
            for name in (DATA_FILE, LOCK_FILE):  # LMDB would give them the modes of the umask
                self.folder.make_file(name)
        except OSError as error:
            raise translate_os(error) from error
        self._raw = _open(self.folder.path)
        self._txn = self._raw.begin(write=True)
        self._tables = {
            number: self._raw.open_db(table.name.encode(), self._txn)
            for number, table in TABLES.items()
        }
        self._scratch = self._raw.open_db(SCRATCH, self._txn)
        self._changed = 0

    # --- rows -------------------------------------------------------------------------------

    def put(self, table: int, db_key: bytes, value: bytes) -> None:
        """Store a value."""
        self._put(self._tables[table], db_key, value)

    def put_row(self, table: int, db_key: bytes, body: bytes) -> None:
        """Store a row with its checksum."""
        self.put(table, db_key, seal_row(table, db_key, body))

    def get(self, table: int, db_key: bytes) -> bytes | None:
        """Return the value of a key; None if it is missing."""
        return self._txn.get(db_key, db=self._tables[table])

    def get_row(self, table: int, db_key: bytes, where: str) -> bytes | None:
        """Return the body of the row with a key, after checking its checksum."""
        value = self.get(table, db_key)
        return None if value is None else open_row(table, db_key, value, where)

    def delete(self, table: int, db_key: bytes) -> None:
        """Remove a row if it exists."""
        self._txn.delete(db_key, db=self._tables[table])
        self._count(len(db_key))

    def replace(self, table: int, prefix: bytes, bodies: dict[bytes, bytes]) -> bool:
        """Have these rows, and no others, under a prefix; return whether others were there."""
        before = dict(self.rows(table, prefix))
        after = {db_key: seal_row(table, db_key, body) for db_key, body in bodies.items()}
        for db_key in before.keys() - after.keys():
            self.delete(table, db_key)
        for db_key, value in after.items():
            if before.get(db_key) != value:
                self.put(table, db_key, value)
        return before != after

    def rows(self, table: int, prefix: bytes = b"", start: bytes = b"") -> Iterator[Row]:
        """Yield the rows whose keys begin with `prefix` and are at least `start`.

        The caller may change rows during the iteration.
        """
        return self._rows(self._tables[table], prefix, start)

    def last(self, table: int) -> bytes | None:
        """Return the highest key of a table; None if it is empty."""
        cursor = self._txn.cursor(self._tables[table])
        return bytes(cursor.key()) if cursor.last() else None

    # --- notes, which will not be part of the store -------------------------------------------

    def note(self, key: bytes, value: bytes) -> None:
        """Store a note."""
        self._put(self._scratch, key, value)

    def noted(self, key: bytes) -> bytes | None:
        """Return the note with a key; None if there is none."""
        return self._txn.get(key, db=self._scratch)

    def unnote(self, key: bytes) -> None:
        """Remove a note."""
        self._txn.delete(key, db=self._scratch)

    def notes(self, prefix: bytes) -> Iterator[Row]:
        """Yield the notes whose keys begin with `prefix`."""
        return self._rows(self._scratch, prefix, b"")

    # --- LMDB ---------------------------------------------------------------------------------

    def _put(self, table: lmdb._Database, db_key: bytes, value: bytes) -> None:
        # LMDB only fills its pages completely if keys come in order and `append` says so.
        try:
            if not self._txn.put(db_key, value, append=True, db=table):
                self._txn.put(db_key, value, db=table)
        except lmdb.Error as error:
            raise translate(error) from error
        self._count(len(db_key) + len(value))

    def _count(self, size: int) -> None:
        self._changed += size
        if self._changed >= _BATCH_BYTES:
            self._changed = 0
            self._commit()
            self._txn = self._raw.begin(write=True)

    def _commit(self) -> None:
        try:
            self._txn.commit()
        except lmdb.Error as error:
            raise translate(error) from error

    def _rows(self, table: lmdb._Database, prefix: bytes, start: bytes) -> Iterator[Row]:
        following = max(prefix, start)
        while True:
            cursor = self._txn.cursor(table)
            piece: list[Row] = []
            found = cursor.set_range(following) if following else cursor.first()
            while found and len(piece) < _PIECE and cursor.key().startswith(prefix):
                piece.append((bytes(cursor.key()), bytes(cursor.value())))
                found = cursor.next()
            yield from piece
            if len(piece) < _PIECE:
                return
            following = piece[-1][0] + b"\0"

    # --- end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Sync the store, write its first checkpoint, and give the folder its name."""
        self._txn.drop(self._scratch)
        self._commit()
        self._raw.sync(True)
        self._raw.close()
        self.folder.remove(LOCK_FILE)
        with Store(self.folder.path, sync="none"):
            pass  # opening writes the first checkpoint
        try:
            self._parent.rename(self._name, self.path.name)  # also replaces an empty folder
            self._parent.sync()
        except OSError as error:
            raise translate_os(error) from error

    def abandon(self) -> None:
        """Remove the unfinished store."""
        self._txn.abort()
        self._raw.close()
        with suppress(OSError):
            self._parent.remove_folder(self._name)


def _open(folder: Path) -> lmdb.Environment:
    for size in _MAPS:
        try:
            return lmdb.open(
                str(folder),
                map_size=size,
                max_dbs=len(TABLES) + 2,
                sync=False,
            )
        except lmdb.MemoryError:
            continue
        except lmdb.Error as error:
            raise translate(error) from error
    raise StoreError(f"{folder}: not enough address space for a map of {_MAPS[-1]:,} bytes")
