"""Commands into a store: those that a dump writes, and those of Redis's append-only files.

Commands are run in their order, in batches of one transaction each; `any_key` says what each does,
and which are skipped and counted. The commands between MULTI and EXEC are one transaction. Where
the file ends before EXEC none of them is run, as a server does. A command that is refused ends the
run: all commands before it are applied, and a later run can begin at any command.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from streamkeep.format.core.errors import CommandError, CorruptionError
from streamkeep.format.redis.resp import read_commands
from streamkeep.format.redis.stream_dump import Losses
from streamkeep.transfer.aof.any_key import run
from streamkeep.transfer.aof.context import Context, Refusal
from streamkeep.transfer.loading.interrupts import uninterrupted
from streamkeep.transfer.loading.source_file import DAMAGED
from streamkeep.transfer.stores import Target

BATCH_COMMANDS: Final = 1000
BATCH_BYTES: Final = 4 << 20

PAYLOAD: Final = "payload"  # the place that an error names where RESTORE finds damage

Command = tuple[int, int, list[bytes]]  # its number, from 1 on, its offset, and its words


class CommandFailure(Exception):
    """A command that was not run: which one, and why."""

    def __init__(self, command: Command, problem: str) -> None:
        self.number, offset, words = command
        self.name = words[0].decode("ascii", "backslashreplace")
        super().__init__(f"command {self.number} at byte {offset}, {self.name}: {problem}")


class OpenMulti(Exception):
    """The file ends between MULTI and EXEC."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the file ends in the transaction that MULTI, command {number}, begins")
        self.number = number


class Replay:
    """Runs commands on a store, which is opened for the first of them.

    Attributes:
        done: the number of the last command that was applied or skipped.
    """

    def __init__(
        self,
        target: Target,
        first: int,
        skipped: Iterable[str],
        moved: Callable[[int], None],
    ) -> None:
        """Run commands from number `first` on, except those whose names are in `skipped`."""
        self._target = target
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
        """The commands that were skipped, by their names."""
        return self._context.losses

    def run(self, commands: Iterator[tuple[int, list[bytes]]]) -> None:
        """Run commands.

        Raises:
            CommandFailure: one is refused. All before it are applied.
            CorruptionError: the bytes are not commands. All before them are applied.
            OpenMulti: the last commands are a transaction without an end. All before it are
                applied.
        """
        batch: list[Command] = []
        multi = 0  # the number of the MULTI that has no EXEC yet
        before = 0  # how many commands of the batch come before it
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
        """Run a batch; of one with a bad command, the commands before it are committed."""
        if not batch:
            return
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
        """Run a batch up to the first bad command, in one transaction; return its failure."""
        store = self._target.store()
        context = self._context
        failure = None
        done = self.done
        former = context.state()
        with uninterrupted():
            try:
                with store.transaction(self._target.sync) as transaction:
                    transaction._set_decode(False)  # keys and fields may be any bytes
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
    """A RESTORE that failed after it had changed something."""

    def __init__(self, command: Command, problem: str) -> None:
        super().__init__(problem)
        self.command = command


def read_stream(stream: Any, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the offset and the words of each command of a file; raise CorruptionError."""

    def read(size: int) -> bytes:
        try:
            data: bytes = stream.read(size)
        except DAMAGED as error:
            raise CorruptionError(name, f"the gzip file is damaged or cut off: {error}") from error
        return data

    return read_commands(read, name)
