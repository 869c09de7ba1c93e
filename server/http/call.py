"""One request as routes see it, and what all share: the store, limits, and the rights of a caller.

A request is one or several commands of Redis, which `routes` names for each route. The user must be
allowed to run them on the keys that the path names, so the two protocols give the same rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from starlette.requests import Request

from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.times import Bound, id_bound
from streamkeep.metrics.prometheus import Metric
from streamkeep.server.access import User
from streamkeep.server.commands.table import BY_NAME, READS, Spec
from streamkeep.server.http.overview import keys_of
from streamkeep.server.http.wire import Parameters, Problem, query_pairs, segment

USER_AT: Final = "streamkeep.user"  # where the scope of a request has its user
_HEAVY_AT_ONCE: Final = 2  # searches and counts; each reads for up to half a second
_PAGES_AT_ONCE: Final = 2  # asyncio has 5 threads on a machine with one processor


class State:
    """What all requests share.

    Attributes:
        store: the store, for threads.
        async_store: the same for tasks.
        write: callers may change the store, as far as their rights go.
        heavy: to be held by what reads much.
        reading: to be held while a page is read, so that threads are left for short requests.
        event_streams: how many clients follow a stream.
        more_metrics: returns further figures for Prometheus.
        stopping: event streams end, within a second.
    """

    def __init__(
        self,
        store: Store[bytes] | AsyncStore[bytes],
        *,
        write: bool,
        heartbeat_s: float,
        stall_s: float,
    ) -> None:
        self.async_store = store if isinstance(store, AsyncStore) else AsyncStore(store)
        self.store: Store[bytes] = self.async_store._store
        if self.store._decode:
            raise ArgumentError("open the store without decode_responses: names may be any bytes")
        self.write = write
        self.heartbeat_s = heartbeat_s
        self.stall_s = stall_s
        self.heavy = asyncio.Semaphore(_HEAVY_AT_ONCE)
        self.reading = asyncio.Semaphore(_PAGES_AT_ONCE)
        self.checker: Any = None  # a health.Checker, once one is asked for
        self.event_streams = 0
        self.more_metrics: Callable[[], list[Metric]] = list
        self.stopping = False


class Call(Parameters):
    """One request.

    Attributes:
        user: the caller.
        key, group: as the path names them, or the parameters of these names.
        queue: as the path names it.
        members: the members of the body, where the route takes JSON.
    """

    def __init__(self, request: Request, state: State, known: Iterable[str]) -> None:
        super().__init__(request, [*known])
        self.request = request
        self.state = state
        self.store = state.store
        self.user: User = request.scope[USER_AT]
        self.key = named(request, "key")
        self.group = named(request, "group")
        self.queue = ""
        self.members: dict[str, Any] = {}
        self._keys: tuple[bytes, ...] = () if "key" not in request.path_params else (self.key,)
        if "name" in request.path_params:
            name = segment(request, "name")
            try:
                self.queue = name.decode()
            except UnicodeDecodeError:
                raise Problem(404, f"no queue {name!r}") from None
            self._keys = keys_of(self.queue)

    def allow(self, *commands: str) -> None:
        """Raise unless the caller may run these commands on the keys that the path names."""
        for command in commands:
            spec = BY_NAME[command.encode()]
            if spec.kind != READS and not self.state.write:
                hint = "start the server with --write"
                raise Problem(403, "this server is read-only", hint=hint)
            self.user.check_rights(spec, spec.rights_to([*self._keys]))

    def allow_whole(self, command: str) -> None:
        """Raise unless the caller may run a command of a server, and read every key."""
        self.user.check_rights(Spec(command, -1, READS), [])
        if not self.user.sees_all:
            raise Problem(403, "only for users that may read every key")

    def bound(self, name: str, default: str, kind: Bound) -> bytes:
        """Return an ID; a date or time in ISO 8601, or an age such as `-2h`, as an ID."""
        value = self.data(name)
        try:
            return id_bound(default.encode() if value is None else value, kind, self.store._now_ms)
        except ValueError as error:
            raise Problem(400, f"the parameter {name!r}: {error}") from None


def named(request: Request, name: str) -> bytes:
    """Return a name from the path, or else from the parameter of this name."""
    if request.path_params.get(name):
        return segment(request, name)
    given = query_pairs(request.scope["query_string"])
    return next((value for one, value in given if one == name.encode()), b"")
