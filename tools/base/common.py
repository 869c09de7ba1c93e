"""The options that every command takes, before its name or after it, and how a command ends.

Options are not parameters of the commands. What prints, opens a store or shows progress asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from streamkeep.engine.api.views import Sync

_META: Final = "streamkeep.common"


@dataclass
class Common:
    """What one run of the command line was given."""

    json: bool = False
    sync: Sync = "commit"
    quoted_input: bool = False
    progress: bool | None = None  # None: where standard error is a terminal
    began: float = 0.0  # of `time.perf_counter`
    stops: bool = False  # it ends when the reader of its output has gone
    reader_gone: bool = False  # a flush has shown it


def given(ctx: click.Context | None = None) -> Common:
    """Return the common options of the running command; the defaults where none is running."""
    ctx = ctx or click.get_current_context(silent=True)
    if ctx is None:
        return Common()
    return cast(Common, ctx.meta.setdefault(_META, Common()))  # all its contexts share `meta`


def as_json() -> bool:
    return given().json


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    name = str(param.name)
    if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        setattr(given(ctx), name, value)


def _option(*names: str, help: str, **settings: Any) -> click.Option:
    return click.Option(
        names, is_eager=True, expose_value=False, callback=_keep, help=help, **settings
    )


OPTIONS: Final = (
    _option(
        "--json",
        is_flag=True,
        help="Print one JSON object per line, a summary last; errors are JSON, too.",
    ),
    _option(
        "--sync",
        type=click.Choice(["commit", "interval", "none"]),
        default="commit",
        show_default=True,
        help="For commands that write: return when the change is on disk (commit), or earlier. A "
        "power cut may then lose it.",
    ),
    _option(
        "--quoted-input",
        is_flag=True,
        help="Read arguments in double quotes with redis-cli's escapes, such as '\"\\x00a\"'.",
    ),
    _option(
        "--progress/--no-progress",
        default=None,
        help="Show progress on standard error; by default on a terminal only.",
    ),
)
NAMES: Final = "--json, --sync, --quoted-input, --[no-]progress"


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
    Exit.LOSS: "repaired, restored or followed; something was lost",
    Exit.MISSING: "there is no such store, lake, stream, group, consumer, entry or job",
    Exit.DIFFERENT: "`diff`: the stores are different",
    Exit.ATTENTION: "`status`: the store needs attention; `doctor`: something is wrong; "
    "`queue drain`: jobs are left",
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
