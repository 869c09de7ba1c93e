"""Mode, owner and group of the files of a store: one rule for each file and each user who makes it.

The folder of a new store gets its mode from the umask of the process that creates it, or from
`open(mode=...)`. From then on `data.mdb` says which mode the files have (the folder, as long as it
is missing), and the folder says which group. So the rule needs no row in the store, and `chmod`
changes it: `chmod -R`, since files that exist keep their own modes.

- A file has no more rights than the store. A folder adds the right to enter it to each right to
  read, and the setgid bit where a group has rights.
- Other users never get the right to write: their files would not be trusted (`owners`).
- A group gets rights only if the process can give files to it, so it must be a member, or root.
- Root gives what it makes to the owner of the folder. Otherwise a run as root would lock the owner
  out of a private store.
"""

from __future__ import annotations

import grp
import os
import stat
from typing import Final, NamedTuple

from streamkeep.engine.system.owners import ROOT, is_in, number_of
from streamkeep.format.core.errors import ArgumentError, StoreError

_FILE_BITS: Final = 0o664
_GROUP_BITS: Final = 0o070
_OWN: Final = 0o600
_KEPT: Final = -1  # for fchown: the owner or group that the system gave

Group = str | int  # name or number of a group


class Modes(NamedTuple):
    """What new files of a store get.

    Attributes:
        file, folder: the mode of files and of folders.
        user, group: owner and group; -1 for those that the system gives.
    """

    file: int
    folder: int
    user: int = _KEPT
    group: int = _KEPT

    def set_file(self, handle: int) -> None:
        """Give a new file its owner, group and mode, whatever the umask was."""
        self._set(handle, self.file)

    def set_folder(self, handle: int) -> None:
        """Give a new folder its owner, group and mode."""
        self._set(handle, self.folder)

    def _set(self, handle: int, mode: int) -> None:
        status = os.fstat(handle)
        user = _KEPT if self.user in (_KEPT, status.st_uid) else self.user
        group = _KEPT if self.group in (_KEPT, status.st_gid) else self.group
        if user != _KEPT or group != _KEPT:
            os.fchown(handle, user, group)
        if stat.S_IMODE(status.st_mode) != mode or user != _KEPT or group != _KEPT:
            _change(handle, mode)  # after the change of the group, which clears the setgid bit

    def copied(self) -> Modes:
        """Return the modes of a copy of the store, which belongs to the user who makes it."""
        return self._replace(user=_KEPT)


def _modes(file_mode: int, user: int = _KEPT, group: int = _KEPT) -> Modes:
    file = file_mode & _FILE_BITS | _OWN
    shared = stat.S_ISGID if file & _GROUP_BITS else 0
    return Modes(file, file | (file & 0o444) >> 2 | shared, user, group)


PRIVATE: Final = _modes(0)


def modes_of(folder: os.stat_result, data: os.stat_result | None) -> Modes:
    """Return the modes of a store, given the status of its folder and of its data file, if any."""
    mode = (data or folder).st_mode
    user = folder.st_uid if os.geteuid() == ROOT else _KEPT
    if mode & _GROUP_BITS and user == _KEPT and not is_in(folder.st_gid):
        return _modes(mode & ~_GROUP_BITS)
    return _modes(mode, user, folder.st_gid if mode & _GROUP_BITS or user != _KEPT else _KEPT)


def chosen_modes(mode: int | None, group: Group | None) -> Modes | None:
    """Return the modes of a new store that a caller has chosen; None for those of the umask.

    Raises:
        ArgumentError: no store can have the mode, or this machine has no such group.
    """
    if mode is None and group is None:
        return None
    if mode is None:
        mode = 0o660
    if not isinstance(mode, int) or isinstance(mode, bool):
        raise ArgumentError(f"mode must be a number such as 0o660, not {mode!r}")
    if mode & ~_FILE_BITS or mode & _OWN != _OWN:
        raise ArgumentError(
            f"mode {_octal(mode)}: the files of a store can be read and written by their owner, "
            "and not written by all users; next: choose 0o600, 0o640, 0o660, 0o644 or 0o664"
        )
    if group is None:
        return _modes(mode)
    return _modes(mode, group=number_of("group", group, lambda name: grp.getgrnam(name).gr_gid))


def set_up(path: os.PathLike[str], modes: Modes | None) -> None:
    """Give the folder of a store that is about to be created the modes of all that will be in it.

    Args:
        modes: those that the caller has chosen; None to keep what the umask or `mkdir` gave.

    Raises:
        StoreError: the process may not give them.
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if modes is None:
            mode = stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH
            if mode & stat.S_IWGRP and is_in(status.st_gid):
                mode |= stat.S_ISGID
            _change(handle, mode)
            return
        try:
            modes.set_folder(handle)
        except OSError as error:
            raise StoreError(
                f"{path}: this process may not give the folder mode {_octal(modes.folder)} and "
                f"group {group_name(status.st_gid if modes.group == _KEPT else modes.group)}: "
                f"{error.strerror}; next: create the "
                "store as a member of that group, and as the owner of the folder"
            ) from error
    finally:
        os.close(handle)


def _change(handle: int, mode: int) -> None:
    """Set a mode, without the setgid bit where the system forbids that bit to the process.

    systemd does so with RestrictSUIDSGID. The store needs no bit: each process gives a new file
    its group itself. The bit helps other programs, such as `cp`.
    """
    try:
        os.fchmod(handle, mode)
    except PermissionError:
        if not mode & stat.S_ISGID:
            raise
        os.fchmod(handle, mode & ~stat.S_ISGID)


def group_name(group: int) -> str:
    """Return the name of a group, or the number as text if the machine has no name for it."""
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)


def _octal(mode: int) -> str:
    return f"0o{mode:o}" if isinstance(mode, int) and mode >= 0 else repr(mode)
