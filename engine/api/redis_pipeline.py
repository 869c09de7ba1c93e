"""Commands queued and run together, with the interface of redis-py's pipeline."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamkeep.engine.api.stream_commands import StreamCommands
from streamkeep.format.core.errors import ArgumentError, CommandError

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store
    from streamkeep.engine.txn.txn import ReadTxn, WriteTxn

_Step = tuple[Callable[[Any], Any] | None, Callable[..., Any], tuple[Any, ...]]
Outcome = tuple[Any, Exception | None]


class Pipeline(StreamCommands[Any]):
    """Queues commands; `execute` runs them in one transaction and returns their results.

    Each command method returns the pipeline, whatever its annotation says. As in Redis, a command
    that breaks a rule does not undo the others; unlike Redis, a crash never leaves half of them,
    whatever `transaction` says. Results become text when all of it is committed, as with redis-py:
    one that is not UTF-8 is that result's error.
    """

    _late_text = True

    def __init__(self, store: Store[Any], transaction: bool, decode: bool) -> None:
        self._store = store
        self._set_decode(decode)
        self._steps: list[_Step] = []
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
        """An empty pipeline is still one."""
        return True

    def reset(self) -> None:
        """Forget the queued commands."""
        self._steps = []

    def multi(self) -> None:
        """Begin a transaction; every pipeline is one already."""

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run the queued commands in order, in one transaction; empty the queue.

        Args:
            raise_on_error: raise the first command's error after all have run and were committed;
                otherwise errors stand among the results.
        """
        return self._run(self._take(), raise_on_error)

    def _take(self) -> list[_Step]:
        """Return the queued commands, and forget them."""
        steps, self._steps = self._steps, []
        return steps

    def _run(self, steps: list[_Step], raise_on_error: bool) -> list[Any]:
        if not steps:
            return []
        outcomes = convert_all(steps, self._store._run_steps(run_all, steps))
        if raise_on_error:
            for number, (_, error) in enumerate(outcomes, start=1):
                if error is not None:
                    error.add_note(f"command {number} of {len(outcomes)} in the pipeline")
                    raise error
        return [result if error is None else error for result, error in outcomes]

    def _read(
        self, convert: Callable[[Any], Any] | None, command: Callable[..., Any], *args: Any
    ) -> Any:
        self._steps.append((convert, command, args))
        return self

    _write = _read

    def _begin_scan(self) -> tuple[ReadTxn, bool]:
        raise ArgumentError("iterators cannot be queued; use the store or a transaction")


def run_all(txn: WriteTxn, steps: list[_Step]) -> list[Any]:
    """Run commands in a transaction; return their results, and errors of those that failed."""
    results: list[Any] = []
    for _, command, args in steps:
        try:
            results.append(command(txn, *args))
        except CommandError as error:
            results.append(error)
    return results


def convert_all(steps: list[_Step], results: list[Any]) -> list[Outcome]:
    """Return for each step what its caller gets, or the error; the commands are committed."""
    outcomes: list[Outcome] = []
    for (convert, _, _), result in zip(steps, results, strict=True):
        if isinstance(result, CommandError):
            outcomes.append((None, result))
            continue
        try:
            outcomes.append((result if convert is None else convert(result), None))
        except UnicodeDecodeError as error:
            outcomes.append((None, error))
    return outcomes
