"""Commands into a store: what `dump --format resp` writes, and Redis's append-only files.

Commands are run in their order, in batches of one transaction each; `resp_commands` says what each
does, and which are passed over and counted. What stands between MULTI and EXEC is one transaction,
or nothing where the file ends before EXEC: a server would not take that either. A command that is
refused ends the run; what stands before it is done, and `--from-line` goes on at any command.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import CommandError, CorruptionError, StreamkeepError
from streamkeep.format.redis.resp import read_commands
from streamkeep.format.redis.stream_dump import Losses
from streamkeep.tools.base import output
from streamkeep.tools.base.command import Failure
from streamkeep.tools.base.interrupts import uninterrupted
from streamkeep.tools.transfer.resp_commands import run
from streamkeep.tools.transfer.resp_context import Context, Refusal
from streamkeep.tools.transfer.rows import DAMAGED

BATCH_COMMANDS: Final = 1000
BATCH_BYTES: Final = 4 << 20

PAYLOAD: Final = "payload"  # what an error names where RESTORE finds damage

Command = tuple[int, int, list[bytes]]  # its number, from 1 on, its offset, and its words


class CommandFailure(Exception):
    """A command that was not run: which, and why."""

    def __init__(self, command: Command, problem: str) -> None:
        self.number, offset, words = command
        self.name = words[0].decode("ascii", "backslashreplace")
        super().__init__(f"command {self.number} at byte {offset}, {self.name}: {problem}")


class OpenMulti(Exception):
    """The file ends between MULTI and EXEC."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the file ends in the transaction that MULTI, command {number}, begins")


class Replay:
    """Runs commands on a store, which is opened for the first of them.

    Attributes:
        done: commands that are committed or were passed over: those with numbers up to this.
    """

    def __init__(
        self,
        opened: Callable[[], Store[Any]],
        first: int,
        skipped: Iterable[str],
        moved: Callable[[int], None],
    ) -> None:
        """Run commands from number `first` on, but for those whose names are `skipped`."""
        self._opened = opened
        self._store: Store[Any] | None = None
        self._first = first
        self._skipped = frozenset(os.fsencode(name).upper() for name in skipped)
        self._moved = moved
        self._context = Context()
        self.done = 0

    @property
    def entries(self) -> int:
        """Entries that XADD has added."""
        return self._context.entries

    @property
    def losses(self) -> Losses:
        """What was passed over."""
        return self._context.losses

    def run(self, commands: Iterator[tuple[int, list[bytes]]]) -> None:
        """Run commands.

        Raises:
            CommandFailure: one is refused. All before it are done.
            CorruptionError: the bytes are no commands. All before them are done.
            OpenMulti: the last commands are a transaction without an end. All before it are done.
        """
        batch: list[Command] = []
        multi = 0  # the number of the MULTI that has no EXEC yet
        before = 0  # how many commands of the batch stand before it
        size = 0
        number = 0
        try:
            for number, (offset, words) in enumerate(commands, 1):
                name = words[0].upper()
                if number < self._first:
                    self.done = number
                    if name == b"SELECT":
                        self._context.database = words[-1]
                    continue
                if name == b"MULTI" and not multi:
                    multi, before = number, len(batch)
                elif name in (b"EXEC", b"DISCARD"):
                    if name == b"DISCARD" and multi:
                        batch[before:] = [(one, at, [b"PING"]) for one, at, _ in batch[before:]]
                    multi = 0
                batch.append((number, offset, words))
                size += sum(map(len, words))
                if not multi and (len(batch) >= BATCH_COMMANDS or size >= BATCH_BYTES):
                    self._run(batch)
                    batch, size = [], 0
        except CorruptionError:  # often the end of a file that was being written
            self._run(batch[:before] if multi else batch)
            raise
        self._run(batch[:before] if multi else batch)
        if multi:
            raise OpenMulti(multi)

    def _run(self, batch: list[Command]) -> None:
        """Run a batch; of one with a bad command, what stands before it is committed."""
        if not batch:
            return
        if self._store is None:
            self._store = self._opened()
        failure: CommandFailure | None
        try:
            failure = self._commit(batch)
        except _Broken as broken:
            self._commit(batch[: batch.index(broken.command)])
            failure = CommandFailure(broken.command, str(broken))
        self._moved(self.entries)
        if failure is not None:
            raise failure

    def _commit(self, batch: list[Command]) -> CommandFailure | None:
        """Run a batch up to the first bad command, in one transaction; return what was bad."""
        assert self._store is not None
        context = self._context
        failure = None
        done = self.done
        former = context.state()
        with uninterrupted():
            try:
                with self._store.transaction() as transaction:
                    context.store = transaction
                    for command in batch:
                        problem = self._problem(command)
                        if problem:
                            failure = CommandFailure(command, problem)
                            break
                        done = command[0]
            except BaseException:
                context.restore(former)
                raise
            self.done = done
        return failure

    def _problem(self, command: Command) -> str:
        """Run one command; return why it could not be run, or nothing."""
        words = command[2]
        if words[0].upper() in self._skipped:
            self._context.lose(words[0].upper())
            return ""
        try:
            run(self._context, words)
        except CommandError as error:
            return error.redis_error
        except Refusal as refusal:
            return str(refusal)
        except CorruptionError as error:
            if error.where != PAYLOAD:
                raise  # the store itself is damaged
            raise _Broken(command, str(error)) from error
        except (IndexError, TypeError, ValueError) as error:  # ArgumentError among them
            return CommandError(f"the arguments are not understood: {error}").redis_error
        return ""


class _Broken(Exception):
    """A RESTORE that failed when it had changed something."""

    def __init__(self, command: Command, problem: str) -> None:
        super().__init__(problem)
        self.command = command


# --- the command line ---------------------------------------------------------------------------


def load_commands(replay: Replay, stream: Any, name: str, *, as_json: bool) -> None:
    """Run the commands of a file; say what was done, however it ends."""
    began = time.perf_counter()
    try:
        replay.run(read_commands(lambda size: _read(stream, size, name), name))
    except (CommandFailure, OpenMulti, StreamkeepError, KeyboardInterrupt) as error:
        done = output.count_text(replay.done, "command")
        going_on = f"--from-line {replay.done + 1} goes on behind them"
        if isinstance(error, KeyboardInterrupt):
            output.note("")
            output.note(f"{name}: interrupted; the first {done} are done; {going_on}")
            raise
        if isinstance(error, CommandFailure):
            going_on += f"; --skip {error.name} passes over all commands of that name"
        elif isinstance(error, StreamkeepError) and not _is_of_file(error, name):
            output.note(f"{name}: the first {done} are done; {going_on}")
            raise
        text = str(error) if isinstance(error, CorruptionError) else f"{name}: {error}"
        raise Failure(f"{text}; the first {done} are done", hint=going_on) from error
    seconds = time.perf_counter() - began
    _report_commands(replay, name, seconds, replay.losses, as_json=as_json)


def _read(stream: Any, size: int, name: str) -> bytes:
    try:
        data: bytes = stream.read(size)
    except DAMAGED as error:
        raise CorruptionError(name, f"the gzip file is damaged or cut off: {error}") from error
    return data


def _is_of_file(error: StreamkeepError, name: str) -> bool:
    """Say whether an error is about the file that is loaded, not about the store."""
    return isinstance(error, CorruptionError) and error.where.startswith(name)


def _report_commands(
    replay: Replay, name: str, seconds: float, losses: Losses, *, as_json: bool
) -> None:
    if as_json:
        output.json_summary(
            "load",
            file=name,
            commands=replay.done,
            entries=replay.entries,
            no_place=dict(losses),
            duration_ms=round(seconds * 1000),
        )
        return
    rate = f"{replay.entries / max(seconds, 1e-9):,.0f} entries/s"
    output.note(
        f"{name}: {output.count_text(replay.done, 'command')}, "
        f"{output.entries_text(replay.entries)} in {output.span_text(seconds)} ({rate})"
    )
    output.note_losses(losses)
