"""The programs in examples/: each is run, and does what its page says."""

from __future__ import annotations

import gc
import logging
import os
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

import group_steps
import streamkeep
from addresses import is_served
from conftest import ROOT, assert_sound
from http_client import EventClient
from http_client import run as run_async
from patience import PATIENCE_S, wait_until
from real_redis.server import running_redis
from streamkeep import transfer
from streamkeep.jobs import Queue

PROGRAMS = ROOT / "examples" / "programs"
MODES = ("commit", "interval", "none")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty working directory; every store in it must be sound when the test ends."""
    monkeypatch.chdir(tmp_path)
    yield
    for data in tmp_path.rglob("data.mdb"):
        assert_sound(data.parent)


def run(name: str, *arguments: str) -> dict[str, Any]:
    """Run a program in this process; return its names."""
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        return runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    finally:
        sys.argv = before


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, and counts what it is asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A site of three pages, one of which has a link that leads nowhere; and what is asked for."""
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "index.html").write_text(
        '<a href="/b.html#x">b</a><a href="https://x.example/">x</a>'
    )
    (folder / "b.html").write_text('<a href="/">home</a><a href="c.html">c</a>')
    (folder / "c.html").write_text('<a href="gone.html">not there</a>')
    asked: list[str] = []
    handler = type("Handler", (Quiet,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/", asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # an HTTPError holds an open socket
)
def test_the_crawler_fetches_each_page_once_and_keeps_dead_letters(
    site: tuple[str, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    address, asked = site
    for turn in (1, 2):
        arguments = [address] if turn == 1 else []
        run("crawler", *arguments)["queue"].close()
        dead = f'dead: [["{address}gone.html","{address}"],{{}}] HTTP Error 404: File not found'
        assert capsys.readouterr().out.splitlines() == ["3 pages", dead]
    gc.collect()
    assert sorted(asked) == ["/", "/b.html", "/c.html", *["/gone.html"] * 3]


def test_the_audit_history_holds_every_change(capsys: pytest.CaptureFixture[str]) -> None:
    run("audit", "3000")
    assert capsys.readouterr().out == "150 live, 3000 in all; user 7: 31\n"
    with streamkeep.open("audit.store", readonly=True) as store:
        assert store.archived_segments("changes")


def test_the_service_sends_events_and_continues_after_the_last_one() -> None:
    names = run("events")
    app = names["app"]

    async def scenario() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            async with EventClient(app, "/orders") as reader:
                reader.take()
                await reader.until(lambda: reader.sent)
                assert (await client.post("/orders", data={"sku": "7"})).status_code == 201
                await reader.until(lambda: reader.ids)
            [first] = reader.ids
            await client.post("/orders", data={"sku": "9"})
            async with EventClient(app, "/orders", last_event_id=first) as reader:
                reader.take()
                await reader.until(lambda: reader.ids)
                assert [one["fields"] for one in reader.entries] == [{"sku": "9"}]
        names["events"].close()

    run_async(scenario)


@pytest.mark.slow
def test_no_mode_loses_what_a_killed_process_had_reported_and_commit_survives_a_power_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("losses")
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["sync", "reported"]
    rows = [line.split()[:4] for line in lines]
    assert [row[:3] for row in rows] == [[mode, "1000", "0"] for mode in MODES]
    can_mount = find_spec("mfusepy") is not None and shutil.which("fusermount3") is not None
    if can_mount and os.access("/dev/fuse", os.R_OK | os.W_OK):
        assert [row[3] for row in rows] == ["0", "1000", "1000"]  # of an interval of a minute


@pytest.mark.slow
def test_workers_that_were_forked_from_a_process_with_a_store_use_it(tmp_path: Path) -> None:
    gunicorn = [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3"]
    address = str(tmp_path / "web.sock")
    server = subprocess.Popen(
        [*gunicorn, "--bind", f"unix:{address}", "--chdir", str(tmp_path), "forked:app"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *sys.path])},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: is_served(address) or server.poll() is not None)
        processes: set[int] = set()

        def ask() -> bool:
            transport = httpx.HTTPTransport(uds=address)
            with httpx.Client(transport=transport, timeout=PATIENCE_S) as client:
                order = client.post("http://localhost/orders", json={"sku": "7"})
                visit = client.get("http://localhost/visits")
            assert (order.status_code, visit.status_code) == (201, 200), visit.text
            processes.update((order.json()["process"], visit.json()["process"]))
            return len(processes) >= 2

        wait_until(ask)
        assert server.pid not in processes
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
    with streamkeep.open(tmp_path / "web.store") as store:
        orders = store.xlen("orders")
    with Queue(tmp_path / "web.store") as queue:
        assert queue.stats().waiting == orders > 0


@pytest.mark.slow
@pytest.mark.redis
def test_streams_move_to_redis_and_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dump = redis.Redis.dump

    def gone_before(server: Any, key: bytes) -> Any:
        if key == b"gone":
            server.delete(key)
        return dump(server, key)

    monkeypatch.setattr(redis.Redis, "dump", gone_before)
    with streamkeep.open("old.store") as store:
        for number in range(3):
            store.xadd("orders", {"n": number}, id=f"{number}-1")
        store.xgroup_create("orders", "mail", id="0")
        store.xreadgroup("mail", "ann", {"orders": ">"}, count=2)
        store.xadd("payments", {"n": 1}, id="1-1")
    with running_redis() as server:
        address = f"unix://{server.socket}"
        server.call(b"SET", b"text", b"of another type")
        run("migrate", "old.store", address, "7.0")
        assert server.call(b"XLEN", b"orders") == 3
        server.call(b"XADD", b"gone", b"*", b"n", b"1")
        server.call(b"EXPIRE", b"payments", 1000)
        run("migrate", address, "new.store")
        run("migrate", address, "new.store")
    assert capsys.readouterr().out.splitlines() == [
        "2 streams copied, 0 were there, 0 keys of other types",
        "2 streams copied, 0 were there, 1 keys of other types",
        "1 of them would expire in the Redis, and do not where they were copied to",
        "0 streams copied, 2 were there, 1 keys of other types",
    ]
    with streamkeep.open("old.store") as old, streamkeep.open("new.store") as new:
        [pending] = new.xpending_range("orders", "mail", "-", "+", 10)[:1]
        assert (pending["message_id"], pending["consumer"]) == (b"0-1", b"ann")
        differences = [one for one in transfer.diff(old, new) if one.kind != "consumer"]
        assert differences == []


def test_every_program_is_run() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {
        "audit",
        "crawler",
        "events",
        "forgetful_disk",
        "forked",
        "losses",
        "migrate",
    }


# --- the demo in examples/flights: its workers, its data, and the names of its modules ------------

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_a_worker_finishes_the_pending_entries_of_another_one() -> None:
    with streamkeep.open("s", decode_responses=True) as store:
        flights = [{"distance": "100", "air_time": "20"}, {"distance": "9"}] * 700
        ids = store.xadd_many("flights", flights)
        store.xgroup_create("flights", group_steps.GROUP, id=0)
        store.xreadgroup(group_steps.GROUP, "ann", {"flights": ">"}, count=300)
        assert group_steps.pending_of(store, "flights", "ann") == 300
        group_steps.work("s", "flights", "bob", 0)
        results = [entry.fields for entry in store.scan(group_steps.RESULTS)]
        assert sorted(one["of"] for one in results) == sorted(ids)
        assert [one.get("mph") for one in results].count("300") == 700
        [group] = store.xinfo_groups("flights")
        assert (group["pending"], group["lag"]) == (0, 0)


def test_a_worker_leaves_alone_what_another_one_claimed() -> None:
    with streamkeep.open("s", decode_responses=True) as store:
        store.xadd_many("flights", [{"distance": "9"}] * 3, ids=["1-0", "2-0", "3-0"])
        store.xgroup_create("flights", group_steps.GROUP, id=0)
        [[_, entries]] = store.xreadgroup(group_steps.GROUP, "ann", {"flights": ">"})
        store.xclaim("flights", group_steps.GROUP, "bob", 0, ["2-0"])
        with store.transaction() as txn:
            group_steps.finish(txn, "flights", "ann", entries)
        assert [entry.fields["of"] for entry in store.scan(group_steps.RESULTS)] == ["1-0", "3-0"]
        assert group_steps.pending_of(store, "flights", "bob") == 1
        assert store.xpending("flights", group_steps.GROUP)["pending"] == 1


def test_no_module_of_an_example_hides_a_package() -> None:
    """`python examples/flights` puts that folder first on the path of imports."""
    names = {path.stem for path in EXAMPLES.rglob("*.py")} - {"__main__"}
    assert names
    installed = [path for path in sys.path if path.endswith("-packages")]
    assert not names & sys.stdlib_module_names
    assert [name for name in names if PathFinder.find_spec(name, installed)] == []
