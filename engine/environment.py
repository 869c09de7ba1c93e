"""One LMDB environment per process and store: open, create, share, grow, close.

LMDB allows an environment to be open once in a process, so every `Store` on the same files shares
one `Environment`, found by the identity of `data.mdb` and counted. A forked child must not touch
what its parent opened: there every environment is marked closed, and kept alive, since closing it
would disturb the parent.

Opening goes in this order: the lock of the store (`steady_file`); whoever gets it alone makes the
store ready, and recovers it after a power loss (`recover`); then LMDB. A store opened for writing
also has a journal, steady points, and a thread for their upkeep.

The map is address space, not memory or disk. We reserve a terabyte, which never has to grow;
where the system refuses that (a limit on address space), as much as it grants, and `resize` grows
it when it is used up: under the write lock, with the gate for new readers closed, after the last
reader of this process has left.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import lmdb
from lmdb import _envid

from streamkeep.engine import failpoints, files
from streamkeep.engine.clock import Clock
from streamkeep.engine.combine import Combiner
from streamkeep.engine.durability import Durability, read_slots
from streamkeep.engine.journal import JOURNAL_FOLDER, Journal
from streamkeep.engine.lmdb_errors import translate, translate_os
from streamkeep.engine.recover import (
    META_EPOCH,
    META_RECOVERY,
    decode_recovery,
    is_ready,
    needs_recovery,
    prepare,
)
from streamkeep.engine.segment_files import ARCHIVE_FOLDER, SegmentFiles
from streamkeep.engine.steady import DATA_FILE, Hold, SteadyPoints
from streamkeep.engine.steady_file import STEADY_FILE, SteadyFile
from streamkeep.engine.switch import (
    DONE_FOLDER,
    NEW_FOLDER,
    READY_FOLDER,
    finish_switch,
    is_switching,
)
from streamkeep.engine.txn import (
    PointNeeded,
    ReadTxn,
    Shared,
    WriteTxn,
    begin_read,
    begin_write,
    clear_memory,
    run_read,
    run_write,
)
from streamkeep.engine.upkeep import BUDGET_BYTES, Upkeep
from streamkeep.engine.waiting import Lobby
from streamkeep.format.checksum import open_row, seal_row
from streamkeep.format.errors import (
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    RecoveryNeededError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from streamkeep.format.keys import META, TABLES
from streamkeep.format.records import PAGE_FIT, decode_number, encode_number
from streamkeep.format.versions import STORE_VERSION

LOCK_FILE: Final = "lock.mdb"

META_FORMAT: Final = b"format_version"
META_UUID: Final = b"store_uuid"
META_CREATED: Final = b"created_ms"

STAGING_FOLDER: Final = "staging"  # what pipelines have written and not yet committed

_OURS: Final = {
    DATA_FILE,
    STEADY_FILE,
    JOURNAL_FOLDER,
    LOCK_FILE,
    STAGING_FOLDER,
    ARCHIVE_FOLDER,
    NEW_FOLDER,
    READY_FOLDER,
    DONE_FOLDER,
    "waiters",
}
PAGE: Final = 4096
_META_PAGES: Final = 2
RETIRED_LEAST: Final = 64 << 20  # bytes in `retired` that nobody needs to look at
_MAPS: Final = tuple(1 << bits for bits in (40, 36, 33, 30, 28))
_SMALLEST_STORE: Final = 1 << 20
_SPARE_READERS: Final = 4
_RESIZE_WAIT_S: Final = 10.0

_registry: dict[tuple[int, int], Environment] = {}
_registry_lock = threading.RLock()
_orphans: list[lmdb.Environment] = []  # of a parent process; never closed here

Result = TypeVar("Result")


class Environment:
    """The open LMDB environment of a store, shared by all `Store` objects of this process."""

    def __init__(
        self,
        path: Path,
        raw: lmdb.Environment,
        shared: Shared,
        *,
        uuid_bytes: bytes,
        readonly: bool,
        max_store_bytes: int | None,
        lock: SteadyFile | None,
    ) -> None:
        self.path = path
        self.raw = raw
        self.shared = shared
        self.uuid = uuid.UUID(bytes=uuid_bytes)
        self.readonly = readonly
        self.max_store_bytes = max_store_bytes
        self.users = 0
        self.identity = _identity(path)
        self.lobby = Lobby(path, shared, self.read)
        if not readonly:
            self.lobby.open_board()  # commits ring whom they find on it
        self.lock = lock  # None where the store may not be touched and has no such file
        self.points: SteadyPoints | None = None  # None for a read-only store
        self.upkeep: Upkeep | None = None
        self.relief: Callable[[], None] | None = None  # called when much has been retired
        self.combiner = Combiner(self.write_alone)
        self.segments = SegmentFiles(path / ARCHIVE_FOLDER)
        shared.segment_files = self.segments
        if not readonly and lock is not None:
            shared.journal = Journal(path / JOURNAL_FOLDER, uuid_bytes, shared.epoch)
            shared.erasures = shared.journal.head.erasures()
            self.points = SteadyPoints(path, shared, lock, shared.journal)
            self.upkeep = Upkeep(shared, self.points)

    # --- transactions -----------------------------------------------------------------------

    def begin_read(self) -> ReadTxn:
        """Begin a read transaction."""
        return self._retrying(begin_read, self.shared)

    def begin_write(self) -> WriteTxn:
        """Wait for the write lock and begin a transaction that cannot be run again.

        Since the map cannot grow under it, a quarter of it is kept free beforehand.
        """
        self.check_writable()
        if self.max_store_bytes is None and 4 * self.used_size() > 3 * self.map_size():
            self.resize(2 * self.map_size())
        while True:
            try:
                return self._retrying(begin_write, self.shared)
            except PointNeeded:
                self._make_point_needed()

    def read(self, command: Callable[..., Result], *args: Any) -> Result:
        """Run `command(txn, *args)` on a snapshot."""
        try:
            return cast(Result, run_read(self.shared, command, args))
        except lmdb.Error:
            return cast(Result, self._retrying(run_read, self.shared, command, args))

    def read_durable(self, command: Callable[..., Result], *args: Any) -> Result:
        """As `read`; return when everything that the snapshot showed is on disk."""
        with self.begin_read() as txn:
            try:
                result = command(txn, *args)
            except lmdb.Error as error:
                raise translate(error) from error
            commit_number = txn.raw.id()
        self._sync_to(commit_number)
        return result

    def write(
        self, command: Callable[..., Result], *args: Any, wait: bool = False, frees: bool = False
    ) -> Result:
        """Run `command(txn, *args)` in a write transaction of its own, and commit.

        When the map is full it grows and the command runs again, from the start.

        Args:
            wait: return when the commit is on disk.
            frees: the command makes room; it may use a reserve when the store is at its limit.
        """
        if wait and not frees:
            return cast(Result, self.combiner.run(command, args))
        return cast(Result, self.write_alone(command, args, wait, frees))

    def write_alone(
        self, command: Callable[..., Any], args: tuple[Any, ...], wait: bool, frees: bool
    ) -> Any:
        """As `write`, in a transaction that is shared with nobody."""
        if self.readonly:
            self.check_writable()
        if self.max_store_bytes is not None and not frees:
            self.limit_again()
        shared = self.shared
        tried = False
        while True:
            try:
                result = run_write(shared, command, args, wait)
            except PointNeeded:
                self._make_point_needed()
            except lmdb.MapFullError as error:
                if not tried and self.max_store_bytes is not None:
                    tried = True  # a steady point lets pages be reused
                    self.make_point()
                else:
                    self._make_room(frees, error)
            except StoreFullError:
                if tried or not frees:
                    raise
                self._use_reserve()
                tried = True
            except lmdb.MapResizedError:
                self.resize(0)
            except lmdb.Error as error:
                told = translate(error)
                if tried or not frees or not isinstance(told, StoreFullError):
                    raise told from error
                self._use_reserve()
                tried = True
            else:
                if not shared.watched or shared.unsteady_bytes >= BUDGET_BYTES:
                    self.notice()
                if shared.retired_bytes > RETIRED_LEAST:
                    self.relieve()
                return result

    def relieve(self) -> None:
        """After a commit: archive on the spot when too much waits for the archiver."""
        if self.shared.retired_bytes > RETIRED_LEAST and self.relief is not None:
            self.relief()

    def notice(self) -> None:
        """After a commit: have the upkeep thread look, or help it where it cannot keep up."""
        shared = self.shared
        if self.upkeep is not None:
            self.upkeep.notice()
        if shared.unsteady_bytes >= 2 * BUDGET_BYTES:
            shared.unsteady_bytes = 0
            self.make_point()

    def _use_reserve(self) -> None:
        """Make room on a full disk for a command that frees some.

        A steady point lets pages be reused and journal files go; the last of them is the spare.
        """
        self.make_point()
        if self.shared.journal is not None:
            self.shared.journal.drop_spare()

    # --- durability -------------------------------------------------------------------------

    def make_point(self) -> None:
        """Make a steady point: all that is committed is on disk, in the data file itself."""
        if self.points is not None:
            self._retrying(self.points.make)

    def make_clean_point(self, begin: Callable[[WriteTxn], None]) -> Hold:
        """As `make_point`; nothing that was journaled before is left in the journal's files.

        Args:
            begin: a command that changes something, in whose transaction the journal goes on in
                another file.
        """
        points = self.points
        assert points is not None

        def go_on_clean(txn: WriteTxn) -> None:
            points.journal.go_on_clean()
            begin(txn)

        # Meanwhile nobody makes an old file of the journal the spare one.
        with points.exclusive():
            self.write(go_on_clean, frees=True)
            hold: Hold = self._retrying(points.make_clean)
            return hold

    def make_first_point(self) -> None:
        """Make the steady point after a creation or a recovery: from now on that counts."""
        if self.points is not None:
            slot = self.points.file.newest()
            if slot is None or slot.epoch != self.shared.epoch:
                self.make_point()

    def _make_point_needed(self) -> None:
        """Have a pin and a place in the journal; see `PointNeeded`."""
        shared, points = self.shared, self.points
        assert points is not None
        points.journal.check()
        shared.check_open()
        if not points.journal.head.may_write(shared.erasures):
            self.clear_memory()
            if shared.pin is not None:
                return
        self._retrying(points.pin if shared.pin is None else points.make)

    def clear_memory(self) -> None:
        """Have nothing in LMDB's memory that was written before the last erasure."""
        while not self._retrying(clear_memory, self.shared):
            self.resize(self.map_size() + 2 * PAGE * self.shared.kept_pages())

    def durability(self) -> Durability:
        """Return how far the store is on disk."""
        shared, journal = self.shared, self.shared.journal
        slot = None if self.lock is None else self.lock.newest()
        with self.begin_read() as txn:
            last_commit = txn.raw.id()
            row = txn.get_row(META, META_RECOVERY, "meta")
        folder = self.path / JOURNAL_FOLDER
        return Durability(
            shared.epoch,
            last_commit,
            None if journal is None else min(journal.head.durable(), last_commit),
            None if slot is None else slot.commit_number,
            sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0,
            None if row is None else decode_recovery(row),
            read_slots(self.raw, last_commit),
        )

    def sync(self) -> None:
        """Return when everything that is committed now is on disk."""
        with self.begin_read() as txn:
            commit_number = txn.raw.id()
        self._sync_to(commit_number)

    def _sync_to(self, commit_number: int) -> None:
        """Return when everything up to a commit is on disk."""
        journal = self.shared.journal
        if journal is not None and not journal.sync(commit_number):
            self.make_point()  # it was made before this journal was begun

    def _retrying(self, begin: Callable[..., Result], *args: Any) -> Result:
        """Call `begin`, which changes nothing, again after what can be cured; else translate."""
        cleared = False
        while True:
            try:
                return begin(*args)
            except lmdb.MapResizedError:
                self.resize(0)
            except lmdb.ReadersFullError as error:
                if cleared or self.raw.reader_check() == 0:
                    raise translate(error) from error
                cleared = True
            except lmdb.Error as error:
                raise translate(error) from error

    def check_writable(self) -> None:
        """Raise unless the store was opened for writing."""
        if self.readonly:
            raise StoreError("the store was opened with readonly=True")

    # --- size -------------------------------------------------------------------------------

    def map_size(self) -> int:
        """Return the reserved map in bytes."""
        return self.raw.info()["map_size"]

    def used_size(self) -> int:
        """Return the bytes of the data file that were ever used: its last page's end."""
        return (self.raw.info()["last_pgno"] + 1) * PAGE

    def reusable_size(self) -> int:
        """Return the bytes of used pages that hold nothing any more and will be used again."""
        with self.begin_read() as txn:
            stats = [txn.raw.stat(), *(txn.raw.stat(table) for table in self.shared.tables)]
        pages = sum(
            stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats
        )
        return max(0, self.used_size() - (pages + _META_PAGES) * PAGE)

    def _make_room(self, frees: bool, error: lmdb.Error) -> None:
        """After a full map: grow it, or raise when the store is at its limit."""
        size = self.map_size()
        if self.max_store_bytes is None:
            self.resize(size * 2)
            return
        reserve = self.max_store_bytes + max(_SMALLEST_STORE, self.max_store_bytes // 8)
        if frees and size < reserve:
            self.resize(reserve)
            return
        raise StoreFullError(
            f"the store has reached max_store_bytes={self.max_store_bytes}; "
            "delete or trim entries, or raise the limit"
        ) from error

    def limit_again(self) -> None:
        """Take back the reserve that a command which frees space was given."""
        if self.max_store_bytes is not None and self.map_size() > _whole(self.max_store_bytes):
            self.resize(_whole(self.max_store_bytes))

    def resize(self, size: int) -> None:
        """Set the map's size; 0 takes over what another process has set.

        Raises:
            StoreError: a snapshot or iterator of this process stays open and pins the map.
        """
        shared = self.shared
        shared.check_not_writing()
        with self._points_lock, shared.write_lock, shared.gate:
            deadline = time.monotonic() + _RESIZE_WAIT_S
            while shared.left < shared.entered:
                if time.monotonic() > deadline:
                    raise StoreError(
                        "the store's map must be resized, which open snapshots and iterators of "
                        "this process prevent; close them"
                    )
                time.sleep(0.001)
            shared.forget()
            if self.points is not None:
                self.points.unpin()
            self.raw.set_mapsize(size)

    @property
    def _points_lock(self) -> AbstractContextManager[object]:
        """The lock under which steady points are made, which comes before all others."""
        return nullcontext() if self.points is None else self.points.lock

    # --- end --------------------------------------------------------------------------------

    def release(self) -> None:
        """Give up one use; the last one closes the environment."""
        with _registry_lock:
            self.users -= 1
            if self.users or self.shared.closed:
                return
            _registry.pop(self.identity, None)
            try:
                if self.upkeep is not None:
                    self.upkeep.stop()
                points = self.points
                if points and (self.shared.pin is not None or points.journal.head.poisoned()):
                    self.make_point()
            finally:
                self.close_files()

    def close_files(self) -> None:
        """Close everything, without a steady point."""
        shared = self.shared
        with self._points_lock, shared.write_lock, shared.gate:
            shared.closed = "the store is closed"
            shared.forget()
            if self.points is not None:
                self.points.close()
            self.lobby.close()
            self.segments.close()
            self.raw.close()
            if shared.journal is not None:
                shared.journal.close()
            if self.lock is not None:
                self.lock.close()


def open_environment(
    path: Path,
    *,
    readonly: bool,
    force_recovery: bool = False,
    create: bool,
    max_readers: int,
    max_store_bytes: int | None,
    clock: Clock,
    node_max_bytes: int = PAGE_FIT,
    node_max_entries: int = 100,
) -> Environment:
    """Open the store at `path`, or create it; one more use of it when it is open already."""
    if max_store_bytes is not None and max_store_bytes < _SMALLEST_STORE:
        raise StoreError(f"max_store_bytes must be at least {_SMALLEST_STORE}")
    with _registry_lock:
        known = _registry.get(_identity(path)) if (path / DATA_FILE).exists() else None
        if known is not None:
            _check_compatible(known, readonly=readonly)
            known.users += 1
            return known
        _check_place(path, create=create and not readonly)
        lock = None
        raw = None
        environment = None
        try:
            lock = _lock_store(path, readonly, force_recovery, max_readers, clock)
            raw = _open_lmdb(path, readonly, max_readers, max_store_bytes)
            environment = _initialize(
                path,
                raw,
                readonly,
                max_store_bytes,
                clock,
                node_max_bytes,
                node_max_entries,
                lock,
            )
            environment.make_first_point()
        except BaseException as error:
            if environment is not None:
                environment.close_files()
            elif raw is not None:
                raw.close()
            if lock is not None:
                lock.close()
            if isinstance(error, lmdb.Error):
                raise translate(error) from error
            if isinstance(error, OSError):
                raise translate_os(error) from error
            raise
        environment.users = 1
        _registry[environment.identity] = environment
        return environment


def find_open(path: Path) -> Environment | None:
    """Return the environment of a store that this process has open already."""
    with _registry_lock:
        try:
            return _registry.get(_identity(path))
        except OSError:
            return None


def _lock_store(
    path: Path,
    readonly: bool,
    force_recovery: bool,
    max_readers: int,
    clock: Clock,
) -> SteadyFile | None:
    """Get the lock of the store; if nobody else has it open, make the store ready."""

    def open_lmdb() -> lmdb.Environment:
        return _open_lmdb(path, False, max_readers, None)  # a replay cannot reuse any page

    def make_ready(alone: bool) -> bool:
        if not alone:
            if force_recovery:
                raise StoreLockedError(
                    f"{path}: open in another process; close it there to recover it"
                )
            return is_ready(path, lock)
        if not readonly:
            finish_switch(path, lock)
            if _is_cold(path) and not needs_recovery(path, lock):
                _check_is_ours(path)
            prepare(path, lock, open_lmdb, clock, force_recovery)
        elif is_switching(path):
            raise RecoveryNeededError(
                f"{path}: a compaction was cut off; open the store for writing once"
            )
        elif needs_recovery(path, lock):
            raise RecoveryNeededError(
                f"{path}: the store needs recovery after a power loss; open it for writing once"
            )
        return True

    try:
        lock = SteadyFile(path, readonly=readonly)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os(error) from error
    try:
        lock.share_when_ready(make_ready)
    except BaseException as error:
        lock.close()
        if isinstance(error, OSError):
            raise translate_os(error) from error
        if isinstance(error, lmdb.Error):
            raise translate(error) from error
        raise
    return lock


def _check_compatible(known: Environment, *, readonly: bool) -> None:
    """Raise when an environment that is open cannot serve this use, too."""
    if known.readonly and not readonly:
        raise StoreError(
            f"{known.path}: open in this process with readonly=True; close that store first"
        )


def _identity(path: Path) -> tuple[int, int]:
    status = (path / DATA_FILE).stat()
    return status.st_dev, status.st_ino


def _whole(size: int) -> int:
    return size // PAGE * PAGE


def _check_place(path: Path, *, create: bool) -> None:
    """Raise unless `path` is a store, or can become one; make its folder."""
    if path.exists() and not path.is_dir():
        raise NotAStoreError(f"{path}: not a folder; a store is one")
    data = path / DATA_FILE
    if data.exists():
        if data.stat().st_size and not (path / STEADY_FILE).exists():
            _check_is_ours(path)
        return
    if path.is_dir() and (path / ARCHIVE_FOLDER).exists():
        raise CorruptionError(f"{path}: {DATA_FILE}", "the file is missing; the archive is there")
    if path.is_dir() and any(one.name not in _OURS for one in path.iterdir()):
        raise NotAStoreError(f"{path}: the folder is not empty and holds no store")
    if not create:
        kind = f"no store: there is no {DATA_FILE} in it" if path.is_dir() else "no such store"
        raise NotAStoreError(f"{path}: {kind}")
    try:
        files.create_folder(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot create the folder: {error.strerror}") from error


def _is_cold(path: Path) -> bool:
    """Say whether there is a store that nobody has opened since it was copied."""
    return (path / DATA_FILE).exists() and not (path / LOCK_FILE).exists()


def _check_is_ours(path: Path) -> None:
    """Look into a file that nobody has open before LMDB leaves its lock file beside it."""
    try:
        raw = lmdb.open(str(path), readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)
    except lmdb.Error as error:
        raise NotAStoreError(f"{path}: data.mdb is not a store: {error}") from error
    try:
        _tables(raw, None, path)
    finally:
        raw.close()


def _open_lmdb(
    path: Path, readonly: bool, max_readers: int, max_store_bytes: int | None
) -> lmdb.Environment:
    writable = os.access(path, os.W_OK) and (
        not (path / LOCK_FILE).exists() or os.access(path / LOCK_FILE, os.W_OK)
    )
    needed = (path / DATA_FILE).stat().st_size if (path / DATA_FILE).exists() else 0
    sizes = [size for size in _MAPS if size >= 2 * needed] or [4 * needed]
    if max_store_bytes is not None:
        sizes = [_whole(max_store_bytes)]
    for size in sizes:
        try:
            return lmdb.open(
                str(path),
                map_size=size,
                readonly=readonly,
                sync=False,
                mode=files.FILE_MODE,
                create=not readonly,
                max_readers=max_readers,
                max_dbs=len(TABLES) + 1,
                max_spare_txns=_SPARE_READERS,
                lock=writable or not readonly,
                lib_version=0,
            )
        except lmdb.MemoryError:
            continue
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise NotAStoreError(f"{path}: data.mdb is not a store: {error}") from error
        except lmdb.ReadonlyError as error:
            raise StoreError(
                f"{path}: no permission to write; open it with readonly=True"
            ) from error
        except lmdb.LockError as error:
            if "mdb_txn_begin" in str(error):
                raise translate(error) from error
            raise StoreError(
                f"{path}: no file locks on this file system ({error}); use a local disk"
            ) from error
        except lmdb.Error as error:
            raise translate(error) from error
    raise StoreError(f"{path}: the system grants no {sizes[-1]} bytes of address space")


def _open_table(raw: lmdb.Environment, txn: lmdb.Transaction[bytes] | None, name: str) -> Any:
    return raw.open_db(name.encode(), txn, create=False)


def _tables(
    raw: lmdb.Environment, txn: lmdb.Transaction[bytes] | None, path: Path
) -> list[lmdb._Database]:
    """Return the handles of an existing store's tables; check its version.

    Args:
        txn: a write transaction, which will be committed: handles opened in a read transaction end
            with it. None where the environment is read-only.
    """
    try:
        meta = _open_table(raw, txn, TABLES[META].name)
    except lmdb.NotFoundError as error:
        raise NotAStoreError(f"{path}: an LMDB environment, but not a store") from error
    if txn is None:
        with raw.begin() as reader:
            value = reader.get(META_FORMAT, None, meta)
    else:
        value = txn.get(META_FORMAT, None, meta)
    if value is None:
        raise NotAStoreError(f"{path}: an LMDB environment, but not a store")
    where = f"{path}: meta"
    version = decode_number(open_row(META, META_FORMAT, value, where), where)
    if version > STORE_VERSION:
        raise FormatVersionError(
            f"{path}: store format {version}, this version of Streamkeep reads up to "
            f"{STORE_VERSION}; upgrade Streamkeep"
        )
    handles = []
    for table in TABLES:
        try:
            handles.append(_open_table(raw, txn, table.name))
        except lmdb.NotFoundError as error:
            raise CorruptionError(str(path), f"sub-database {table.name!r} is missing") from error
    return handles


def _initialize(
    path: Path,
    raw: lmdb.Environment,
    readonly: bool,
    max_store_bytes: int | None,
    clock: Clock,
    node_max_bytes: int,
    node_max_entries: int,
    lock: SteadyFile | None,
) -> Environment:
    """Read what an existing store says of itself, or write it into a new one."""
    if readonly:
        handles = _tables(raw, None, path)
    else:
        with raw.begin(write=True) as writer:
            if writer.stat()["entries"] == 0:
                _create(raw, writer, clock)
            handles = _tables(raw, writer, path)
            failpoints.hit("create:written")
        files.sync_folder(path)
        failpoints.hit("create:named")
    where = f"{path}: meta"
    with raw.begin() as txn:

        def row(name: bytes) -> bytes:
            value = txn.get(name, None, handles[META])
            if value is None:
                raise CorruptionError(where, f"the row {name.decode()!r} is missing")
            return open_row(META, name, value, where)

        epoch = decode_number(row(META_EPOCH), where)
        identity = row(META_UUID)
    shared = Shared(raw, handles, epoch, clock, node_max_bytes, node_max_entries)
    return Environment(
        path,
        raw,
        shared,
        uuid_bytes=identity,
        readonly=readonly,
        max_store_bytes=max_store_bytes,
        lock=lock,
    )


def _create(raw: lmdb.Environment, txn: lmdb.Transaction[bytes], clock: Clock) -> None:
    """Write the tables and the first rows of a new store."""
    for table in TABLES:
        raw.open_db(table.name.encode(), txn)
    meta = raw.open_db(TABLES[META].name.encode(), txn)
    for key, body in (
        (META_FORMAT, encode_number(STORE_VERSION)),
        (META_UUID, uuid.uuid4().bytes),
        (META_EPOCH, encode_number(1)),
        (META_CREATED, encode_number(clock.now_ms())),
    ):
        txn.put(key, seal_row(META, key, body), db=meta)


def _after_fork_in_child() -> None:
    """Mark every environment unusable in a forked child; LMDB's locks belong to the parent."""
    global _registry_lock
    _registry_lock = threading.RLock()
    for environment in _registry.values():
        environment.shared.closed = (
            "the store was opened before this process was forked; open it again in the child"
        )
        environment.shared.write_lock = threading.Lock()
        environment.shared.gate = threading.Lock()
        environment.lobby.abandon()
        _orphans.append(environment.raw)
        # The child must not hold the parent's file locks, which would outlive the parent.
        if environment.lock is not None:
            environment.lock.close()
        if environment.points is not None:
            environment.points.close_files()
            environment.points.journal.turns.close()
            environment.points.journal.head.abandon()
    if _registry:
        _let_child_open()
    _registry.clear()


def _let_child_open() -> None:
    """Make py-lmdb forget, in a forked child, which files the parent has open.

    It refuses to open a file twice in a process, and counts what was inherited. The inherited
    environments are never used or closed here, so a new one shares nothing with them. There is no
    public way to say so; without this hook, opening raises, and nothing worse happens.
    """
    child = os.getpid()
    parents_keys: Callable[[Any, Any], tuple[Any, ...]] = _envid.env_keys

    def keys_of_child(path: Any, subdir: Any) -> tuple[Any, ...]:
        return tuple((child, *key) for key in parents_keys(path, subdir))

    _envid.env_keys = keys_of_child


os.register_at_fork(after_in_child=_after_fork_in_child)
