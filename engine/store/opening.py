"""Opening a store: the lock, creation, recovery, then LMDB.

It goes in this order: the lock of the store (`steady_file`); whoever gets it alone makes the store
ready, and recovers it after a power loss (`recover`); then LMDB. A store that is opened for writing
also gets a journal, checkpoints, and a thread for their upkeep (`environment`).

The map is address space, not memory or disk. We reserve a terabyte, which never has to grow; where
the system refuses that (a limit on address space), as much as it grants, and `Environment.resize`
grows it when it is used up.
"""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import lmdb

from streamkeep.engine.blocking.waiters import WAITERS_FOLDER
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, LOCK_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.checkpoint.crash_recovery import (
    META_EPOCH,
    is_ready,
    needs_recovery,
    prepare,
)
from streamkeep.engine.checkpoint.extent import check_extent
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.model.segment_files import ARCHIVE_FOLDER
from streamkeep.engine.store.environment import SMALLEST_STORE, Environment, limited_map
from streamkeep.engine.store.registry import Opening, registry
from streamkeep.engine.store.survey import STAGING_FOLDER, check_files, check_lmdb_files
from streamkeep.engine.store.swap import (
    DONE_FOLDER,
    NEW_FOLDER,
    READY_FOLDER,
    finish_swap,
    is_swapping,
)
from streamkeep.engine.system import failpoints, files
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate, translate_os
from streamkeep.engine.system.owners import Trusted
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.context import EngineContext
from streamkeep.format.core.checksum import open_row, seal_row
from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    FormatVersionError,
    NotAStoreError,
    RecoveryNeededError,
    StoreError,
    StoreLockedError,
)
from streamkeep.format.core.keys import META, TABLES
from streamkeep.format.core.versions import STORE_VERSION
from streamkeep.format.rows.records import (
    PAGE_FIT,
    decode_epoch,
    decode_number,
    decode_uuid,
    encode_number,
)

META_FORMAT: Final = b"format_version"
META_UUID: Final = b"store_uuid"
META_CREATED: Final = b"created_ms"

_OURS: Final = {
    DATA_FILE,
    CHECKPOINT_FILE,
    JOURNAL_FOLDER,
    LOCK_FILE,
    STAGING_FOLDER,
    ARCHIVE_FOLDER,
    NEW_FOLDER,
    READY_FOLDER,
    DONE_FOLDER,
    WAITERS_FOLDER,
}
_MAPS: Final = tuple(1 << bits for bits in (40, 36, 33, 30, 28))
_SPARE_READERS: Final = 4
_NODE_LIMITS: Final = (PAGE_FIT, 100)  # bytes, entries


def open_environment(
    path: Path,
    *,
    readonly: bool,
    force_recovery: bool = False,
    create: bool,
    max_readers: int,
    max_store_bytes: int | None,
    clock: Clock,
    node_limits: tuple[int, int] | None = None,
    trust_owners: Trusted = (),
) -> Environment:
    """Open the store at `path`, or create it; one more use of it when it is open already.

    Args:
        trust_owners: whose files are opened, besides those of `safe_files`.
        node_limits: bytes and entries of the nodes of new streams; None for ours.
    """
    if max_store_bytes is not None and max_store_bytes < SMALLEST_STORE:
        raise ArgumentError(
            f"max_store_bytes must be at least {SMALLEST_STORE}, not {max_store_bytes!r}"
        )
    opening = Opening(path)
    environment = None
    try:
        with registry.lock:
            known = registry.find(path)
            if known is not None:
                if force_recovery:
                    raise StoreLockedError(f"{path}: open in this process; close it to recover it")
                _check_compatible(known, readonly, max_store_bytes, node_limits)
                known.users += 1
                return known
            registry.openings.append(opening)
        # Without the lock: other stores can be opened and closed meanwhile, however long it takes.
        folder = _check_place(path, create and not readonly, readonly, trust_owners)
        environment = _open_noted(
            folder,
            opening,
            readonly,
            force_recovery,
            max_readers,
            max_store_bytes,
            clock,
            node_limits or _NODE_LIMITS,
        )
        return environment
    finally:
        registry.end(opening, environment)


def _open_noted(
    folder: Folder,
    opening: Opening,
    readonly: bool,
    force_recovery: bool,
    max_readers: int,
    max_store_bytes: int | None,
    clock: Clock,
    node_limits: tuple[int, int],
) -> Environment:
    """Open a store that no other thread opens, and that this process has not open."""
    raw = None
    environment = None
    try:
        lock = _lock_store(folder, opening, readonly, force_recovery, max_readers, clock)
        raw = _open_lmdb(folder, readonly, max_readers, max_store_bytes)
        environment = _initialize(folder, raw, readonly, max_store_bytes, clock, node_limits, lock)
        environment.make_first_checkpoint()
    except BaseException as error:
        if environment is not None:
            environment.close_files()
        elif raw is not None:
            raw.close()
        if opening.lock is not None:
            opening.lock.close()
        folder.close_all()
        if isinstance(error, lmdb.Error):
            raise translate(error) from error
        if isinstance(error, OSError):
            raise translate_os(error) from error
        raise
    return environment


def _lock_store(
    folder: Folder,
    opening: Opening,
    readonly: bool,
    force_recovery: bool,
    max_readers: int,
    clock: Clock,
) -> CheckpointFile | None:
    """Get the lock of the store; if nobody else has it open, make the store ready."""
    path = folder.path

    def open_lmdb() -> lmdb.Environment:
        return _open_lmdb(folder, False, max_readers, None)  # a replay cannot reuse any page

    def make_ready(alone: bool) -> bool:
        if not alone:
            if force_recovery:
                raise StoreLockedError(
                    f"{path}: open in another process; close it there to recover it"
                )
            if not readonly:
                lock.check_no_unlisted(DATA_FILE)
            return is_ready(folder, lock)
        if not readonly:
            lock.check_no_unlisted(DATA_FILE)
            finish_swap(folder, lock)
            if _is_cold(folder) and not needs_recovery(folder, lock):
                _check_is_ours(folder)
            prepare(folder, lock, open_lmdb, clock, force_recovery)
        elif is_swapping(folder):
            raise RecoveryNeededError(
                f"{path}: a compaction was cut off; open the store for writing once"
            )
        elif reason := needs_recovery(folder, lock):
            raise RecoveryNeededError(
                f"{path}: the store needs recovery, since {reason}; {_how_to_recover(path)}"
            )
        else:
            check_extent(folder)
        return True

    try:
        lock = opening.lock = CheckpointFile(folder, readonly=readonly)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and not readonly:
            raise _not_writable(path) from error
        raise translate_os(error) from error
    try:
        if readonly and not is_listed(path):
            lock.read_unlisted(DATA_FILE, make_ready)
        else:
            lock.share_when_ready(make_ready)
    except BaseException as error:
        lock.close()
        if isinstance(error, OSError):
            raise translate_os(error) from error
        if isinstance(error, lmdb.Error):
            raise translate(error) from error
        raise
    return lock


def _check_compatible(
    known: Environment,
    readonly: bool,
    max_store_bytes: int | None,
    node_limits: tuple[int, int] | None,
) -> None:
    """Raise when an environment that is open cannot serve this use, too."""
    context = known.context
    if known.readonly and not readonly:
        raise StoreError(
            f"{known.path}: open in this process with readonly=True; close that store first"
        )
    if max_store_bytes not in (None, known.max_store_bytes) or node_limits not in (
        None,
        (context.node_max_bytes, context.node_max_entries),
    ):
        raise StoreError(
            f"{known.path}: open in this process with another max_store_bytes, node_max_bytes or "
            "node_max_entries; leave them out, or close that store first"
        )


def _check_place(path: Path, create: bool, readonly: bool, trust_owners: Trusted) -> Folder:
    """Raise unless `path` is a store, or can become one; return its folder, made if need be."""
    folder = find_folder(path, trust_owners)
    if folder is None:
        if not create:
            raise NotAStoreError(f"{path}: no such store")
        try:
            files.create_folder(path)
            return Folder(path, trusted=trust_owners)
        except OSError as error:
            raise StoreError(f"{path}: cannot create the folder: {error.strerror}") from error
    try:
        check_files(folder, readonly=readonly)
        _check_is_store(folder, create)
    except BaseException as error:
        folder.close_all()
        if isinstance(error, OSError):
            raise StoreError(f"{path}: its files cannot be looked at: {error}") from error
        raise
    return folder


def _check_is_store(folder: Folder, create: bool) -> None:
    """Raise unless there is a store in a folder, or may be made one."""
    path = folder.path
    if folder.exists(DATA_FILE):
        if folder.size(DATA_FILE) and not folder.exists(CHECKPOINT_FILE):
            _check_is_ours(folder)
        return
    if folder.exists(ARCHIVE_FOLDER):
        raise CorruptionError(f"{path}: {DATA_FILE}", "the file is missing; the archive is there")
    if not _OURS.issuperset(folder.names()):
        raise NotAStoreError(f"{path}: the folder is not empty and holds no store")
    if not create:
        raise NotAStoreError(f"{path}: no store: there is no {DATA_FILE} in it")


def find_folder(path: Path, trust_owners: Trusted = ()) -> Folder | None:
    """Open the folder of a store; None where there is nothing.

    Raises:
        NotAStoreError: there is something else.
        UntrustedFileError: somebody owns it who is not trusted.
    """
    try:
        return Folder(path, trusted=trust_owners)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise NotAStoreError(f"{path}: not a folder; a store is one") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot open the folder: {error.strerror}") from error


def _is_cold(folder: Folder) -> bool:
    """Say whether there is a store that nobody has opened since it was copied."""
    return folder.size(DATA_FILE) > 0 and not folder.exists(LOCK_FILE)


def _check_is_ours(folder: Folder) -> None:
    """Look into a file that nobody has open before LMDB leaves its lock file beside it."""
    path = folder.path
    check_extent(folder)
    try:
        raw = lmdb.open(str(path), readonly=True, lock=False, max_dbs=len(TABLES) + 1, create=False)
    except lmdb.Error as error:
        raise NotAStoreError(f"{path}: data.mdb is not a store: {error}") from error
    try:
        _tables(raw, None, path)
    finally:
        raw.close()


def is_listed(path: Path) -> bool:
    """Say whether LMDB's table of readers, which keeps their pages from reuse, will list us."""
    return os.access(path, os.W_OK) and (
        not (path / LOCK_FILE).exists() or os.access(path / LOCK_FILE, os.W_OK)
    )


def _open_lmdb(
    folder: Folder, readonly: bool, max_readers: int, max_store_bytes: int | None
) -> lmdb.Environment:
    path = folder.path
    if not readonly:
        with suppress(OSError):  # LMDB will meet it, too, and says more
            for name in (DATA_FILE, LOCK_FILE):  # LMDB would create them through a link
                folder.make_file(name)
    check_lmdb_files(folder, readonly=readonly)
    needed = folder.size(DATA_FILE)
    sizes = [size for size in _MAPS if size >= 2 * needed] or [4 * needed]
    if max_store_bytes is not None:
        sizes = [limited_map(max_store_bytes)]
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
                lock=not readonly or is_listed(path),
                lib_version=0,
            )
        except lmdb.MemoryError:
            continue
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise NotAStoreError(f"{path}: data.mdb is not a store: {error}") from error
        except lmdb.ReadonlyError as error:
            raise _not_writable(path) from error
        except lmdb.LockError as error:
            if "mdb_txn_begin" in str(error):
                raise translate(error) from error
            raise StoreError(
                f"{path}: no file locks on this file system ({error}); use a local disk"
            ) from error
        except lmdb.Error as error:
            raise translate(error) from error
    raise StoreError(f"{path}: the system grants no {sizes[-1]} bytes of address space")


def _is_on_readonly_system(path: Path) -> bool:
    """Say whether nobody may write to the file system; some become so by an error of the disk."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


_ELSEWHERE: Final = (
    "its file system is read-only, by its mount or since an error of the disk: mount it for "
    "writing, or copy the folder to another file system and open the copy"
)


def _not_writable(path: Path) -> StoreError:
    if _is_on_readonly_system(path):
        return StoreError(f"{path}: {_ELSEWHERE}; readonly=True works where no recovery is needed")
    return StoreError(f"{path}: no permission to write; open it with readonly=True")


def _how_to_recover(path: Path) -> str:
    return _ELSEWHERE if _is_on_readonly_system(path) else "open it for writing once"


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
    folder: Folder,
    raw: lmdb.Environment,
    readonly: bool,
    max_store_bytes: int | None,
    clock: Clock,
    node_limits: tuple[int, int],
    lock: CheckpointFile | None,
) -> Environment:
    """Read what an existing store says of itself, or write it into a new one."""
    path = folder.path
    if readonly:
        handles = _tables(raw, None, path)
    else:
        with raw.begin(write=True) as writer:
            if writer.stat()["entries"] == 0:
                _create(raw, writer, clock)
            handles = _tables(raw, writer, path)
            failpoints.hit("create:written")
        folder.sync()
        failpoints.hit("create:named")
    where = f"{path}: meta"
    with raw.begin() as txn:

        def row(name: bytes) -> bytes:
            value = txn.get(name, None, handles[META])
            if value is None:
                raise CorruptionError(where, f"the row {name.decode()!r} is missing")
            return open_row(META, name, value, where)

        epoch = decode_epoch(row(META_EPOCH), where)
        identity = decode_uuid(row(META_UUID), where)
    context = EngineContext(raw, handles, epoch, clock, *node_limits)
    return Environment(
        folder,
        raw,
        context,
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
