"""Random lives of outboxes: each row of a committed transaction becomes one entry, and no other.

Two databases have the same table, and are forwarded into one stream by two forwarders each, which
die, stop, lose their connections and meet locks. The test process writes, so it knows what must be
there: each row has a token, a number that grows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy", reason="the extra `sqlalchemy` is not installed")

from sqlalchemy import (
    Connection,
    MetaData,
    create_engine,
    delete,
    event,
    func,
    select,
    text,
    update,
)

import streamkeep
from conftest import assert_sound
from fork_server import Server, forking
from patience import wait_until
from postgresql import postgresql
from streamkeep import Store
from streamkeep.integrations.outbox_rows import row_of
from streamkeep.integrations.sqlalchemy import Outbox
from streamkeep.jobs.layout import part_of
from test_integrations_sqlalchemy import forwarder

OUTBOX = Outbox(METADATA := MetaData())
TABLE = OUTBOX.table
SIZES = (1, 1, 2, 5, 20, 700)  # of transactions; the last is above a batch


class Undone(Exception):
    """A transaction, or the block of a savepoint, is rolled back."""


class Database:
    """A database with its forwarders, and what the store must hold of it.

    Attributes:
        committed: tokens of rows that were committed, and not deleted since.
        maybe: those of rows that were deleted by hand: a forwarder may have appended them before.
        seen: those of entries, as they came.
    """

    def __init__(self, world: World, name: str, url: str) -> None:
        self.world = world
        self.name = name
        self.url = url
        self.in_order = url.startswith("sqlite")  # others commit in another order than that of IDs
        patience = {"timeout": 600} if self.in_order else {}
        self.engine = create_engine(url, connect_args=patience, pool_pre_ping=True)
        if self.in_order:  # savepoints need this, as SQLAlchemy's pages say
            event.listen(self.engine, "connect", _begin_nothing)
            event.listen(self.engine, "begin", _begin)
        METADATA.create_all(self.engine)
        place = self.engine.url.database
        if not self.in_order:
            place = f"{self.engine.url.query['host']}:/{place}"
        self.space = b"outbox:" + part_of(f"{TABLE.name}@{place}", "its name")
        self.errors = Path(f"{world.path}.{name}.errors")
        self.errors.touch()
        self.committed: set[int] = set()
        self.maybe: set[int] = set()
        self.seen: list[int] = []
        self.late: tuple[Connection, set[int]] | None = None
        self.pids = [self.start(), self.start()]

    def start(self) -> int:
        """Start a forwarder; its patience with locks is short."""
        url = f"{self.url}?timeout=0.2" if self.in_order else self.url
        seed = self.world.rng.getrandbits(32)
        wanted = forwarder.Wanted(url, str(self.world.path), str(self.errors), seed)
        return self.world.server.fork(wanted)

    def row(self, token: int) -> dict[str, str]:
        return row_of("s", {"db": self.name, "token": token})

    def write(self) -> None:
        """Make a transaction, with savepoints; undo it at times."""
        rng, tokens = self.world.rng, set[int]()
        try:
            with self.engine.begin() as connection:
                for _ in range(rng.randint(1, 3)):
                    tokens |= self._append(connection, rng.choice(SIZES))
                    tokens |= self._append_nested(connection)
                if rng.random() < 0.2:
                    raise Undone
            self.committed |= tokens
        except Undone:
            pass

    def _append(self, connection: Connection, count: int) -> set[int]:
        tokens = [self.world.next_token() for _ in range(count)]
        OUTBOX.append(connection, "s", {"db": self.name, "token": tokens[0]})
        if tokens[1:]:
            connection.execute(TABLE.insert(), [self.row(token) for token in tokens[1:]])
        return set(tokens)

    def _append_nested(self, connection: Connection) -> set[int]:
        try:
            with connection.begin_nested():
                tokens = self._append(connection, self.world.rng.randint(1, 3))
                if self.world.rng.random() < 0.5:
                    raise Undone
                return tokens
        except Undone:
            return set()

    def write_late(self) -> None:
        """Commit what was written a while ago, below the numbers of others; write something."""
        if self.late is not None:
            connection, tokens = self.late
            connection.commit()
            connection.close()
            self.committed |= tokens
            self.late = None
        elif not self.in_order:
            connection = self.engine.connect()
            self.late = connection, self._append(connection, 3)

    def write_by_hand(self) -> None:
        """Write a row with a number of its own, which others follow."""
        if self.in_order:
            with self.engine.begin() as connection:
                used = connection.scalar(text("SELECT max(seq) FROM sqlite_sequence")) or 0
                token, number = self.world.next_token(), used + self.world.rng.randint(1, 1000)
                connection.execute(TABLE.insert(), {"id": number, **self.row(token)})
            self.committed.add(token)

    def delete(self) -> None:
        with self.engine.begin() as connection:
            row = connection.execute(select(TABLE).limit(1)).one_or_none()
            done = row and connection.execute(delete(TABLE).where(TABLE.c.id == row.id)).rowcount
        if row and done:
            token = json.loads(row.payload)["token"]
            self.committed.remove(token)
            self.maybe.add(token)

    def write_wrongly(self) -> None:
        """Write a row that is no message: all forwarders end with its number."""
        token, before = self.world.next_token(), len(self.errors.read_text())
        with self.engine.begin() as connection:
            wrong = {"stream": "s", "payload": self.world.rng.choice(["[1]", "{", '{"a":null}'])}
            key: Any = connection.execute(TABLE.insert(), wrong).inserted_primary_key
            number = key[0]
        for place, pid in enumerate(self.pids):
            while (status := self.world.server.wait(pid)) == -signal.SIGKILL:
                pid = self.start()
            assert status == 1
            self.pids[place] = 0
        said = self.errors.read_text()[before:]
        assert said.count(f"ArgumentError: row {number} of the outbox is not an entry") == 2, said
        self.world.check()
        # Others may have skipped rows that the session of a killed one still locked.
        assert set(self.seen) >= self.committed or not self.in_order
        right = update(TABLE).where(TABLE.c.id == number).values(**self.row(token))
        with self.engine.begin() as connection:
            connection.execute(right)
        self.committed.add(token)
        self.pids = [self.start(), self.start()]

    def make_table_anew(self) -> None:
        """Begin the numbers again, once no forwarder remembers the former ones."""
        self.end_late()
        self.wait()
        with self.engine.begin() as connection:
            METADATA.drop_all(connection)
            METADATA.create_all(connection)

    def lock(self) -> None:
        """Keep forwarders from the database for a while, or cut their connections."""
        self.end_late()
        with self.engine.begin() as connection:
            if not self.in_order:
                others = "pid <> pg_backend_pid() AND datname = current_database()"
                ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
                connection.execute(text(ended))
                connection.execute(text("LOCK TABLE streamkeep_outbox"))
            time.sleep(self.world.rng.choice([0.01, 0.02, 0.5]))

    def kill(self) -> None:
        place = self.world.rng.randrange(2)
        if self.world.rng.random() < 0.3:
            os.kill(self.pids[place], signal.SIGSTOP)
            time.sleep(self.world.rng.random() / 20)
            os.kill(self.pids[place], signal.SIGCONT)
        else:
            os.kill(self.pids[place], signal.SIGKILL)

    def replace_dead(self) -> None:
        """Start forwarders in place of those that were killed, or have killed themselves."""
        for place, pid in enumerate(self.pids):
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                assert self.world.server.wait(pid) == -signal.SIGKILL
                self.pids[place] = self.start()

    def wait(self) -> None:
        """Wait until all is forwarded, and the store remembers no row."""

        def is_empty() -> bool:
            self.replace_dead()
            self.world.check()
            return set(self.seen) >= self.committed and not self.remembered()

        wait_until(is_empty)

    def remembered(self) -> list[Any]:
        return self.world.store.row_range(self.space, b"id:")

    def end_late(self) -> None:
        if self.late is not None:
            self.write_late()

    def end(self) -> None:
        self.end_late()
        self.wait()
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
            self.world.server.wait(pid)
        wait_until(lambda: not self._left())
        self.engine.dispose()

    def _left(self) -> int:
        """Forward what is left: no row of which a killed session holds the lock no more."""
        assert OUTBOX.forward(self.engine, self.world.store, until_idle=True) == 0
        with self.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(TABLE)) or 0


def _begin_nothing(connection: Any, _: Any) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class World:
    """The store, and the databases that are forwarded into it."""

    def __init__(
        self, path: Path, store: Store[Any], server: Server, urls: list[str], seed: int
    ) -> None:
        self.path = path
        self.store = store
        self.server = server
        self.rng = random.Random(seed)
        self.tokens = 0
        self.last = "-"
        self.databases = [Database(self, str(index), url) for index, url in enumerate(urls)]

    def next_token(self) -> int:
        self.tokens += 1
        return self.tokens

    def lock_store(self) -> None:
        with self.store.transaction():
            time.sleep(self.rng.random() / 10)

    def check(self) -> None:
        """Compare the entries that have come with what was committed."""
        for entry in self.store.xrange("s", self.last):
            self.last = f"({entry.id}"
            one, token = self.databases[int(entry.fields["db"])], int(entry.fields["token"])
            assert token in one.committed | one.maybe, f"{token} was not committed"
            if one.in_order:
                assert not one.seen or token > one.seen[-1], f"{token} after {one.seen[-3:]}"
            one.seen.append(token)

    def live(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            one = self.rng.choice(self.databases)
            steps = [one.write] * 8 + [
                one.write_late,
                one.write_by_hand,
                one.delete,
                one.delete,
                one.lock,
            ]
            steps += [one.kill] * 4 + [self.lock_store]
            self.rng.choice(steps)()
            one.replace_dead()
            if self.rng.random() < 0.03:
                self.rng.choice([one.write_wrongly, one.make_table_anew])()
            time.sleep(self.rng.expovariate(100))
            self.check()
        for one in self.databases:
            one.end()
            assert sorted(one.seen) == sorted(set(one.seen)), "an entry is there twice"
            assert one.committed <= set(one.seen)
            assert not one.remembered()


def run(folder: Path, urls: list[str], seconds: float, seed: int = 1) -> World:
    path = folder / "store"
    with (
        streamkeep.open(path, decode_responses=True) as store,
        forking(forwarder.__name__) as server,
    ):
        world = World(path, store, server, urls, seed)
        world.live(seconds)
    assert_sound(path)
    return world


def sqlite_urls(folder: Path) -> list[str]:
    return [f"sqlite:///{folder}/{name}.db" for name in ("one", "other")]


def test_each_row_becomes_one_entry(tmp_path: Path) -> None:
    run(tmp_path, sqlite_urls(tmp_path), 2)


@pytest.mark.slow
@pytest.mark.crash
def test_each_row_of_sqlite_becomes_one_entry_for_long(
    tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    record_property("rows", run(tmp_path, sqlite_urls(tmp_path), 60).tokens)


@pytest.mark.slow
@pytest.mark.crash
def test_each_row_of_postgresql_becomes_one_entry_for_long(
    tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    with postgresql() as socket:
        urls = [
            f"postgresql+psycopg://postgres@/{name}?host={socket}" for name in ("postgres", "b")
        ]
        admin = create_engine(urls[0], isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            connection.execute(text("CREATE DATABASE b"))
        admin.dispose()
        record_property("rows", run(tmp_path, urls, 60).tokens)
