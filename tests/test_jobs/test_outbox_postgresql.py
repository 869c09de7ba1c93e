"""The outbox of a PostgreSQL database: a session that the server ends, and the example."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    with postgresql() as folder:
        yield f"host={folder} user=postgres dbname=postgres"


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
