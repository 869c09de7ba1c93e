"""Running a shipper: once, beside a program, or not any more."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from streamkeep.engine.api.store import Store
from streamkeep.engine.journal.slots import slot_name
from streamkeep.engine.system.files import path_of
from streamkeep.engine.system.progress import StepProgress
from streamkeep.format.core.durations import Duration
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.recovery.copies.shipper import HOLD_BYTES, Shipper, ShipReport
from streamkeep.recovery.copies.target import Place

log = logging.getLogger("streamkeep")


def ship(
    store: Store[Any] | str | os.PathLike[str],
    target: Place,
    *,
    keep: Duration | None = None,
    hold_bytes: int = HOLD_BYTES,
    take_over: bool = False,
    renew: bool = False,
    progress: StepProgress | None = None,
) -> ShipReport:
    """Bring the copy of a store at `target` up to the newest commit; make it if there is none.

    On return, everything that was committed before the call is at the target. `Shipper.run` goes
    on until it is stopped.

    Args:
        store: an open store, or the path of one.
        target: a folder, or the URI of a folder in a bucket.
        keep: for how long a restore can go back to any moment; by default for as long as the last
            shipper said, or seven days.
        hold_bytes: of the journal, which the store keeps for the next time, at most.
        take_over: also if the copy follows another store of the same identity now, or is gone.
        renew: make the copy anew; when it is complete, all that it had before is removed, and
            `keep` begins again.

    Raises:
        CorruptionError: a new generation is due, and a row of the store is damaged.
        StoreError: the target has the copy of another store, or this store does not know how the
            copy goes on; see `take_over`.
        StoreLockedError: another process or thread ships the store there.
        UnreachableError: the target does not answer.
    """
    with nullcontext(store) if isinstance(store, Store) else opened_for(store) as opened:
        shipper = Shipper(
            opened,
            target,
            keep=keep,
            hold_bytes=hold_bytes,
            take_over=take_over,
            renew=renew,
            progress=progress,
        )
        return shipper.run(once=True)


def forget(store: str | os.PathLike[str], target: Place) -> bool:
    """Hold nothing more of a store's journal for a target; return whether it held something.

    The target keeps its copy. To ship there again, a store needs `take_over`.

    Raises:
        StoreLockedError: another process ships the store there, and would go on.
    """
    with opened_for(store) as opened:
        shipper = Shipper(opened, target)
        with closing(shipper.notes.hold(shipper.environment.path, "end that one first")):
            return shipper.folder.remove(slot_name(shipper.target.uri))


def opened_for(path: str | os.PathLike[str]) -> Store[bytes]:
    """Open a store that exists, for a shipper."""
    return Store(path_of(path, "store"), create=False, sync="none", lease=False)


@contextmanager
def shipping(store: Store[Any], target: Place) -> Iterator[None]:
    """Ship a store in a thread while the block runs.

    What ends shipping for good is logged as an error: the program itself goes on.
    """
    shipper = Shipper(store, target)

    def run() -> None:
        try:
            shipper.run()
        except StreamkeepError as error:
            log.error("%s: not shipped any more: %s", store.path, error)

    thread = threading.Thread(target=run, name="streamkeep-ship")
    thread.start()
    try:
        yield
    finally:
        shipper.stop.set()
        thread.join()
