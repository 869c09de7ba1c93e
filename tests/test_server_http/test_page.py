"""The page in a real browser: what it shows, what it does, and that names are never markup."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from browser import Browser
from conftest import assert_sound
from http_client import TOKEN
from patience import PATIENCE_S
from streamkeep import Store
from streamkeep.jobs import Queue
from streamkeep.server.access import Access
from streamkeep.server.http.app import App, create_app
from streamkeep.server.http.serving import HttpServer, bind

pytestmark = pytest.mark.slow

HOSTILE = '<img src=x onerror="window.broken=1">'
ROWS = "document.querySelectorAll('tbody tr').length"
JOBS = "document.querySelectorAll('[aria-labelledby=jobs] tbody tr').length"
LETTERS = "document.querySelector('.section-head p')?.innerText"
ENTRIES = "document.querySelectorAll('.entries li').length"


class Site:
    """A server in a thread of its own, which can be stopped and started on the same port."""

    def __init__(self, app: App, port: int = 0) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        sockets = bind("127.0.0.1", port)
        self.port = sockets[0].getsockname()[1]
        self._server = HttpServer(app, sockets, 10_000)
        self._run(self._server.start())
        self.url = f"http://127.0.0.1:{self.port}/page/"

    def _run(self, call: Any) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE_S)

    def stop(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class Page(Browser):
    """The page of a store in a browser, and the servers of it."""

    def __init__(self, store: Store[bytes]) -> None:
        super().__init__()
        self.store = store
        self.sites: list[Site] = []

    def serve(self, *, write: bool = False, port: int = 0) -> Site:
        self.sites.append(Site(create_app(self.store, Access(TOKEN), write=write), port))
        return self.sites[-1]

    def enter(self, view: str = "", *, write: bool = False) -> Site:
        """Open the page with the token, and then a view."""
        site = self.serve(write=write)
        self.open(f"{site.url}#token={TOKEN}")
        self.until("document.querySelector('.tiles dd')")
        if view:
            self.go(view)
        return site

    def stop(self) -> None:
        for one in self.sites:
            if one._thread.is_alive():
                one.stop()

    def go(self, view: str) -> None:
        self.run(f"location.hash = {view!r}")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """A page, which may complain of nothing, and ask no other server for anything.

    Its store is on the clock of the machine, as the browser is.
    """
    path = tmp_path / "shop.store"
    with streamkeep.open(path, sync="none") as store, ExitStack() as sites:
        page = Page(store)
        sites.callback(page.stop)
        with page:
            yield page
            page.run("1")  # takes the last events
            assert page.complaints == []
            assert {url.split("/")[2].split(":")[0] for url in page.requests} <= {"127.0.0.1", ""}
    assert_sound(path)


def test_the_overview_says_what_there_is_and_what_is_stuck(page: Page) -> None:
    ids = [f"{number}-1" for number in range(1, 251)]
    page.store.xadd_many("orders", [{"n": number} for number in range(250)], ids)
    page.store.xgroup_create("orders", "mail", id="0")
    page.store.xreadgroup("mail", "ann", {"orders": ">"}, count=2)
    page.store.xclaim("orders", "mail", "ann", 0, ["1-1"], idle=7_200_000)
    page.enter()
    page.until(f"{ROWS} === 1")
    text = page.text()
    assert "2 entries are not acknowledged; the first was delivered 2 h ago to ann" in text
    assert page.run("location.hash") == "#/"  # the token has left the address
    shown = [cell.strip() for cell in page.text("tbody tr").split("\t")]
    assert shown[0] == "orders"
    assert shown[3:] == ["250", shown[4], "1", "248", "2"]
    page.click("mail of orders")
    page.until(f"{ROWS} === 3")
    assert "1-1" in page.text()
    assert "Acknowledge" not in page.text()  # it is read-only


def test_the_overview_counts_the_archive_cuts_long_names_and_shows_blanks(page: Page) -> None:
    page.store.set_retention("  k ", archive=True)
    page.store.xadd_many("  k ", [{"n": number} for number in range(1000)])
    page.store.xtrim("  k ", maxlen=400, approximate=False)
    page.store.archive()
    page.store.xadd("x" * 500, {"n": 1})
    page.store.xgroup_create("x" * 500, "g" * 300, id="0")
    queue = Queue(page.store, "mail")
    queue.put(1, priority="low")
    queue.pause()
    page.enter()
    page.until("document.querySelectorAll('.stuck li').length === 2")
    [archived] = page.store.archived_streams()
    assert f"402\nand {archived.entries} archived" in page.text(".tiles")
    assert "␣␣k␣" in page.text("tbody")
    heights = page.run("[...document.querySelectorAll('.stuck .name')].map((a) => a.offsetHeight)")
    assert max(heights) < 40  # one line each
    assert "queue mail" in page.text(".stuck")
    assert "The queue is paused; 1 job waits" in page.text(".stuck")
    # A part that is small is drawn small: 75 of a million are not seen.
    parts = page.run(
        "import('./charts.js').then((one) => [...one.bars([0, 1, 2], [['archived', 'archived',"
        " [1e6, 1]], ['erased', 'erased', [75, 0]]], { label: 'x' }).querySelectorAll('rect')]"
        ".map((one) => Number(one.getAttribute('height'))))"
    )
    assert parts == [130, 123.99, 0.01, 130, 2, 0]


def test_hostile_names_and_values_are_text(page: Page) -> None:
    keys: list[bytes | str] = [HOSTILE, "..", "", ".", "a/b?c#d", b"\xff\x00", "\u202eexe.txt"]
    for key in keys:
        page.store.xadd(key, {HOSTILE: HOSTILE, b"\xfe": b"\x00\xff", "js": "javascript:alert(1)"})
        page.store.xgroup_create(key, HOSTILE, id="0")
        page.store.xreadgroup(HOSTILE, HOSTILE, {key: ">"})
    name = f"q{HOSTILE}"
    queue = Queue(page.store, name, retries=0)
    queue.put({HOSTILE: HOSTILE})
    with pytest.raises(ValueError, match="img"), queue.get(0):
        raise ValueError(HOSTILE)
    queue.put(HOSTILE)
    page.enter(write=True)
    page.until(f"{ROWS} >= {len(keys)}")
    links = page.run("[...document.querySelectorAll('tbody a')].map((one) => one.hash)")
    assert len(set(links)) == len(keys) + 2
    for link in links:
        if link.startswith("#/stream?key=q"):
            continue  # of the queue, which has a view of its own
        page.go(link)
        page.until(f"{ENTRIES} >= 1 && document.querySelector('h1')")
        group = page.until("document.querySelector('tbody a')?.hash")
        page.go(group)
        page.until("document.querySelector('h1 .of')?.textContent === 'Group '")
        page.until(f"{ROWS} >= 2")
        assert HOSTILE in page.text()
    for state in ("dead", "waiting"):
        page.run(f"location.hash = '#/queue?name=' + encodeURIComponent({name!r}) "
                    f"+ '&state={state}'")  # fmt: skip
        page.until(f"{JOBS} >= 1 && document.querySelector('h1')")
        page.until("document.querySelector('button.opener')")
        page.run("[...document.querySelectorAll('button.opener')].at(-1).click()")
        page.until("document.querySelector('.opened .pairs')")
        assert HOSTILE in page.text(".opened")
    assert page.run("window.broken === undefined && !document.querySelector('main img')")
    assert page.run("[...document.querySelectorAll('a')].every((a) => a.protocol === 'http:')")


def test_a_range_a_search_and_the_archive(page: Page) -> None:
    begin = 1_718_000_000_000
    page.store.set_retention("k", archive=True)
    ids = [f"{begin + 60_000 * number}-0" for number in range(1000)]
    page.store.xadd_many("k", [{"n": f"value {number}"} for number in range(1000)], ids)
    page.store.xtrim("k", maxlen=400, approximate=False)
    page.store.archive()
    page.enter("#/stream?key=k")
    page.until(f"{ENTRIES} === 50")
    assert "value 999" in page.text(".entries li")
    page.click("Show older entries")
    page.until(f"{ENTRIES} === 100")
    page.type("input[name=text]", "VALUE 95")
    page.press("Enter", 13, "\r")
    page.until("document.body.innerText.includes('10 entries found')")
    page.click("Reset")
    page.until(f"{ENTRIES} === 50")
    page.type("input[name=to]", "2024-06-10T06:15:00Z")
    page.run("document.querySelector('input[name=history]').click()")
    page.until("document.querySelector('.entries code')?.innerText.startsWith('1718000060000')")
    assert "archived" in page.text(".legend")
    bars = "document.querySelectorAll('.bars [role=button]')"
    before = page.run(f"{bars}.length")
    assert before > 50
    page.run(f"{bars}[0].focus()")
    page.press("ArrowRight", 39)
    page.press("Enter", 13, "\r")
    page.until("document.querySelector('input[name=from]').value.startsWith('2024-06-10T')")


def test_the_live_tail_misses_nothing_over_a_restart(page: Page) -> None:
    page.store.xadd("k", {"n": "old"}, id="1-0")
    first = page.enter("#/stream?key=k")
    page.until(f"{ENTRIES} === 1")
    page.click("Live tail")
    page.until("document.body.innerText.includes('waiting for entries')")
    page.store.xadd("k", {"n": "one"}, id="2-0")
    page.until("document.body.innerText.includes('one')")
    page.expected.append("net::ERR_")  # of the connection that is refused
    first.stop()
    page.store.xadd("k", {"n": "two"}, id="3-0")
    page.serve(port=first.port)
    page.store.xadd("k", {"n": "three"}, id="4-0")
    page.until(f"{ENTRIES} === 3")
    shown = page.run("[...document.querySelectorAll('.entries code')].map((a) => a.innerText)")
    assert shown == ["4-0", "3-0", "2-0"]
    page.click("Table")  # which ends the tail, and reads the range
    page.until(f"{ROWS} === 4 && {ENTRIES} === 0")


def test_pending_entries_are_acknowledged_claimed_and_returned(page: Page) -> None:
    for number in range(3):
        page.store.xadd("k", {"n": number}, id=f"{number + 1}-0")
    page.store.xgroup_create("k", "g", id="0")
    page.store.xreadgroup("g", "ann", {"k": ">"})
    page.enter("#/group?key=k&group=g", write=True)
    page.until(f"{ROWS} === 4")
    page.click("1-0", "button.opener")
    page.until("document.querySelector('.opened .pairs')?.innerText.includes('0')")
    assert page.run("document.querySelector('.opened a').hash").startswith(
        "#/stream?key=k&start=1-0"
    )
    page.click("1-0", "button.opener")
    page.click("Acknowledge", "td button")
    page.until("document.querySelector('dialog[open]')")
    page.click("Cancel", "dialog button")
    page.until("!document.querySelector('dialog')")
    assert page.store.xpending("k", "g")["pending"] == 3
    page.click("Acknowledge", "td button")
    page.click("Acknowledge", "dialog button")
    page.until(f"{ROWS} === 3")
    page.click("Claim…", "td button")
    page.until("document.querySelector('dialog[open] input')")
    page.type("dialog input", "bob")
    page.click("Claim", "dialog button")
    page.until("document.body.innerText.includes('1 entry claimed for bob')")
    page.until(f"{ROWS} === 4")
    page.click("Return", "tr:last-child td button")
    page.click("Return", "dialog button")
    page.until("document.body.innerText.includes('to be claimed')")
    rows = page.store.xpending_range("k", "g", "-", "+", 9)
    assert [(one["message_id"], one["consumer"]) for one in rows] == [
        (b"2-0", b"bob"),
        (b"3-0", b""),
    ]


def test_jobs_are_cancelled_run_and_put_again_and_queues_paused(page: Page) -> None:
    queue = Queue(page.store, "mail", retries=0)
    queue.put({"to": "ann"})
    queue.put({"to": "bob"}, delay="1h")
    queue.periodic("0 3 * * *", name="nightly")(lambda: None)
    queue.register_periodic()
    page.enter(write=True)
    page.click("Queues")
    page.until("document.querySelector('h2')?.innerText === 'Queues'")
    page.click("mail")
    page.until(f"{JOBS} === 1 && document.querySelector('td.actions')")
    page.click("Cancel", "td button")
    page.click("Cancel the job", "dialog button")
    page.until("document.body.innerText.includes('No job waits.')")
    page.click("Delayed 1")
    page.until("document.body.innerText.includes('put for later')")
    with pytest.raises(ValueError, match="none"):  # takes the job that is run now
        page.click("Run now", "td button")
        page.until("document.body.innerText.includes('will start')")
        with queue.get(0):
            raise ValueError("none")
    page.click("Dead letters 1")
    page.click("Requeue", "td button")
    page.until("document.body.innerText.includes('There are no dead letters.')")
    page.click("Pause")
    page.until("document.body.innerText.includes('Resume')")
    page.click("Remove", "td button")
    page.click("Remove", "dialog button")
    page.until("document.body.innerText.includes('No task is periodic.')")
    assert queue.schedules() == []
    stats = queue.stats()
    assert (stats.waiting, stats.delayed, stats.cancelled, stats.paused) == (1, 0, 1, True)


def test_seventy_dead_letters_are_understood_tried_and_requeued_in_eight_clicks(page: Page) -> None:
    """After a bad deploy: find the reason, requeue one, look at it, requeue the rest."""
    queue = Queue(page.store, "crawl", retries=0)
    broken = True

    def run(url: str, depth: int = 0) -> str:
        if broken or url == "gone":
            raise (KeyError if url == "gone" else ConnectionError)(f"{url} is not there")
        return f"read {url}"

    fetch = queue.task(name="fetch")(run)
    for number in range(70):
        fetch.delay(f"http://example/{number}", 2)
    fetch.delay("gone")
    queue.run_until_idle()
    broken = False
    page.enter(write=True)
    page.until("document.body.innerText.includes('71 dead letters')")
    page.clicks = 0
    page.click("queue crawl")
    page.click("builtins.ConnectionError")
    page.until(f"{LETTERS} === '70 dead letters like this.'")
    newest = page.text("tbody .opener")
    page.click(newest)
    page.until("document.querySelector('.traceback')")
    assert page.text(".call") == 'fetch("http://example/69", 2)'
    assert "Traceback (most recent call last):\n  File " in page.text(".traceback")
    assert "ConnectionError: http://example/69 is not there" in page.text(".traceback")
    page.click("Requeue", "td button")
    page.until(f"{LETTERS} === '69 dead letters like this.'")
    queue.run_until_idle()
    page.until("document.querySelector('.segmented a:nth-child(5)').innerText === 'Done 1'")
    page.click("Done 1")
    page.until(f"{JOBS} === 1")  # the look: it is done
    page.run("history.back()")
    page.until(f"{LETTERS} === '69 dead letters like this.'")
    page.click("Requeue all…")
    page.until("document.querySelector('dialog h2')")
    assert "Requeue 69 dead letters?" in page.text("dialog")
    assert "with “builtins.ConnectionError”" in page.text("dialog")
    page.click("Requeue", "dialog button")
    page.until("document.body.innerText.includes('69 dead letters put again.')")
    assert page.clicks + 1 <= 8  # with the one of Back
    assert queue.run_until_idle() == 69
    assert [one.message for one in queue.dead_letters()] == ["'gone is not there'"]
    page.click("All")
    page.until(f"{JOBS} === 2")
    page.click("Drop all…")
    page.click("Drop", "dialog button")
    page.until("document.body.innerText.includes('There are no dead letters.')")
    assert queue.stats().failed == 0


def test_range_search_view_and_columns_are_in_the_address(page: Page) -> None:
    for number in range(1, 101):
        text = f'{{"deep":{{"big":12345678901234567890,"n":{number}}}}}'
        fields: dict[str | bytes, Any] = {"n": number, "json": text, "x,\xady": f'"{number}",\r\n'}
        page.store.xadd("k", {**fields, b"\xff": b"\x00", HOSTILE: HOSTILE})
    page.enter("#/stream?key=k&text=%22n%22:7&oldest=1")
    page.until("document.body.innerText.includes('11 entries found')")  # 7 and 70 to 79
    page.click("Table")
    page.until("document.querySelectorAll('[aria-labelledby=entries] thead th').length === 6")
    page.click("json", "button.toggle")
    page.until("document.querySelectorAll('[aria-labelledby=entries] thead th').length === 5")
    assert page.run("location.hash").count("cols=") == 1
    page.run("document.querySelector('button.opener').click()")
    page.until("document.querySelector('.opened .pairs')")
    page.click("JSON", ".opened button")
    assert '"big": 12345678901234567890,\n' in page.text(".opened pre")
    page.run(
        "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#/'; };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    page.click("CSV")
    page.until("saved.length === 1")
    head, first, *rest = csv.reader(io.StringIO(page.run("saved[0].text()"), newline=""))
    assert head == ["id", "n", "x,\xady", "\\xff", HOSTILE]
    assert first[1:] == ["7", '"7",\r\n', "\x00", HOSTILE]
    assert len(rest) == 10
    page.click("JSON Lines")
    page.until("saved.length === 2")
    rows = [json.loads(line) for line in page.run("saved[1].text()").splitlines()]
    assert [dict(map(tuple, one["pairs"][:1])) for one in rows][:2] == [{"n": "7"}, {"n": "70"}]
    for _ in range(2):
        page.run("history.back()")
    page.until(f"{ENTRIES} === 11")
    assert page.run("document.querySelector('input[name=text]').value") == '"n":7'
    page.click("Reset")
    page.until(f"{ENTRIES} === 50")
    page.run("history.back()")
    page.until("document.body.innerText.includes('11 entries found')")


def test_what_is_not_there_is_a_sentence_with_a_way_on(page: Page) -> None:
    page.store.xadd("k", {"n": 1})
    page.expected.append("status of 404")
    page.enter()
    for view, said, way in [
        ("#/stream?key=none", "There is no stream none.", "All streams"),
        ("#/group?key=k&group=none", "There is no group none.", "The groups of the stream"),
        ("#/group?key=none&group=g", "There is no group g.", "The groups of the stream"),
        ("#/queue?name=none", "There is no queue none.", "All queues"),
    ]:
        page.go(view)
        page.until(f"document.querySelector('main')?.innerText.startsWith({said!r})")
        assert page.text().split() == [*said.split(), *way.split()]
        assert page.text("#notice") == ""


def test_the_store_is_checked(page: Page) -> None:
    page.store.xadd("k", {"n": 1})
    page.enter("#/store")
    page.click("Check every entry")
    page.until("document.body.innerText.includes('Sound: nothing was found.')")
    assert "none is known" in page.text()


def test_without_the_token_it_asks_for_it(page: Page) -> None:
    page.store.xadd("confidential", {"n": 1})
    page.expected.append("status of 401")
    page.open(page.serve().url)
    page.until("document.querySelector('#token')")
    assert "confidential" not in page.run("document.documentElement.outerHTML")
    page.type("#token", "wrong")
    page.press("Enter", 13, "\r")
    page.until("document.querySelector('[role=alert]')")
    page.type("#token", TOKEN)
    page.press("Enter", 13, "\r")
    page.until(f"{ROWS} === 1")


def test_it_works_by_keyboard_and_for_screen_readers(page: Page) -> None:
    for name in ("alpha", "beta"):
        page.store.xadd(name, {"n": 1})
    page.enter()
    page.until(f"{ROWS} === 2")
    page.press("/", 191, "/")
    assert page.run("document.activeElement.id") == "filter"
    page.call("Input.insertText", text="alp")
    page.until(f"{ROWS} === 1")
    page.until("location.hash.startsWith('#/?match=alp&')")
    assert page.run("document.activeElement.id") == "filter"
    page.run("document.querySelector('tbody a').focus()")
    page.press("Enter", 13, "\r")
    page.until(f"{ENTRIES} === 1")
    page.run("history.back()")
    page.until(f"{ROWS} === 1 && document.querySelector('#filter').value === 'alp'")
    queue = Queue(page.store, "mail")
    queue.put({"to": "ann"})
    page.go("#/queue?name=mail")
    page.until("document.querySelector('button.opener')")
    page.run("document.querySelector('button.opener').focus()")
    page.press("Enter", 13, "\r")
    page.until("document.querySelector('.opened .pairs')")
    page.until("document.activeElement.getAttribute('aria-expanded') === 'true'")
    for view in ("#/", "#/stream?key=alpha&view=table", "#/queue?name=mail", "#/store", "#/api"):
        page.go(view)
        page.until("document.querySelectorAll('h1').length === 1")
        page.until("document.querySelector('section h2')")
        nameless = [
            role
            for role, name in page.names()
            if role in ("button", "link", "textbox", "searchbox", "combobox", "table", "image")
            and not name.strip()
        ]
        assert nameless == []


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_its_window(page: Page, width: int) -> None:
    page.store.xadd("a-key-" + "x" * 300, {"field-" + "y" * 300: "z" * 3000})
    page.store.xgroup_create("a-key-" + "x" * 300, "g" * 300, id="0")
    queue = Queue(page.store, "q" * 190, retries=0)
    queue.put({"n": "z" * 3000})
    with pytest.raises(ValueError, match="w"), queue.get(0):
        raise ValueError("w" * 3000)
    page.resize(width, 844)
    page.enter()
    page.until(f"{ROWS} === 3")
    stream = page.run("document.querySelector('tbody a').hash")
    for view in ("#/", stream, stream.replace("/stream", "/group") + "&group=" + "g" * 300,
                 stream + "&view=table", "#/store", "#/api", "#/queues",
                 f"#/queue?name={queue.name}&state=dead"):  # fmt: skip
        page.go(view)
        page.until("document.querySelectorAll('h1').length === 1")
        page.until("document.querySelector('section h2')")
        if "queue?" in view:
            page.until("document.querySelector('tbody .opener')")
            page.run("document.querySelector('tbody .opener').click()")
            page.until("document.querySelector('.traceback')")
        for dark in (True, False):
            page.dark(dark)
            assert page.run("document.documentElement.scrollWidth") <= width, view


def test_a_long_stream_opens_as_fast_as_a_short_one(page: Page) -> None:
    """Bytes and requests do not grow with the stream; time would depend on the machine."""
    for key, count in (("short", 1000), ("long", 200_000)):
        for start in range(1, count + 1, 10_000):
            ids = [f"{start + at}-0" for at in range(min(10_000, count))]
            page.store.xadd_many(key, [{"n": "x" * 20}] * len(ids), ids)
    page.enter()
    sizes = {}
    for key in ("short", "long"):
        page.run("performance.clearResourceTimings()")
        page.go(f"#/stream?key={key}")
        page.until(f"{ENTRIES} === 50 && document.querySelector('h1')?.innerText === {key!r}")
        page.until("document.querySelector('.bars')")
        sizes[key] = page.run(
            "performance.getEntriesByType('resource').slice(0, 4)"
            ".reduce((sum, one) => sum + one.encodedBodySize, 0)"
        )
    assert sizes["long"] < 2 * sizes["short"] + 10_000
