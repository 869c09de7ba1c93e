"""The store and the file of a dump or a load, how far it is, and Ctrl-C only between commits."""

from __future__ import annotations

import gzip
import io
import os
import signal
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO, Final, NamedTuple

import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.store.place import remove_empty
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.lmdb_errors import translated
from streamkeep.format.core import errors

# --- the store ------------------------------------------------------------------------------------


AnyStore = Store[Any] | str | os.PathLike[str]
AnySource = Store[Any] | Snapshot[Any] | str | os.PathLike[str]


@contextmanager
def opened(
    path: str | os.PathLike[str],
    *,
    readonly: bool = False,
    create: bool = False,
    sync: Sync = "commit",
) -> Iterator[Store[bytes]]:
    """Open the store at `path`, and close it when the block ends.

    A store that the block has created is removed again where the block raises and the store holds
    nothing. Where `sync` is "interval", all commits are on disk when the block has ended.

    Raises:
        NotAStoreError: the path holds no store, and `create` is false; or it holds something else.
        StoreError: the store cannot be opened.
    """
    folder = path_of(path, "path")
    new = create and not os.path.lexists(folder / DATA_FILE)
    made = not os.path.lexists(folder)
    try:
        # A command that consumes ends long before what it printed has been processed.
        store = streamkeep.open(folder, sync=sync, readonly=readonly, create=create, lease=False)
    except OSError as error:
        raise errors.StoreError(f"{folder}: {error.strerror}") from error
    empty = False
    try:
        with store:
            try:
                yield store
            except BaseException:
                empty = new and holds_nothing(store)
                raise
            finally:
                if sync == "interval":
                    store.sync()
    except BaseException:
        if empty:
            with suppress(OSError, errors.StreamkeepError):
                remove_empty(folder, made)
        raise


def holds_nothing(store: Store[Any]) -> bool:
    """Say whether a store has no keys; a store that cannot be read may have some."""
    with suppress(errors.StreamkeepError):
        return next(iter(store.scan_iter()), None) is None
    return False


def checked_path(store: object) -> Path:
    """Return the path of a store; raise ArgumentError for what is neither a store nor a path."""
    if not isinstance(store, (str, os.PathLike)):
        found = type(store).__name__
        raise errors.ArgumentError(f"an open store, a snapshot or a path is expected, not {found}")
    return path_of(store, "the path of a store")


@contextmanager
def reading(source: AnySource) -> Iterator[Snapshot[Any]]:
    """Yield a snapshot of a store; one that the caller has taken stays open."""
    with ExitStack() as stack:
        if isinstance(source, Snapshot):
            if not source.txn.open:
                raise errors.StoreClosedError("the snapshot is closed")
            snapshot: Snapshot[Any] = source
        elif isinstance(source, Store):
            snapshot = stack.enter_context(source.snapshot())
        else:
            store = stack.enter_context(opened(checked_path(source), readonly=True))
            snapshot = stack.enter_context(store.snapshot())
        with translated():
            yield snapshot


class Target(ExitStack):
    """The store that a load writes, opened or created when the load has something to write.

    A file that cannot be loaded therefore creates no store.

    Attributes:
        sync: the sync mode of the load's transactions; None for that of the store.
    """

    def __init__(self, store: AnyStore, sync: Sync | None) -> None:
        super().__init__()
        self._store: Store[Any] | None = None
        self._path: Path | None = None
        self._new_sync: Sync = sync or "commit"
        self.sync: Sync | None = None
        if isinstance(store, Store):
            self._store = store
            self.sync = sync
        else:
            self._path = checked_path(store)

    def store(self) -> Store[Any]:
        """Return the store, opened or created at the first call."""
        if self._store is None:
            assert self._path is not None
            made = opened(self._path, create=True, sync=self._new_sync)
            self._store = self.enter_context(made)
        return self._store


# --- progress -------------------------------------------------------------------------------------


class Progress(NamedTuple):
    """How far a dump or a load is.

    Attributes:
        entries: entries that were written, or are in the store, so far.
        done: what is done of the work: entries of a dump, bytes read of a file that is loaded.
        total: the work as a whole, in the same unit; None where it is unknown, as for a pipe. A
            dump counts the entries of a range at most.
    """

    entries: int
    done: int
    total: int | None


# Called every thousand entries or so, in the thread that called the library. What it raises ends
# the dump or load as any other error does.
ProgressCallback = Callable[[Progress], None]


# --- Ctrl-C ---------------------------------------------------------------------------------------


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until the block has ended.

    The block holds a commit and the counting of what it committed. The counts are then exact when
    KeyboardInterrupt is raised, and the caller can continue from them.
    """
    former = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()  # Python interrupts no other
    if not main or former is None or former in (signal.SIG_IGN, signal.SIG_DFL):
        yield  # ignored, as in a background job, it stays ignored
        return
    came = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
    if came:
        raise KeyboardInterrupt


# --- the file -------------------------------------------------------------------------------------


_BUFFER: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_PEEKED: Final = 64  # bytes at the start, by which a dump is told from rows


def _read_at_least(read: Callable[[memoryview], int], buffer: Any, least: int) -> int:
    """Read into a buffer until it has some bytes or a line: a pipe may give few bytes at once."""
    view, size = memoryview(buffer), 0
    while size < max(1, least) and b"\n" not in bytes(view[:size]):
        more = read(view[size:])
        if not more:
            break
        size += more
    return size


class _Unpacked(io.RawIOBase):
    """What a gzip file holds; damage raises CorruptionError, as in any other file."""

    def __init__(self, packed: BinaryIO, name: str) -> None:
        self._file = gzip.GzipFile(fileobj=packed)
        self._name = name
        self._done = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = _read_at_least(self._file.readinto, buffer, _PEEKED - self._done)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"the gzip file is damaged or cut off: {error}"
            raise errors.CorruptionError(self._name, problem) from error
        self._done += found
        return found


class SourceFile(io.RawIOBase):
    """The file that is loaded.

    Attributes:
        name: as messages name it.
        size: in bytes; None for a pipe.
        done: how many bytes were read, for the progress.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, name: str | None) -> None:
        """Open a file, unless it is open; raise OSError where it cannot be."""
        self._stack = ExitStack()
        if isinstance(source, (str, os.PathLike)):
            self._file: BinaryIO = self._stack.enter_context(open(source, "rb"))  # noqa: SIM115
            self.name = name or os.fspath(source)
        else:
            self._file = source
            given = getattr(source, "name", None)
            self.name = name or (given if isinstance(given, str) else "the file")
        self._read = getattr(self._file, "read1", self._file.read)  # of a pipe, what is there
        self.done = 0
        self.size: int | None = None
        with suppress(OSError, AttributeError):  # not a file of the system
            status = os.fstat(self._file.fileno())
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else None

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = _read_at_least(self._read_once, buffer, _PEEKED - self.done)
        self.done += found
        return found

    def _read_once(self, view: memoryview) -> int:
        data: bytes = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def contents(self) -> io.BufferedReader[Any]:
        """Return the contents, decompressed where the first bytes are those of gzip."""
        try:
            found: io.BufferedReader[Any] = io.BufferedReader(self, _BUFFER)
            if found.peek(2)[:2] == _GZIP_MAGIC:
                return io.BufferedReader(_Unpacked(found, self.name), _BUFFER)
            return found
        except OSError as error:
            problem = f"{self.name}: {error.strerror or error}"
            raise errors.LoadError(problem, source=self.name) from error

    def for_parquet(self) -> BinaryIO:
        """Return the file itself for Parquet, which is read from its end."""
        if not self._file.seekable():
            problem = f"{self.name}: Parquet is read from a file, not from a pipe"
            raise errors.LoadError(problem, source=self.name)
        return self._file
