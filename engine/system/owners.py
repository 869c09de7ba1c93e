"""Which users may own the files of a store.

The users who could do harm anyway are trusted: the caller and root. If the folder of the store is
writable for its group, and the caller is a member of that group, the owner of the folder and the
other members are trusted, too. All other users are refused, unless the caller names them.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from streamkeep.format.core.errors import ArgumentError

TRUST_VARIABLE: Final = "STREAMKEEP_TRUST_OWNERS"
ROOT: Final = 0

Owner = str | int  # name or number of a user
Trusted = Iterable[Owner] | Owner


class Owners:
    """The users whose files a store accepts."""

    def __init__(self, folder: os.stat_result, trusted: Trusted = ()) -> None:
        """Take the status of the store's folder, and the users that the caller trusts."""
        self._trusted = {ROOT, os.geteuid(), *trusted_numbers(trusted)}
        self.group: int | None = None  # the group that shares the store with the caller
        if folder.st_mode & stat.S_IWGRP and is_in(folder.st_gid):
            self.group = folder.st_gid
            self._trusted.add(folder.st_uid)

    def trust(self, user: int) -> bool:
        """Return whether files of a user are accepted."""
        if user in self._trusted:
            return True
        if self.group is not None and _is_member(user, self.group):
            self._trusted.add(user)
            return True
        return False


def trusted_numbers(owners: Trusted) -> set[int]:
    """Return the numbers of the users that the caller, or TRUST_VARIABLE, trusts.

    Raises:
        ArgumentError: this machine has no such user.
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
                f"trust_owners: this machine has no user {one!r}; next: give the name or number "
                "of a user"
            ) from None
    return numbers


def is_in(group: int) -> bool:
    """Return whether the caller is a member of a group."""
    return group == os.getegid() or group in os.getgroups()


def _is_member(user: int, group: int) -> bool:
    with suppress(KeyError):
        known = pwd.getpwuid(user)
        return known.pw_gid == group or known.pw_name in grp.getgrgid(group).gr_mem
    return False


def user_name(user: int) -> str:
    """Return the name of a user, or the number as text if the machine has no name for it."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return str(user)
