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
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, cast

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given, whole

TRUST_VARIABLE: Final = "STREAMKEEP_TRUST_OWNERS"
ROOT: Final = 0
_MOST_NUMBER: Final = (1 << 32) - 2  # of a user or a group; the one above it means none
_MOST_DIGITS: Final = 10

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
    several = isinstance(owners, Iterable) and not isinstance(owners, (str, bytes))
    named = cast("Iterable[Owner]", owners if several else [owners])
    variable = filter(None, os.environ.get(TRUST_VARIABLE, "").replace(",", " ").split())
    return {
        number_of(place, one, lambda name: pwd.getpwnam(name).pw_uid)
        for place, some in (("trust_owners", named), (TRUST_VARIABLE, variable))
        for one in some
    }


def number_of(parameter: str, given: Owner, look_up: Callable[[str], int]) -> int:
    """Return the number of a user or group that is given by name or number."""
    what = "group" if parameter == "group" else "user"
    if isinstance(given, str) and not (given.isascii() and given.isdigit()):
        try:
            return look_up(given)
        except (KeyError, ValueError):  # a name with a null byte or a lone surrogate, too
            raise ArgumentError(
                f"{parameter}: this machine has no {what} {as_given(given)}; next: give the name "
                f"or number of a {what}"
            ) from None
    number = int(given) if isinstance(given, str) and len(given) <= _MOST_DIGITS else given
    return whole(number, f"{parameter}, if it is no name of a {what},", 0, _MOST_NUMBER)


def is_in(group: int) -> bool:
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
