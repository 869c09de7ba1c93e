"""The result backend: results, groups and the counters of chords as values that expire.

Callers that wait for a result sleep until it is stored; there is no polling. A task that runs
twice, because its worker died, counts once for its chord.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, TypeVar

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.utils.encoding import bytes_to_str

from streamkeep.engine.api.views import Snapshot, Transaction
from streamkeep.format.core.errors import RecoveryNeededError, StoreFullError
from streamkeep.integrations.address import parse_address
from streamkeep.integrations.celery.stores import shared
from streamkeep.integrations.values import MAX_TTL_MS, OpenedStore, Values
from streamkeep.jobs.handler_errors import FOR_GOOD

Result = TypeVar("Result")

_SPACE: Final = "celery:results"
_MOST_BELLS: Final = 200  # of results that one call waits for at a time
_LOOK_S: Final = 0.5  # after which it looks for those of all others
_LONGEST_WAIT_S: Final = 3600.0


class StreamkeepBackend(KeyValueStoreBackend):
    """Results of Celery in a store, `streamkeep:////path`, which may be that of the broker."""

    supports_autoexpire = True
    supports_native_join = True
    implements_incr = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, **options: Any) -> None:
        super().__init__(app, url=url, **options)
        self._address = parse_address(url or "")
        self._values = Values(_SPACE)
        self._part = threading.local()

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        """Pickle the address, too: a pickled `AsyncResult` has its backend with it."""
        more = {"url": self.url, "expires": self.expires}
        return super().__reduce__(args, {**(kwargs or {}), **more})

    def _use(self, work: Callable[[OpenedStore], Result]) -> Result:
        """Call a function of the store; once more if the store has to be opened again.

        A child of the pool has no connection that would notice that the store was moved.
        """
        one = shared(self._address)
        try:
            return work(one.opened)
        except FOR_GOOD:
            one.connect()
            return work(one.opened)

    def _apply(self, work: Callable[[Transaction[Any]], Result], *, frees: bool = False) -> Result:
        return self._use(lambda opened: opened.apply(work, frees=frees))

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether `result_backend_always_retry` may store a result again after an error."""
        return isinstance(exc, (StoreFullError, RecoveryNeededError))  # twice is as once

    def as_uri(self, include_password: bool = True) -> str:
        return str(self.url)

    # --- values ---------------------------------------------------------------------------------

    def get(self, key: Any) -> bytes | None:
        name = bytes_to_str(key)
        return self._use(lambda opened: opened.read(lambda one: self._values.get(one, name)))

    def mget(self, keys: list[Any]) -> list[bytes | None]:
        """Return several values, of one moment."""
        names = [bytes_to_str(key) for key in keys]

        def look(snapshot: Snapshot[Any]) -> list[bytes | None]:
            return [self._values.get(snapshot, name) for name in names]

        return self._use(lambda opened: opened.read(look))

    def set(self, key: Any, value: Any) -> None:
        """Store a value for as long as `result_expires` says; it is on disk on return."""
        self._put(key, value, self.expires)

    def _set_with_state(self, key: Any, value: Any, state: str) -> None:
        """Store the state of a task, unless a later attempt has ended it.

        A retry without a wait may end before the former attempt stores that there is one. Celery
        looks for that before it calls this, which is too early.
        """
        final = states.READY_STATES if state == states.RETRY else {states.SUCCESS}
        self._put(key, value, self.expires, final)

    def _put(self, key: Any, value: Any, seconds: Any, final: Collection[str] = ()) -> None:
        data = value if isinstance(value, bytes) else str(value).encode()
        name = bytes_to_str(key)

        def put(txn: Transaction[Any]) -> None:
            known = self._values.get(txn, name) if final else None
            if known is None or self.decode(known).get("status") not in final:
                self._values.put(txn, name, data, _ttl_ms(seconds))

        self._apply(put)

    def delete(self, key: Any) -> None:
        name = bytes_to_str(key)
        self._apply(lambda txn: self._values.delete(txn, name), frees=True)

    def expire(self, key: Any, value: Any) -> None:
        """Set how many seconds a value is kept, to a tenth; without waiting for the disk.

        Celery does it several times for each task of a chord, and for all of them at the end.
        """
        name, ttl_ms = bytes_to_str(key), _ttl_ms(value)

        def expire(txn: Transaction[Any]) -> None:
            self._values.expire(txn.as_bytes(), name, ttl_ms)

        self._use(lambda opened: opened.store.apply(expire, sync="none"))

    # --- chords ---------------------------------------------------------------------------------

    @property
    def _chord_ttl(self) -> Any:
        return getattr(self, "chord_expires", self.expires)  # Celery 5.6 has one time for all

    def _get_task_meta_for(self, task_id: Any) -> Any:
        """Return what is stored of a task; that it has ended only after its chord has counted it.

        Celery acknowledges the message of a task that has ended if the child of the pool is killed
        then (`Request.on_failure`), and its chord would never end.
        """
        meta = super()._get_task_meta_for(task_id)
        if meta["status"] != states.SUCCESS or not meta.get("group_id"):
            return meta
        key = bytes_to_str(self.get_key_for_chord(meta["group_id"]))
        names = [key, _size(key), f"{key}/{task_id}"]
        count, size, part = self.mget(names)
        counted = (count is None and size is None) or part not in (None, size)
        return meta if counted else {**meta, "status": states.STARTED, "result": None}

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Store how many tasks a chord has, also in groups within its group.

        Celery calls it before it sends the last of them, so the last one to end finds it.
        """
        name = _size(bytes_to_str(self.get_key_for_chord(group_id)))
        self._put(name, chord_size, self._chord_ttl)

    def _delete_group(self, group_id: str) -> None:
        """Remove a group; with it, note the end of its chord if the body was sent.

        The last task of the chord runs again if its worker dies now: that is no error of the body.
        """
        key = bytes_to_str(self.get_key_for_chord(group_id))

        def delete(txn: Transaction[Any]) -> None:
            self._values.delete(txn, bytes_to_str(self.get_key_for_group(group_id)))
            count = self._values.get(txn, key)
            if count is not None and count == self._values.get(txn, _size(key)):
                self._values.put(txn, _ended(key), b"1", _ttl_ms(self._chord_ttl))
                for name in (key, _size(key)):
                    self._values.delete(txn, name)

        self._apply(delete, frees=True)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """Count a task of a chord; the last one sends the body. A task that runs again is known."""
        self._part.task_id = request.id
        if request.group:
            key = bytes_to_str(self.get_key_for_chord(request.group))
            if self.get(_ended(key)) is not None:
                return
            count = self.incr(key)
            size = self.get(_size(key))  # after the count, so that one of two sees both
            if size is None or count < int(size):
                seconds = getattr(self, "_chord_result_expires", self.expires)
                for one in (
                    self.get_key_for_group(request.group),
                    self.get_key_for_task(request.id),
                ):
                    self.expire(one, seconds)  # the last task reads them
                return  # Celery would read the whole group for each task
            request.chord["chord_size"] = int(size)
        super().on_chord_part_return(request, state, result, **options)

    def incr(self, key: Any) -> int:
        """Count the task that runs in this thread, once; return its number.

        A task that runs again has the number it had: only the last one sends the body.
        """
        name = bytes_to_str(key)
        ttl_ms = _ttl_ms(self._chord_ttl)
        part = f"{name}/{getattr(self._part, 'task_id', '')}"

        def count(txn: Transaction[Any]) -> int:
            known = self._values.get(txn, part)
            if known is not None:
                return int(known)
            number = int(self._values.get(txn, name) or 0) + 1
            for one in (name, part):
                self._values.put(txn, one, b"%d" % number, ttl_ms)
            return number

        return self._apply(count)

    # --- waiting --------------------------------------------------------------------------------

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        """Sleep until a task has ended; return its result as it is stored."""
        self._ensure_not_eager()
        [(_, meta)] = self.get_many([task_id], timeout, interval, on_interval=on_interval)
        if on_interval and meta["status"] not in (states.SUCCESS, states.REVOKED):
            on_interval()  # raises the error of a parent, if that is why it failed
        return meta

    def iter_native(self, result: Any, *args: Any, on_interval: Any = None, **options: Any) -> Any:
        """Yield the results of a group; raise the error of a task that the group waits for."""
        parent: Any = getattr(result, "parent", None)

        def look() -> None:
            parent.maybe_throw()
            if on_interval:
                on_interval()

        chosen = on_interval if parent is None else look
        return super().iter_native(result, *args, on_interval=chosen, **options)

    def get_many(
        self,
        task_ids: Any,
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Any = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
        READY_STATES: Any = states.READY_STATES,
    ) -> Iterator[tuple[str, Any]]:
        waiting = {bytes_to_str(one) for one in task_ids}
        deadline = None if timeout is None else time.monotonic() + timeout
        rounds = 0
        while waiting:
            ids = list(waiting)
            keys = [self.get_key_for_task(one) for one in ids]
            ended = self._mget_to_results(self.mget(keys), ids, READY_STATES)
            self._cache.update(ended)
            waiting.difference_update(ended)
            for task_id, meta in ended.items():
                if on_message is not None:
                    on_message(meta)
                yield task_id, meta
            rounds += 1
            if not waiting or (max_iterations and rounds >= max_iterations):
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise CeleryTimeoutError(f"Operation timed out ({timeout})")
            if on_interval:
                on_interval()
            self._sleep_until_one(
                list(waiting), left, interval if on_interval or max_iterations else None
            )

    def _sleep_until_one(
        self, task_ids: list[str], left: float | None, interval: float | None
    ) -> None:
        """Sleep until one of these tasks has ended, or a time is over."""
        longest = _LOOK_S if len(task_ids) > _MOST_BELLS else _LONGEST_WAIT_S
        limits = [one for one in (left, interval, longest) if one is not None]
        names = [bytes_to_str(self.get_key_for_task(one)) for one in task_ids[:_MOST_BELLS]]

        def look(snapshot: Snapshot[Any]) -> list[str]:
            found = [(name, self._values.get(snapshot, name)) for name in names]
            return [
                name
                for name, data in found
                if data is not None and self.decode_result(data)["status"] in states.READY_STATES
            ]

        bells = [self._values.bell(name) for name in names]
        wait_ms = max(1, round(min(limits) * 1000))
        self._use(lambda opened: opened.read_when(look, bells, wait_ms))


def _ttl_ms(seconds: Any) -> int:
    return min(round(float(seconds) * 1000), MAX_TTL_MS) if seconds else 0


def _size(key: str) -> str:
    return f"{key}:size"


def _ended(key: str) -> str:
    return f"{key}:ended"
