"""The sweep: expired messages of idempotent XADD are forgotten even if no XADD follows.

Redis does this in its background task; here the checkpointer thread does it, about once a second,
for the streams that `MessagesDue` names. While nothing is due, that costs one comparison. Each
transaction handles a bounded number of producers and messages, and a round takes a bounded time.

`MessagesDue` is in memory only. So the thread also searches for streams with messages after the
store is opened, and every ten minutes while it is awake, in case another process ended before it
could sweep. A round searches a bounded number of streams, and none if the store remembers no
message.
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
    from streamkeep.engine.txn.read_txn import Txn
    from streamkeep.engine.txn.txn import WriteTxn

ROUND_S: Final = 0.05  # a round begins no transaction after this time
PRODUCERS_AT_ONCE: Final = 200
_MESSAGES_AT_ONCE: Final = 500
_STREAMS_AT_ONCE: Final = 500
_SEARCH_EVERY_S: Final = 600.0
_RETRY_MS: Final = 60_000  # after a failure

# (the next producer to check, the lowest time of a message so far or -1)
SweepPlace = tuple[int, int]
BEGIN: Final = (0, -1)


class Sweep:
    """The chore that the checkpointer thread runs about once a second."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._places: dict[bytes, SweepPlace] = {}  # where to continue in unfinished streams
        self._search_at: bytes | None = b""  # the row of `keys` to continue from; None when done
        self._searched = time.monotonic()

    def __call__(self) -> None:
        """Forget the messages that have expired."""
        environment = self._environment
        context = environment.context
        began = time.monotonic()
        self._search(began)
        now_ms = context.clock.now_ms()
        for name in context.messages_due.due(now_ms):
            place = self._places.pop(name, BEGIN)
            try:
                _, following = environment.write(sweep_step, name, place, frees=True)
            except Exception as error:
                context.messages_due.note(name, now_ms + _RETRY_MS)
                if isinstance(error, StoreFullError):
                    return  # not worth a message: it is tried again when there is room
                raise
            if following is not None:
                self._places[name] = following
            if time.monotonic() - began > ROUND_S:
                return

    def pause_s(self) -> float | None:
        """Return the time until something is due; None if nothing is."""
        if self._search_at is not None:
            return 1.0
        context = self._environment.context
        if not context.messages_due.due(1 << 63):
            return None
        return max(1.0, (context.messages_due.next_ms - context.clock.now_ms()) / 1000)

    def _search(self, now: float) -> None:
        """Register streams with messages, a few at a time."""
        if self._search_at is None and now - self._searched >= _SEARCH_EVERY_S:
            self._search_at, self._searched = b"", now
        if self._search_at is not None:
            found, self._search_at = self._environment.read(_streams_with_messages, self._search_at)
            for name in found:
                self._environment.context.messages_due.note(name, 0)


def _streams_with_messages(txn: Txn, start: bytes) -> tuple[list[bytes], bytes | None]:
    """Return some streams that remember messages, and where to continue; None at the end."""
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
    """Return whether idempotent XADD remembers messages of a stream."""
    extension = txn.load_numbered(number, name).record.extension
    return bool(extension) and idempotence_of(extension, f"stream {number}").tracked > 0


def sweep_step(txn: WriteTxn, name: bytes, place: SweepPlace) -> tuple[int, SweepPlace | None]:
    """Forget some of the expired messages of a stream.

    Returns:
        The number of forgotten messages, and where to continue; None if the stream is done.
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
