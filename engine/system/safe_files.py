"""The files of a store, opened without trust: the folder may hold files planted by another user.

A link in the folder, or a second name (hard link) of a file, would redirect writes to another file
of the caller. So:

1. The caller names the folder of the store; a link to it is followed. Below it, every file is
   opened relative to the descriptor of its folder, and no link is followed.
2. The opened file is checked, not its path: its type, its owner (`owners`), and before writing that
   it has only one name. Nothing is truncated, locked or written before these checks. A file that is
   only read may have several names: backups share the segments of the archive.

`store.survey` checks all files that an opening will use before anything is changed.

A new file gets the mode and the group of the store, from any process that makes it, with any umask
(`modes`). It has them before another user could need it, except for a moment (`_MOMENT_S`).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from streamkeep.engine.system import files
from streamkeep.engine.system.modes import PRIVATE, Modes, modes_of
from streamkeep.engine.system.owners import TRUST_VARIABLE, Owners, Trusted, user_name
from streamkeep.format.core.errors import UntrustedFileError

_NO_NAMES: Final = {"", ".", ".."}
_DATA_FILE: Final = "data.mdb"  # of `checkpoint`, which imports this module
# How long to wait until another process has set the mode of a file that it has just created.
_MOMENT_S: Final = 0.2
_POLL_S: Final = 0.005
# A pipe or a device in place of a file must not make the opening wait.
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_KINDS: Final = {
    stat.S_IFREG: "a regular file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Errors of the system for a name that is not of the expected kind.
_OTHER_KIND: Final = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES}


class Folder:
    """A folder of a store, held open. Names may lead through folders below it (`a/b`).

    Attributes:
        owners: the users whose files are accepted.
        modes: mode, owner and group of new files and folders.
    """

    handle = -1

    def __init__(
        self, path: Path, *, trusted: Trusted = (), outside: bool = False, like: Modes = PRIVATE
    ) -> None:
        """Open a folder that the caller has named; it may be a link to a folder.

        Args:
            trusted: more users whose files are accepted.
            outside: the folder is not a store. Its owner is not checked.
            like: the modes of new files in a folder that is outside; without, they are private.

        Raises:
            UntrustedFileError: its owner is not trusted.
            OSError: it does not exist, or is not a folder.
        """
        self._top = path
        self._name = ""  # below `_top`
        self._opened: WeakSet[Folder] = WeakSet()
        self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self.handle)
        self.owners = Owners(status, trusted)
        self.modes = like
        if not outside:
            self.modes = modes_of(status, self.status(_DATA_FILE))
            self._check(status, stat.S_IFDIR)

    @property
    def path(self) -> Path:
        """The path at the time of opening, for messages and for libraries that need a path."""
        return self._top / self._name if self._name else self._top

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder; from now on it appears missing. No other thread may use it."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def close_all(self) -> None:
        """Close this folder and all folders opened through it, after a failed opening."""
        for one in list(self._opened):
            one.close_all()
        self.close()

    def renew_modes(self) -> None:
        """Read the modes of new files again, after those of the folder were set."""
        self.modes = modes_of(os.fstat(self.handle), self.status(_DATA_FILE))

    # --- folders ----------------------------------------------------------------------------

    def folder(self, name: str, *, missing_ok: bool = False) -> Folder:
        """Open a folder in this one.

        Args:
            missing_ok: return a missing folder as an empty one.

        Raises:
            UntrustedFileError: it is a link, not a folder, or its owner is not trusted.
            FileNotFoundError: it does not exist.
        """
        try:
            parent, last = self._parent(name)
            return parent._below(last)
        except FileNotFoundError:
            if not missing_ok:
                raise
            return self._new(name)

    def _new(self, name: str) -> Folder:
        """Return a folder below this one, not open yet."""
        found = Folder.__new__(Folder)
        found._top = self._top
        found._name = f"{self._name}/{name}" if self._name else name
        found.owners = self.owners
        found.modes = self.modes
        found._opened = WeakSet()
        self._opened.add(found)
        return found

    def make_folder(self, name: str, *, durable: bool = True) -> Folder:
        """Open a folder in this one; make it and its parents if they are missing.

        Args:
            durable: return only after new names are on disk.
        """
        found = self
        for last in _parts(name):
            parent, made = found, True
            try:
                os.mkdir(last, self.modes.folder & 0o777, dir_fd=parent.handle)
            except FileExistsError:
                made = False
            except OSError as error:
                error.filename = str(parent.path / last)
                raise
            found = parent.folder(last)
            if made:
                self.modes.set_folder(found.handle)
            if durable:
                # The process that made an empty folder may have been killed before its sync. Of a
                # folder of many segments, each of which is written through here, one name is read.
                with os.scandir(found.handle) as names:
                    if made or not any(names):
                        files.sync_folder(parent.handle)
        return found

    def _below(self, name: str) -> Folder:
        found = self._new(name)
        try:
            found.handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=self.handle)
        except OSError as error:
            self._explain(error, name, stat.S_IFDIR)
            raise
        self._check(os.fstat(found.handle), stat.S_IFDIR, name)
        return found

    def _parent(self, name: str) -> tuple[Folder, str]:
        """Return the folder that holds a name, and the last part of the name."""
        if self.handle < 0:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        *above, last = _parts(name)
        found = self
        for part in above:
            found = found._below(part)
        return found, last

    # --- files ------------------------------------------------------------------------------

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file; return its descriptor.

        Args:
            flags: as for `os.open`. Never O_TRUNC, which would take effect before the checks.

        Raises:
            UntrustedFileError: the file failed a check; it is unchanged.
            OSError: as `os.open`.
        """
        parent, last = self._parent(name)
        handle = parent._open(last, flags)
        try:
            self._check(os.fstat(handle), stat.S_IFREG, name, flags)
        except BaseException:
            os.close(handle)
            raise
        return handle

    @contextmanager
    def opened(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a file for a `with` block; raise as `open`."""
        handle = self.open(name, flags)
        try:
            yield handle
        finally:
            os.close(handle)

    def _open(self, name: str, flags: int) -> int:
        deadline = 0.0
        while True:
            try:
                if not flags & os.O_EXCL:
                    return os.open(name, flags & ~os.O_CREAT | _SAFE, dir_fd=self.handle)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
            except PermissionError as error:
                self._explain(error, name, stat.S_IFREG)
                deadline = deadline or time.monotonic() + _MOMENT_S
                status = self.status(name)  # does it lack rights that all files of the store get?
                unfinished = status is not None and self.modes.file & ~status.st_mode
                if not unfinished or time.monotonic() > deadline:
                    error.filename = str(self.path / name)
                    raise
                time.sleep(_POLL_S)
                continue
            except OSError as error:
                self._explain(error, name, stat.S_IFREG)
                raise
            new = flags | os.O_CREAT | os.O_EXCL | _SAFE
            try:
                handle = os.open(name, new, self.modes.file, dir_fd=self.handle)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                continue  # another process has created it
            self.modes.set_file(handle)
            return handle

    def make_file(self, name: str) -> None:
        """Create an empty file if it does not exist; raise OSError if that fails."""
        if not self.exists(name):
            os.close(self.open(name, os.O_RDWR | os.O_CREAT))

    def make_ours(self, name: str) -> None:
        """Give a file that a library has written the mode and group of our own new files."""
        with self.opened(name) as handle:
            self.modes.set_file(handle)

    def replace(self, name: str) -> int:
        """Open a new file for writing; remove one that a killed process has left."""
        self.remove(name)
        return self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def read(self, name: str, most: int = -1) -> bytes:
        """Return the contents of a file, or its first `most` bytes; raise as `open`."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read(most)

    def status(self, name: str) -> os.stat_result | None:
        """Return the status of a name (of a link, its own); None if there is none."""
        try:
            parent, last = self._parent(name)
            return os.stat(last, dir_fd=parent.handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        return self.status(name) is not None

    def has_folder(self, name: str) -> bool:
        """Return whether there is a folder of that name.

        Raises:
            UntrustedFileError: the name exists and is not a folder.
        """
        status = self.status(name)
        if status is not None:
            self._check(status, stat.S_IFDIR, name)
        return status is not None

    def size(self, name: str) -> int:
        status = self.status(name)
        return 0 if status is None else status.st_size

    def names(self) -> list[str]:
        if self.handle < 0:
            return []
        handle = self.open_again()  # listing moves the position of a descriptor, which is shared
        try:
            return sorted(os.listdir(handle))
        finally:
            os.close(handle)

    def open_again(self) -> int:
        """Return a new descriptor of this folder, which the caller can lock."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.handle)

    def files_below(
        self, name: str, unlisted: Callable[[OSError], object] | None = None
    ) -> list[str]:
        """Return the paths of all files below a folder in this one, sorted.

        The paths are relative to that folder, which may be missing. No link is followed.

        Args:
            unlisted: called if a folder cannot be listed, to go on with the others.

        Raises:
            OSError: a folder cannot be listed.
        """

        def stop(error: OSError) -> None:
            if isinstance(error, FileNotFoundError):  # it has just gone
                return
            if not isinstance(error.filename, str):  # a descriptor
                error.filename = name
            if unlisted is None:
                raise error
            unlisted(error)

        found: list[str] = []
        try:
            top = self.folder(name, missing_ok=True)
            if top.handle >= 0:
                for root, _, names, _ in os.fwalk(".", onerror=stop, dir_fd=top.handle):
                    found += (os.path.normpath(os.path.join(root, one)) for one in names)
        except OSError as error:
            stop(error)
        return sorted(found)

    def check_on_disk(self, name: str, handle: int, first: int = 0, end: int | None = None) -> None:
        """Raise OSError if the disk has other bytes of a file than the system keeps in memory.

        After an error the system counts a page as written, and keeps it in memory. This reads the
        file past that memory, where the file system can; others may write to it meanwhile.

        Args:
            handle: of the file, open and synced.
            first: offset from which on it is checked.
            end: where the check ends, if not at the end of the file.
        """
        try:
            direct = self.open(name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # it was removed: nobody needs it
                return
            raise
        try:
            if not os.path.samestat(os.fstat(direct), os.fstat(handle)):
                return  # another process has begun the file again: no commit was in it
            files.compare_with_disk(direct, handle, first, end, self.path / name)
        finally:
            os.close(direct)

    # --- names ------------------------------------------------------------------------------

    def remove(self, name: str) -> bool:
        """Remove a name that is not a folder; return whether it existed."""
        try:
            parent, last = self._parent(name)
            os.unlink(last, dir_fd=parent.handle)
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, name: str) -> bool:
        if not self.has_folder(name):
            return False
        parent, last = self._parent(name)
        shutil.rmtree(last, dir_fd=parent.handle)
        return True

    def remove_any(self, name: str) -> None:
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.remove_folder(name)
        else:
            self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder within this folder; a file of the new name is replaced."""
        source, old_last = self._parent(old)
        target, new_last = self._parent(new)
        os.rename(old_last, new_last, src_dir_fd=source.handle, dst_dir_fd=target.handle)

    def link(self, name: str, other: Folder) -> None:
        """Link a file into another folder under the same name; it must never be written again.

        Raises:
            OSError: the other folder is on another file system, or there are no links there.
        """
        os.close(self.open(name))
        source, last = self._parent(name)
        target, _ = other._parent(name)
        here, there = source.handle, target.handle
        os.link(last, last, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)

    def sync(self, name: str = "") -> None:
        """Return after the names in this folder, or in the folder `name`, are on disk."""
        folder = self.folder(name) if name else self
        files.sync_folder(folder.handle)

    def sync_file(self, name: str) -> None:
        """Return after a file, and the names of it and of the folders above it, are on disk."""
        with self.opened(name) as handle:
            files.sync_data(handle)
        parts = _parts(name)
        for count in range(len(parts)):
            self.sync("/".join(parts[:count]))

    # --- named pipes ------------------------------------------------------------------------

    def make_pipe(self, name: str) -> int:
        """Create a named pipe; return a non-blocking descriptor of both its ends."""
        os.mkfifo(name, self.modes.file, dir_fd=self.handle)
        # With its own writing end, the reader never sees an end of file when a writer closes.
        handle = self.open_pipe(name, os.O_RDWR)
        self.modes.set_file(handle)
        return handle

    def open_pipe(self, name: str, flags: int = os.O_WRONLY) -> int:
        """Open a named pipe for writing; raise OSError (ENXIO) if no process reads from it."""
        try:
            handle = os.open(name, flags | _SAFE, dir_fd=self.handle)
        except OSError as error:
            if error.errno != errno.ENXIO:
                self._explain(error, name, stat.S_IFIFO)
            raise
        try:
            self._check(os.fstat(handle), stat.S_IFIFO, name)
        except BaseException:
            os.close(handle)
            raise
        return handle

    # --- checks -----------------------------------------------------------------------------

    def check_file(self, name: str, flags: int = os.O_RDONLY, *, kind: int = stat.S_IFREG) -> None:
        """Raise UntrustedFileError if the name exists and would be refused when it is opened."""
        status = self.status(name)
        if status is not None:
            self._check(status, kind, name, flags)

    def _check(
        self, status: os.stat_result, kind: int, name: str = "", flags: int = os.O_RDONLY
    ) -> None:
        found = stat.S_IFMT(status.st_mode)
        if found != kind:
            found_kind = _KINDS.get(found, "a file of another kind")
            problem = (
                f"{found_kind}, but a store has {_KINDS[kind]} here; next: find out where this "
                "folder comes from, then remove it or restore a backup"
            )
        elif flags & _WRITING and status.st_nlink > 1:
            problem = (
                f"this file has {status.st_nlink} names (hard links), and a write would change it "
                "under all of them; next: copy the folder (cp -r) and open the copy"
            )
        elif not self.owners.trust(status.st_uid):
            user = user_name(status.st_uid)
            problem = (
                f"it belongs to user {user} ({status.st_uid}), who could change the store at any "
                f"time; next: if you trust that user, open it with trust_owners=[{user!r}] or set "
                f"{TRUST_VARIABLE}={user}"
            )
        else:
            return
        raise UntrustedFileError(f"{self.path / name}: {problem}")

    def _explain(self, error: OSError, name: str, kind: int) -> None:
        """Raise UntrustedFileError if the system refused a name because of its kind."""
        if error.errno in _OTHER_KIND:
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
                self._check(status, kind, name)


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not _NO_NAMES.isdisjoint(parts):
        raise UntrustedFileError(f"{name!r}: not the name of a file below the folder of a store")
    return parts
