"""The outbox of SQLAlchemy: rows of a session's transaction become entries, each once."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("sqlalchemy", reason="the extra `sqlalchemy` is not installed")

from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from patience import thread_of, wait_until
from postgresql import postgresql
from streamkeep import ArgumentError, Store
from streamkeep.format.core.errors import StoreLockedError
from streamkeep.integrations.sqlalchemy import Outbox
from streamkeep.jobs.outbox import Outbox as Forwarder


class Base(DeclarativeBase):
    """The tables of the tests."""


class Order(Base):
    """An order."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    sku: Mapped[str]


outbox = Outbox(Base.metadata)
outbox.follow(
    Order,
    "orders",
    lambda one: {"id": one.id, "sku": one.sku},
    changes=("insert", "update", "delete"),
)


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    where = getattr(request, "param", None) or tmp_path / "shop.db"
    made = create_engine(f"sqlite:///{where}")
    Base.metadata.create_all(made)
    yield made
    made.dispose()


def skus(store: Store) -> list[str]:
    return [entry.fields[b"sku"].decode() for entry in store.scan("orders")]


@pytest.mark.parametrize("engine", [None, ":memory:"], indirect=True)
def test_rows_of_a_committed_session_are_forwarded_once(engine: Engine, store: Store) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(sku="7"))
        outbox.append(session, "mails", {"to": "ann", "raw": b"\xff", "size": 1.5})
    with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
        session.add(Order(sku="8"))
        session.flush()
        _ = 1 / 0
    assert outbox.forward(engine, store, until_idle=True) == 2
    assert outbox.forward(engine, store, until_idle=True) == 0
    assert [entry.fields for entry in store.xrange("orders")] == [{b"id": b"1", b"sku": b"7"}]
    [mail] = store.xrange("mails")
    assert mail.fields == {b"to": b"ann", b"raw": b"\xff", b"size": b"1.5"}
    for sku in ("9", "9"):  # the second one updates nothing
        with Session(engine) as session, session.begin():
            session.get_one(Order, 1).sku = sku
    with Session(engine) as session, session.begin():
        session.delete(session.get_one(Order, 1))
    assert outbox.forward(engine, store, until_idle=True) == 2
    assert skus(store) == ["7", "9", "9"]


def test_a_forwarder_waits_for_a_connection_of_a_pool_that_has_none(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    busy = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    Base.metadata.create_all(busy)
    stop = threading.Event()
    with busy.begin() as connection:
        outbox.append(connection, "orders", {"sku": "7"})
        thread = thread_of(lambda: outbox.forward(busy, store, every="1ms", stop=stop))
        wait_until(lambda: "is tried again" in caplog.text)
    wait_until(lambda: store.exists("orders"))
    stop.set()
    thread.join()
    busy.dispose()


def test_a_forwarder_goes_on_after_an_error_that_passes(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the database, or of a store whose lock a process has that is stopped."""
    broken = create_engine("sqlite:////nonexistent/shop.db")
    with pytest.raises(Exception, match="unable to open"):
        outbox.forward(broken, store, until_idle=True)
    monkeypatch.setattr(Forwarder, "_forward", Mock(side_effect=StoreLockedError("locked by 7")))
    for one, asked in ((broken, 1), (engine, 2)):
        stop = Mock(is_set=Mock(side_effect=[*[False] * asked, True]))
        assert outbox.forward(one, store, stop=stop) == 0
    assert "unable to open" in caplog.text
    assert "is tried again: locked by 7" in caplog.text


class Modern(sqlite3.Connection):
    """A connection as Python 3.12 has it with `autocommit=False`."""

    autocommit: bool | int = False


Modern.__module__ = "sqlite3"


def test_rows_of_an_engine_that_begins_by_itself_are_forwarded(
    engine: Engine, store: Store
) -> None:
    begins = create_engine(engine.url, connect_args={"factory": Modern})
    with begins.begin() as connection:
        outbox.append(connection, "orders", {"sku": "7"})
    assert outbox.forward(begins, store, until_idle=True) == 1
    begins.dispose()


@pytest.mark.parametrize("name", ["Outbox", "order"])
def test_a_table_whose_name_needs_quotes_is_forwarded(
    engine: Engine, store: Store, name: str
) -> None:
    quoted = Outbox(metadata := MetaData(), name)
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        quoted.append(session, "orders", {"sku": "7"})
    assert quoted.forward(engine, store, until_idle=True) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["streamkeep_outbox", "Outbox", "user"])
def test_rows_of_an_engine_that_commits_each_statement_are_forwarded_once(
    store: Store, name: str
) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with postgresql() as socket:
        url = f"postgresql+psycopg://postgres@/postgres?host={socket}"
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        one = Outbox(metadata := MetaData(), name)
        metadata.create_all(engine)
        stop = threading.Event()
        threads = [
            thread_of(lambda: one.forward(engine, store, every="1ms", stop=stop)) for _ in range(2)
        ]
        for start in range(0, 500, 10):
            with engine.begin() as connection:
                for number in range(start, start + 10):
                    one.append(connection, "orders", {"sku": str(number)})
        wait_until(lambda: store.exists("orders") and store.xlen("orders") >= 500)
        stop.set()
        for thread in threads:
            thread.join()
        engine.dispose()
    assert sorted(skus(store), key=int) == [str(number) for number in range(500)]


def test_wrong_arguments_are_refused(engine: Engine) -> None:
    with pytest.raises(ArgumentError):
        outbox.follow(Order, "orders", lambda one: {}, changes=("inserted",))  # type: ignore[arg-type]
    with Session(engine) as session:
        wrong: list[Any] = [{}, {"a": object()}, {"a": "\ud800"}, {"\ud800": 1}, {b"a": "b"}]
        for stream, fields in (("", {"a": "b"}), *(("s", one) for one in wrong)):
            with pytest.raises(ArgumentError):
                outbox.append(session, stream, fields)
