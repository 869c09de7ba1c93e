"""Routes: what a function serves, which commands of Redis that is, and what it takes.

    @route("GET /streams/{KEY}/figures", "xrange", query="start_ms end_ms buckets", heavy=True)
    def timeline(call: Call) -> Found:

Each function gets a `Call`, and returns an object, or a whole reply. One that is no coroutine runs
in a thread. Its docstring is the summary in the description of all routes (`openapi`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Served

from streamkeep.server.http.call import Call, State
from streamkeep.server.http.wire import Problem, json_body, json_reply, query_pairs

Found = dict[str, Any]
Function = TypeVar("Function", bound=Callable[[Call], Any])

# The last segment of these is an action; below /groups it may also be a parameter.
_ACTIONS: Final = ("/groups/{KEY}/{GROUP}", "/queues/{NAME}")


class Route(NamedTuple):
    """One method of one path.

    Attributes:
        commands: what the caller must be allowed to run, on the keys that the path names. The
            function asks for more where that depends on the request.
        query: the names of the parameters.
        body: the members of a JSON object, with types and meanings.
        takes_any: the function reads the body itself.
        whole: the commands are about the whole store; the caller must see every key.
        heavy: it reads much, so that few may run at a time.
    """

    method: str
    path: str
    serve: Callable[[Call], Any]
    commands: list[str]
    query: list[str]
    body: Mapping[str, str]
    takes_any: bool
    types: list[str]
    headers: Mapping[str, str]
    status: int
    whole: bool
    heavy: bool


ROUTES: Final[list[Route]] = []


def route(
    place: str,
    commands: str = "",
    *,
    query: str = "",
    body: Mapping[str, str] | None = None,
    takes_any: bool = False,
    types: str = "application/json",
    headers: Mapping[str, str] | None = None,
    status: int = 200,
    whole: bool = False,
    heavy: bool = False,
) -> Callable[[Function], Function]:
    """Return a decorator for the function that serves a method and path; see `Route`."""

    def add(function: Function) -> Function:
        method, path = place.split()
        more = (body or {}, takes_any, types.split(), headers or {}, status, whole, heavy)
        ROUTES.append(Route(method, path, function, commands.split(), query.split(), *more))
        return function

    return add


def served(state: State) -> list[Served]:
    """Return what serves each path."""
    methods: dict[str, set[str]] = {}
    for one in ROUTES:
        methods.setdefault(one.path, set()).add(one.method)
    paths = [path for path in methods if not path.startswith(_ACTIONS)]
    paths += ["/groups/{KEY}/{GROUP}", *(f"{path}/{{action}}" for path in _ACTIONS)]
    found = []
    for path in paths:
        template = path.replace("{KEY}", "{key:encoded}").replace("{GROUP}", "{group:encoded}")
        allowed = methods.get(path, {"GET"})
        if path.startswith(("/groups", *_ACTIONS)):  # `_find` refuses others, with a reason
            allowed = {"GET", "PUT", "POST", "DELETE"}
        template = template.replace("{NAME}", "{name:encoded}")
        found.append(Served(template, partial(_serve, state, path), methods=sorted(allowed)))
    return found


async def _serve(state: State, path: str, request: Request) -> Response:
    """Check a request, and have its route serve it."""
    named = ["group", "action"] if path.startswith("/groups") else []
    one = _find(path, request)
    call = Call(request, state, [*one.query, *named])
    if one.whole:
        call.allow_whole(*one.commands)
    else:
        call.allow(*one.commands)
    if one.method != "GET" and not one.takes_any:
        call.members = await json_body(request, [*one.body])
    if inspect.iscoroutinefunction(one.serve):
        found = await one.serve(call)
    elif one.heavy:
        async with state.heavy:
            found = await asyncio.to_thread(one.serve, call)
    else:
        found = await asyncio.to_thread(one.serve, call)
    return json_reply(found, one.status) if isinstance(found, dict) else found


def _find(path: str, request: Request) -> Route:
    """Return the route of a request, whose path may leave group and action to parameters."""
    action = request.path_params.get("action", "")
    given = dict(query_pairs(request.scope["query_string"]))
    if path == "/groups/{KEY}" and b"group" in given:
        path += "/{GROUP}"
        action = given.get(b"action", b"").decode("latin-1")
    base = path.removesuffix("/{action}")
    path = f"{base}/{action}" if action else base
    known = {one.method: one for one in ROUTES if one.path == path}
    if not known:
        below = [one.path.removeprefix(f"{base}/") for one in ROUTES]
        actions = sorted({one for one in below if "/" not in one})
        raise Problem(404, f"no action {action!r}", hint=f"the actions are {', '.join(actions)}")
    if request.method not in known:
        if path == "/groups/{KEY}":
            raise Problem(405, "name a group: /groups/KEY/GROUP")
        headers = {"allow": ", ".join(sorted(known))}
        raise Problem(405, f"use {' or '.join(sorted(known))}", headers=headers)
    return known[request.method]
