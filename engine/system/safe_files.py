"""The files of a store, opened without trust: a store folder is data from outside.

It may have come out of an archive that somebody sent, or be where others may write. A link in it
would lead a write to another file of the caller; so would a second name of that file. Therefore:

1. The caller names the folder of the store, which may be reached through a link. From there on
   every file is opened relative to the descriptor of its folder, and no link is followed.
2. What was opened is what counts: its type, its owner, and for writing that it has one name only.
   Nothing is truncated, locked or written before that was checked. Files that are only read may
   have several names: backups share the segments of the archive.
3. Owners are trusted who could do harm anyway: the caller and root. Where the folder of the store
   is writable for its group, and the caller is a member of that group, so are the owner of the
   folder and the other members. All others are refused, unless the caller trusts them by name.

`store_survey` looks at all files that an opening will use while nothing is changed yet.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakSet

from streamkeep.engine.system import files
from streamkeep.format.core.errors import ArgumentError, UntrustedFileError

TRUST_VARIABLE: Final = "STREAMKEEP_TRUST_OWNERS"
_ROOT: Final = 0
_NO_NAMES: Final = {"", ".", ".."}
_PIECE: Final = 8 << 20
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
# What the system says of a name that is no file of the kind that was to be opened.
_OTHER_KIND: Final = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.EACCES}

Owner = str | int  # name or number of a user
Trusted = Iterable[Owner] | Owner


class Owners:
    """Whose files a store may consist of."""

    def __init__(self, folder: os.stat_result, trusted: Trusted = ()) -> None:
        """Take the status of the store's folder, and who is trusted besides."""
        self._trusted = {_ROOT, os.geteuid(), *trusted_numbers(trusted)}
        self.group: int | None = (
            None  # whose members share the store, where it is also the caller's
        )
        if folder.st_mode & stat.S_IWGRP and _is_in(folder.st_gid):
            self.group = folder.st_gid
            self._trusted.add(folder.st_uid)

    def trust(self, user: int) -> bool:
        """Say whether files of a user may be opened."""
        if user in self._trusted:
            return True
        if self.group is not None and _is_member(user, self.group):
            self._trusted.add(user)
            return True
        return False


def trusted_numbers(owners: Trusted) -> set[int]:
    """Return the numbers of users that a caller, or the environment, trusts.

    Raises:
        ArgumentError: the machine knows no such user.
    """
    named: list[Owner] = [owners] if isinstance(owners, str | int) else [*owners]
    named += filter(None, os.environ.get(TRUST_VARIABLE, "").replace(",", " ").split())
    numbers = set()
    for one in named:
        if isinstance(one, int) or (one.isascii() and one.isdigit()):
            numbers.add(int(one))
            continue
        try:
            numbers.add(pwd.getpwnam(one).pw_uid)
        except KeyError:
            raise ArgumentError(
                f"trust_owners: this machine has no user {one!r}; give a name or number of a user"
            ) from None
    return numbers


def _is_in(group: int) -> bool:
    """Say whether the caller is a member of a group."""
    return group == os.getegid() or group in os.getgroups()


def _is_member(user: int, group: int) -> bool:
    with suppress(KeyError):
        known = pwd.getpwuid(user)
        return known.pw_gid == group or known.pw_name in grp.getgrgid(group).gr_mem
    return False


def _user_name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)


class Folder:
    """A folder of a store, held open; names in it may lead through folders below it (`a/b`).

    Attributes:
        owners: whose files are opened.
        group: who gets what is created in it; None where it is private.
    """

    handle = -1

    def __init__(self, path: Path, *, trusted: Trusted = (), outside: bool = False) -> None:
        """Open a folder that the caller has named; it may be a link to one.

        Args:
            trusted: users whose files are opened, too.
            outside: it is no store, but the place for one: its own owner does not matter, and it
                shares nothing.

        Raises:
            UntrustedFileError: somebody owns it who is not trusted.
            OSError: it is not there, or no folder.
        """
        self._top = path
        self._name = ""  # below that
        self._opened: WeakSet[Folder] = WeakSet()
        self.handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self.handle)
        self.owners = Owners(status, trusted)
        self.group: int | None = None
        if not outside:
            shared = status.st_mode & stat.S_IWGRP
            if shared and (os.geteuid() == _ROOT or _is_in(status.st_gid)):
                self.group = status.st_gid  # what root makes in it is the group's, too
            self._check(status, stat.S_IFDIR)

    @property
    def path(self) -> Path:
        """Where it was when it was opened: for messages, and for libraries that want a path."""
        return self._top / self._name if self._name else self._top

    def __del__(self) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close it; from now on it is as one that is not there. No other thread uses it."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def close_all(self) -> None:
        """As `close`, with all folders that were opened through this one: an opening failed."""
        for one in list(self._opened):
            one.close_all()
        self.close()

    # --- folders ----------------------------------------------------------------------------

    def folder(self, name: str, *, missing_ok: bool = False) -> Folder:
        """Open a folder in this one.

        Args:
            missing_ok: one that is not there is returned as one in which there is nothing.

        Raises:
            UntrustedFileError: it is a link, no folder, or somebody's who is not trusted.
            FileNotFoundError: it is not there.
        """
        try:
            parent, last = self._parent(name)
            return parent._below(last)
        except FileNotFoundError:
            if not missing_ok:
                raise
            return self._new(name)

    def _new(self, name: str) -> Folder:
        """Return a folder below this one, not opened yet."""
        found = Folder.__new__(Folder)
        found._top = self._top
        found._name = f"{self._name}/{name}" if self._name else name
        found.owners = self.owners
        found.group = self.group
        found._opened = WeakSet()
        self._opened.add(found)
        return found

    def make_folder(self, name: str, *, durable: bool = True) -> Folder:
        """As `folder`; it is made when it is missing, and those on the way to it.

        Args:
            durable: its name must survive a power loss.
        """
        found = self
        for last in _parts(name):
            try:
                os.mkdir(last, files.FOLDER_MODE, dir_fd=found.handle)
            except FileExistsError:
                found = found.folder(last)
                continue
            parent, found = found, found.folder(last)
            self._share(found.handle, stat.S_ISGID | 0o770)
            if durable:
                files.sync_folder(parent.path)
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
        """Return the folder that a name is in, and its last part."""
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
            flags: as for `os.open`; a file that is created is private, or the group's where that
                shares the store. Never O_TRUNC, which would come before the checks.

        Raises:
            UntrustedFileError: it is not what a file of a store must be; it was not touched.
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

    def _open(self, name: str, flags: int) -> int:
        while True:
            try:
                if not flags & os.O_EXCL:
                    return os.open(name, flags & ~os.O_CREAT | _SAFE, dir_fd=self.handle)
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
            except OSError as error:
                self._explain(error, name, stat.S_IFREG)
                raise
            new = flags | os.O_CREAT | os.O_EXCL | _SAFE
            try:
                handle = os.open(name, new, files.FILE_MODE, dir_fd=self.handle)
            except FileExistsError:
                if flags & os.O_EXCL:
                    raise
                continue  # another process was faster
            self._share(handle, 0o660)
            return handle

    def make_file(self, name: str) -> None:
        """Create an empty file, unless it is there; raise OSError where that cannot be."""
        if not self.exists(name):
            with suppress(FileExistsError):
                os.close(self.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def make_ours(self, name: str) -> None:
        """Give a file that a library has written the mode of files that are made here."""
        handle = self.open(name)
        try:
            os.fchmod(handle, files.FILE_MODE)
            self._share(handle, 0o660)
        finally:
            os.close(handle)

    def replace(self, name: str) -> int:
        """Open a new file for writing, in place of what a process that was killed has left."""
        self.remove(name)
        return self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def read(self, name: str, most: int = -1) -> bytes:
        """Return what a file holds, or its first bytes; raise as `open`."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read(most)

    def status(self, name: str) -> os.stat_result | None:
        """Return what the system says of a name, a link itself; None where there is none."""
        try:
            parent, last = self._parent(name)
            return os.stat(last, dir_fd=parent.handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        """Say whether there is anything of that name."""
        return self.status(name) is not None

    def has_folder(self, name: str) -> bool:
        """Say whether there is a folder of that name.

        Raises:
            UntrustedFileError: there is something else.
        """
        status = self.status(name)
        if status is not None:
            self._check(status, stat.S_IFDIR, name)
        return status is not None

    def size(self, name: str) -> int:
        """Return how long a file is; 0 where there is none."""
        status = self.status(name)
        return 0 if status is None else status.st_size

    def names(self) -> list[str]:
        """Return the names in the folder, sorted."""
        if self.handle < 0:
            return []
        handle = self.open_again()  # a descriptor has one place in the list, which others move
        try:
            return sorted(os.listdir(handle))
        finally:
            os.close(handle)

    def open_again(self) -> int:
        """Return a descriptor of this folder of one's own, to lock it."""
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.handle)

    def files_below(self, name: str) -> list[str]:
        """Return the paths of all that is not a folder below a folder in this one, sorted.

        They are relative to that folder, which may be missing. No link is followed.
        """
        found: list[str] = []
        top = self.folder(name, missing_ok=True)
        if top.handle >= 0:
            for root, _, names, _ in os.fwalk(".", dir_fd=top.handle, follow_symlinks=False):
                found += (os.path.normpath(os.path.join(root, one)) for one in names)
        return sorted(found)

    # --- names ------------------------------------------------------------------------------

    def remove(self, name: str) -> bool:
        """Remove a name that is no folder; say whether there was one."""
        try:
            parent, last = self._parent(name)
            os.unlink(last, dir_fd=parent.handle)
        except FileNotFoundError:
            return False
        return True

    def remove_folder(self, name: str) -> bool:
        """Remove a folder with all that is in it; say whether there was one."""
        if not self.has_folder(name):
            return False
        parent, last = self._parent(name)
        shutil.rmtree(last, dir_fd=parent.handle)
        return True

    def remove_any(self, name: str) -> None:
        """Remove a name, and where it is a folder, all that is in it."""
        status = self.status(name)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self.remove_folder(name)
        else:
            self.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Give a file or a folder another name in this folder, in place of what has it."""
        source, old_last = self._parent(old)
        target, new_last = self._parent(new)
        os.rename(old_last, new_last, src_dir_fd=source.handle, dst_dir_fd=target.handle)

    def link(self, name: str, other: Folder) -> None:
        """Give a file the same name in another folder, too; only one that is never written again.

        Raises:
            OSError: that is another file system, or one without links.
        """
        os.close(self.open(name))
        source, last = self._parent(name)
        target, _ = other._parent(name)
        here, there = source.handle, target.handle
        os.link(last, last, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)

    def sync(self, name: str = "") -> None:
        """Make the names in this folder durable, or those of one in it."""
        files.sync_folder(self.path / name if name else self.path)

    # --- named pipes ------------------------------------------------------------------------

    def make_pipe(self, name: str) -> int:
        """Create a named pipe; return a descriptor of both its ends, which never blocks."""
        os.mkfifo(name, files.FILE_MODE, dir_fd=self.handle)
        # With a writing end of our own, the reading end never sees the last writer leave.
        handle = self._open_pipe(name, os.O_RDWR)
        self._share(handle, 0o660)
        return handle

    def open_pipe(self, name: str) -> int:
        """Open a named pipe for writing; raise OSError (ENXIO) when nobody reads from it."""
        return self._open_pipe(name, os.O_WRONLY)

    def _open_pipe(self, name: str, flags: int) -> int:
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

    def check_file(self, name: str, flags: int = os.O_RDONLY) -> None:
        """Raise UntrustedFileError where a file is there that `open` would refuse."""
        status = self.status(name)
        if status is not None:
            self._check(status, stat.S_IFREG, name, flags)

    def check_pipe(self, name: str) -> None:
        """Raise UntrustedFileError where something is there that is no named pipe of ours."""
        status = self.status(name)
        if status is not None:
            self._check(status, stat.S_IFIFO, name)

    def _check(
        self, status: os.stat_result, kind: int, name: str = "", flags: int = os.O_RDONLY
    ) -> None:
        found = stat.S_IFMT(status.st_mode)
        if found != kind:
            is_there = _KINDS.get(found, "something else")
            problem = (
                f"{is_there}, where a store has {_KINDS[kind]}; "
                "remove it, or find out where this folder comes from"
            )
        elif flags & _WRITING and status.st_nlink > 1:
            problem = (
                f"this file has {status.st_nlink} names (hard links), and writing to it would "
                "change it under all of them; copy the folder (cp -r), and open the copy"
            )
        elif not self.owners.trust(status.st_uid):
            user = _user_name(status.st_uid)
            problem = (
                f"it belongs to user {user} ({status.st_uid}), who could change the store at will; "
                f"if you trust that user, open it with trust_owners=[{user!r}], or set "
                f"{TRUST_VARIABLE}={user}"
            )
        else:
            return
        raise UntrustedFileError(f"{self.path / name}: {problem}")

    def _explain(self, error: OSError, name: str, kind: int) -> None:
        """Raise UntrustedFileError where the system refused a name that is of another kind."""
        if error.errno in _OTHER_KIND:
            with suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
                self._check(status, kind, name)

    def _share(self, handle: int, mode: int) -> None:
        """Let the group that shares the store use what was just created."""
        if self.group is not None:
            os.fchown(handle, -1, self.group)
            os.fchmod(handle, mode)


def copy_file(source: Folder, name: str, target: Folder, new: str) -> None:
    """Copy a file to a new one; where it is zero, the copy takes no room. It is not synced."""
    with (
        os.fdopen(source.open(name), "rb") as reading,
        os.fdopen(target.replace(new), "wb") as writing,
    ):
        while piece := reading.read(_PIECE):
            if any(piece):
                writing.write(piece)
            else:
                writing.seek(len(piece), os.SEEK_CUR)
        writing.truncate(reading.tell())


def _parts(name: str) -> list[str]:
    parts = name.split("/")
    if not _NO_NAMES.isdisjoint(parts):
        raise UntrustedFileError(f"{name!r}: no name of a file below the folder of a store")
    return parts
