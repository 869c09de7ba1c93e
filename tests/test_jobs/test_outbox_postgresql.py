"""The outbox of a PostgreSQL database: forwarders that die, and rows that are committed late."""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from patience import wait_until
from postgresql import postgresql
from streamkeep import Store
from streamkeep.jobs import Queue
from streamkeep.jobs.outbox import Outbox

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
pytestmark = pytest.mark.slow

TABLE = "CREATE TABLE outbox (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload TEXT)"
ROWS = 300


class Cut(Exception):
    """A process died."""


class Connection:
    """A connection whose process dies at random: the server then undoes its transaction."""

    def __init__(self, real: Any, seed: int) -> None:
        self._real = real
        self._rng = random.Random(seed)

    def __getattr__(self, name: str) -> Any:
        if name in ("cursor", "commit") and self._rng.random() < 0.2:
            self._real.close()
            raise Cut
        return getattr(self._real, name)

    def rollback(self) -> None:
        if not self._real.closed:
            self._real.rollback()


Connection.__module__ = "psycopg"


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgresql() as folder:
        yield f"host={folder} user=postgres dbname=postgres"


def test_rows_are_forwarded_once_though_forwarders_die(store: Store, conninfo: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as admin:
        admin.execute(TABLE)
    ended = threading.Event()

    def insert(seed: int) -> None:
        """Commit rows in another order than that of their IDs; some are undone."""
        rng = random.Random(seed)
        with psycopg.connect(conninfo) as database:
            for number in range(ROWS):
                database.execute("INSERT INTO outbox (payload) VALUES (%s)", (f"{seed}.{number}",))
                if rng.random() < 0.4:
                    database.commit()

    def forward(seed: int) -> None:
        while True:
            last = ended.is_set()
            real = psycopg.connect(conninfo)
            try:
                outbox = Outbox(Connection(real, seed), "outbox", store, stream="s", batch=7)
                outbox.run(once=True)
                if last:
                    break
            except Cut:
                pass
            finally:
                real.close()
            seed += 2

    writers = [threading.Thread(target=insert, args=(seed,)) for seed in range(2)]
    forwarders = [threading.Thread(target=forward, args=(seed,)) for seed in range(2)]
    for thread in writers + forwarders:
        thread.start()
    for thread in writers:
        thread.join()
    ended.set()
    for thread in forwarders:
        thread.join()
    with psycopg.connect(conninfo) as database:
        left = Outbox(database, "outbox", store, stream="s")
        # What sessions that end still lock is not there for others.
        wait_until(lambda: left.run(once=True) == 0 and not store.row_range("outbox:outbox"))
    found = Counter(entry.fields[b"payload"].decode() for entry in store.xrange("s"))
    assert found == Counter(f"{seed}.{number}" for seed in range(2) for number in range(ROWS))
    with psycopg.connect(conninfo) as database:
        assert database.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
        database.execute("DROP TABLE outbox")
    assert store.row_range("outbox:outbox") == []


def test_rows_whose_session_has_ended_are_not_appended_again(
    store: Store, conninfo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits for the store, the server ends it, and another forwards and forgets."""
    with (
        psycopg.connect(conninfo, autocommit=True) as admin,
        psycopg.connect(conninfo) as first,
        psycopg.connect(conninfo) as second,
    ):
        admin.execute(TABLE)
        admin.execute("INSERT INTO outbox (payload) VALUES ('x')")
        slow = Outbox(first, "outbox", store, stream="s")

        def end_it(rows: object) -> None:
            admin.execute("SELECT pg_terminate_backend(%s)", (first.info.backend_pid,))
            other = Outbox(second, "outbox", store, stream="s")
            wait_until(other.forward)

        monkeypatch.setattr(slow, "_check_ids", end_it)
        with pytest.raises(psycopg.Error):
            slow.forward()
        admin.execute("DROP TABLE outbox")
    assert store.xlen("s") == 1


def test_the_example_forwards_each_row_once(
    tmp_path: Path,
    conninfo: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/queue")
    example = importlib.import_module("web_outbox_postgresql")
    monkeypatch.delitem(sys.modules, "web_outbox_postgresql")
    example.main(str(tmp_path / "store"), conninfo)
    assert capsys.readouterr().out.splitlines() == ["2 forwarded", "2 shipped"]
    with Queue(tmp_path / "store") as queue:
        assert queue.stats().done == 2
