"""Commands queued and run together, with the interface of redis-py's pipeline."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from streamkeep.engine.api.command_base import Result
from streamkeep.engine.api.pipeline_commands import PipelineCommands
from streamkeep.engine.commands.history import Unreadable
from streamkeep.engine.store.command import Command, Write
from streamkeep.format.core.errors import ArgumentError, CommandError

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.txn.txn import WriteTxn


class Pipeline(PipelineCommands):
    """Queues commands; `execute` runs them in one transaction and returns their results.

    Each command method returns the pipeline. As in Redis, a command that breaks a rule does not
    undo the others; unlike in Redis, a crash never leaves half of them, with any `transaction`.
    Results become text when all of it is committed, as with redis-py. If one is not UTF-8,
    the result of its command is that error.
    """

    _late_text = True

    def __init__(self, store: Store[bytes] | Store[str], transaction: bool, decode: bool) -> None:
        self._store = store
        self._set_decode(decode)
        self._steps: list[Command[object]] = []
        self.transaction = transaction

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.reset()

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        """An empty pipeline is true, too."""
        return True

    def reset(self) -> None:
        """Forget the queued commands."""
        self._steps = []

    def multi(self) -> None:
        """Do nothing; every pipeline is a transaction."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run the queued commands in order, in one transaction; empty the queue.

        Args:
            raise_on_error: after all commands have run and were committed, raise the first error.
                Otherwise the list of results has the errors.
        """
        commands = self._take()
        if not commands:
            return []
        return results_of(commands, self._store._run(run_together(commands)), raise_on_error)

    def _take(self) -> list[Command[object]]:
        steps, self._steps = self._steps, []
        return steps

    def _run(self, command: Command[Result]) -> Any:
        self._steps.append(command)
        return self

    def _reading(self) -> NoReturn:
        raise ArgumentError("iterators cannot be queued; use the store or a transaction")


def run_together(commands: list[Command[object]]) -> Command[list[object]]:
    """Return a command that runs others; its reply has replies and errors."""
    command: Command[list[object]] = Write(_run_all, (commands,))
    command.frees = all(one.frees for one in commands)
    command.leaves_garbage = any(one.leaves_garbage for one in commands)
    return command


def _run_all(txn: WriteTxn, commands: list[Command[object]]) -> list[object]:
    results: list[object] = []
    for command in commands:
        try:
            results.append(command.run(txn, *command.args))
        except CommandError as error:
            results.append(error)
        except Unreadable as gone:  # no newer manifest can exist: this transaction has the lock
            raise gone.error from None
    return results


def results_of(
    commands: list[Command[object]], replies: list[object], raise_on_error: bool
) -> list[Any]:
    """Return the result of each command, or its error; all of them are committed."""
    results: list[Any] = []
    for number, (command, reply) in enumerate(zip(commands, replies, strict=True), start=1):
        error: Exception | None = None
        if isinstance(reply, CommandError):
            error = reply
        else:
            try:
                reply = command.result(reply)
            except UnicodeDecodeError as failure:
                error = failure
        if error is not None and raise_on_error:
            error.add_note(f"command {number} of {len(commands)} in the pipeline")
            raise error
        results.append(reply if error is None else error)
    return results
