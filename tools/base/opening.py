"""Opening the store of a command, asking before something is lost, and ending at a signal."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from streamkeep.tools.base import common, output
from streamkeep.tools.base.common import Failure, given
from streamkeep.tools.base.terminal import visible

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store


OPENED: Final = "streamkeep.opened"  # by path: what to do where the store is missing


def check_secret(path: Path) -> None:
    """Say if other users can read a file with a password; raise Failure if they can change it."""
    mode = path.stat().st_mode
    hint = f"chmod 600 {shlex.quote(str(path))}"
    if mode & 0o022:
        raise Failure(f"{path}: other users can change it", hint=hint)
    if mode & 0o044:  # as the secrets of containers, where there are no other users
        output.note(f"{path}: other users of this machine can read it; next: {hint}")


@contextmanager
def open_store(
    path: Path, *, readonly: bool = False, create: bool = False, hint: str = ""
) -> Iterator[Store]:
    """Open the store at `path`, and close it.

    A process that is about to end syncs what `interval` would have synced later. A store that was
    created here is removed when the block fails and has put nothing in.

    Args:
        hint: what to do where there is no store; else it is how a store comes to be.
    """
    from streamkeep.transfer.stores import opened  # here, since it loads the engine

    note_opened(path, hint)
    with opened(path, sync=given().sync, readonly=readonly, create=create) as store:
        yield store


def note_opened(path: Path, hint: str = "") -> None:
    """Note that the running command opens a store, for hints that name one."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None:
        ctx.meta.setdefault(OPENED, {})[path] = hint


def confirm_loss(losses: list[str], question: str, *, yes: bool) -> None:
    """Name what is about to be lost and ask; go on only when the answer is yes.

    With --json nothing is asked: a program says --yes, or gets an error that names the losses.
    """
    if common.as_json():
        if not yes:
            raise Failure(f"this would be lost: {'; '.join(losses)}", hint="--yes confirms that")
        return
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


def on_signals(stop: Callable[[], object]) -> None:
    """Call a function at SIGTERM and at Ctrl-C."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, frame: stop())
