"""GET and POST of streams: every form of body and reply, and what is refused."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from http_client import Client
from patience import peak_of
from streamkeep import Store
from streamkeep.commands import strings
from streamkeep.engine.system.clock import ManualClock
from streamkeep.server.http import wire

HOSTILE_KEYS = [b"a/b", b"..", b".", b"", b"%2F", b"\xff\x00", "\u202e\u00fc".encode(), b"a b?#&"]


def path_of(key: bytes) -> str:
    """Return the path of a stream, as the page makes it."""
    text = "".join(f"%{byte:02X}" for byte in key)
    return f"/streams/?key={text}" if key in (b".", b"..", b"") else f"/streams/{text}"


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_any_bytes_may_be_a_key(store: Store, client: Client, key: bytes) -> None:
    store.xadd(key, {"n": "1"}, id="5-1")
    assert [one["id"] for one in client.get(path_of(key))["entries"]] == ["5-1"]
    assert client("POST", path_of(key), status=201, json={"n": "2"}).json()["id"]
    assert store.xlen(key) == 2
    assert store.keys() == [key]


def test_pages_lead_from_one_end_to_the_other(store: Store, client: Client) -> None:
    ids = [f"{number}-0" for number in range(1, 26)]
    for one in ids:
        store.xadd("k", {"n": one}, id=one)
    for reverse, bound in ((0, "start"), (1, "end")):
        found: list[str] = []
        at = "-" if not reverse else "+"
        while at:
            page = client.get(
                "/streams/k", params={"count": 10, "reverse": reverse, bound: at, "history": 1}
            )
            found += [one["id"] for one in page["entries"]]
            at = page["next"]
        assert found == (ids[::-1] if reverse else ids)


def test_a_page_of_huge_entries_ends_early(store: Store, client: Client) -> None:
    for _ in range(20):
        store.xadd("k", {"v": b"x" * 400_000})
    page = client.get("/streams/k?count=1000")
    assert 3 <= len(page["entries"]) < 20
    assert page["next"] == "(" + page["entries"][-1]["id"]


def test_entries_lose_nothing_in_json(store: Store, client: Client) -> None:
    store.xadd("k", [(b"a", b"1"), (b"a", b"2")], id="1-0")
    store.xadd("k", {b"\xff": b"v"}, id="2-0")
    store.xadd("k", {b"v": b"\xff"}, id="3-0")
    twice, name, value = client.get("/streams/k")["entries"]
    assert twice["pairs"] == [["a", "1"], ["a", "2"]]
    assert name["pairs"] == [[{"base64": "/w=="}, "v"]]
    assert value["fields"] == {"v": {"base64": "/w=="}}
    assert client.get("/streams/k?shape=pairs&start=3")["entries"][0]["pairs"]


@pytest.mark.parametrize(
    "text",
    ["123456789012345678.91", "10.50", "1e400", "-0", "1E5", "9" * 5000,
     '{"a":[10.50,{"b":-0.0},"1.0",null,true],"c":"\u00fc"}'],
)  # fmt: skip
def test_a_value_is_stored_as_its_json_text(store: Store, client: Client, text: str) -> None:
    one, typed = f'{{"n":{text}}}', {"content-type": "application/json"}
    lines = {"content-type": "application/x-ndjson"}
    for body, headers in ((one, typed), (f"[{one}]", typed), (one, lines)):
        client("POST", "/streams/k", status=201, headers=headers, content=body.encode())
    assert [entry.fields for entry in store.xrange("k")] == [{b"n": text.encode()}] * 3


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "Infinity"])
def test_what_is_no_json_is_refused(store: Store, client: Client, text: str) -> None:
    body, headers = f'{{"n":{text}}}'.encode(), {"content-type": "application/json"}
    reply = client("POST", "/streams/k", status=400, headers=headers, content=body).json()
    assert f"{text.strip('[]')} is no number in JSON" in reply["message"]
    nested = b'{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    client("POST", "/streams/k", status=400, headers=headers, content=nested)
    assert store.exists("k") == 0


def test_a_large_body_is_read_beside_other_requests(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte of fields kept all clients of the server waiting for most of a second."""
    threads = []
    parse = wire.parse_json

    def note(body: bytes, *, exact: bool) -> Any:
        threads.append(threading.current_thread())
        return parse(body, exact=exact)

    monkeypatch.setattr(wire, "parse_json", note)
    client("POST", "/streams/k", status=201, json={"n": list(range(10_000))})
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_the_name_of_a_lock_is_no_stream(store: Store, client: Client) -> None:
    store._environment.write(strings.run_set, [b"SET", b"lock", b"x"], 0)
    for method, path, body in (
        ("POST", "/streams/lock", {"n": "1"}),
        ("POST", "/streams/lock", [{"n": "1"}, {"n": "2"}]),
        ("PUT", "/groups/lock/g", {"mkstream": True}),
    ):
        reply = client(method, path, status=409, json=body).json()
        assert "the key b'lock' is a string, which SET has made" in reply["message"]
    assert store.exists("lock") == 0


def test_ndjson_has_all_entries(store: Store, client: Client) -> None:
    store.xadd_many("k", [{"n": number} for number in range(2500)])
    lines = client("GET", "/streams/k", headers={"accept": "application/x-ndjson"}).text
    assert [int(json.loads(line)["fields"]["n"]) for line in lines.splitlines()] == [*range(2500)]
    few = client("GET", "/streams/k?count=120", headers={"accept": "application/x-ndjson"}).text
    assert len(few.splitlines()) == 120


def test_dates_and_ages_are_bounds(store: Store, clock: ManualClock, client: Client) -> None:
    clock.ms = 1_718_004_800_000  # on the tenth of June 2024
    store.xadd("k", {"n": 1})
    clock.ms += 90 * 60_000
    for bounds, count in (
        ("start=2024-06-10&end=2024-06-11", 1),
        ("start=2024-06-11", 0),
        ("start=-2h", 1),
        ("start=-1h", 0),
        ("start=-2h&end=-1h", 1),
    ):
        assert len(client.get(f"/streams/k?{bounds}")["entries"]) == count, bounds


@pytest.mark.parametrize(
    ("headers", "body", "pairs"),
    [
        ({"content-type": "application/json"}, b'{"a":"x","n":1,"o":{"b":[null]}}',
         [(b"a", b"x"), (b"n", b"1"), (b"o", b'{"b":[null]}')]),
        ({"content-type": "application/json; charset=utf-8"}, b'{"a":{"base64":"/w=="}}',
         [(b"a", b"\xff")]),
        ({"content-type": "application/x-www-form-urlencoded"}, b"a=1&a=%FF&b=",
         [(b"a", b"1"), (b"a", b"\xff"), (b"b", b"")]),
        ({"content-type": "text/plain"}, b"hello",
         [(b"body", b"hello"), (b"content_type", b"text/plain")]),
    ],
)  # fmt: skip
def test_a_body_becomes_an_entry(
    store: Store, client: Client, headers: dict[str, str], body: bytes, pairs: Any
) -> None:
    client("POST", "/streams/k", status=201, headers=headers, content=body)
    assert store.xrange("k")[0].pairs == pairs


BOUNDARY = {"content-type": 'multipart/form-data; boundary="b 1"'}
NAMED = b"Content-Disposition: form-data; name=a\r\n\r\n"


def test_a_form_with_a_file_becomes_an_entry(store: Store, client: Client) -> None:
    parts = [
        b'Content-Disposition: form-data; name="note"\r\n\r\ntwo\r\nlines\r\n',
        b'content-disposition: form-data; name="note"\r\n\r\n\r\n',
        b'Content-Disposition: form-data; name="photo"; filename="a b.png"\r\n'
        b"Content-Type: image/png\r\n\r\n\x89PNG\r\n\x1a\n\x00\xff--b 2\r\n",
    ]
    body = b"".join(b"--b 1\r\n" + part for part in parts) + b"--b 1--\r\n"
    client("POST", "/streams/k", status=201, headers=BOUNDARY, content=body)
    assert store.xrange("k")[0].pairs == [
        (b"note", b"two\r\nlines"),
        (b"note", b""),
        (b"photo", b"\x89PNG\r\n\x1a\n\x00\xff--b 2"),
        (b"photo.filename", b"a b.png"),
        (b"photo.content_type", b"image/png"),
    ]


@pytest.mark.parametrize(
    ("headers", "body", "problem"),
    [
        (BOUNDARY, b"", "its end is missing"),
        (BOUNDARY, b"--b 1\r\n" + NAMED + b"x", "its end is missing"),
        (BOUNDARY, b"--b 1\r\n\r\nx\r\n--b 1--\r\n", "part 1 of the form has no name"),
        (BOUNDARY, b"--other\r\n", "is not multipart/form-data"),
        (BOUNDARY, b"--b 1\r\nA: b\r\n" * 300 + b"--b 1--", "is not multipart/form-data"),
        (BOUNDARY, (b"--b 1\r\n" + NAMED + b"\r\n") * 300, "more than"),
        ({"content-type": "multipart/form-data"}, b"x", "needs a boundary"),
        ({"content-type": "multipart/form-data; boundary=" + "b" * 257}, b"x", "is not multipart"),
    ],
)  # fmt: skip
def test_half_a_form_changes_nothing(
    store: Store, client: Client, headers: dict[str, str], body: bytes, problem: str
) -> None:
    reply = client("POST", "/streams/k", status=400, headers=headers, content=body).json()
    assert problem in reply["message"]
    assert store.exists("k") == 0


def test_a_webhook_keeps_its_body_and_the_headers_that_are_named(
    store: Store, client: Client
) -> None:
    headers = {"content-type": "application/json", "x-event": "push"}
    body = b'{"a" : 1}'
    client("POST", "/streams/k?as=body&headers=X-Event", status=201, headers=headers, content=body)
    entry = store.xrange("k")[0]
    assert entry.fields == {
        b"body": body,
        b"content_type": b"application/json",
        b"x-event": b"push",
    }
    path = "/streams/k?as=body&headers=Authorization"
    assert "secret" in client.post(path, status=400, content=b"x")["message"]


def test_several_entries_are_one_transaction(store: Store, client: Client) -> None:
    ids = client.post("/streams/k", status=201, json=[{"n": 1}, [["a", "b"], ["a", "c"]]])["ids"]
    assert [one.id.decode() for one in store.xrange("k")] == ids
    wrong = client.post("/streams/k", status=400, json=[{"n": 1}, {}])
    assert wrong["message"] == "entry 1 has no fields"
    lines = {"content-type": "application/x-ndjson"}
    wrong = client.post("/streams/k", status=400, content=b'{"a":1}\n{"a"', headers=lines)
    assert wrong["message"].startswith("line 2 is not JSON: Expecting ':' delimiter: column 5 ")
    assert store.xlen("k") == 2


def test_an_idempotency_key_appends_once(store: Store, client: Client) -> None:
    first = client.post("/streams/k", status=201, json={"n": 1}, headers={"Idempotency-Key": "a"})
    again = client.post("/streams/k", status=201, json={"n": 1}, headers={"Idempotency-Key": "a"})
    other = client.post(
        "/streams/k?producer=p", status=201, json={"n": 1}, headers={"Idempotency-Key": "a"}
    )
    assert first == again != other
    assert store.xlen("k") == 2


def test_options_of_append(store: Store, client: Client) -> None:
    client.post("/streams/k?nomkstream=1", status=404, json={"n": 1})
    assert client.post("/streams/k?id=7-7", status=201, json={"n": 1}) == {"id": "7-7"}
    late = client.post("/streams/k?id=7-7", status=409, json={"n": 1})
    assert late["error"] == "IdTooSmallError"
    client.post("/streams/k?maxlem=1", status=400, json={"n": 1})
    assert store.xlen("k") == 1


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "words"),
    [
        ("GET", "/streams/none", {}, 404, "no such key"),
        ("GET", "/streams/k?count=0", {}, 400, "'count' must be a number from 1 to 10000"),
        ("GET", "/streams/k?start=x", {}, 400, "Invalid stream ID"),
        ("GET", "/streams/k?start=2024-99-99", {}, 400, "'2024-99-99' is not a time"),
        ("GET", "/streams/k?start=-2x", {}, 400, "2x"),
        ("GET", "/streams/k?start=1&start=2", {}, 400, "given twice"),
        ("GET", "/streams/k/search", {}, 400, "'text' and 'field'"),
        ("POST", "/streams/k", {"json": "text"}, 400, "must be an object"),
        ("POST", "/streams/k", {"json": {"a": {"base64": "?"}}}, 400, "'a': invalid base64"),
        ("POST", "/streams/k", {"json": []}, 400, "no entries"),
        ("POST", "/streams/k", {"content": b'{"a":"\\ud800"}',
         "headers": {"content-type": "application/json"}}, 400, "surrogates"),
        ("POST", "/streams/k", {"content": b"[" * 100_000,
         "headers": {"content-type": "application/json"}}, 400, "not JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    store: Store,
    client: Client,
    method: str,
    path: str,
    options: dict[str, Any],
    status: int,
    words: str,
) -> None:
    store.xadd("k", {"n": 1}, id="1-0")
    assert words in client(method, path, status=status, **options).json()["message"]
    assert store.xlen("k") == 1


def test_search_finds_in_names_and_values_and_continues(store: Store, client: Client) -> None:
    entries = [{"n": f"Value{number}", "even": str(1 - number % 2)} for number in range(300)]
    store.xadd_many("k", entries)
    found, examined = searched(client, "/streams/k/search?text=VALUE29")
    values = [one["fields"]["n"] for one in found]
    assert values == ["Value29", *(f"Value{number}" for number in range(290, 300))]
    assert examined == 300
    part = client.get("/streams/k/search?field=even&text=1&count=10")
    assert len(part["entries"]) == 10
    path = "/streams/k/search?field=even&text=1&count=1000"
    rest, _ = searched(client, path, part["next"])
    assert len(rest) == 140
    newest = client.get("/streams/k/search?text=value&reverse=1&count=1")
    assert newest["entries"][0]["fields"]["n"] == "Value299"


def searched(client: Client, path: str, start: str = "-") -> tuple[list[Any], int]:
    """Search to the end, in as many calls as a slow machine needs; return what was examined."""
    entries: list[Any] = []
    examined = 0
    following: str | None = start
    while following is not None:
        page = client.get(f"{path}&start={following}")
        entries += page["entries"]
        examined += page["examined"]
        following = page["next"]
    return entries, examined


def test_the_list_of_streams_is_paged_by_key(store: Store, client: Client) -> None:
    for name in (b"a", b"b", b"\xff", b"c1", b"c2"):
        store.xadd(name, {"n": 1})
    first = client.get("/streams?count=2")
    assert [one["key"] for one in first["streams"]] == ["a", "b"]
    assert (first["next"], first["total"]) == ("b", 5)
    rest = client.get("/streams?after=b&figures=60000")["streams"]
    assert [one["key"] for one in rest] == ["c1", "c2", {"base64": "/w=="}]
    assert len(rest[0]["spark"]) == 40
    assert [one["key"] for one in client.get("/streams?match=c*")["streams"]] == ["c1", "c2"]


def test_a_slow_reader_of_a_long_stream_costs_a_page(store: Store, client: Client) -> None:
    store.xadd_many("k", [{"v": b"x" * 100_000}] * 60)

    def read() -> None:
        client.get("/streams/k?count=5")

    assert peak_of(read, limit=5 << 20) <= 5 << 20
