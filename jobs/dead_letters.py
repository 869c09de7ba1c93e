"""Dead letters, and other work of an operator: jobs that run now, and jobs that are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.format.core.errors import ArgumentError
from streamkeep.jobs import admission, cancelling
from streamkeep.jobs.admission import next_waiting
from streamkeep.jobs.base import QueueBase
from streamkeep.jobs.codecs import JSON
from streamkeep.jobs.ending import CANCELLED, Stored, forget, put_result
from streamkeep.jobs.layout import (
    DELAYED,
    EXPIRES,
    GROUP,
    ID,
    NUMBERED,
    PARKED,
    PLACE,
    PLACE_SIZE,
    PRIORITIES,
    RETRY,
    SCHEDULE,
    TASK,
    Fields,
    Names,
    due_key,
    pack_time,
    place_of,
    short,
    unpack_place,
    unpack_time,
)
from streamkeep.jobs.policy import DEFAULT_RESULT_TTL_MS
from streamkeep.jobs.state import JOB_PREFIX, Step, find_place, job_id_of, number_in
from streamkeep.jobs.strays import retries

Result = TypeVar("Result")

_AT_ONCE: Final = 100  # in one transaction
_TRIES: Final = 10  # to find a job that runs again and again in the meantime
_CONSUMER: Final = b"(purge)"
_OF_LETTERS: Final = frozenset(
    (
        b"job",
        b"from",
        b"reason",
        b"error",
        b"message",
        b"traceback",
        b"attempts",
        b"deaths",
        b"queued",
        b"failed",
    )
)


class Letter(NamedTuple):
    """A dead letter.

    Attributes:
        id: of its entry in `NAME:dead`.
        job: the ID that the job had.
        error, message, traceback: what its last attempt raised; empty if nothing was raised.
        deaths: how many workers died with it.
        queued_ms, failed_ms: when it was put and when it became a dead letter, Unix milliseconds.
        fields: all fields of the entry.
    """

    id: str
    job: str
    task: str
    reason: str
    error: str
    message: str
    traceback: str
    attempts: int
    deaths: int
    queued_ms: int
    failed_ms: int
    fields: Fields


Wanted = Callable[[Letter], bool]


def letter_of(entry_id: bytes, fields: Fields) -> Letter:
    """Return a dead letter of its entry; what is missing is empty or 0."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int:
        value = fields.get(name, b"")
        return int(value) if value.isdigit() else 0

    return Letter(
        entry_id.decode(),
        text(b"job"),
        text(TASK),
        text(b"reason"),
        text(b"error"),
        text(b"message"),
        text(b"traceback"),
        number(b"attempts"),
        number(b"deaths"),
        number(b"queued"),
        number(b"failed"),
        fields,
    )


class LetterMethods(QueueBase):
    """Dead letters; a base of `Queue`."""

    def dead_letters(
        self, *, count: int | None = None, reason: str | None = None, task: str | None = None
    ) -> list[Letter]:
        """Return dead letters, the oldest first.

        Args:
            count: how many at most.
            reason: only those with this text in their reason, error or message.
            task: only those of this task.
        """
        found: list[Letter] = []

        def look(snapshot: Snapshot[Any]) -> list[Letter]:
            for letter in _letters(snapshot, self.core.names.dead):
                if _matches(letter, reason, task):
                    found.append(letter)
                    if count is not None and len(found) >= count:
                        break
            return found

        return self.core.read(look)

    def requeue(
        self, *letters: str | Letter, reason: str | None = None, task: str | None = None
    ) -> int:
        """Put dead letters into the queue again, as new jobs; return how many.

        Each letter leaves `NAME:dead` in the transaction that puts its job. One whose unique name
        is taken by another job stays.

        Args:
            letters: or their IDs, or the IDs of their jobs; none for all that match the others.
            reason, task: as in `dead_letters`.

        Raises:
            ArgumentError: a text names two letters: it is the ID of one, and of another one's job.
                Nothing was changed.
        """
        return self._each(letters, reason, task, _requeue)

    def drop_dead(
        self, *letters: str | Letter, reason: str | None = None, task: str | None = None
    ) -> int:
        """Remove dead letters for good; return how many. The arguments are those of `requeue`."""
        return self._each(letters, reason, task, _drop)

    def _each(
        self,
        letters: tuple[str | Letter, ...],
        reason: str | None,
        task: str | None,
        change: Callable[[Step, Letter], bool],
    ) -> int:
        """Change the letters that match, in transactions of a bounded size."""
        chosen = self.core.read(lambda one: _chosen(one, self.core.names, letters, reason, task))
        changed = 0
        for start in range(0, len(chosen), _AT_ONCE):
            some = chosen[start : start + _AT_ONCE]
            changed += self.core.step(partial(_change, letters=some, change=change), frees=True)
        return changed

    # --- now, and never -------------------------------------------------------------------------

    def run_now(self, job_id: str) -> bool:
        """Let a job start that waits for its time or its retry; return False if it does not."""

        def hurry(step: Step) -> bool | None:
            found = cancelling.find(step.txn, step.names, job_id)
            if found.state == cancelling.DELAYED_STATE:
                reference = pack_time(number_in(job_id))
                step.unschedule(due_key(found.due_ms, DELAYED, reference))
                step.schedule(step.now_ms, DELAYED, reference)
                where = PLACE + short(job_id.encode())
                step.txn.row_put(step.space, where, b"s" + pack_time(step.now_ms))
                return True
            if found.state != cancelling.RETRYING or found.place is None:
                return False
            if key is None or step.row(key) is None:
                return None  # it has run again since
            if key.startswith(SCHEDULE):
                step.unschedule(key)
                step.schedule(step.now_ms, RETRY, found.place.pack())
            return True

        for _ in range(_TRIES):
            # The schedule is long, and has no index by jobs. Writers need not wait for this look.
            key = self._outside(lambda one: _retry_row(one, self.core.names, job_id))
            if (hurried := self.core.step(hurry)) is not None:
                return hurried
        return False

    def _outside(self, look: Callable[[Snapshot[Any] | Transaction[Any]], Result]) -> Result:
        """Look at a snapshot, or at the transaction that this thread has open."""
        if self.core.store.open_transaction() is None:
            return self.core.read(look)
        return self.core.step(lambda step: look(step.txn))

    def purge(self) -> int:
        """Remove every job that has not started, as `cancel` does; return how many.

        Jobs that run, that wait for a retry, and dead letters stay. It runs in transactions of a
        bounded size, so jobs that are put in the meantime may stay.
        """
        removed = 0
        for some in (_purge_waiting, _purge_numbered):
            while count := self.core.step(some, frees=True):
                removed += count
        parked = self._outside(lambda one: _parked(one, self.core.names))
        for start in range(0, len(parked), _AT_ONCE):
            some_ids = parked[start : start + _AT_ONCE]
            removed += self.core.step(partial(_cancel_all, job_ids=some_ids), frees=True)
        return removed


def _letters(snapshot: Snapshot[Any], name: bytes) -> Iterator[Letter]:
    for entry in snapshot.scan(name):
        yield letter_of(entry.id, entry.fields)


def _chosen(
    snapshot: Snapshot[Any],
    names: Names,
    named: tuple[str | Letter, ...],
    reason: str | None,
    task: str | None,
) -> list[Letter]:
    """Return the letters that match; of many large ones, only these are kept in memory."""
    found = (one for one in _letters(snapshot, names.dead) if _matches(one, reason, task))
    if not named:
        return list(found)
    texts = {one.id if isinstance(one, Letter) else one for one in named}
    kept = [one for one in found if one.id in texts or one.job in texts]
    wanted = _ids(named, kept)
    return [one for one in kept if one.id in wanted]


def _matches(letter: Letter, reason: str | None, task: str | None) -> bool:
    if task is not None and letter.task != task:
        return False
    texts = (letter.reason, letter.error, letter.message)
    return reason is None or any(reason in text for text in texts)


def _ids(named: tuple[str | Letter, ...], letters: list[Letter]) -> set[str]:
    """Return the IDs of the letters that are named, by one of their IDs or as they are.

    Both IDs are those of entries, of two streams, so one millisecond may give one ID to both.
    """
    by_name: dict[str, Letter] = {one.id: one for one in letters}
    for letter in letters:
        other = by_name.setdefault(letter.job, letter)
        if other is not letter and letter.job in named:
            raise ArgumentError(
                f"{letter.job!r} is the ID of a dead letter, and of the job of another one; next: "
                f"name the first by its job, {other.job!r}, or the other by its own ID, "
                f"{letter.id!r}"
            )
    ids = {one.id for one in named if isinstance(one, Letter)}
    return ids.union(by_name[one].id for one in named if isinstance(one, str) and one in by_name)


def _change(step: Step, letters: list[Letter], change: Callable[[Step, Letter], bool]) -> int:
    return sum(change(step, one) for one in letters)


def _is_there(step: Step, letter: Letter) -> bool:
    """Return whether it is still there; another call may have removed it."""
    return bool(step.txn.xrange(step.names.dead, letter.id, letter.id, 1))


def _requeue(step: Step, letter: Letter) -> bool:
    if not _is_there(step, letter):
        return False
    fields = {name: value for name, value in letter.fields.items() if name not in _OF_LETTERS}
    fields.pop(ID, None)  # it is a new job
    fields.pop(EXPIRES, None)
    came_from = letter.fields.get(b"from", b"normal").decode()
    priority = PRIORITIES.index(came_from) if came_from in PRIORITIES else admission.NORMAL_NUMBER
    if not admission.put(step, fields, priority, 0, always=True).is_new:
        return False
    return _drop(step, letter)


def _drop(step: Step, letter: Letter) -> bool:
    return bool(step.txn.xdel(step.names.dead, letter.id))


def _purge_waiting(step: Step) -> int:
    """Remove jobs that wait in the streams."""
    removed = 0
    for priority in step.settings.streams:
        if next_waiting(step, priority) is None:
            continue
        name = step.stream(priority)
        # Delivered first, so that the counters of the group stay exact.
        for _, entries in step.txn.xreadgroup(GROUP, _CONSUMER, {name: ">"}, count=_AT_ONCE):
            for entry in entries:
                place = place_of(priority, bytes(entry.id))
                step.txn.xackdel(name, GROUP, place.entry_id, ref_policy="ACKED")
                forget(step, place, entry.fields, 1)
                _note_cancelled(step, job_id_of(place, entry.fields))
                removed += 1
    return removed


def _purge_numbered(step: Step) -> int:
    """Remove jobs that are delayed or held, and those that have just come into a stream."""
    removed = _purge_waiting(step)
    numbered = step.rows(NUMBERED, NUMBERED + b"\xff" * 8, _AT_ONCE)
    ids = [f"{JOB_PREFIX}{unpack_time(key[1:])}" for key, _ in numbered]
    return removed + _cancel_all(step, ids)


def _cancel_all(step: Step, job_ids: list[str]) -> int:
    return sum(cancelling.cancel(step, one) for one in job_ids)


def _parked(reader: Snapshot[Any] | Transaction[Any], names: Names) -> list[str]:
    """Return the IDs of the jobs whose task no worker has known that took them."""
    found: list[str] = []
    for key, _ in reader.row_range(names.space, PARKED, PARKED + b"\xff" * 130):
        place = unpack_place(key[-PLACE_SIZE:])
        entries = reader.xrange(names.streams[place.priority], place.entry_id, place.entry_id, 1)
        found += [job_id_of(place, one.fields) for one in entries]
    return found


def _retry_row(reader: Snapshot[Any] | Transaction[Any], names: Names, job_id: str) -> bytes | None:
    """Return the key of the row that says when a job is retried; None if it is not."""
    found = find_place(reader, names, job_id)
    if found is None:
        return None
    return next((key for key, place in retries(reader, names.space) if place == found[0]), None)


def _note_cancelled(step: Step, job_id: str) -> None:
    step.counters.cancelled += 1
    until = step.now_ms + DEFAULT_RESULT_TTL_MS
    put_result(step, job_id, Stored(until, CANCELLED, JSON, b"null"))
    step.txn.wake(step.names.result_bell(job_id))
