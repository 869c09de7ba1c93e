"""A command with its arguments, as one value that any public class can run.

The kind says what the command needs: a snapshot or a write transaction, the reserve of a full
store, segments. It may run again if something had to be repaired first. Compiled by mypyc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import lmdb

from streamkeep.engine.blocking.calls import BlockingCall
from streamkeep.engine.commands.reply_budget import Found
from streamkeep.engine.txn.begin import CheckpointNeeded, run_read, run_write
from streamkeep.format.core.errors import StoreFullError

if TYPE_CHECKING:  # an interpreted module, which imports this one
    from streamkeep.engine.store.environment import Environment

Result = TypeVar("Result", covariant=True)


class Command(Generic[Result]):
    """A function of a transaction, its other arguments, and what makes the result of its reply.

    Without a `shape` the reply is the result.
    """

    writes = False
    frees = False  # it makes room, so that it may use the reserve of a full store
    leaves_garbage = False  # what it removes is freed afterwards, in bounded transactions
    reads_history = False  # it reads segments, which another process may remove at any time
    call: BlockingCall | None = None  # what `run` belongs to, if the command may wait
    block_ms = 0  # how long it may wait; 0 for no limit
    stop: Callable[[], bool] | None = None  # asked while it waits; True ends the wait

    def __init__(
        self,
        run: Callable[..., object],
        args: tuple[object, ...],
        shape: Callable[[Any], Result] | None = None,
    ) -> None:
        self.run = run
        self.args = args
        self.shape = shape

    def result(self, reply: object) -> Result:
        return cast(Result, reply) if self.shape is None else self.shape(reply)


class Read(Command[Result]):
    """A command that reads one snapshot."""


class ReadHistory(Read[Result]):
    """A command that also reads segments."""

    reads_history = True


class Write(Command[Result]):
    """A command that writes."""

    writes = True


class Free(Write[Result]):
    """A command that makes room."""

    frees = True


class Remove(Free[Result]):
    """A command that removes streams or groups; what they held is freed afterwards."""

    leaves_garbage = True


def attempt(call: BlockingCall) -> Command[Found]:
    """Return one attempt of a call that may wait, which returns at once."""
    command: Command[Found] = Command(call.run, ())
    command.writes = call.writes
    command.reads_history = call.reads_history
    return command


def wait(
    call: BlockingCall,
    block_ms: int,
    shape: Callable[[Found], Found] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Command[Found]:
    """Return a command that may wait until it has something to return."""
    command = attempt(call)
    command.shape = shape
    command.call = call
    command.block_ms = block_ms
    command.stop = stop
    return command


def write_once(
    environment: Environment,
    run: Callable[..., object],
    args: tuple[object, ...],
    frees: bool,
    durable: bool,
) -> object:
    """Run `run(txn, *args)` and commit; return its reply, without waiting for the disk.

    Most commands need nothing but this. If anything must be repaired first, nothing has happened,
    and `Environment.write` runs the command again.

    Args:
        frees: it makes room.
        durable: the caller waits for the disk later.
    """
    context = environment.context
    try:
        reply = run_write(context, run, args, False, durable, frees)
    except (CheckpointNeeded, StoreFullError, lmdb.Error):
        pass  # run again below, so that an error of that is not shown as a consequence of this one
    else:
        if not context.keeps_up():
            environment.notice()
        return reply
    return environment.write(run, *args, durable=durable, frees=frees)


def write_relaxed(environment: Environment, command: Command[object]) -> object:
    """Run a command that writes; return its reply, not waiting for the disk."""
    reply = write_once(environment, command.run, command.args, command.frees, False)
    context = environment.context
    if not context.keeps_up() or context.retired_bytes:
        environment.settle()
    return reply


def read_once(environment: Environment, command: Command[object]) -> object:
    """Run a command on a snapshot; return its reply.

    What must be repaired first is left to `Environment.read`. Its two interpreted calls are a tenth
    of an `xlen`.
    """
    try:
        return run_read(environment.context, command.run, command.args)
    except (CheckpointNeeded, lmdb.Error):
        pass  # as above
    return environment.read(command.run, *command.args)
