"""The types of arguments and options that commands share: keys, IDs, times, stores, sizes.

The aliases below the classes are what signatures of commands say; see `parameters`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

import streamkeep
from streamkeep.engine.system.clock import current_clock
from streamkeep.format import quoting
from streamkeep.format.core import errors
from streamkeep.format.core.durations import MEANT, duration_text, parse_duration
from streamkeep.format.core.times import Bound, id_bound
from streamkeep.format.humanize import size_text
from streamkeep.format.rows.retention import NONE
from streamkeep.tools.base import output
from streamkeep.tools.base.common import Exit, Failure, given

if TYPE_CHECKING:
    from streamkeep.engine.api.command_base import RefPolicy

    _BytesType = click.ParamType[bytes]
    _IntType = click.ParamType[int]
else:
    RefPolicy = str
    _IntType = click.ParamType
    _BytesType = click.ParamType  # generic in newer versions only

COMPLETE_VARIABLE: Final = "_STREAMKEEP_COMPLETE"  # a shell sets it when it asks
_MOST_OFFERED: Final = 200  # names
_SIZES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"([0-9]+) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)


class Bytes(_BytesType):
    """A key, field or value: the bytes of the argument as the shell passed them.

    With `--quoted-input` an argument in double quotes is read with redis-cli's escapes: some bytes
    are hard to type, and no argument can hold a NUL.
    """

    name = "bytes"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the streams of the store, the groups of the stream, the consumers of the group.

        A store that cannot be opened offers nothing, and names that a shell or a terminal could
        misread are left out.
        """
        known, found = ctx.params, list[bytes]()
        path = known.get("store_path")
        if path is None or param.name not in ("key", "group", "consumer"):
            return []
        with (
            suppress(errors.StreamkeepError, OSError),
            streamkeep.open(path, readonly=True, create=False) as store,
        ):
            if param.name == "key":
                found = list(store.scan_iter())
            elif param.name == "group":
                found = [one["name"] for one in store.xinfo_groups(known["key"])]
            else:
                members = store.xinfo_consumers(known["key"], known["group"])
                found = [one["name"] for one in members]
        texts = [quoting.shown(name, " ") for name in found]
        fitting = [text for text in texts if text.startswith(incomplete) and text[0] != '"']
        return [CompletionItem(text) for text in sorted(fitting)[:_MOST_OFFERED]]

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
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
        return value if "://" in value else str(super().convert(value, param, ctx))


class PlacePath(click.Path):
    """A path, which need not exist; no empty name.

    Args:
        completes: whether a shell offers folders.
    """

    def __init__(self, *, completes: bool = False) -> None:
        super().__init__(readable=False)  # the store says more of what is missing
        self._completes = completes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if value == "":  # an unset variable of a script; Path would take it for the working folder
            self.fail("the name is empty", param, ctx)
        return Path(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell offer folders, or files."""
        offered = super().shell_complete(ctx, param, incomplete)
        return [CompletionItem(incomplete, type="dir")] if self._completes else offered


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
    """A whole number in a range; one that no machine counts to is the highest that it does."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return min(super().convert(value, param, ctx), sys.maxsize)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N"  # click below 8.2 gives no context


class Parsed(_IntType):
    """A number that a function reads from a text.

    Args:
        name: of the type, as help texts show it.
        parse: raises ValueError with what is wrong.
        text_of: returns a default as help texts show it.
    """

    def __init__(
        self, name: str, parse: Callable[[str], int], text_of: Callable[[int], str] = str
    ) -> None:
        self.name = name
        self.text_of = text_of
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return self._parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _or_none(parse: Callable[[str], int], meant: str) -> Callable[[str], int]:
    """Return a function that also reads `none` for no limit, which is -1."""

    def read(text: str) -> int:
        lower = text.strip().lower()
        with suppress(ValueError):
            number = -1 if lower == "none" else parse(lower)
            if number < NONE:
                return number
        raise ValueError(f"{text!r} is not {meant}, or none")

    return read


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError
    return int(found[1]) * _SIZES[found[2].lower()]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


class Flags:
    """Flags of which at most one may be given; the command gets it in capitals, or None.

    Args:
        texts: each flag, in capitals, with its help.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def options(self, name: str) -> list[click.Option]:
        def choose(ctx: click.Context, param: click.Parameter, value: bool) -> None:
            chosen = ctx.params.setdefault(name, None)
            if not value:
                return
            if chosen is not None:
                raise click.UsageError(
                    f"--{chosen.lower()} and {param.opts[0]} cannot be used together"
                )
            ctx.params[name] = str(param.name).upper()

        return [
            click.Option(
                [f"--{flag.lower()}"], is_flag=True, expose_value=False, callback=choose, help=text
            )
            for flag, text in self._texts.items()
        ]


StorePath = Annotated[Path, PlacePath(completes=True)]
Natural = Annotated[int, Number(min=0)]
Positive = Annotated[int, Number(min=1)]
Ms = Annotated[
    int, Parsed("duration", parse_duration, lambda ms: duration_text(ms, parts=5) if ms else "0")
]
Limit = Annotated[int, Parsed("limit", _or_none(_count, "a number"))]
Age = Annotated[int, Parsed("limit", _or_none(parse_duration, MEANT))]
SizeBytes = Annotated[
    int,
    Parsed(
        "limit",
        _or_none(_size, "a size such as 500000, 64M or 2G"),
        lambda size: "none" if size < 0 else size_text(size),
    ),
]
EntryId = Annotated[bytes, Id()]
From = Annotated[bytes, Id("from")]
To = Annotated[bytes, Id("to")]
Policy = Annotated[
    RefPolicy,
    Flags(
        {
            "KEEPREF": "Leave the deleted entries pending in groups (the default).",
            "DELREF": "Also remove them from what groups have pending.",
            "ACKED": "Delete only entries that every group has read and acknowledged.",
        }
    ),
]


Where = Annotated[
    tuple[bytes, ...],
    "(FIELD=VALUE): Only entries with this value. Repeated: with all of these fields, one value of "
    "each.",
]
Yes = Annotated[bool, "Do not ask."]


def given_store(store_path: Path | None) -> Path:
    """Return a store that may be left out, where the command needs it."""
    if store_path is None:
        raise click.UsageError("Missing argument 'STORE'.")
    return store_path


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


@contextmanager
def as_of_library() -> Iterator[None]:
    """Turn the errors of `streamkeep.transfer` into those of a command, with names of options."""
    try:
        yield
    except errors.ArgumentError as error:
        raise click.UsageError(as_options(str(error))) from error
    except (errors.TargetExistsError, errors.TransferError, errors.ValueMismatchError) as error:
        exists = isinstance(error, errors.TargetExistsError)
        raise Failure(
            as_options(str(error)),
            hint=as_options(getattr(error, "hint", "")),
            status=Exit.UNREADABLE if exists else Exit.ABORTED,
            code=type(error).__name__,
        ) from error
    except errors.KeyExistsError as error:
        hint = as_options(error.__notes__[0])
        raise Failure(
            f"{error}; nothing was loaded", hint=hint, code=type(error).__name__
        ) from error
    except errors.StreamkeepError as error:
        for one in getattr(error, "__notes__", ()):
            output.note(as_options(one))
        raise


def was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def condition_of(texts: tuple[bytes, ...]) -> dict[bytes, list[bytes]] | None:
    """Return what the options --where demand; None if there are none."""
    found: dict[bytes, list[bytes]] = {}
    for text in texts:
        field, equals, value = text.partition(b"=")
        if not equals:
            raise click.UsageError(f"--where {quoting.shown(text)} is not FIELD=VALUE")
        found.setdefault(field, []).append(value)
    return found or None
