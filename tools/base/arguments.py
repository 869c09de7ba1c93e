"""The arguments and options that commands share: keys, IDs, times, stores, counts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from streamkeep.engine.system.clock import current_clock
from streamkeep.format import quoting
from streamkeep.format.core.durations import parse_duration
from streamkeep.format.core.times import Bound, id_bound
from streamkeep.tools.base import completion
from streamkeep.tools.base.common import given

if TYPE_CHECKING:
    _BytesType = click.ParamType[bytes]
    _IntType = click.ParamType[int]
else:
    _IntType = click.ParamType
    _BytesType = click.ParamType  # generic in newer versions only

Function = TypeVar("Function", bound=Callable[..., Any])


class Bytes(_BytesType):
    """A key, field or value: the bytes of the argument as the shell passed them.

    With `--quoted-input` an argument in double quotes is read with redis-cli's escapes: some bytes
    are hard to type, and no argument can hold a NUL.
    """

    name = "bytes"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer what there is in the store, for parameters that name a part of it."""
        offer = completion.OF_NAMES.get(param.name or "")
        return [] if offer is None else offer(ctx, param, incomplete)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes of an argument."""
        if isinstance(value, bytes):
            return value
        text = str(value)
        if text.startswith('"') and ctx is not None and given(ctx).quoted_input:
            try:
                return quoting.unquoted(text)
            except ValueError as error:
                self.fail(f"{text}: {error}", param, ctx)
        return os.fsencode(text)


class PathOrUri(click.Path):
    """An existing path, or a URI, which is not looked at."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the argument."""
        return value if "://" in value else str(super().convert(value, param, ctx))


class Id(_BytesType):
    """An entry ID, whose syntax the store checks.

    Args:
        bound: what the ID bounds. A date or a time in ISO 8601, or an age such as -2h, may then be
            given instead. It is its first millisecond, and `(` leaves all of that millisecond out.
            "from", "to": the first or the last ID that is wanted, both included.
    """

    name = "id"

    def __init__(self, bound: Bound | None = None) -> None:
        self.bound = bound

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the text of the ID."""
        if isinstance(value, bytes):
            return value
        text = os.fsencode(str(value))
        if self.bound is None:
            return text
        try:
            return id_bound(text, self.bound, current_clock().now_ms)
        except ValueError as error:
            self.fail(f"{value}: {error}", param, ctx)


class Number(click.IntRange):
    """A whole number in a range."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what help texts call it."""
        return "N"


class Duration(_IntType):
    """A duration with its unit, in milliseconds: the one form for all options."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        try:
            return parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def path_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Return the path of a store; refuse an empty name, and one that LMDB cannot open."""
    if value == "":  # an unset variable of a script; Path would take it for the working directory
        raise click.BadParameter("the name is empty", ctx, param)
    try:
        os.path.abspath(value or "").encode()
    except UnicodeEncodeError:
        problem = "the path is not UTF-8, as LMDB needs it; rename the folder, or link to it"
        raise click.BadParameter(problem, ctx, param) from None
    return None if value is None else Path(value)


def path_option(*names: str, metavar: str, help: str) -> Callable[[Function], Function]:
    """Return the option of a path, which need not exist yet."""
    return click.option(*names, type=click.Path(), callback=path_of, metavar=metavar, help=help)


def store_argument(function: Function) -> Function:
    """Add the argument STORE."""
    kind = click.Path(readable=False)  # the store says more of what is missing
    return click.argument(
        "store_path",
        metavar="STORE",
        type=kind,
        callback=path_of,
        shell_complete=completion.folders,
    )(function)


optional_store = click.argument(
    "store_path",
    metavar="[STORE]",
    required=False,
    type=click.Path(readable=False),
    callback=path_of,
    shell_complete=completion.folders,
)


def given_store(store_path: Path | None) -> Path:
    """Return what `optional_store` was given, where the command needs it."""
    if store_path is None:
        raise click.UsageError("Missing argument 'STORE'.")
    return store_path


key_argument = click.argument("key", metavar="KEY", type=Bytes())


group_argument = click.argument("group", metavar="GROUP", type=Bytes())


def one_of(name: str, texts: Mapping[str, str]) -> Callable[[Function], Function]:
    """Add flags of which at most one may be given; the command gets it in capitals, or None.

    Args:
        name: of the parameter of the command.
        texts: each flag, in capitals, with its help.
    """

    def choose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        chosen = ctx.params.setdefault(name, None)
        if not value:
            return
        if chosen is not None:
            raise click.UsageError(
                f"--{chosen.lower()} and {param.opts[0]} cannot be used together"
            )
        ctx.params[name] = str(param.name).upper()

    def add(function: Function) -> Function:
        for flag, text in reversed([*texts.items()]):  # the last decorator comes first in the help
            option = click.option(
                f"--{flag.lower()}", is_flag=True, expose_value=False, callback=choose, help=text
            )
            function = option(function)
        return function

    return add


policy_options = one_of(
    "policy",
    {
        "KEEPREF": "Leave the deleted entries pending in groups (the default).",
        "DELREF": "Also remove them from what groups have pending.",
        "ACKED": "Delete only entries that every group has read and acknowledged.",
    },
)


def count_option(
    text: str, *, least: int = 1, default: int | None = None
) -> Callable[[Function], Function]:
    """Return the option -n/--count.

    Args:
        text: its help.
        least: the smallest number that it takes.
    """
    return click.option(
        "-n",
        "--count",
        type=Number(min=least),
        default=default,
        show_default=default is not None,
        help=text,
    )


def refuse_options(why: str, *names: str) -> None:
    """Refuse options and arguments that have no meaning here.

    Args:
        why: the rest of the message, after the name of the first of them.
        names: of the parameters of the command.
    """
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and was_given(ctx, param.name):
            shown = param.human_readable_name.strip("[]")
            if isinstance(param, click.Option):
                shown = max(param.opts, key=len)
            raise click.UsageError(f"{shown} {why}")


def as_options(text: str) -> str:
    """Return a text of `streamkeep.transfer` with `from_line=7` as `--from-line 7`, and so on.

    The options of `load` and `dump` have the names of the library's arguments.
    """
    options = {
        param.name: max(param.opts, key=len)
        for param in click.get_current_context().command.params
        if isinstance(param, click.Option)
    }

    def as_option(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip('"')
        if name == "key":
            return "`streamkeep load STORE KEY FILE`" if value else "KEY"
        return options[name] if value in ("", "True") else f"{options[name]} {value}"

    names = "|".join(map(str, (*options, "key")))
    return re.sub(rf'\b({names})=(True\b|"[^"]*"|[^\s;,]*)', as_option, text)


def was_given(ctx: click.Context, name: str) -> bool:
    """Say whether an option was given, with any value."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


where_option = click.option(
    "--where",
    type=Bytes(),
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only entries with this value. Repeated: with all of these fields, one value of each.",
)


def condition_of(texts: tuple[bytes, ...]) -> dict[bytes, list[bytes]] | None:
    """Return what the options --where demand; None if there are none."""
    found: dict[bytes, list[bytes]] = {}
    for text in texts:
        field, equals, value = text.partition(b"=")
        if not equals:
            raise click.UsageError(f"--where {quoting.shown(text)} is not FIELD=VALUE")
        found.setdefault(field, []).append(value)
    return found or None


yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
