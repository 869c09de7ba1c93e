"""Opening a store: from a path to an `Environment`.

1. Check the files of the folder (`survey`).
2. Take the lock of the store (`checkpoint_file`). A process that gets it exclusively makes the
   store ready: it finishes a compaction and recovers the store after a power loss.
3. Open LMDB, and read or write the rows that describe the store (`meta`). A store that is opened
   for writing also gets a journal, checkpoints and a checkpointer thread (`environment`).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import lmdb

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.crash_recovery.recover import is_ready, needs_recovery, prepare
from streamkeep.engine.crash_recovery.state import WAYS, WayName
from streamkeep.engine.crash_recovery.stored_rows import check_extent
from streamkeep.engine.journal.control_file import ControlFile
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import end_slots_ahead
from streamkeep.engine.store.durability import standby_of
from streamkeep.engine.store.environment import Environment
from streamkeep.engine.store.meta import Options, check_version, read_or_create
from streamkeep.engine.store.place import check_place, not_opened, owner_of
from streamkeep.engine.store.registry import Opening, registry
from streamkeep.engine.store.survey import check_lmdb_files, finish_swap, is_swapping
from streamkeep.engine.system.clock import Clock
from streamkeep.engine.system.lmdb_errors import translate, translated
from streamkeep.engine.system.lock_file import LOCK_FILE, reserve_lock_file, wait_for_others
from streamkeep.engine.system.modes import Modes
from streamkeep.engine.system.owners import Trusted
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core import errors
from streamkeep.format.core.keys import TABLES
from streamkeep.format.core.values import whole

# The map is address space, not memory or disk. A terabyte never has to grow. If the system refuses
# it (a limit on address space), the next smaller size is tried, and `Environment.resize` grows it.
MAPS: Final = tuple(1 << bits for bits in (40, 36, 33, 30, 28))
SMALLEST_STORE: Final = 1 << 20
LARGEST_STORE: Final = 1 << 46  # fits into the addresses of a process
_SPARE_TRANSACTIONS: Final = 4

# glibc returns a freed block to the system, and takes the next one empty, page by page, if it is
# larger than the blocks of its own that were freed so far, or if twice that is free at the end of
# the heap; it learns no more than 32 MiB. So `xadd` of 1 MB takes 2.3 ms and not 7, and `xrange`
# of ten such entries 2 and not 8.
with suppress(MemoryError):
    bytes(31 << 20)


def open_environment(
    path: Path,
    *,
    readonly: bool = False,
    force_recovery: WayName | None = None,
    create: bool = False,
    max_readers: int = 512,
    max_store_bytes: int | None = None,
    clock: Clock,
    node_limits: tuple[int, int] | None = None,
    trust_owners: Trusted = (),
    modes: Modes | None = None,
    standby: bool = False,
    opening: Opening | None = None,
) -> Environment:
    """Open the store at `path`, or create it; if this process has it open, count one more user.

    Args:
        trust_owners: more users whose files are accepted; see `owners`.
        modes: of a store that is created; None for those of the umask.
        node_limits: bytes and entries of the nodes of new streams; None for the defaults.
        standby: the caller follows a copy of another store with this one, which nobody else may
            write to.
        opening: of this path. Its `undo` releases the result, if an interrupt ends the caller
            before it has that.
    """
    if max_store_bytes is not None:
        whole(max_store_bytes, "max_store_bytes", SMALLEST_STORE, LARGEST_STORE)
    if force_recovery is not None and force_recovery not in WAYS:
        names = " or ".join(map(repr, WAYS))
        raise errors.ArgumentError(f"force_recovery must be {names}, not {force_recovery!r}")
    options = Options(
        readonly, force_recovery, max_readers, max_store_bytes, clock, node_limits, standby
    )
    opening = opening or Opening(path)
    try:
        while True:
            with registry.lock:
                known, busy = registry.look(path)
                if known is not None:
                    if force_recovery:
                        raise errors.StoreLockedError(
                            f"{path}: open in this process; next: close it, then recover it"
                        )
                    _check_compatible(known, options)
                    opening.count(known, known.users + 1)
                    return known
                if busy is None:
                    registry.openings.append(opening)
            if busy is not None:
                busy.finish()
                continue
            with opening.life:
                if opening not in registry.openings:  # another thread took it for interrupted
                    continue
                # Without the registry's lock: others can be opened and closed at the same time.
                try:
                    while opening.environment is None:
                        folder = check_place(
                            path, create and not readonly, readonly, trust_owners, modes
                        )
                        # The next round creates one that was removed, or says it is gone.
                        with suppress(_Removed), translated(system=True):
                            _open_noted(folder, opening, options)
                    return opening.environment
                finally:
                    registry.end(opening)
    except BaseException:
        opening.undo()
        raise


class _Removed(Exception):
    """The folder was removed while this process waited for the lock of the store."""


def _open_noted(folder: Folder, opening: Opening, options: Options) -> None:
    """Open a store that this process has not open, and that no other thread of it is opening.

    The environment is that of `opening` afterwards, if nothing is raised.
    """
    readonly = options.readonly
    raw = None
    control = None
    environment = None
    try:
        lock = _lock_store(folder, opening, options)
        if lock is not None and _uses_control(folder, readonly):
            # It shows other processes that this one has the store open.
            control = ControlFile(folder.make_folder(JOURNAL_FOLDER))
        open_raw = partial(_open_lmdb, folder, readonly, options.max_readers)
        raw = open_raw()
        environment = read_or_create(folder, raw, open_raw, options, lock, control)
        with environment.begin_read() as txn:
            standby = standby_of(txn)
        environment.follows = "" if standby is None else standby.source
        if environment.checkpoints is not None:
            slot = environment.checkpoints.file.newest()
            if slot is None or slot.epoch != environment.context.epoch:
                environment.make_checkpoint()  # the first one after a creation or a recovery
        if environment.follows and not (readonly or options.standby):  # now: it may be recovered
            _refuse_standby(folder.path, environment.follows)
        if not readonly:
            end_slots_ahead(folder.folder(JOURNAL_FOLDER), environment.newest_commit)
        if environment.checkpointer is not None:
            environment.checkpointer.start()
        opening.environment = environment
    except BaseException:
        opening.environment = None
        if environment is not None:
            environment.close_files()
        elif raw is not None:
            raw.close()
        if control is not None and environment is None:
            control.close()
        if opening.lock is not None:
            opening.lock.close()
        folder.close_all()
        raise


def _uses_control(folder: Folder, readonly: bool) -> bool:
    """Return whether this process uses the control file: not if no process can write meanwhile."""
    return not readonly or is_listed(folder.path)


def _lock_store(folder: Folder, opening: Opening, options: Options) -> CheckpointFile | None:
    """Take the lock of the store; if no other process has it open, make the store ready.

    Returns:
        None for a read-only opening of a store that has no lock file.

    Raises:
        _Removed: the store was removed while this process waited.
    """
    path = folder.path
    readonly, force_recovery = options.readonly, options.force_recovery

    def open_lmdb() -> lmdb.Environment:
        reserve_lock_file(folder, options.max_readers)
        return _open_lmdb(folder, False, options.max_readers)

    def refuse_if_short(known: CheckpointFile | None) -> None:
        """Raise if `data.mdb` may lack commits."""
        reason = needs_recovery(
            folder, known, follows=known is not None and _uses_control(folder, readonly)
        )
        if reason:
            way = _ELSEWHERE if _is_on_readonly_system(path) else "open it for writing once"
            how = "" if "; next: " in reason else f"; next: {way}"
            raise errors.RecoveryNeededError(
                f"{path}: the store needs recovery, because {reason}{how}"
            )

    had_data = folder.exists(DATA_FILE)

    def make_ready(exclusive: bool) -> bool:
        if lock.is_removed() or (exclusive and had_data and not folder.exists(DATA_FILE)):
            raise _Removed
        if not exclusive:
            if force_recovery:
                raise errors.StoreLockedError(
                    f"{path}: open in another process; next: close it there, then recover it"
                )
            if not readonly:
                lock.check_no_unlisted(DATA_FILE)
            return is_ready(folder, lock)
        check_version(folder, lock)  # before anything is written
        if not readonly:
            lock.check_no_unlisted(DATA_FILE)
            finish_swap(folder, lock)
            prepare(folder, lock, open_lmdb, options.clock, force_recovery)
        elif is_swapping(folder):
            raise errors.RecoveryNeededError(
                f"{path}: a compaction was interrupted; next: open the store for writing once, "
                "which finishes it"
            )
        else:
            refuse_if_short(lock)
            check_extent(folder)
        if is_listed(path):
            reserve_lock_file(folder, options.max_readers)
        if _uses_control(folder, readonly):  # now, since of a former boot nothing in it is valid
            ControlFile(folder.make_folder(JOURNAL_FOLDER), only=True).close()
        return True

    try:
        lock = opening.lock = CheckpointFile(folder, readonly=readonly)
    except FileNotFoundError:
        if not readonly:  # the file is created unless the folder is gone
            raise _Removed from None
        refuse_if_short(None)
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and not readonly:
            raise _not_writable(path) from error
        raise
    try:
        if readonly and not is_listed(path):
            lock.read_unlisted(DATA_FILE, make_ready)
        else:
            lock.share_when_ready(make_ready)
    except BaseException:
        lock.close()
        raise
    return lock


def _check_compatible(known: Environment, options: Options) -> None:
    """Raise if an open environment cannot serve this use, too."""
    context = known.context
    if known.follows and not (options.readonly or options.standby):
        _refuse_standby(known.path, known.follows)
    if known.readonly and not options.readonly:
        raise errors.StoreError(
            f"{known.path}: open in this process with readonly=True; next: close that store, then "
            "open it for writing"
        )
    limits = context.node_max_bytes, context.node_max_entries
    if options.max_store_bytes not in (None, context.max_bytes) or options.node_limits not in (
        None,
        limits,
    ):
        raise errors.StoreError(
            f"{known.path}: open in this process with another max_store_bytes, node_max_bytes or "
            "node_max_entries; next: leave them out, or close that store first"
        )


def _refuse_standby(path: Path, source: str) -> NoReturn:
    raise errors.StoreError(
        f"{path}: a standby that follows {source}; next: open it with readonly=True, or make it a "
        "store of its own with `streamkeep promote`"
    )


def is_listed(path: Path) -> bool:
    """Return whether this process can enter itself into LMDB's table of readers.

    LMDB does not reuse the pages that a listed reader needs.
    """
    return os.access(path, os.W_OK) and (
        not (path / LOCK_FILE).exists() or os.access(path / LOCK_FILE, os.W_OK)
    )


def _open_lmdb(folder: Folder, readonly: bool, max_readers: int) -> lmdb.Environment:
    path = folder.path
    if not readonly:
        with suppress(OSError):  # LMDB will meet the same error and report more of it
            for name in (DATA_FILE, LOCK_FILE):  # LMDB would follow a link to create them
                folder.make_file(name)
    check_lmdb_files(folder, readonly=readonly)
    needed = folder.size(DATA_FILE)
    if readonly and not needed:
        raise errors.NotAStoreError(
            f"{path}: {DATA_FILE} is empty: the store was never created; next: open it for writing "
            "once, which creates it"
        )
    listed = not readonly or is_listed(path)
    if listed:
        wait_for_others(folder)
    sizes = [size for size in MAPS if size >= 2 * needed] or [4 * needed]
    for size in sizes:
        try:
            return lmdb.open(
                os.fsencode(path),
                map_size=size,
                readonly=readonly,
                sync=False,
                mode=folder.modes.file,
                create=not readonly,
                max_readers=max_readers,
                max_dbs=len(TABLES) + 1,
                max_spare_txns=_SPARE_TRANSACTIONS,
                lock=listed,
                lib_version=0,
            )
        except lmdb.MemoryError:
            continue
        except (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError) as error:
            raise not_opened(folder, error) from error
        except lmdb.ReadonlyError as error:
            raise _not_writable(path) from error
        except lmdb.LockError as error:
            if "mdb_txn_begin" in str(error):
                raise translate(error) from error
            raise errors.StoreError(
                f"{path}: this file system has no file locks ({error}); next: move the store to a "
                "local disk"
            ) from error
        except lmdb.Error as error:
            raise translate(error) from error
    raise errors.StoreError(
        f"{path}: the system refuses {sizes[-1]:,} bytes of address space, which the store needs; "
        "next: raise the limit of address space (ulimit -v)"
    )


def _is_on_readonly_system(path: Path) -> bool:
    """Return whether the file system is read-only; some become so after an error of the disk."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


_ELSEWHERE: Final = (
    "mount its read-only file system for writing, or copy the folder to another file system and "
    "open the copy"
)


def _not_writable(path: Path) -> errors.StoreError:
    if _is_on_readonly_system(path):
        return errors.StoreError(
            f"{path}: its file system is read-only, by its mount or after an error of the disk; "
            "next: open it with readonly=True, which works unless it needs recovery; or "
            f"{_ELSEWHERE}"
        )
    owner = owner_of(path)
    return errors.StoreError(
        f"{path}: no permission to write; next: work as {owner}, or have {owner} share the store "
        "with a group that you are in; to read, open it with readonly=True"
    )
