"""Routes: what a function serves, which commands of Redis that is, and what it takes.

    @route("GET /streams/{KEY}/figures", "xrange", query="start_ms end_ms buckets", heavy=True)
    def timeline(call: Call) -> Found:

Each function gets a `Call`, and returns an object, or a whole reply. One that is no coroutine runs
in a thread. Its docstring is the summary in the description of all routes (`document`).

A request is one or several commands of Redis, which each route names. The user must be allowed to
run them on the keys that the path names, so the two protocols give the same rights.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

import streamkeep
from streamkeep.commands.command_table import BY_NAME, READS, Spec
from streamkeep.commands.replies import CodedError
from streamkeep.commands.strings import check_streams
from streamkeep.engine.api.async_store import AsyncStore
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.times import Bound, id_bound
from streamkeep.metrics.prometheus import Metric
from streamkeep.server.access import User
from streamkeep.server.http import wire
from streamkeep.server.http.overview import keys_of

# --- one request ----------------------------------------------------------------------------------


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
        is_replica: returns whether no client may write at present.
        is_over: returns whether the deadline of a key has passed.
        end: deletes a key that is over; raises where it cannot.
        deliveries: tasks that wait for entries of a group, to take them.
        more_metrics: returns further figures for Prometheus.
        stopping: event streams end, within a second.
    """

    def __init__(self, store: Store[bytes] | AsyncStore[bytes], *, write: bool) -> None:
        self.async_store = store if isinstance(store, AsyncStore) else AsyncStore(store)
        self.store: Store[bytes] = self.async_store._store
        if self.store._decode:
            raise ArgumentError("open the store without decode_responses: names may be any bytes")
        self.write = write
        self.heavy = asyncio.Semaphore(_HEAVY_AT_ONCE)
        self.reading = asyncio.Semaphore(_PAGES_AT_ONCE)
        self.changing = asyncio.Lock()  # what waits for the write lock leaves threads to reads
        self.checker: Any = None  # a `health.Checker`, from `create_app` on
        self.event_streams = 0
        self.is_replica: Callable[[], bool] = bool
        self.is_over: Callable[[bytes], bool] = lambda name: False
        self.end: Callable[[bytes], Coroutine[Any, Any, None]]
        self.deliveries: set[asyncio.Task[Any]] = set()
        self.more_metrics: Callable[[], list[Metric]] = list
        self.stopping = False

    def end_deliveries(self) -> None:
        """End the requests that wait to take entries: the server becomes a replica, or ends."""
        ended = list(self.deliveries)
        self.deliveries.clear()  # which tells them why
        for task in ended:
            task.cancel()


class Call(wire.Parameters):
    """One request.

    Attributes:
        user: the caller.
        key, group: as the path names them, or the parameters of these names.
        queue: as the path names it.
        members: the members of the body, where the route takes JSON.
    """

    def __init__(self, request: Request, state: State, known: Sequence[str] | None) -> None:
        super().__init__(request, known)
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
            name = wire.segment(request, "name")
            try:
                self.queue = name.decode()
            except UnicodeDecodeError:
                raise wire.Problem(404, f"no queue {name!r}") from None
            self._keys = keys_of(self.queue)

    def allow(self, *commands: str) -> None:
        """Raise unless the caller may run these commands on the keys that the path names."""
        for command in commands:
            spec = BY_NAME[command.encode()]
            if spec.kind != READS and (not self.state.write or self.state.is_replica()):
                hint = "start the server with --write"
                if self.state.write:
                    hint = "write to the server of which this one is a replica"
                raise wire.Problem(403, "this server is read-only", hint=hint)
            self.user.check_rights(spec, spec.rights_to([*self._keys]))

    def sees(self, key: bytes) -> bool:
        """Return whether there is such a key for the caller."""
        return self.user.sees(key) and not self.state.is_over(key)

    async def end_expired(self) -> None:
        """Delete the keys that the path names whose deadlines have passed."""
        for key in filter(self.state.is_over, self._keys):
            async with self.state.changing:
                await self.state.end(key)

    async def check_stream(self) -> None:
        """Raise if the key is a string: a stream would be another key of the same name."""
        await self.end_expired()  # perhaps it took long to read the body
        try:
            await asyncio.to_thread(self.store._environment.read, check_streams, [self.key])
        except CodedError:
            hint = "take another name, or delete the string with DEL of a Redis client"
            problem = f"the key {self.key!r} is a string, which SET has made"
            raise wire.Problem(409, problem, code="WrongType", hint=hint) from None

    def allow_whole(self, command: str) -> None:
        """Raise unless the caller may run a command of a server, and read every key."""
        self.user.check_rights(Spec(command, -1, READS), [])
        if not self.user.sees_all:
            raise wire.Problem(403, "only for users that may read every key")

    def bound(self, name: str, default: str, kind: Bound) -> bytes:
        """Return an ID; a date or time in ISO 8601, or an age such as `-2h`, as an ID."""
        value = self.data(name)
        if value is None:
            value = (self.members.get(name) or default).encode()
        try:
            return id_bound(value, kind, self.store._now_ms)
        except ValueError as error:
            raise wire.Problem(400, f"{name!r}: {error}") from None


def named(request: Request, name: str) -> bytes:
    """Return a name from the path, or else from the parameter of this name."""
    if request.path_params.get(name):
        return wire.segment(request, name)
    given = wire.query_pairs(request.scope["query_string"])
    return next((value for one, value in given if one == name.encode()), b"")


# --- routes ---------------------------------------------------------------------------------------


Found = dict[str, Any]
Function = TypeVar("Function", bound=Callable[[Call], Any])

# The last segment below these is an action; below /groups it may also be a parameter.
_ACTIONS: Final = ("/groups/{KEY}/{GROUP}", "/queues/{NAME}")


def nothing() -> wire.Problem:
    hint = "GET /openapi.json describes all paths"
    return wire.Problem(404, "there is nothing at this path", hint=hint)


def pattern_of(path: str) -> re.Pattern[str]:
    """Return the pattern of a path; a name in it may be empty."""
    return re.compile(re.sub(r"{(\w+)}", lambda name: f"(?P<{name[1].lower()}>[^/]*)", path))


@dataclass(frozen=True)
class Route:
    """One method of one path.

    Attributes:
        commands: what the caller must be allowed to run, on the keys that the path names. The
            function asks for more where that depends on the request.
        query: the names of the parameters.
        body: the members of a JSON object, with types and meanings; a `name` may be any bytes.
        takes_any: the function reads the body itself.
        types: those of the reply.
        whole: the commands are about the whole store; the caller must see every key.
        heavy: it reads much, so that few may run at a time.
        open: it needs no secret, and passes over parameters.
    """

    method: str
    path: str
    serve: Callable[[Call], Any]
    commands: list[str]
    query: str = ""
    body: Mapping[str, str] = field(default_factory=dict)
    takes_any: bool = False
    types: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    whole: bool = False
    heavy: bool = False
    open: bool = False

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return pattern_of(self.path)


ROUTES: Final[list[Route]] = []


def route(place: str, commands: str = "", **options: Any) -> Callable[[Function], Function]:
    """Return a decorator for the function that serves a method and path; see `Route`."""

    def add(function: Function) -> Function:
        method, path = place.split()
        ROUTES.append(Route(method, path, function, commands.split(), **options))
        return function

    return add


async def serve(state: State, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve a request, whose path is percent-encoded."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    given = dict(wire.query_pairs(scope["query_string"]))
    known: list[str] = []
    if path.startswith("/groups/"):
        known = ["group", "action"]
        if b"group" in given and path.count("/") == 2:
            action = given.get(b"action", b"").decode("latin-1")
            path += f"//{action}" if action else "/"
    one, names = _find(scope["method"], path)
    request = Request({**scope, "path_params": names}, receive)
    call = Call(request, state, None if one.open else [*one.query.split(), *known])
    if one.whole:
        call.allow_whole(*one.commands)
    else:
        call.allow(*one.commands)
    if one.method != "GET" and not one.takes_any:
        call.members = await wire.json_body(request, one.body)
    await call.end_expired()
    if inspect.iscoroutinefunction(one.serve):
        found = await one.serve(call)
    elif one.heavy or one.method != "GET":
        async with state.heavy if one.heavy else state.changing:
            found = await asyncio.to_thread(one.serve, call)
    else:
        found = await asyncio.to_thread(one.serve, call)
    reply = wire.json_reply(found, one.status) if isinstance(found, dict) else found
    await reply(scope, receive, send)


def _find(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """Return the route of a request, and what its path names."""
    found = {one.method: (one, at) for one in ROUTES if (at := one.pattern.fullmatch(path))}
    if method == "HEAD":
        method = "GET"  # its body is not sent
    if method in found:
        one, at = found[method]
        return one, at.groupdict()
    if not found:
        base, _, action = path.rpartition("/")
        for above in _ACTIONS:
            if action and pattern_of(above).fullmatch(base):
                below = [one.path.removeprefix(f"{above}/") for one in ROUTES]
                names = ", ".join(sorted({one for one in below if "/" not in one}))
                raise wire.Problem(404, f"no action {action!r}", hint=f"the actions are {names}")
        raise nothing()
    if path.startswith("/groups/") and path.count("/") == 2:
        raise wire.Problem(405, "name a group: /groups/KEY/GROUP")
    headers = {"allow": ", ".join(sorted(found))}
    raise wire.Problem(405, f"use {' or '.join(sorted(found))}", headers=headers)


# --- the description of all routes ----------------------------------------------------------------


# Names of parameters and members, with what they mean. Those of the path are in the path.
_MEANINGS: Final = {
    "KEY": "the key of a stream, percent-encoded: `/` is `%2F`. A key that a browser would "
    "resolve (`.`, `..`, the empty one) is given as `/streams/?key=..` instead",
    "GROUP": "the name of a consumer group, percent-encoded",
    "after": "begin above this: of events an entry ID, a date, an age, `$` for new entries only "
    "(the default) or 0 for all; of streams a key",
    "buckets": "number of buckets, 1 to 240",
    "consumer": "the name of a consumer",
    "count": "at most this many",
    "end": "the last entry ID, a date or time in ISO 8601, or an age such as `-2h`, included",
    "end_ms": "end of the window, Unix milliseconds",
    "field": "look only at values of this field",
    "figures": "also count the entries of this many last milliseconds, in 40 buckets",
    "headers": "names of request headers to store as fields, with commas between them; with "
    "as=body",
    "history": "1: also entries that were trimmed while the stream archived",
    "id": "the ID of the new entry, above the last one; `*` by default",
    "job": "the ID of a job",
    "letter": "or the ID of a dead letter",
    "match": "only keys that contain this, or match it as a pattern with `*`",
    "maxlen": "then trim the stream to about this many entries",
    "min_idle_ms": "only entries that were delivered at least this many milliseconds ago",
    "minutes": "of how many minutes in which something ended",
    "NAME": "the name of a queue, percent-encoded",
    "nomkstream": "1: append only if the stream exists",
    "producer": "the producer of the idempotency key; `http` by default",
    "reason": "only with this text in reason, error or message",
    "reasons": "1: count them by task and error",
    "reverse": "1: the newest entries first",
    "shape": "`pairs` for entries as lists of [field, value]; `fields` (the default) for objects",
    "state": "waiting (the default), running, delayed, parked, done, failed or cancelled",
    "start": "the first entry ID, a date or time in ISO 8601, or an age such as `-2h`, included; "
    "`(id` excludes it",
    "start_ms": "begin of the window, Unix milliseconds",
    "task": "only of this task",
    "text": "the text to find in names and values of fields; ASCII letters match in both cases",
    "as": "`body`: the body is one entry with the fields `body` and `content_type`, for any type",
}


def document(root_path: str = "") -> dict[str, Any]:
    """Return the description of all routes below a path, in the form of OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Streamkeep",
            "version": streamkeep.__version__,
            "summary": "Streams of a store over HTTP",
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{"token": []}, {"password": []}],
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            }
        },
        "paths": paths,
    }


def _operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": " ".join((inspect.getdoc(route.serve) or "").split()),
        "parameters": [
            *(
                _parameter(name, "path", _MEANINGS[name])
                for name in ("KEY", "GROUP", "NAME")
                if f"{{{name}}}" in route.path
            ),
            *(_parameter(name, "query", _MEANINGS[name]) for name in route.query.split()),
            *(_parameter(name, "header", told) for name, told in route.headers.items()),
        ],
        "responses": {
            str(route.status): {
                "description": "done",
                "content": {kind: {} for kind in route.types.split()},
            },
            "default": {"description": '`{"error", "message", "next"}`'},
        },
    }
    if route.body or route.takes_any:
        members = {}
        for name, text in route.body.items():
            kind, meaning = text.split(": ", 1)
            kind = kind.replace("name", "string")
            members[name] = {"type": kind, "description": meaning}
        schema = {"type": "object", "properties": members} if members else {}
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if route.open:
        found["security"] = []
    return found


def _parameter(name: str, place: str, meaning: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": meaning,
        "schema": {"type": "string"},
    }
