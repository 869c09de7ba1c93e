"""The options that every command takes, before its name or after it: declared here, once.

They are not parameters of the commands. What prints, opens a store or shows progress asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
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
