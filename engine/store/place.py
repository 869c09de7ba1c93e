"""The folder of a store: whether it is one or may become one, and whether this user may open it."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE, CheckpointFile
from streamkeep.engine.crash_recovery.recover import needs_recovery
from streamkeep.engine.crash_recovery.stored_rows import StoredRows
from streamkeep.engine.store.meta import check_version
from streamkeep.engine.store.survey import STAGING_FOLDER, STORE_NAMES, check_files
from streamkeep.engine.system import files
from streamkeep.engine.system.lmdb_errors import FULL, translate_os
from streamkeep.engine.system.modes import Modes, set_up
from streamkeep.engine.system.owners import Trusted, user_name
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.tables.segment_files import ARCHIVE_FOLDER
from streamkeep.format.core.errors import CorruptionError, NotAStoreError, StoreError
from streamkeep.format.core.keys import KEYS
from streamkeep.format.lmdb_file.lmdb_pages import META_PAGES


def check_place(
    path: Path, create: bool, readonly: bool, trust_owners: Trusted, modes: Modes | None
) -> Folder:
    """Return the folder of a store, made if it is missing; raise unless it is or can be a store."""
    folder = find_folder(path, trust_owners)
    if folder is None:
        if not create:
            option = "readonly=True" if readonly else "create=False"
            raise NotAStoreError(
                f"{path}: no such store; next: correct the path, or open it without {option}, "
                "which creates it"
            )
        if not path.parent.exists():  # a mistyped path, more often than a new place
            raise StoreError(
                f"{path}: cannot create the folder: {path.parent} does not exist; next: correct "
                "the path, or make that folder"
            )
        try:
            files.create_folder(path)
            set_up(path, modes)
            return Folder(path, trusted=trust_owners)
        except OSError as error:
            if error.errno in FULL:
                raise translate_os(error) from error
            raise StoreError(
                f"{path}: cannot create the folder: {error.strerror}; next: name a folder in one "
                "that you may write to"
            ) from error
    try:
        check_files(folder, readonly=readonly)
        if _check_is_store(folder, create) and modes is not None:
            set_up(path, modes)
            folder.renew_modes()
    except BaseException as error:
        folder.close_all()
        if isinstance(error, OSError):
            raise StoreError(f"{path}: its files cannot be examined: {error}") from error
        raise
    return folder


def _check_is_store(folder: Folder, create: bool) -> bool:
    """Return whether a store is to be created in a folder; raise unless it is one or may be one."""
    path = folder.path
    if folder.exists(DATA_FILE):
        if folder.size(DATA_FILE) and not folder.exists(CHECKPOINT_FILE):
            with folder.opened(DATA_FILE) as handle:
                if len(read_meta_pages(handle)) < META_PAGES:
                    raise not_opened(folder, "LMDB's meta pages cannot be read")
            check_version(folder, None)  # before LMDB creates its lock file beside it
        return False
    if folder.exists(ARCHIVE_FOLDER) or _has_checkpoint(folder):
        if folder.exists(DATA_FILE):  # by now: another process has just created the store
            return False
        raise CorruptionError(
            f"{path}: {DATA_FILE}",
            "the file is missing, and all that was live with it; next: restore a backup or a copy "
            "(`streamkeep restore`, `ship restore`), or save the archive (`streamkeep repair`)",
        )
    if not STORE_NAMES.issuperset(folder.names()):
        raise NotAStoreError(
            f"{path}: the folder is not empty and holds no store; next: name a store or an empty "
            "folder"
        )
    if not create:
        raise NotAStoreError(f"{path}: not a store: it has no {DATA_FILE}; next: correct the path")
    return True


def _has_checkpoint(folder: Folder) -> bool:
    if not folder.exists(CHECKPOINT_FILE):
        return False
    with closing(CheckpointFile(folder, readonly=True)) as checkpoints:
        return checkpoints.newest() is not None


def find_folder(path: Path, trust_owners: Trusted = ()) -> Folder | None:
    """Open the folder of a store; return None if the path does not exist.

    Raises:
        NotAStoreError: the path is not a folder.
        UntrustedFileError: the owner of the folder is not trusted.
    """
    try:
        return Folder(path, trusted=trust_owners)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise NotAStoreError(
            f"{path}: a file, and a store is a folder; next: correct the path"
        ) from None
    except PermissionError as error:
        owner = owner_of(path)
        raise StoreError(
            f"{path}: cannot open the folder: {error.strerror}; next: work as {owner}, or have "
            f"{owner} share the store with a group that you are in"
        ) from error
    except OSError as error:
        raise StoreError(f"{path}: cannot open the folder: {error.strerror}") from error


def owner_of(path: Path) -> str:
    """Return the name of the user that a store belongs to, for a message."""
    try:
        return user_name(path.stat().st_uid)
    except OSError:
        return "its owner"


def not_opened(folder: Folder, error: object) -> CorruptionError | NotAStoreError:
    """Return our error for a data file that LMDB does not open as one of its own.

    A store has a file of checkpoints, or at least one sound meta page. Without both, the file may
    be of any program, so that nobody is sent to repair it.
    """
    with os.fdopen(folder.open(DATA_FILE), "rb") as file:
        is_damaged = folder.exists(CHECKPOINT_FILE) or read_meta_pages(file.fileno())
    if is_damaged:
        return CorruptionError(
            f"{folder.path}: {DATA_FILE}",
            f"its meta pages are damaged ({error}); next: run `streamkeep repair`, which saves "
            "what is readable",
        )
    return NotAStoreError(
        f"{folder.path}: {DATA_FILE} is not a store: {error}; next: correct the path"
    )


def _has_keys(store: Folder) -> bool:
    with store.opened(DATA_FILE) as handle:
        return StoredRows(handle, read_meta_pages(handle)[-1]).root(KEYS) is not None


def remove_empty(path: Path, made: bool) -> bool:
    """Remove a store that has no keys and that this process has closed; return whether it did.

    A command has created it, has failed, and has stored nothing. Another process may have written
    to it since, so the check is made under the exclusive lock. A process that waits for the lock in
    the meantime starts its opening again.

    Args:
        made: the folder was made with the store, so that it goes, too.
    """
    store = Folder(path)
    lock = CheckpointFile(store, readonly=False)
    try:
        if not lock.try_exclusive():
            return False
        # What one has written that was killed may be in the journal only.
        if store.exists(DATA_FILE) and (needs_recovery(store, lock) or _has_keys(store)):
            return False
        os.truncate(lock.handle, 0)
        for name in store.names():
            if name != CHECKPOINT_FILE and (made or name != STAGING_FOLDER):
                store.remove_any(name)  # a pipeline may have staged files before the store was made
        if made:
            store.remove(CHECKPOINT_FILE)
            with suppress(OSError):  # another process may have added files
                path.rmdir()
    finally:
        lock.close()
    return True
