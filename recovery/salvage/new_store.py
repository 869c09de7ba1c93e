"""The new store that repair writes, by the engine: it derives all that can be derived.

The store is made in the folder `NAME.unfinished`; `finish` gives it its name. If the process is
killed, the folders `NAME.unfinished` and `NAME.found` remain and may be removed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.opening import open_environment
from streamkeep.engine.system import files
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate, translate_os
from streamkeep.engine.system.modes import Modes
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.engine.whole_store.copying import open_new, tables_of
from streamkeep.format.core.checksum import with_checksum
from streamkeep.format.core.errors import StoreError, StreamkeepError
from streamkeep.format.core.keys import META

_MAX_READERS: Final = 8
_BATCH_BYTES: Final = 4 << 20  # that a transaction writes
_OVERHEAD: Final = 1 << 10  # of a command


class NewStore:
    """A store that is being written; `finish` puts it in place, `abandon` removes it.

    Attributes:
        folder: its folder.
        scratch: a folder for what was found, which goes in the end.
    """

    def __init__(self, path: Path, modes: Modes) -> None:
        """Begin a store at `path`, which must not exist or must be an empty folder.

        Args:
            modes: of its files; those of the store that is saved.

        Raises:
            StoreError: `path` is not empty, or cannot be written.
        """
        self._name = path.name
        self._environment: Environment | None = None
        self._commands: list[Callable[[WriteTxn], None]] = []
        self._size = 0
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreError(f"{path}: exists and is not empty; name a new folder")
        try:
            files.create_folder(path.parent)
            self._parent = Folder(path.parent, outside=True, like=modes.copied())
            self.folder, self.scratch = map(self._fresh, (".unfinished", ".found"))
        except OSError as error:
            raise translate_os(error) from error

    def _fresh(self, suffix: str) -> Folder:
        self._parent.remove_folder(self._name + suffix)
        folder = self._parent.make_folder(self._name + suffix)
        folder.make_file(DATA_FILE)  # LMDB would give it the modes of the umask
        return folder

    def open(self, meta: dict[bytes, bytes]) -> None:
        """Open the store, with these rows of `meta`."""
        try:
            raw = open_new(self.folder)
            handle = tables_of(raw)[META]
            with raw.begin(write=True) as txn:
                for name, body in meta.items():
                    txn.put(name, with_checksum(META, name, body), db=handle)
            raw.close()
        except lmdb.Error as error:
            raise translate(error) from error
        self._environment = open_environment(
            self.folder.path,
            readonly=False,
            create=False,
            max_readers=_MAX_READERS,
            max_store_bytes=None,
            clock=Clock(),
            standby=True,  # if it is one, it stays one
        )

    def write(self, command: Callable[[WriteTxn], None], size: int = 0) -> None:
        """Run a command in a write transaction, soon, and in the order of these calls.

        Args:
            size: bytes that it writes, if they are many.
        """
        self._commands.append(command)
        self._size += _OVERHEAD + size
        if self._size >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        commands, self._commands, self._size = self._commands, [], 0
        if not commands:
            return

        def run(txn: WriteTxn) -> None:
            for command in commands:
                command(txn)

        assert self._environment is not None
        self._environment.write(run)
        self._environment.settle()

    def snapshot(self) -> ReadTxn:
        """Return a snapshot with all that was written; the caller closes it."""
        self._flush()
        assert self._environment is not None
        return self._environment.begin_read()

    def finish(self) -> None:
        """Close the store, which makes it durable, and give its folder its name."""
        assert self._environment is not None
        self._flush()
        self._environment.release()
        try:
            self._parent.remove_folder(self.scratch.path.name)
            self._parent.rename(self.folder.path.name, self._name)  # also over an empty folder
            self._parent.sync()
        except OSError as error:
            raise translate_os(error) from error

    def abandon(self) -> None:
        if self._environment is not None:
            with suppress(StreamkeepError):
                self._environment.release()
        with suppress(OSError):
            self._parent.remove_folder(self.folder.path.name)
            self._parent.remove_folder(self.scratch.path.name)
