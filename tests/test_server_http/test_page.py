"""The page in a real browser: what it shows, what it does, and that names are never markup."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import threading
from collections.abc import Callable, Iterator
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
        self._server = HttpServer(app, sockets)
        self._run(self._server.start())
        self.url = f"http://127.0.0.1:{self.port}/page/"

    def _run(self, call: Any) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(PATIENCE_S)

    def stop(self) -> None:
        self._run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store[bytes]]:
    """A store on the clock of the machine, as the browser's is."""
    with streamkeep.open(tmp_path / "shop.store", sync="none") as store:
        yield store
    assert_sound(tmp_path / "shop.store")


@pytest.fixture
def site(kept: Store[bytes]) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def serve(write: bool = False, port: int = 0) -> Site:
        sites.append(Site(create_app(kept, Access(TOKEN), write=write), port))
        return sites[-1]

    yield serve
    for one in sites:
        if one._thread.is_alive():
            one.stop()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser; the page may complain of nothing, and ask no other server for anything."""
    with Browser() as one:
        yield one
        one.run("1")  # takes the last events
        assert one.complaints == []
        assert {url.split("/")[2].split(":")[0] for url in one.requests} <= {"127.0.0.1", ""}


def enter(browser: Browser, site: Site, view: str = "") -> None:
    """Open the page with the token, and then a view."""
    browser.open(f"{site.url}#token={TOKEN}")
    browser.until("document.querySelector('.tiles dd')")
    if view:
        browser.run(f"location.hash = {view!r}")


def test_the_overview_says_what_there_is_and_what_is_stuck(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    ids = [f"{number}-1" for number in range(1, 251)]
    kept.xadd_many("orders", [{"n": number} for number in range(250)], ids)
    kept.xgroup_create("orders", "mail", id="0")
    kept.xreadgroup("mail", "ann", {"orders": ">"}, count=2)
    kept.xclaim("orders", "mail", "ann", 0, ["1-1"], idle=7_200_000)
    enter(browser, site())
    browser.until(f"{ROWS} === 1")
    text = browser.text()
    assert "2 entries are not acknowledged; the first was delivered 2 h ago to ann" in text
    assert browser.run("location.hash") == "#/"  # the token has left the address
    shown = [cell.strip() for cell in browser.text("tbody tr").split("\t")]
    assert shown[0] == "orders"
    assert shown[3:] == ["250", shown[4], "1", "248", "2"]
    browser.click("mail of orders")
    browser.until(f"{ROWS} === 3")
    assert "1-1" in browser.text()
    assert "Acknowledge" not in browser.text()  # it is read-only


def test_the_overview_counts_the_archive_cuts_long_names_and_shows_blanks(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    kept.set_retention("  k ", archive=True)
    kept.xadd_many("  k ", [{"n": number} for number in range(1000)])
    kept.xtrim("  k ", maxlen=400, approximate=False)
    kept.archive()
    kept.xadd("x" * 500, {"n": 1})
    kept.xgroup_create("x" * 500, "g" * 300, id="0")
    queue = Queue(kept, "mail")
    queue.put(1, priority="low")
    queue.pause()
    enter(browser, site())
    browser.until("document.querySelectorAll('.stuck li').length === 2")
    [archived] = kept.archived_streams()
    assert f"402\nand {archived.entries} archived" in browser.text(".tiles")
    assert "␣␣k␣" in browser.text("tbody")
    heights = browser.run(
        "[...document.querySelectorAll('.stuck .name')].map((a) => a.offsetHeight)"
    )
    assert max(heights) < 40  # one line each
    assert "queue mail" in browser.text(".stuck")
    assert "The queue is paused; 1 job waits" in browser.text(".stuck")
    # A part that is small is drawn small: 75 of a million are not seen.
    parts = browser.run(
        "import('./charts.js').then((one) => [...one.bars([0, 1, 2], [['archived', 'archived',"
        " [1e6, 1]], ['erased', 'erased', [75, 0]]], { label: 'x' }).querySelectorAll('rect')]"
        ".map((one) => Number(one.getAttribute('height'))))"
    )
    assert parts == [130, 123.99, 0.01, 130, 2, 0]


def test_hostile_names_and_values_are_text(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    keys: list[bytes | str] = [HOSTILE, "..", "", ".", "a/b?c#d", b"\xff\x00", "\u202eexe.txt"]
    for key in keys:
        kept.xadd(key, {HOSTILE: HOSTILE, b"\xfe": b"\x00\xff", "js": "javascript:alert(1)"})
        kept.xgroup_create(key, HOSTILE, id="0")
        kept.xreadgroup(HOSTILE, HOSTILE, {key: ">"})
    name = f"q{HOSTILE}"
    queue = Queue(kept, name, retries=0)
    queue.put({HOSTILE: HOSTILE})
    with pytest.raises(ValueError, match="img"), queue.get(0):
        raise ValueError(HOSTILE)
    queue.put(HOSTILE)
    enter(browser, site(write=True))
    browser.until(f"{ROWS} >= {len(keys)}")
    links = browser.run("[...document.querySelectorAll('tbody a')].map((one) => one.hash)")
    assert len(set(links)) == len(keys) + 2
    for link in links:
        if link.startswith("#/stream?key=q"):
            continue  # of the queue, which has a view of its own
        browser.run(f"location.hash = {link!r}")
        browser.until(f"{ENTRIES} >= 1 && document.querySelector('h1')")
        group = browser.until("document.querySelector('tbody a')?.hash")
        browser.run(f"location.hash = {group!r}")
        browser.until("document.querySelector('h1 .of')?.textContent === 'Group '")
        browser.until(f"{ROWS} >= 2")
        assert HOSTILE in browser.text()
    for state in ("dead", "waiting"):
        browser.run(f"location.hash = '#/queue?name=' + encodeURIComponent({name!r}) "
                    f"+ '&state={state}'")  # fmt: skip
        browser.until(f"{JOBS} >= 1 && document.querySelector('h1')")
        browser.until("document.querySelector('button.opener')")
        browser.run("[...document.querySelectorAll('button.opener')].at(-1).click()")
        browser.until("document.querySelector('.opened .pairs')")
        assert HOSTILE in browser.text(".opened")
    assert browser.run("window.broken === undefined && !document.querySelector('main img')")
    assert browser.run("[...document.querySelectorAll('a')].every((a) => a.protocol === 'http:')")


def test_a_range_a_search_and_the_archive(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    begin = 1_718_000_000_000
    kept.set_retention("k", archive=True)
    ids = [f"{begin + 60_000 * number}-0" for number in range(1000)]
    kept.xadd_many("k", [{"n": f"value {number}"} for number in range(1000)], ids)
    kept.xtrim("k", maxlen=400, approximate=False)
    kept.archive()
    enter(browser, site(), "#/stream?key=k")
    browser.until(f"{ENTRIES} === 50")
    assert "value 999" in browser.text(".entries li")
    browser.click("Show older entries")
    browser.until(f"{ENTRIES} === 100")
    browser.type("input[name=text]", "VALUE 95")
    browser.press("Enter", 13, "\r")
    browser.until("document.body.innerText.includes('10 entries found')")
    browser.click("Reset")
    browser.until(f"{ENTRIES} === 50")
    browser.type("input[name=to]", "2024-06-10T06:15:00Z")
    browser.run("document.querySelector('input[name=history]').click()")
    browser.until("document.querySelector('.entries code')?.innerText.startsWith('1718000060000')")
    assert "archived" in browser.text(".legend")
    bars = "document.querySelectorAll('.bars [role=button]')"
    before = browser.run(f"{bars}.length")
    assert before > 50
    browser.run(f"{bars}[0].focus()")
    browser.press("ArrowRight", 39)
    browser.press("Enter", 13, "\r")
    browser.until("document.querySelector('input[name=from]').value.startsWith('2024-06-10T')")


def test_the_live_tail_misses_nothing_over_a_restart(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    kept.xadd("k", {"n": "old"}, id="1-0")
    first = site()
    enter(browser, first, "#/stream?key=k")
    browser.until(f"{ENTRIES} === 1")
    browser.click("Live tail")
    browser.until("document.body.innerText.includes('waiting for entries')")
    kept.xadd("k", {"n": "one"}, id="2-0")
    browser.until("document.body.innerText.includes('one')")
    browser.expected.append("net::ERR_")  # of the connection that is refused
    first.stop()
    kept.xadd("k", {"n": "two"}, id="3-0")
    site(port=first.port)
    kept.xadd("k", {"n": "three"}, id="4-0")
    browser.until(f"{ENTRIES} === 3")
    shown = browser.run("[...document.querySelectorAll('.entries code')].map((a) => a.innerText)")
    assert shown == ["4-0", "3-0", "2-0"]


def test_pending_entries_are_acknowledged_claimed_and_returned(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    for number in range(3):
        kept.xadd("k", {"n": number}, id=f"{number + 1}-0")
    kept.xgroup_create("k", "g", id="0")
    kept.xreadgroup("g", "ann", {"k": ">"})
    enter(browser, site(write=True), "#/group?key=k&group=g")
    browser.until(f"{ROWS} === 4")
    browser.click("1-0", "button.opener")
    browser.until("document.querySelector('.opened .pairs')?.innerText.includes('0')")
    assert browser.run("document.querySelector('.opened a').hash").startswith(
        "#/stream?key=k&start=1-0"
    )
    browser.click("1-0", "button.opener")
    browser.click("Acknowledge", "td button")
    browser.until("document.querySelector('dialog[open]')")
    browser.click("Cancel", "dialog button")
    browser.until("!document.querySelector('dialog')")
    assert kept.xpending("k", "g")["pending"] == 3
    browser.click("Acknowledge", "td button")
    browser.click("Acknowledge", "dialog button")
    browser.until(f"{ROWS} === 3")
    browser.click("Claim…", "td button")
    browser.until("document.querySelector('dialog[open] input')")
    browser.type("dialog input", "bob")
    browser.click("Claim", "dialog button")
    browser.until("document.body.innerText.includes('1 entry claimed for bob')")
    browser.until(f"{ROWS} === 4")
    browser.click("Return", "tr:last-child td button")
    browser.click("Return", "dialog button")
    browser.until("document.body.innerText.includes('to be claimed')")
    rows = kept.xpending_range("k", "g", "-", "+", 9)
    assert [(one["message_id"], one["consumer"]) for one in rows] == [
        (b"2-0", b"bob"),
        (b"3-0", b""),
    ]


def test_jobs_are_cancelled_run_and_put_again_and_queues_paused(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    queue = Queue(kept, "mail", retries=0)
    queue.put({"to": "ann"})
    queue.put({"to": "bob"}, delay="1h")
    queue.periodic("0 3 * * *", name="nightly")(lambda: None)
    queue.register_periodic()
    enter(browser, site(write=True))
    browser.click("Queues")
    browser.until("document.querySelector('h2')?.innerText === 'Queues'")
    browser.click("mail")
    browser.until(f"{JOBS} === 1 && document.querySelector('td.actions')")
    browser.click("Cancel", "td button")
    browser.click("Cancel the job", "dialog button")
    browser.until("document.body.innerText.includes('No job waits.')")
    browser.click("Delayed 1")
    browser.until("document.body.innerText.includes('put for later')")
    with pytest.raises(ValueError, match="none"):  # takes the job that is run now
        browser.click("Run now", "td button")
        browser.until("document.body.innerText.includes('will start')")
        with queue.get(0):
            raise ValueError("none")
    browser.click("Dead letters 1")
    browser.click("Requeue", "td button")
    browser.until("document.body.innerText.includes('There are no dead letters.')")
    browser.click("Pause")
    browser.until("document.body.innerText.includes('Resume')")
    browser.click("Remove", "td button")
    browser.click("Remove", "dialog button")
    browser.until("document.body.innerText.includes('No task is periodic.')")
    assert queue.schedules() == []
    stats = queue.stats()
    assert (stats.waiting, stats.delayed, stats.cancelled, stats.paused) == (1, 0, 1, True)


def test_seventy_dead_letters_are_understood_tried_and_requeued_in_eight_clicks(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    """After a bad deploy: find the reason, requeue one, look at it, requeue the rest."""
    queue = Queue(kept, "crawl", retries=0)
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
    enter(browser, site(write=True))
    browser.until("document.body.innerText.includes('71 dead letters')")
    browser.clicks = 0
    browser.click("queue crawl")
    browser.click("builtins.ConnectionError")
    browser.until(
        "document.querySelector('.section-head p')?.innerText === '70 dead letters like this.'"
    )
    newest = browser.text("tbody .opener")
    browser.click(newest)
    browser.until("document.querySelector('.traceback')")
    assert browser.text(".call") == 'fetch("http://example/69", 2)'
    assert "Traceback (most recent call last):\n  File " in browser.text(".traceback")
    assert "ConnectionError: http://example/69 is not there" in browser.text(".traceback")
    browser.click("Requeue", "td button")
    browser.until(
        "document.querySelector('.section-head p')?.innerText === '69 dead letters like this.'"
    )
    queue.run_until_idle()
    browser.until("document.querySelector('.segmented a:nth-child(5)').innerText === 'Done 1'")
    browser.click("Done 1")
    browser.until(f"{JOBS} === 1")  # the look: it is done
    browser.run("history.back()")
    browser.until(
        "document.querySelector('.section-head p')?.innerText === '69 dead letters like this.'"
    )
    browser.click("Requeue all…")
    browser.until("document.querySelector('dialog h2')")
    assert "Requeue 69 dead letters?" in browser.text("dialog")
    assert "with “builtins.ConnectionError”" in browser.text("dialog")
    browser.click("Requeue", "dialog button")
    browser.until("document.body.innerText.includes('69 dead letters put again.')")
    assert browser.clicks + 1 <= 8  # with the one of Back
    assert queue.run_until_idle() == 69
    assert [one.message for one in queue.dead_letters()] == ["'gone is not there'"]
    browser.click("All")
    browser.until(f"{JOBS} === 2")
    browser.click("Drop all…")
    browser.click("Drop", "dialog button")
    browser.until("document.body.innerText.includes('There are no dead letters.')")
    assert queue.stats().failed == 0


def test_range_search_view_and_columns_are_in_the_address(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    for number in range(1, 101):
        text = f'{{"deep":{{"big":12345678901234567890,"n":{number}}}}}'
        fields: dict[str | bytes, Any] = {"n": number, "json": text, "x,y": f'"{number}",\r\n'}
        kept.xadd("k", {**fields, b"\xff": b"\x00", HOSTILE: HOSTILE})
    enter(browser, site(), "#/stream?key=k&text=%22n%22:7&oldest=1")
    browser.until("document.body.innerText.includes('11 entries found')")  # 7 and 70 to 79
    browser.click("Table")
    browser.until("document.querySelectorAll('[aria-labelledby=entries] thead th').length === 6")
    browser.click("json", "button.toggle")
    browser.until("document.querySelectorAll('[aria-labelledby=entries] thead th').length === 5")
    assert browser.run("location.hash").count("cols=") == 1
    browser.run("document.querySelector('button.opener').click()")
    browser.until("document.querySelector('.opened .pairs')")
    browser.click("JSON", ".opened button")
    assert '"big": 12345678901234567890,\n' in browser.text(".opened pre")
    browser.run(
        "window.saved = []; URL.createObjectURL = (blob) => { saved.push(blob); return '#/'; };"
        "HTMLAnchorElement.prototype.click = () => {}"
    )
    browser.click("CSV")
    browser.until("saved.length === 1")
    head, first, *rest = csv.reader(io.StringIO(browser.run("saved[0].text()"), newline=""))
    assert head == ["id", "n", "x,y", "\\xff", HOSTILE]
    assert first[1:] == ["7", '"7",\r\n', "\x00", HOSTILE]
    assert len(rest) == 10
    browser.click("JSON Lines")
    browser.until("saved.length === 2")
    rows = [json.loads(line) for line in browser.run("saved[1].text()").splitlines()]
    assert [dict(map(tuple, one["pairs"][:1])) for one in rows][:2] == [{"n": "7"}, {"n": "70"}]
    for _ in range(2):
        browser.run("history.back()")
    browser.until(f"{ENTRIES} === 11")
    assert browser.run("document.querySelector('input[name=text]').value") == '"n":7'
    browser.click("Reset")
    browser.until(f"{ENTRIES} === 50")
    browser.run("history.back()")
    browser.until("document.body.innerText.includes('11 entries found')")


def test_what_is_not_there_is_a_sentence_with_a_way_on(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    kept.xadd("k", {"n": 1})
    browser.expected.append("status of 404")
    enter(browser, site())
    for view, said, way in [
        ("#/stream?key=none", "There is no stream none.", "All streams"),
        ("#/group?key=k&group=none", "There is no group none.", "The groups of the stream"),
        ("#/group?key=none&group=g", "There is no group g.", "The groups of the stream"),
        ("#/queue?name=none", "There is no queue none.", "All queues"),
    ]:
        browser.run(f"location.hash = {view!r}")
        browser.until(f"document.querySelector('main')?.innerText.startsWith({said!r})")
        assert browser.text().split() == [*said.split(), *way.split()]
        assert browser.text("#notice") == ""


def test_the_store_is_checked(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    kept.xadd("k", {"n": 1})
    enter(browser, site(), "#/store")
    browser.click("Check every entry")
    browser.until("document.body.innerText.includes('Sound: nothing was found.')")
    assert "none is known" in browser.text()


def test_without_the_token_it_asks_for_it(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    kept.xadd("confidential", {"n": 1})
    served = site()
    browser.expected.append("status of 401")
    browser.open(served.url)
    browser.until("document.querySelector('#token')")
    assert "confidential" not in browser.run("document.documentElement.outerHTML")
    browser.type("#token", "wrong")
    browser.press("Enter", 13, "\r")
    browser.until("document.querySelector('[role=alert]')")
    browser.type("#token", TOKEN)
    browser.press("Enter", 13, "\r")
    browser.until(f"{ROWS} === 1")


def test_it_works_by_keyboard_and_for_screen_readers(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    for name in ("alpha", "beta"):
        kept.xadd(name, {"n": 1})
    enter(browser, site())
    browser.until(f"{ROWS} === 2")
    browser.press("/", 191, "/")
    assert browser.run("document.activeElement.id") == "filter"
    browser.call("Input.insertText", text="alp")
    browser.until(f"{ROWS} === 1")
    browser.until("location.hash.startsWith('#/?match=alp&')")
    assert browser.run("document.activeElement.id") == "filter"
    browser.run("document.querySelector('tbody a').focus()")
    browser.press("Enter", 13, "\r")
    browser.until(f"{ENTRIES} === 1")
    browser.run("history.back()")
    browser.until(f"{ROWS} === 1 && document.querySelector('#filter').value === 'alp'")
    queue = Queue(kept, "mail")
    queue.put({"to": "ann"})
    browser.run("location.hash = '#/queue?name=mail'")
    browser.until("document.querySelector('button.opener')")
    browser.run("document.querySelector('button.opener').focus()")
    browser.press("Enter", 13, "\r")
    browser.until("document.querySelector('.opened .pairs')")
    browser.until("document.activeElement.getAttribute('aria-expanded') === 'true'")
    for view in ("#/", "#/stream?key=alpha&view=table", "#/queue?name=mail", "#/store", "#/api"):
        browser.run(f"location.hash = {view!r}")
        browser.until("document.querySelectorAll('h1').length === 1")
        browser.until("document.querySelector('section h2')")
        nameless = [
            role
            for role, name in browser.names()
            if role in ("button", "link", "textbox", "searchbox", "combobox", "table", "image")
            and not name.strip()
        ]
        assert nameless == []


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_its_window(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser, width: int
) -> None:
    kept.xadd("a-key-" + "x" * 300, {"field-" + "y" * 300: "z" * 3000})
    kept.xgroup_create("a-key-" + "x" * 300, "g" * 300, id="0")
    queue = Queue(kept, "q" * 190, retries=0)
    queue.put({"n": "z" * 3000})
    with pytest.raises(ValueError, match="w"), queue.get(0):
        raise ValueError("w" * 3000)
    browser.resize(width, 844)
    enter(browser, site())
    browser.until(f"{ROWS} === 3")
    stream = browser.run("document.querySelector('tbody a').hash")
    for view in ("#/", stream, stream.replace("/stream", "/group") + "&group=" + "g" * 300,
                 stream + "&view=table", "#/store", "#/api", "#/queues",
                 f"#/queue?name={queue.name}&state=dead"):  # fmt: skip
        browser.run(f"location.hash = {view!r}")
        browser.until("document.querySelectorAll('h1').length === 1")
        browser.until("document.querySelector('section h2')")
        if "queue?" in view:
            browser.until("document.querySelector('tbody .opener')")
            browser.run("document.querySelector('tbody .opener').click()")
            browser.until("document.querySelector('.traceback')")
        for dark in (True, False):
            browser.dark(dark)
            assert browser.run("document.documentElement.scrollWidth") <= width, view


def test_a_long_stream_opens_as_fast_as_a_short_one(
    kept: Store[bytes], site: Callable[..., Site], browser: Browser
) -> None:
    """Bytes and requests do not grow with the stream; time would depend on the machine."""
    for key, count in (("short", 1000), ("long", 200_000)):
        for start in range(1, count + 1, 10_000):
            ids = [f"{start + at}-0" for at in range(min(10_000, count))]
            kept.xadd_many(key, [{"n": "x" * 20}] * len(ids), ids)
    enter(browser, site())
    sizes = {}
    for key in ("short", "long"):
        browser.run("performance.clearResourceTimings()")
        browser.run(f"location.hash = '#/stream?key={key}'")
        browser.until(f"{ENTRIES} === 50 && document.querySelector('h1')?.innerText === {key!r}")
        browser.until("document.querySelector('.bars')")
        sizes[key] = browser.run(
            "performance.getEntriesByType('resource').slice(0, 4)"
            ".reduce((sum, one) => sum + one.encodedBodySize, 0)"
        )
    assert sizes["long"] < 2 * sizes["short"] + 10_000
