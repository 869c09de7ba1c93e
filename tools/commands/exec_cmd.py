"""exec: Redis's own words, as redis-cli takes them, and replies as it prints them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from streamkeep.commands.command_table import FREES, READS, find
from streamkeep.commands.help_lines import SUMMARIES
from streamkeep.commands.replies import NIL_ARRAY, Status, plain
from streamkeep.commands.words import wrong_count
from streamkeep.engine.store.command import Command, Free, Read, Write, attempt, wait
from streamkeep.format import quoting
from streamkeep.format.core.errors import CommandError, CorruptionError
from streamkeep.format.node.node import PAIRS
from streamkeep.format.redis.resp import split_line
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import StorePath
from streamkeep.tools.base.command import command, tell
from streamkeep.tools.base.common import Exit, Failure
from streamkeep.tools.base.opening import open_store

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

_UNBALANCED: Final = "unbalanced quotes in a line of standard input"


class _Session(ExitStack):
    """The store of the commands, opened for reading until one of them writes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._store: Store | None = None
        self._writes = False

    def run(self, words: list[bytes]) -> Any:
        """Run a command; return its reply, or raise CommandError."""
        if words[0].upper() == b"PING":
            if len(words) > 2:
                raise wrong_count("ping")
            return words[1] if len(words) > 1 else Status("PONG")
        spec = find(words)
        writes = spec.kind != READS
        if self._store is None or (writes and not self._writes):
            self.close()
            self._writes = writes
            opened = open_store(self._path, readonly=not writes, create=spec.creates)
            self._store = self.enter_context(opened)
        store = self._store
        if spec.parse is not None:
            waiting = spec.parse(words, int(PAIRS))
            call = waiting.call
            blocked = attempt(call) if waiting.block_ms < 0 else wait(call, waiting.block_ms)
            return plain(store._run(blocked) or NIL_ARRAY)
        assert spec.run is not None
        kind = Read if spec.kind == READS else Free if spec.kind == FREES else Write
        made: Command[object] = kind(spec.run, (words, int(PAIRS)))
        made.leaves_garbage = spec.kind == FREES
        return plain(store._run(made))


@command("exec", stops=True)
def exec_(store_path: StorePath, words: tuple[bytes, ...] = ()) -> None:
    """Run a command in Redis's own words, such as XADD or XINFO.

    Takes all commands of streams with the arguments of redis-cli, in capitals or not, and prints
    replies as redis-cli does on a terminal: names and values are quoted and escaped. A word that
    begins with two dashes goes after --.

    Without COMMAND, commands are read from standard input: one per line, in redis-cli's quoting.
    Each is run and answered before the next is read. An error does not end the session.

    XADD, XGROUP CREATE with MKSTREAM, and RESTORE create STORE.

    Exit status: 0  done
                 1  an error of Redis: the line that a Redis server sends, on standard error

    Examples:
      streamkeep exec orders.store XADD orders '*' sku 7 count 2
      streamkeep exec orders.store xrange orders - + COUNT 1
      streamkeep exec orders.store XINFO GROUPS orders --json
      streamkeep exec orders.store XACK orders mail 1718004800000-0
      printf 'XLEN orders\\nKEYS *\\n' | streamkeep exec orders.store

    Args:
        words ([COMMAND [ARG]...]):
    """
    commands = failures = 0
    with _Session(store_path) as session:
        for given in [list(words)] if words else _lines():
            commands += 1
            try:
                if not given:
                    raise CommandError(_UNBALANCED)
                reply = session.run(given)
            except CommandError as error:
                failures += 1
                if common.as_json():
                    path = click.get_current_context().command_path
                    tell(path, Failure(error.redis_error, code=type(error).__name__))
                else:
                    output.note(f"(error) {error.redis_error}")
                continue
            if common.as_json():
                output.json_line("reply", of=given[0].upper(), reply=reply)
            else:
                for text in text_of(reply).splitlines():
                    output.line(text)
        output.done(commands=commands, errors=failures)
        if failures:  # here, where a store that was created for nothing is removed again
            click.get_current_context().exit(Exit.ABORTED)


exec_.help = f"{exec_.help}\n\n\b\nCommands:\n" + "\n".join(
    f"  {name.replace('|', ' ').upper():<21} {text}" for name, text in SUMMARIES.items()
)


def _lines() -> Iterator[list[bytes]]:
    """Yield the words of each line of standard input; none for quotes that do not close."""
    for line in sys.stdin.buffer:
        try:
            words = split_line(line.rstrip(b"\r\n"), "standard input", 0)
        except CorruptionError:
            words = []
        if line.strip():
            yield words
            output.flush()  # a program may wait for the reply before it sends the next command


def text_of(reply: Any, prefix: str = "") -> str:
    """Return the lines that redis-cli prints on a terminal; names and values are escaped.

    Args:
        prefix: what every line but the first begins with.
    """
    if isinstance(reply, Status):
        return f"{reply}\n"
    if reply is None:
        return "(nil)\n"
    if isinstance(reply, int):
        return f"(integer) {reply}\n"
    if isinstance(reply, bytes):
        return f"{quoting.quoted_bytes(reply)}\n"
    if isinstance(reply, dict):
        reply = [part for name, value in reply.items() for part in (name.encode(), value)]
    if not reply:
        return "(empty array)\n"
    width = len(str(len(reply)))
    below = prefix + " " * (width + 2)
    return "".join(
        f"{prefix if number > 1 else ''}{number:>{width}}) {text_of(one, below)}"
        for number, one in enumerate(reply, 1)
    )
