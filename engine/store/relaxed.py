"""Writes that do not wait for the disk, on a short way: most commits need nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import lmdb

from streamkeep.engine.checkpoint.checkpointer import BUDGET_BYTES
from streamkeep.engine.system.lmdb_errors import translate
from streamkeep.engine.txn.begin import CheckpointNeeded, run_write
from streamkeep.format.core.errors import StoreFullError

if TYPE_CHECKING:
    from streamkeep.engine.store.command import Command
    from streamkeep.engine.store.environment import Environment

Result = TypeVar("Result")


def write_relaxed(environment: Environment, command: Command[Result]) -> Result:
    """Run a command that writes, and return its result without waiting for the disk.

    If anything must be repaired first, nothing has happened, and the command runs again
    (`Environment.write_alone`). There is nothing to share with other callers but the write lock.
    """
    context = environment.context
    if environment.max_store_bytes is None:
        try:
            reply = run_write(context, command.run, command.args, False)
        except (CheckpointNeeded, lmdb.MapFullError, lmdb.MapResizedError):
            pass
        except (StoreFullError, lmdb.Error) as error:
            told = translate(error) if isinstance(error, lmdb.Error) else error
            if not (command.frees and isinstance(told, StoreFullError)):
                raise told from error.__cause__ if told is error else error
        else:
            if (
                not context.watched
                or context.bytes_since_checkpoint >= BUDGET_BYTES
                or context.retired_bytes
            ):
                environment.notice()
                environment.settle()
            shape = command.shape
            return cast(Result, reply) if shape is None else shape(reply)
    reply = environment.write_alone(command.run, command.args, False, command.frees)
    environment.settle()
    return command.result(reply)
