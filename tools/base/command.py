"""What a command is: common options, numbers below zero, errors as one line or one JSON object.

A command raises `StreamkeepError` or `Failure` and does not look back. `StoreCommand` turns both
into a message on standard error, a `next:` line where something can be done, and an exit status.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.format.core import errors
from streamkeep.format.core.json_form import json_line
from streamkeep.format.quoting import named
from streamkeep.tools.base import common, output
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import OPENED
from streamkeep.tools.base.parameters import parameters_of
from streamkeep.tools.base.terminal import STDOUT, give_up, unguarded, visible

_NUMBER: Final = re.compile(r"-\.?[0-9]")
_KEPT: Final = re.compile(r"^( |Exit status:)", re.MULTILINE)


class _Shared(click.Command):
    """A command that takes the common options; its help names them in one line.

    Paragraphs of the help with indented lines, such as examples, stay as they are.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        blocks = inspect.cleandoc(settings["help"]).split("\n\n")
        marked = [f"\b\n{one}" if _KEPT.search(one) else one for one in blocks]  # click's mark
        settings["help"] = "\n\n".join(marked)
        super().__init__(*args, **settings)
        self.params.extend(common.OPTIONS)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of this command alone, and the names of the common ones."""
        own = [
            record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            and param not in common.OPTIONS
            and (record := param.get_help_record(ctx))
        ]
        if own:
            with formatter.section("Options"):
                formatter.write_dl(own)
        self.format_common(ctx, formatter)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_common(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write where the common options are explained."""
        formatter.write_paragraph()
        formatter.write_text(f"Common options, see `streamkeep --help`: {common.NAMES}")


class StoreCommand(_Shared):
    """A command whose errors end as one clear message and an exit status.

    Attributes:
        stops: whether it ends when the reader of its output has gone, because it only reads, and
            may have much to print. All others go on: for what they change, or for their status.
    """

    def __init__(self, *args: Any, stops: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.stops = stops

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; write its output before any error message."""
        common.given(ctx).began = time.perf_counter()
        common.given(ctx).stops = self.stops
        try:
            result = super().invoke(ctx)
            output.flush()  # here, where a closed pipe ends quietly, not when Python shuts down
            return result
        except click.exceptions.Exit:
            output.flush()
            raise
        except BrokenPipeError:  # `| head` has what it wants
            give_up()
            ctx.exit(Exit.OK)
        except errors.StreamkeepError as error:
            failure = _as_failure(ctx, error)
        except Failure as error:
            failure = error
        except OSError as error:
            failure = of_system(error)
        tell(ctx.command_path.rstrip(), failure)
        ctx.exit(failure.status)

    def make_parser(self, ctx: click.Context) -> Any:
        """Return click's parser, changed so that a number below zero is a value, not an option.

        click can only take all that it does not know for values, and so misspelt options, too.
        """
        parser: Any = super().make_parser(ctx)
        take_option = parser._process_opts

        def take(arg: str, state: Any) -> None:
            if _NUMBER.match(arg):
                state.largs.append(arg)
                return
            try:
                take_option(arg, state)
            except click.UsageError as error:
                if ctx.resilient_parsing:  # a shell completes the value of this option
                    return
                unknown = isinstance(error, click.NoSuchOption) and not error.possibilities
                if unknown and any(one.nargs < 0 for one in self.params):
                    said = error.message.rstrip(".")  # click 8.1 ends with none
                    said += ". A value that begins with a dash goes after --."
                    vars(error)["message"] = said
                raise

        parser._process_opts = take
        return parser


class CommandGroup(_Shared, click.Group):
    """Commands under one name."""

    def command(  # type: ignore[override]  # no other settings
        self, name: str | None = None
    ) -> Callable[[Callable[..., Any]], StoreCommand]:
        """Make a function a command of the group."""

        def make(function: Callable[..., Any]) -> StoreCommand:
            made = command(name)(function)
            self.add_command(made)
            return made

        return make

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for one that does not exist, name what is spelt like it, or there."""
        name = args[0] if args else ""
        if name[:1] not in ("", "-") and self.get_command(ctx, name) is None:
            known = self.list_commands(ctx)
            near = get_close_matches(name, known, 2)
            if near:
                ctx.fail(f"No such command {name!r}; did you mean {' or '.join(near)}?")
            if ctx.parent is not None:  # the root has too many
                ctx.fail(f"No such command {name!r}; there are {', '.join(known)}")
        return super().resolve_command(ctx, args)


def command(
    name: str | None = None, *, stops: bool = False
) -> Callable[[Callable[..., Any]], StoreCommand]:
    """Make a function a command; see `parameters`, and `StoreCommand` for what errors become."""

    def make(function: Callable[..., Any]) -> StoreCommand:
        call, text, params = parameters_of(function)
        given = name or function.__name__.strip("_").replace("_", "-")
        return StoreCommand(given, callback=call, params=params, help=text, stops=stops)

    return make


def group_command(name: str | None = None) -> Callable[[Callable[..., Any]], CommandGroup]:
    """Make a function the head of a group of commands."""
    return click.group(name, cls=CommandGroup)


# --- errors -------------------------------------------------------------------------------------


def tell(path: str, failure: Failure, *, json: bool | None = None) -> None:
    """Write why a command ends, and what to do next; as one JSON object with --json.

    Args:
        path: the name of the command.
        json: None for what --json says; usage errors come before it was read.
    """
    hint = "" if failure.hint.startswith(f"{path} ") else failure.hint  # it has just failed
    output.flush()  # of a reader that has gone, the status must not depend
    if common.as_json() if json is None else json:
        told = json_line(
            "error",
            error=failure.status.name.lower(),
            code=failure.code or type(failure).__name__,
            status=int(failure.status),
            command=path,
            message=str(failure),
            next=hint or None,
        )
        unguarded(sys.stderr).write(told + "\n")
        sys.stderr.flush()
        return
    output.note(f"{path}: {failure}")
    if hint:
        output.note(f"next: {hint}")


def tell_usage(error: click.ClickException, *, json: bool) -> None:
    ctx = getattr(error, "ctx", None)
    path = "streamkeep" if ctx is None else ctx.command_path
    if json:
        failure = Failure(
            error.format_message(),
            hint=f"see {path} --help",
            status=Exit.USAGE,
            code=type(error).__name__,
        )
        tell(path, failure, json=True)
        return
    if type(error).__name__ != "NoArgsIsHelpError":  # whose message is a help text
        vars(error)["message"] = visible(error.message)  # it is final, to type checkers
    error.show()


def wants_json(args: Sequence[str]) -> bool:
    """Say whether --json is among arguments that could not be parsed."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


_OF_SYSTEM: Final = {
    errno.EACCES: "work as a user who may use this place, or name another place",
    errno.EDQUOT: "make room, or raise the quota of this user",
    errno.ELOOP: "correct the links, or name another place",
    errno.ENOENT: "correct the path",
    errno.ENOSPC: "make room on the disk, or name a place on another disk",
    errno.ENOTDIR: "correct the path",
    errno.EROFS: "name a place that can be written to",
}


def of_system(error: OSError) -> Failure:
    # With PYTHONUNBUFFERED, nothing is left that could not be written.
    place = STDOUT if give_up() else error.filename
    where = f"{place}: " if place else ""
    hint = _OF_SYSTEM.get(error.errno or 0, "") if place != STDOUT else ""
    return Failure(f"{where}{error.strerror or error}", hint=hint, code=type(error).__name__)


def _as_failure(ctx: click.Context, error: errors.StreamkeepError) -> Failure:
    """Choose words, hint and status for an error of the store."""
    message, hint, status = str(error), "", Exit.ABORTED
    stores = [shlex.quote(str(path)) for path in _stores(ctx)]
    store = stores[0] if len(stores) == 1 else ""  # of two, the error does not say which
    if isinstance(error, errors.CommandError):
        message = error.redis_error
        notes = getattr(error, "__notes__", [])
        if notes:  # the last one names the argument and its value
            message += ": " + re.sub(r"\b(is|got) b(?=['\"])", r"\1 ", notes[-1])
        if isinstance(error, (errors.NoSuchKeyError, errors.NoSuchGroupError)):
            status = Exit.MISSING
        if isinstance(error, errors.NoSuchKeyError):
            keys = [ctx.params.get(name) for name in ("source", "stream", "key")]
            given = [key for key in keys if isinstance(key, bytes)]  # `exec` has words
            message = ": ".join([message, *map(named, given[:1])])
        if not store:
            pass
        elif isinstance(error, errors.NoSuchKeyError):
            hint = f"streamkeep streams {store}"
        elif isinstance(error, errors.NoSuchGroupError) and _has_stream(ctx):
            key = output.shell_key(ctx.params["key"])
            hint = f"streamkeep exec {store} XINFO GROUPS {key}"
        elif isinstance(error, errors.IdTooSmallError) and _has_stream(ctx):
            hint = f"streamkeep info {store} {output.shell_key(ctx.params['key'])}"
    elif isinstance(error, errors.CorruptionError):
        status = Exit.DAMAGED
        if "next: " not in message:
            hint = "; ".join(f"streamkeep fsck {one}" for one in stores)
        if _has_stream(ctx):  # the engine knows only its number
            name = named(ctx.params["key"])
            message = re.sub(r"\bstream [0-9]+\b", lambda _: f"stream {name}", message)
    elif isinstance(error, errors.ErasureBlockedError):
        hint = "end these processes; `erase --finish` then erases the bytes"
        status = Exit.UNREADABLE
    elif isinstance(error, errors.NotAStoreError) and not error.was_open:
        path = next(reversed(_stores(ctx)), None)  # of several, the last one that was to be opened
        status = Exit.UNREADABLE
        if path is not None and not os.path.exists(path):  # it says what a program would do next
            status, message = Exit.MISSING, message.partition("; next: ")[0]
            hint = "correct the path"
            if os.path.abspath(path) in message:  # not what is to be restored to the path
                hint += f"; `streamkeep create {shlex.quote(str(path))}` makes a store"
            hint = ctx.meta.get(OPENED, {}).get(path) or hint
    elif isinstance(error, errors.StoreFullError):
        hint = "" if "next: " in message else "streamkeep trim --help"
    elif isinstance(error, errors.StoreError) and not isinstance(error, errors.StoreClosedError):
        status = Exit.UNREADABLE
    return Failure(message, hint=hint, status=status, code=type(error).__name__)


def _stores(ctx: click.Context) -> list[Path]:
    """Return the stores that the command has opened, or else was given."""
    opened: list[Path] = list(ctx.meta.get(OPENED, ()))
    given = ctx.params.get("store_path")
    return opened or ([] if given is None else [given])


def _has_stream(ctx: click.Context) -> bool:
    """Say whether the command is about a stream of a store that exists."""
    known = ctx.params.get("store_path"), ctx.params.get("key")
    return None not in known and os.path.exists(ctx.params["store_path"] / DATA_FILE)
