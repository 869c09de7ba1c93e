"""A server of an event stream that is killed at random, for a minute: no gap, and no repeat."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path
from typing import Final

import httpx
import pytest

from conftest import assert_sound
from patience import PATIENCE_S, wait_until
from test_integrations.crew import Crew

SECONDS: Final = 60
APP: Final = """
from streamkeep.integrations.asgi import EventStream

app = EventStream("news.store", "news", start="0", append=True)
"""


class Clients:
    """One that posts numbers, each until it has an answer, and one that follows."""

    def __init__(self, address: Path) -> None:
        self._address = str(address)
        self.posted = 0
        self.received: list[int] = []
        self.last_id = ""
        self.ended = threading.Event()
        self.all_posted = threading.Event()

    def _client(self) -> httpx.Client:
        over = httpx.HTTPTransport(uds=self._address)
        return httpx.Client(transport=over, base_url="http://localhost", timeout=PATIENCE_S)

    def post(self) -> None:
        """Post until the end; the same number and key again where there was no answer.

        A kill may come between an entry and its answer, so the last number has one, too.
        """
        answered = True
        while not (self.ended.is_set() and answered):
            try:
                with self._client() as client:
                    while not (self.ended.is_set() and answered):
                        answered = False
                        key = {"Idempotency-Key": str(self.posted)}
                        reply = client.post("/", json={"number": self.posted}, headers=key)
                        assert reply.status_code == 201, reply.text
                        self.posted += 1
                        answered = True
            except httpx.TransportError:
                time.sleep(0.01)
        self.all_posted.set()

    def follow(self) -> None:
        """Follow until everything was received, as a browser does it."""
        while not self.all_posted.is_set() or len(self.received) < self.posted:
            last = {"Last-Event-ID": self.last_id} if self.last_id else {}
            try:
                with self._client() as client, client.stream("GET", "/", headers=last) as reply:
                    event: dict[str, str] = {}
                    for line in reply.iter_lines():
                        if line:
                            name, _, value = line.partition(": ")
                            event[name] = value
                            continue
                        # It is whole: a kill may cut one off below its ID.
                        self.last_id = event.get("id", self.last_id)
                        if "data" in event:
                            self.received.append(int(json.loads(event["data"])["fields"]["number"]))
                        event = {}
                        if self.all_posted.is_set() and len(self.received) >= self.posted:
                            return
            except httpx.TransportError:
                time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.crash
# httpcore leaves a socket open whose connection was refused.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_is_killed_for_a_minute_leaves_no_gap_and_repeats_nothing(
    tmp_path: Path,
) -> None:
    pytest.importorskip("uvicorn", reason="the extra `asgi` is not installed")
    (tmp_path / "app.py").write_text(APP)
    clients = Clients(tmp_path / "web")
    threads = [threading.Thread(target=one) for one in (clients.post, clients.follow)]
    with Crew(tmp_path) as crew:
        serve = ("uvicorn", "app:app", "--uds", "web", "--lifespan", "off")
        server = crew.start(*serve)
        for thread in threads:
            thread.start()
        try:
            ends_at = time.monotonic() + SECONDS
            while time.monotonic() < ends_at:
                received = len(clients.received)
                wait_until(
                    lambda: (
                        len(clients.received) > received  # noqa: B023
                        or not all(one.is_alive() for one in threads)
                    )
                )
                assert all(one.is_alive() for one in threads), crew.log.read_text()[-3000:]
                time.sleep(random.expovariate(2))
                crew.kill(server)
                server = crew.start(*serve)
        finally:
            clients.ended.set()
            for thread in threads:
                thread.join(PATIENCE_S)
    print(f"{clients.posted} entries, {crew.kills} kills")
    assert crew.kills > 5
    assert clients.received == [*range(clients.posted)]
    assert_sound(tmp_path / "news.store")
