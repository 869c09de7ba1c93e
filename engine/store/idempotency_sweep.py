"""The sweep: expired messages of idempotent XADD are forgotten though no XADD comes.

Redis does so in its background task. Here the checkpointer thread does, about once a second, for
the streams that `MessagesDue` names; that costs one comparison while nothing is due. Each
transaction looks at a bounded number of producers and messages, and a round takes a bounded time.

Notes are in memory. So the thread also looks for streams with messages when the store is opened,
and every ten minutes while it is awake, in case another process ended before it could sweep: a
bounded number of streams per round, and none while the store remembers no message at all.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from streamkeep.engine.commands.idempotency import Tracker
from streamkeep.format.core.checksum import open_row
from streamkeep.format.core.errors import StoreFullError
from streamkeep.format.core.keys import IDEMPOTENCY_ORDER, KEYS
from streamkeep.format.rows.extension import idempotence_of
from streamkeep.format.rows.records import decode_key_row

if TYPE_CHECKING:
    from streamkeep.engine.store.environment import Environment
    from streamkeep.engine.txn.txn import Txn, WriteTxn

ROUND_S: Final = 0.05  # what a round takes at most, and one transaction more
PRODUCERS_AT_ONCE: Final = 200
_MESSAGES_AT_ONCE: Final = 500
_STREAMS_AT_ONCE: Final = 500
_LOOK_EVERY_S: Final = 600.0
_AGAIN_MS: Final = 60_000  # after a failure

SweepPlace = tuple[
    int, int
]  # the next producer to look at; the lowest time seen of a message, or -1
BEGIN: Final = (0, -1)


class Sweep:
    """What the checkpointer thread calls about once a second."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._places: dict[bytes, SweepPlace] = {}  # of streams that are not done
        self._looking: bytes | None = b""  # the row of `keys` to go on from; None when done
        self._looked = time.monotonic()

    def __call__(self) -> None:
        """Forget what is due."""
        environment = self._environment
        context = environment.context
        began = time.monotonic()
        self._look(began)
        now_ms = context.clock.now_ms()
        for name in context.messages_due.due(now_ms):
            place = self._places.pop(name, BEGIN)
            try:
                _, following = environment.write(sweep_step, name, place, frees=True)
            except Exception as error:
                context.messages_due.note(name, now_ms + _AGAIN_MS)
                if isinstance(error, StoreFullError):
                    return  # there will be room; nobody needs to know
                raise
            if following is not None:
                self._places[name] = following
            if time.monotonic() - began > ROUND_S:
                return

    def pause_s(self) -> float | None:
        """Return after how long there is something to do; None when there is nothing."""
        if self._looking is not None:
            return 1.0
        context = self._environment.context
        if not context.messages_due.due(1 << 63):
            return None
        return max(1.0, (context.messages_due.next_ms - context.clock.now_ms()) / 1000)

    def _look(self, now: float) -> None:
        """Note streams with messages, a few at a time."""
        if self._looking is None and now - self._looked >= _LOOK_EVERY_S:
            self._looking, self._looked = b"", now
        if self._looking is not None:
            found, self._looking = self._environment.read(_streams_with_messages, self._looking)
            for name in found:
                self._environment.context.messages_due.note(name, 0)


def _streams_with_messages(txn: Txn, start: bytes) -> tuple[list[bytes], bytes | None]:
    """Return some streams that remember messages, and where to go on; None at the end."""
    if not txn.rows(IDEMPOTENCY_ORDER):
        return [], None
    found: list[bytes] = []
    cursor = txn.cursor(KEYS)
    more = cursor.set_range(start) if start else cursor.first()
    for _ in range(_STREAMS_AT_ONCE):
        if not more:
            return found, None
        number, name = decode_key_row(
            open_row(KEYS, cursor.key(), cursor.value(), "key row"), "key"
        )
        if has_messages(txn, name, number):
            found.append(name)
        more = cursor.next()
    return found, cursor.key() if more else None


def has_messages(txn: Txn, name: bytes, number: int) -> bool:
    """Say whether idempotent XADD remembers messages of a stream."""
    extension = txn.load_numbered(number, name).record.extension
    return bool(extension) and idempotence_of(extension, f"stream {number}").tracked > 0


def sweep_step(txn: WriteTxn, name: bytes, place: SweepPlace) -> tuple[int, SweepPlace | None]:
    """Forget some of the expired messages of a stream.

    Returns:
        how many there were, and where to go on; None when the stream is done.
    """
    due = txn.context.messages_due
    due.drop(name)
    stream = txn.find_stream(name)
    if stream is None:
        return 0, None
    tracker = Tracker(txn, stream)
    limit = txn.now_ms() - tracker.state.duration * 1000
    count, following, lowest = tracker.sweep(place[0], limit, PRODUCERS_AT_ONCE, _MESSAGES_AT_ONCE)
    if count:
        tracker.save()
    lowest = max(place[1], lowest) if -1 in (place[1], lowest) else min(place[1], lowest)
    if following >= 0:
        due.note(name, 0)
        return count, (following, lowest)
    if lowest >= 0:
        due.note(name, lowest + tracker.state.duration * 1000)
    return count, None
