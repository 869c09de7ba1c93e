"""The end of the interpreter: what is done for a store that the program has not closed.

The newest commit is then a checkpoint, so that the next opening recovers nothing. The store is
closed as well, unless a thread of the program still uses it: such a thread runs until the
interpreter ends it.

This is a function of `atexit`, which calls the functions that were registered last first. So one
that the program has registered before it imported the package finds its stores closed. There is no
later moment: threads can no longer be started then, and the interpreter ends those that run.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment

_PATIENCE_S: Final = 1.0


def end_with_interpreter(environment: Environment) -> None:
    """Make a checkpoint of an open store, and close it if no thread uses it."""
    context = environment.context
    lock = environment.checkpoint_file
    if lock is not None and lock.is_removed():
        return  # a temporary folder that the program has removed: nothing is left to save
    if not environment.readonly:
        if not context.write_lock.acquire(timeout=_PATIENCE_S):
            return  # a thread is in a transaction
        context.write_lock.release()
        if context.pin is not None:
            environment.make_checkpoint()
    if _is_unused(environment):
        environment.users = 1
        environment.release()


def _is_unused(environment: Environment) -> bool:
    """Return whether no thread of the program may use the store."""
    others = [one for one in threading.enumerate() if not one.name.startswith("streamkeep")]
    context = environment.context
    if others != [threading.current_thread()] or context.entered != context.left:
        return False
    if not environment.archive_work.acquire(wait=False):
        return False
    environment.archive_work.release()
    return True
