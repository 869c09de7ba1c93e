"""Both protocols give a user the same rights: each route, beside the commands that it is."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resp_peer import Peer, serving
from stores import open_at
from streamkeep import Store
from streamkeep.jobs import Queue
from streamkeep.server.access import Access
from streamkeep.server.http import guard
from streamkeep.server.http.app import App, create_app
from streamkeep.server.http.routes import ROUTES
from tiers import daily_or_all

Words = str
STREAMS = ("q:high", "q", "q:low", "q:dead")  # of the queue q
EACH = "{key}"  # a command is tried on each of them


class Case:
    """A request, and the commands that a client of Redis sends for the same."""

    def __init__(
        self,
        request: str,
        *commands: Words,
        body: Any = None,
        accept: str = "",
        keys: tuple[str, ...] = (),
        whole: bool = False,
        lists: bool = False,
    ) -> None:
        self.method, self.path = request.split(" ", 1)
        self.commands = [words.replace(EACH, key) for words in commands for key in keys or ("",)]
        self.body = body
        self.accept = accept
        self.whole = whole  # the user must also see every key
        self.lists = lists  # only what the user may see, so that no key is refused


IDS = {"ids": ["0-1"]}
ONE = {"consumer": "c"}
CASES = {
    "get /health": [Case("GET /health")],
    "get /metrics": [Case("GET /metrics", "INFO", whole=True)],
    "get /store": [Case("GET /store", "INFO", whole=True)],
    "get /store/survey": [Case("GET /store/survey", "SCAN 0", "XINFO STREAM k", lists=True)],
    "post /store/check": [Case("POST /store/check", "BGSAVE", body={}, whole=True)],
    "get /streams": [
        Case("GET /streams", "SCAN 0", "XINFO STREAM k", lists=True),
        Case("GET /streams?figures=1000", "SCAN 0", "XINFO STREAM k", "XRANGE k - +", lists=True),
    ],
    "get /streams/{KEY}": [
        Case("GET /streams/k", "XRANGE k - +"),
        Case("GET /streams/k?reverse=1", "XREVRANGE k + -"),
        Case("GET /streams/k", "XRANGE k - +", accept="application/x-ndjson"),
        Case("GET /streams/k?reverse=1", "XREVRANGE k + -", accept="application/x-ndjson"),
        Case("GET /streams/k", "XREAD STREAMS k 0", accept="text/event-stream"),
        Case("GET /streams/?key=k", "XRANGE k - +"),
    ],
    "post /streams/{KEY}": [
        Case("POST /streams/k?nomkstream=1&id=0-1", "XADD k NOMKSTREAM 0-1 f v", body={"f": "v"}),
        Case("POST /streams/none?nomkstream=1", "XADD none NOMKSTREAM * f v", body={"f": "v"}),
    ],
    "get /streams/{KEY}/info": [Case("GET /streams/k/info", "XINFO STREAM k")],
    "get /streams/{KEY}/search": [
        Case("GET /streams/k/search?text=x", "XRANGE k - +"),
        Case("GET /streams/k/search?text=x&reverse=1", "XREVRANGE k + -"),
    ],
    "get /streams/{KEY}/figures": [Case("GET /streams/k/figures", "XRANGE k - +")],
    "get /groups/{KEY}": [Case("GET /groups/k", "XINFO GROUPS k", "XPENDING k g")],
    "get /groups/{KEY}/{GROUP}": [
        Case("GET /groups/k/g", "XINFO GROUPS k", "XINFO CONSUMERS k g", "XPENDING k g"),
        Case("GET /groups/?key=k&group=g", "XINFO GROUPS k", "XINFO CONSUMERS k g", "XPENDING k g"),
    ],
    "put /groups/{KEY}/{GROUP}": [Case("PUT /groups/k/g", "XGROUP CREATE k g 0", body={})],
    "delete /groups/{KEY}/{GROUP}": [
        Case("DELETE /groups/k/none", "XGROUP DESTROY k none"),
        Case("DELETE /groups/?key=k&group=none", "XGROUP DESTROY k none"),
    ],
    "get /groups/{KEY}/{GROUP}/pending": [Case("GET /groups/k/g/pending", "XPENDING k g")],
    "post /groups/{KEY}/{GROUP}/deliver": [
        Case("POST /groups/k/none/deliver", "XREADGROUP GROUP none c STREAMS k >", body=ONE),
        Case(
            "POST /groups/k/none/deliver",
            "XREADGROUP GROUP none c CLAIM 0 STREAMS k >",
            body={**ONE, "min_idle_ms": 0},
        ),
    ],
    "post /groups/{KEY}/{GROUP}/ack": [Case("POST /groups/k/g/ack", "XACK k g 0-1", body=IDS)],
    "post /groups/{KEY}/{GROUP}/nack": [
        Case("POST /groups/k/g/nack", "XNACK k g FAIL IDS 1 0-1", body=IDS)
    ],
    "post /groups/{KEY}/{GROUP}/claim": [
        Case("POST /groups/k/g/claim", "XCLAIM k g c 0 0-1", body={**ONE, **IDS}),
        Case("POST /groups/k/g/claim", "XAUTOCLAIM k g c 0 0", body=ONE),
    ],
    "get /queues": [Case("GET /queues", "SCAN 0", "XINFO STREAM k", lists=True)],
    "get /queues/{NAME}/jobs": [
        Case(f"GET /queues/q/jobs?state={of}", "XRANGE {key} - +", "XPENDING {key} g", keys=STREAMS)
        for of in ("waiting", "running", "delayed", "parked", "done")
    ],
    "get /queues/{NAME}/job": [
        Case("GET /queues/q/job?job=job-1", "XRANGE {key} - +", "XPENDING {key} g", keys=STREAMS)
    ],
    "get /queues/{NAME}/letters": [
        Case("GET /queues/q/letters?reasons=1", "XRANGE {key} - +", keys=STREAMS)
    ],
    "get /queues/{NAME}/activity": [
        Case(
            "GET /queues/q/activity",
            "XINFO CONSUMERS {key} g",
            "XRANGE {key} - +",
            "XPENDING {key} g",
            keys=STREAMS,
        )
    ],
    "post /queues/{NAME}/drop": [
        Case("POST /queues/q/drop", "XDEL {key} 0-1", body=IDS, keys=STREAMS),
        Case("POST /queues/q/drop", "XDEL {key} 0-1", "XRANGE {key} - +", body={}, keys=STREAMS),
    ],
    "get /queues/{NAME}/schedules": [
        Case("GET /queues/q/schedules", "XRANGE {key} - +", keys=STREAMS)
    ],
    **{
        f"post /queues/{{NAME}}/{action}": [
            Case(f"POST /queues/q/{action}", "XDEL {key} 0-1", body=IDS, keys=STREAMS)
        ]
        for action in ("cancel", "unschedule")
    },
    **{
        f"post /queues/{{NAME}}/{action}": [
            Case(
                f"POST /queues/q/{action}",
                "XADD {key} 0-1 f v",
                "XDEL {key} 0-1",
                *(("XRANGE {key} - +",) if not body else ()),
                body=body,
                keys=STREAMS,
            )
            for body in bodies
        ]
        for action, bodies in {"run": [IDS], "requeue": [IDS, {}]}.items()
    },
    **{
        f"post /queues/{{NAME}}/{action}": [
            Case(f"POST /queues/q/{action}", "XGROUP SETID {key} none 0", body={}, keys=STREAMS)
        ]
        for action in ("pause", "resume")
    },
}  # fmt: skip

COMMANDS = (
    "xadd", "xrange", "xrevrange", "xread", "xreadgroup", "xinfo", "xinfo|stream", "xinfo|groups",
    "xpending", "xgroup", "xgroup|destroy", "xgroup|setid", "xack", "xnack", "xclaim", "xautoclaim",
    "xdel", "scan", "info", "bgsave", "@read", "@write", "@stream", "@admin", "@connection", "@all",
)  # fmt: skip
KEYS = ("~*", "~k ~q*", "%R~* %W~other", "%W~* %R~other", "~other", "")
USERS = [
    *(f"~* +{command}" for command in COMMANDS),
    *(f"~* +@all -{command}" for command in COMMANDS[::3]),
    *(f"{keys} +@all" for keys in KEYS),
    *(f"{keys} +@read" for keys in KEYS[:3]),
    *(f"{keys} +@write +scan" for keys in KEYS[:4]),
    "~k ~q +@all", "~k ~q ~q:high ~q:low +@all", "~* +@all off", "~* +@read +xinfo -xinfo|stream",
    "~* +xrange +xpending", "~* +xadd +xdel", "~* +xinfo +xpending", "~[k] ~q* +@all", "~?* +@all",
    "~orders:* +xadd +xrange",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_at(tmp_path / "s") as found:
        found.xadd("k", {"n": 1}, id="1-0")
        found.xadd("other", {"n": 1}, id="1-0")
        found.xgroup_create("k", "g", id="$")
        Queue(found, "q").put({"n": 1}, delay="1h")
        yield found


@pytest.fixture
def both(store: Store, tmp_path: Path) -> Iterator[tuple[App, Callable[[int], Peer]]]:
    """The application, and a function that logs one of its users in at a server."""
    lines = [f"user u{number} on >pw {rules}" for number, rules in enumerate(USERS)]
    access = Access("secret", lines)
    with serving(store, tmp_path / "k", access=access) as running, Peer(running.path) as peer:

        def log_in(number: int) -> Peer:
            peer.call("RESET")
            peer.call("AUTH", f"u{number}", "pw")
            return peer

        yield create_app(store, access, write=True), log_in


async def status_of(app: App, case: Case, authorization: bytes | None) -> int:
    """Send a request; return the status, and do not wait for the end of the reply."""
    path, _, query = case.path.partition("?")
    headers = [(b"host", b"localhost"), (b"accept", case.accept.encode())]
    if authorization is not None:
        headers.append((b"authorization", authorization))
    body = b"" if case.body is None else json.dumps(case.body).encode()
    if body:
        headers.append((b"content-type", b"application/json"))
    scope = {
        "type": "http",
        "method": case.method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "root_path": "",
    }
    messages = [{"type": "http.request", "body": body}]
    statuses: list[int] = []

    async def receive() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


def basic(name: str) -> bytes:
    return b"Basic " + base64.b64encode(f"{name}:pw".encode())


def test_every_route_has_a_case() -> None:
    assert {f"{one.method.lower()} {one.path}" for one in ROUTES} == set(CASES)


def refused(peer: Peer, rules: str, case: Case) -> bool:
    """Return whether a client of Redis may not send one of the commands."""
    for words in case.commands:
        reply = peer.call(*words.split())
        if reply.startswith(b"-NOAUTH") or b"no permissions to run" in reply:
            return True
        if b"No permissions to access" in reply and not case.lists:
            return True
    return case.whole and not {"~*", "%R~*"} & set(rules.split())


def test_the_rights_of_each_user_are_the_same(
    both: tuple[App, Callable[[int], Peer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REFUSED_S", 0)
    app, log_in = both

    async def walk() -> list[str]:
        found = []
        for number, rules in list(enumerate(USERS))[:: daily_or_all(4, 1)]:
            peer = log_in(number)
            for route, cases in CASES.items():
                for case in cases:
                    status = await status_of(app, case, basic(f"u{number}"))
                    if (status in (401, 403)) != refused(peer, rules, case):
                        found.append(f"{rules}: {route} {case.commands}: {status}")
        return found

    assert asyncio.run(walk()) == []


async def test_a_user_who_may_do_nothing_gets_nothing(
    both: tuple[App, Callable[[int], Peer]],
) -> None:
    """So each route asks for a right."""
    app, _ = both
    number = USERS.index(" +@all")
    nobody = Access("secret", ["user nobody on >pw"])
    bare = create_app(app.state.store, nobody, write=True)

    for route, cases in CASES.items():
        for case in cases:
            if route != "get /health":
                assert await status_of(bare, case, basic("nobody")) == 403, route
                if not case.lists:
                    assert await status_of(app, case, basic(f"u{number}")) == 403, route


@pytest.mark.parametrize(
    ("rules", "header", "status"),
    [
        ("on nopass ~k +@read", None, 200),
        ("on nopass ~other +@read", None, 403),
        ("on nopass ~k +xlen", None, 403),
        ("on nopass ~k", None, 403),
        ("off nopass ~* +@all", None, 401),
        ("off", None, 401),
        ("on >pw ~* +@all", None, 401),
        ("on >pw ~* +@all", b"Bearer pw", 200),
        ("on >pw ~other +@all", b"Bearer pw", 403),
        ("off >pw ~* +@all", b"Bearer pw", 401),
        ("on nopass ~k +@read", basic("ann"), 200),
        ("off", basic("ann"), 200),
        ("off", b"Bearer pw", 401),
        ("on nopass ~k +@read", basic("nobody"), 401),
    ],
)
def test_what_the_default_user_may_without_a_password(
    store: Store, monkeypatch: pytest.MonkeyPatch, rules: str, header: bytes | None, status: int
) -> None:
    monkeypatch.setattr(guard, "REFUSED_S", 0)
    access = Access(None, [f"user default {rules}", "user ann on >pw ~* +@all"])
    app = create_app(store, access)
    case = Case("GET /streams/k")
    assert asyncio.run(status_of(app, case, header)) == status
