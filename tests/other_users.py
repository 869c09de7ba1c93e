"""Code that runs as other users of the machine: only root can do that."""

from __future__ import annotations

import os
import pickle
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

TEAM: Final = 54000
ANN, BOB, EVE = 54001, 54002, 54003  # numbers of no user; ann and bob are in the team
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can work as other users")


class Failed(Exception):
    """What the other user met: the name of an exception, and its text."""


def as_user(
    user: int, groups: list[int], work: Callable[[], Any], *, umask: int = 0o077, trust: str = ""
) -> Any:
    """Run `work` in a forked child as a user; return its result, or raise Failed.

    Args:
        groups: further groups of the user, whose own group has the number of the user.
        umask: of the child; the strictest one, which must not matter.
        trust: the variable that names trusted users.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.environ["STREAMKEEP_TRUST_OWNERS"] = trust
            os.umask(umask)
            os.setgroups(groups)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            try:
                told = (True, work())
            except Exception as error:
                traceback.print_exc(file=sys.stderr)
                told = (False, f"{type(error).__name__}: {error}")
            os.write(writing, pickle.dumps(told))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        done, result = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    if not done:
        raise Failed(result)
    return result


@contextmanager
def common_folder(mode: int = 0o777) -> Iterator[Path]:
    """Make a folder that all users can enter, and one in it with a mode."""
    with TemporaryDirectory() as above:
        os.chmod(above, 0o711)
        folder = Path(above) / "common"
        folder.mkdir()
        folder.chmod(mode)
        yield folder


def rights_below(folder: Path) -> set[tuple[str, str, int]]:
    """Return (file or folder, mode, group) of a folder and all that is in it."""
    return {
        (
            "folder" if one.is_dir() else "file",
            f"{one.lstat().st_mode & 0o7777:o}",
            one.lstat().st_gid,
        )
        for one in [folder, *folder.rglob("*")]
    }


def contents_below(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return type and mode, size and contents of all in a folder, links themselves."""
    found = {}
    for place in sorted(folder.rglob("*")):
        status = place.lstat()
        data = place.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(place.relative_to(folder))] = status.st_mode, status.st_size, data
    return found
