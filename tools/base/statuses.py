"""Exit statuses, and the error that ends a command with one of them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit statuses; their numbers are permanent."""

    OK = 0
    ABORTED = 1  # click and Python use it for an interrupt and for a bug, too
    USAGE = 2  # click's own
    UNREADABLE = 3
    DAMAGED = 4
    LOSS = 5
    MISSING = 6
    DIFFERENT = 7
    ATTENTION = 8


# The one table of statuses: `streamkeep --help` and the documentation are made of it.
MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "done, or clean",
    Exit.ABORTED: "aborted, a Redis error such as an ID that is too small, or a bug",
    Exit.USAGE: "the command line is not right, or names a file that does not exist",
    Exit.UNREADABLE: "cannot use: not a store, locked, of a newer version; or the target exists",
    Exit.DAMAGED: "the store is damaged",
    Exit.LOSS: "repaired, and something was lost",
    Exit.MISSING: "there is no such store, lake, stream, group, consumer or entry",
    Exit.DIFFERENT: "`diff`: the stores are different",
    Exit.ATTENTION: "`status`: the store needs attention; `doctor`: something is wrong",
}


class Failure(Exception):
    """A command cannot go on: what to say, what to do next, and the exit status.

    Attributes:
        code: the name of the error in JSON; that of an exception of `streamkeep` where one is
            the cause.
    """

    def __init__(
        self, message: str, *, hint: str = "", status: Exit = Exit.ABORTED, code: str = ""
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status
        self.code = code
