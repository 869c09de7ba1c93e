"""The new store that repair writes, by the engine: it derives all that can be derived.

The store is made in the folder `.NAME.repair` beside its place, and gets its name when it is whole.
If the process is killed, that folder and `.NAME.found` remain; the next repair to that place begins
them again, and they may be removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.opening import open_environment
from streamkeep.engine.system import files
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.engine.system.modes import Modes
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.engine.whole_store.copying import made_beside, open_new, tables_of
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import StoreError
from streamkeep.format.core.keys import META

_BATCH_BYTES: Final = 4 << 20  # that a transaction writes
_OVERHEAD: Final = 1 << 10  # of a write


@contextmanager
def new_store(path: Path, modes: Modes) -> Iterator[NewStore]:
    """Make a store at `path`, which must not exist or must be an empty folder.

    It is there, whole and durable, when the block has ended; an error leaves nothing there.

    Args:
        modes: of its files; those of the store that is saved.

    Raises:
        StoreError: `path` is not empty, or cannot be written.
        StoreLockedError: another repair makes it.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError(f"{path}: exists and is not empty; name a new folder")
    with translated(system=True):  # also in what the caller does
        files.create_folder(path.parent)
        parent = Folder(path.parent, outside=True, like=modes.copied())
        with made_beside(parent, path.name, "repair") as folder:
            scratch = f".{path.name}.found"
            parent.remove_any(scratch)
            try:
                with closing(NewStore(folder, parent.make_folder(scratch))) as out:
                    yield out
                    out.flush()
            finally:
                parent.remove_any(scratch)
            parent.rename(folder.path.name, path.name)  # also over an empty folder
            parent.sync()


class NewStore:
    """A store that is being written.

    Attributes:
        folder: its folder.
        scratch: a folder for what was found, which goes in the end.
    """

    def __init__(self, folder: Folder, scratch: Folder) -> None:
        self.folder = folder
        self.scratch = scratch
        self._environment: Environment | None = None
        self._txn: WriteTxn | None = None
        self._size = 0  # bytes that it writes
        for one in (folder, scratch):
            one.make_file(DATA_FILE)  # LMDB would give it the modes of the umask

    def open(self, meta: dict[bytes, bytes]) -> None:
        """Open the store, with these rows of `meta`."""
        with open_new(self.folder) as raw:
            handle = tables_of(raw)[META]
            with raw.begin(write=True) as txn:
                for name, body in meta.items():
                    txn.put(name, with_checksum(META, name, body), db=handle)
        # Of a standby, too: it stays one.
        self._environment = open_environment(self.folder.path, clock=Clock(), standby=True)

    def txn(self, size: int = 0) -> WriteTxn:
        """Return the transaction of the next write; one has some megabytes, and the next follows.

        Args:
            size: bytes that will be written, if they are many.
        """
        if self._size >= _BATCH_BYTES:
            self.flush()
        self._size += _OVERHEAD + size
        if self._txn is None:
            assert self._environment is not None
            self._txn = self._environment.begin_write(durable=False)
        return self._txn

    def flush(self) -> None:
        """Commit what was written."""
        if self._txn is not None:
            assert self._environment is not None
            self._txn.commit()
            self._txn, self._size = None, 0
            self._environment.settle()

    def snapshot(self) -> ReadTxn:
        """Return a snapshot with all that was written; the caller closes it."""
        self.flush()
        assert self._environment is not None
        return self._environment.begin_read()

    def close(self) -> None:
        """Close the store, which makes what was committed durable."""
        if self._txn is not None:
            self._txn.abort()
        if self._environment is not None:
            self._environment.release()
