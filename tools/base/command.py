"""What all commands have in common: exit statuses, errors as one line, arguments, the open store.

A command raises `StreamkeepError` or `Failure` and does not look back: `StoreCommand` turns both
into a line on standard error, where there is one a `next:` line with what to do about it, and an
exit status.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from click.core import ParameterSource

import streamkeep
from streamkeep.engine.checkpoint.checkpoint import DATA_FILE
from streamkeep.engine.store.removal import missing_folders, remove_empty
from streamkeep.format.core.entry import MAX_U64, StreamId
from streamkeep.format.core.errors import (
    CommandError,
    CorruptionError,
    ErasureBlockedError,
    GroupExistsError,
    IdTooSmallError,
    NoSuchGroupError,
    NoSuchKeyError,
    NotAStoreError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StreamkeepError,
)
from streamkeep.tools.base import output
from streamkeep.tools.base.terminal import visible
from streamkeep.tools.base.times import parse_iso

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.api.views import Sync

    _BytesType = click.ParamType[bytes]
else:
    _BytesType = click.ParamType  # generic in newer versions only

Function = TypeVar("Function", bound=Callable[..., Any])
Bound = Literal["from", "to", "after"]

_QUOTED: Final = "streamkeep.quoted_input"
_NUMBER: Final = re.compile(r"-\.?[0-9]")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Exit(IntEnum):
    """Exit statuses; their numbers are permanent."""

    OK = 0
    ABORTED = 1  # click and Python use it for an interrupt and for a bug, too
    USAGE = 2  # click's own
    UNREADABLE = 3
    DAMAGED = 4
    LOSS = 5  # repaired, with loss


class Failure(Exception):
    """A command cannot go on: what to say, what to do next, and the exit status."""

    def __init__(self, message: str, *, hint: str = "", status: Exit = Exit.ABORTED) -> None:
        super().__init__(message)
        self.hint = hint
        self.status = status


class StoreCommand(click.Command):
    """A command whose errors end as one clear line and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; write what it printed before anything else is said."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here, where a closed pipe ends quietly, not when Python shuts down
            return result
        except StreamkeepError as error:
            failure = _as_failure(ctx, error)
        except Failure as error:
            failure = error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            where = f"{error.filename}: " if error.filename else ""
            if output.give_up():
                where = "standard output: "
            failure = Failure(f"{where}{error.strerror or error}")
        output.note(f"{ctx.command_path}: {failure}")
        if failure.hint:
            output.note(f"next: {failure.hint}")
        ctx.exit(failure.status)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a number below zero is a value, not an option.

        Options are taken out first, wherever they stand, and all else goes behind a `--`.
        """
        takes_values = {
            name: 0 if option.is_flag or option.count else option.nargs
            for option in self.params
            if isinstance(option, click.Option)
            for name in (*option.opts, *option.secondary_opts)
        }
        options: list[str] = []
        values: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                values.extend(rest)
            elif len(arg) < 2 or arg[0] != "-" or _NUMBER.match(arg):
                values.append(arg)
            else:
                wanted = takes_values.get(arg, 0)
                if arg not in takes_values and arg[1] != "-" and len(arg) > 2:
                    # Short options together: the last may want values, where none before does.
                    wanted = _values_of(arg[1:], takes_values)
                following = list(islice(rest, wanted))
                options += [arg, *following]
                if len(following) < wanted:
                    return super().parse_args(ctx, options)  # which says what is missing
        return super().parse_args(ctx, [*options, "--", *values])


def _values_of(letters: str, takes_values: dict[str, int]) -> int:
    """Return how many arguments belong to short options that are given together."""
    for place, letter in enumerate(letters, start=1):
        wanted = takes_values.get(f"-{letter}", 0)
        if wanted:
            return wanted - (place < len(letters))  # `-n5`: one value is there already
    return 0


def _as_failure(ctx: click.Context, error: StreamkeepError) -> Failure:
    """Choose words, hint and status for an error of the store."""
    path = ctx.params.get("store_path")
    store = shlex.quote(str(path or "STORE"))
    if isinstance(error, CommandError):
        hint = ""
        if isinstance(error, NoSuchKeyError):
            hint = f"streamkeep streams {store}"
        elif isinstance(error, (NoSuchGroupError, GroupExistsError)):
            hint = f"streamkeep group list {store}"
        elif isinstance(error, IdTooSmallError) and _has_stream(ctx):
            hint = f"streamkeep info stream {store} {shell_key(ctx.params['key'])}"
        return Failure(error.redis_error, hint=hint)
    if isinstance(error, CorruptionError):
        root = ctx.find_root().command
        known = path is not None and isinstance(root, click.Group) and "fsck" in root.commands
        return Failure(
            str(error), hint=f"streamkeep fsck {store}" if known else "", status=Exit.DAMAGED
        )
    if isinstance(error, ErasureBlockedError):
        hint = f"streamkeep erase {store} --finish"
        return Failure(str(error), hint=hint, status=Exit.UNREADABLE)
    if isinstance(error, StoreFullError):
        return Failure(str(error), hint="streamkeep trim --help")
    if isinstance(error, StoreError) and not isinstance(error, StoreClosedError):
        return Failure(str(error), status=Exit.UNREADABLE)
    return Failure(str(error))


def _has_stream(ctx: click.Context) -> bool:
    """Say whether the command is about a stream of a store that is there."""
    known = ctx.params.get("store_path"), ctx.params.get("key")
    return None not in known and os.path.exists(ctx.params["store_path"] / DATA_FILE)


def shell_key(key: bytes) -> str:
    """Return a key as an argument for the shell."""
    text = output.shown(key)
    if not key:
        return "''"
    return f"--quoted-input {shlex.quote(text)}" if text.startswith('"') else shlex.quote(text)


# --- arguments ----------------------------------------------------------------------------------


class Bytes(_BytesType):
    """A key, field or value: the bytes of the argument as the shell passed them.

    With `--quoted-input` an argument in double quotes is read with redis-cli's escapes: some bytes
    are hard to type, and no argument can hold a NUL.
    """

    name = "bytes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes of an argument."""
        if isinstance(value, bytes):
            return value
        text = str(value)
        if text.startswith('"') and ctx is not None and ctx.meta.get(_QUOTED):
            try:
                return output.unquoted(text)
            except ValueError as error:
                self.fail(f"{text}: {error}", param, ctx)
        return os.fsencode(text)


class Id(_BytesType):
    """An entry ID, whose syntax the store checks.

    Args:
        bound: what the ID bounds, where a date or a time in ISO 8601 may stand for it. That stands
            for its first millisecond, and `(` leaves all of this millisecond out.
            "from", "to": the first or the last ID that is wanted, both included.
            "after": the ID before the first one that is wanted.
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
        text = str(value)
        moment = text.removeprefix("(")
        if self.bound is None or not _DATE.match(moment):
            return os.fsencode(text)
        try:
            return self._id_of(parse_iso(moment), exclusive=text != moment)
        except ValueError as error:
            self.fail(f"{text}: {error}", param, ctx)

    def _id_of(self, ms: int, *, exclusive: bool) -> bytes:
        """Return the ID that a millisecond stands for.

        Of `(ms` alone, the store would leave one ID out: the first as a start, the last as an end.
        """
        if exclusive:
            return b"(%d-%d" % (ms, 0 if self.bound == "to" else MAX_U64)
        if self.bound == "after":
            return bytes(StreamId(ms, 0).previous() if ms else StreamId(0, 0))
        return b"%d" % ms


def path_of(ctx: click.Context, param: click.Parameter, value: str | None) -> Path | None:
    """Return the path of a store; refuse an empty name, and what LMDB cannot open."""
    if value == "":  # an unset variable of a script; Path would take it for the working directory
        raise click.BadParameter("the name is empty", ctx, param)
    try:
        os.path.abspath(value or "").encode()
    except UnicodeEncodeError:
        problem = "the path is not UTF-8, as LMDB needs it; rename the folder, or link to it"
        raise click.BadParameter(problem, ctx, param) from None
    return None if value is None else Path(value)


def store_argument(function: Function) -> Function:
    """Add the argument STORE."""
    kind = click.Path()
    return click.argument("store_path", metavar="STORE", type=kind, callback=path_of)(function)


def optional_store(function: Function) -> Function:
    """Add the argument STORE for commands that also do something without; see `given_store`."""
    return click.argument(
        "store_path", metavar="[STORE]", required=False, type=click.Path(), callback=path_of
    )(function)


def given_store(store_path: Path | None) -> Path:
    """Return what `optional_store` was given, where the command needs it."""
    if store_path is None:
        raise click.UsageError("Missing argument 'STORE'.")
    return store_path


def key_argument(function: Function) -> Function:
    """Add the argument KEY."""
    return click.argument("key", metavar="KEY", type=Bytes())(function)


def group_argument(function: Function) -> Function:
    """Add the argument GROUP."""
    return click.argument("group", metavar="GROUP", type=Bytes())(function)


def consumer_argument(function: Function) -> Function:
    """Add the argument CONSUMER."""
    return click.argument("consumer", metavar="CONSUMER", type=Bytes())(function)


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object per line, a summary last."
    )(function)


def sync_option(function: Function) -> Function:
    """Add --sync, for commands that write."""
    return click.option(
        "--sync",
        type=click.Choice(["commit", "interval", "none"]),
        default="commit",
        show_default=True,
        help="Return when the change is on disk, or earlier: a power cut may then lose it.",
    )(function)


def progress_option(function: Function) -> Function:
    """Add --progress/--no-progress."""
    return click.option(
        "--progress/--no-progress",
        default=None,
        help="Show progress on standard error; by default on a terminal only.",
    )(function)


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
        "KEEPREF": "Leave what groups have pending of the deleted entries (the default).",
        "DELREF": "Remove that, too: groups forget the deleted entries.",
        "ACKED": "Delete only what every group has read and acknowledged.",
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
        type=click.IntRange(min=least),
        default=default,
        show_default=default is not None,
        metavar="N",
        help=text,
    )


def refuse_options(why: str, *names: str) -> None:
    """Refuse options and arguments that were given although they mean nothing here.

    Args:
        why: what is said behind the name of the first of them.
        names: of the parameters of the command.
    """
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and was_given(ctx, param.name):
            shown = param.human_readable_name.strip("[]")
            if isinstance(param, click.Option):
                shown = max(param.opts, key=len)
            raise click.UsageError(f"{shown} {why}")


def was_given(ctx: click.Context, name: str) -> bool:
    """Say whether an option stands on the command line, with whatever value."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def yes_option(function: Function) -> Function:
    """Add --yes, for commands that destroy data."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(function)


def quoted_option(function: Function) -> Function:
    """Add --quoted-input, which `Bytes` obeys."""

    def remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[_QUOTED] = value

    return click.option(
        "--quoted-input",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Read arguments in double quotes with redis-cli's escapes, such as '\"\\x00a\"'.",
    )(function)


def confirm_loss(losses: list[str], question: str, *, yes: bool) -> None:
    """Name what is about to be lost and ask; go on only when the answer is yes."""
    for loss in losses:
        output.note(loss)
    if yes:
        return
    sys.stderr.write(f"{visible(question)} [y/N]: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        output.note("")
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was changed", hint="--yes answers the question")


# --- the store ----------------------------------------------------------------------------------


@contextmanager
def open_store(
    path: Path,
    *,
    readonly: bool = False,
    create: bool = False,
    sync: Sync = "commit",
    hint: str = "",
) -> Iterator[Store]:
    """Open the store at `path`, and close it.

    A process that is about to end syncs what `interval` would have synced later. A store that was
    created here is removed when the block fails and has put nothing in.

    Args:
        hint: what to do where there is no store; else it is how a store comes to be.
    """
    made = missing_folders(path) if create else None
    try:
        store = streamkeep.open(path, sync=sync, readonly=readonly, create=create)
    except NotAStoreError as error:
        hint = hint or f"streamkeep add {shlex.quote(str(path))} KEY FIELD VALUE creates it"
        missing = "no such store" in str(error)
        raise Failure(str(error), hint=hint if missing else "", status=Exit.UNREADABLE) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    empty = False
    try:
        with store:
            try:
                yield store
            except BaseException:
                empty = made is not None and _holds_nothing(store)
                raise
            finally:
                if sync == "interval":
                    store.sync()
    except BaseException:
        if empty and made is not None:
            with suppress(OSError):
                remove_empty(path, made)
        raise


def _holds_nothing(store: Store) -> bool:
    with suppress(StreamkeepError):
        return next(iter(store.scan_iter()), None) is None
    return False
