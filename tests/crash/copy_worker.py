"""The processes of `test_copies_run.py`: they write, ship, follow and restore until killed.

Each appends to a log what it is about to do and what was acknowledged, in one write(2) each.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import streamkeep
from crash.losses import small_journal
from fork_server import serve
from inside import context_of
from streamkeep.engine.remote.object_store import FolderObjects
from streamkeep.engine.system import failpoints
from streamkeep.engine.system.clock import Clock, clock_replaced
from streamkeep.format.core.errors import StoreError, StreamkeepError, UnreachableError
from streamkeep.recovery import restore_copy
from streamkeep.recovery.copies import shipper, writer
from streamkeep.recovery.copies.standby import Standby

KEYS = ("kept", "deleted", "archived")
GROUP = "g"


class Worker:
    """One process; `plan` is `test_copies_run.Plan`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.random = random.Random(plan["seed"])
        self.log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.tokens = self.renames = 0
        self.mine: list[tuple[str, Any]] = []

    def tell(self, **words: Any) -> None:
        os.write(self.log, json.dumps(words).encode() + b"\n")

    def opened(self) -> streamkeep.Store[Any]:
        store = streamkeep.open(self.plan["path"], sync=self.plan["sync"], interval=0.02)
        context_of(store).memtable.most_commits = self.random.choice((20, 1000))
        return store

    def write(self) -> None:
        self.store = self.opened()
        self.store.set_retention("archived", archive=True)
        if not self.store.exists("kept") or not self.store.xinfo_groups("kept"):
            with suppress(streamkeep.CommandError):
                self.store.xgroup_create("kept", GROUP, "0", mkstream=True)
        steps = [self.add] * 6 + [self.add_many] * 2 + [self.delete] * 2
        steps += [self.trim, self.archive, self.read, self.promise, self.promise]
        steps += [self.rename, self.add_to_own]
        for _ in range(self.plan["most"]):
            self.random.choice(steps)()
        self.store.close()

    def newest(self) -> int:
        with self.store.snapshot() as snapshot:
            return snapshot.txn.newest_commit()

    def commit(self, kind: str, what: Any, command: Callable[[], Any]) -> Any:
        """Run a command, and tell between which commits it was made."""
        before = self.newest()
        self.tell(kind=kind, what=what, before=before)
        result = command()
        self.tell(kind=kind, what=what, before=before, after=self.newest())
        return result

    def token(self) -> str:
        self.tokens += 1
        return f"{self.plan['name']}.{self.tokens}"

    def add(self) -> None:
        token, key = self.token(), self.random.choice(KEYS)
        pad = "x" * self.random.choice((0, 10, 300))
        found = self.commit(
            "add", [[key, token]], lambda: self.store.xadd(key, {"t": token, "p": pad})
        )
        if key == "deleted":
            self.mine.append((token, found))

    def add_many(self) -> None:
        """A transaction over two streams."""
        tokens = [["kept", self.token()], ["archived", self.token()]]
        pad = self.random.randbytes(self.random.choice((0, 0, 0, 100_000)))

        def add() -> None:
            with self.store.transaction() as txn:
                for key, token in tokens:
                    txn.xadd(key, {"t": token, "p": pad})

        self.commit("add", tokens, add)

    def own(self) -> str:
        """Return the name of the stream of this process alone, which changes."""
        return f"own.{self.plan['name']}.{self.renames}"

    def add_to_own(self) -> None:
        token = self.token()
        self.commit("add", [["own", token]], lambda: self.store.xadd(self.own(), {"t": token}))

    def rename(self) -> None:
        if self.store.exists(old := self.own()):
            self.renames += 1
            self.store.rename(old, self.own())

    def delete(self) -> None:
        if self.mine:
            token, entry = self.mine.pop(self.random.randrange(len(self.mine)))
            self.commit("delete", token, lambda: self.store.xdel("deleted", entry))

    def trim(self) -> None:
        self.store.xtrim("archived", maxlen=self.random.randrange(30), approximate=False)

    def archive(self) -> None:
        self.store.archive()

    def read(self) -> None:
        for _, entries in self.store.xreadgroup(GROUP, self.plan["name"], {"kept": ">"}, count=4):
            ids = [one[0] for one in entries[:2]]
            self.commit("ack", len(ids), partial(self.store.xack, "kept", GROUP, *ids))

    def promise(self) -> None:
        """What the store says about the copy, so that it is asked for when all are dead."""
        newest = self.newest()
        try:
            done = (
                self.store.ship_now(0.3)
                if self.random.random() < 0.7
                else self.store.wait_shipped(0.2)
            )
        except StoreError:
            return
        if done:
            self.tell(kind="promise", commit=newest)

    def ship(self) -> None:
        patch = pytest.MonkeyPatch()  # for good
        patch.setattr(writer, "_SMALL", 20)
        patch.setattr(shipper, "_PAUSE_S", 0.02)
        patch.setattr(shipper, "_LEAST_BASE", self.random.choice((2000, 1 << 20)))
        if self.plan["faults"]:
            break_folders(self.random, self.plan["faults"])
        if self.plan["failpoint"]:
            failpoints.arm(self.plan["failpoint"], lambda: os._exit(9))
        offset = self.plan["clock_ms"]
        clock = Clock()
        if offset:
            clock.now_ns = lambda: time.time_ns() + offset * 1_000_000
        with clock_replaced(clock):
            store = self.opened()
            shipping = shipper.Shipper(
                store,
                self.plan["target"],
                every="20ms",
                keep=self.plan["keep"],
                hold_bytes=self.plan["hold"],
            )
            try:
                shipping.run(once=self.plan["once"])
            except StreamkeepError as error:
                self.tell(kind="refused", error=f"{type(error).__name__}: {error}")
            store.close()

    def restore(self) -> None:
        if self.plan["failpoint"]:
            failpoints.arm(self.plan["failpoint"], lambda: os._exit(9))
        restore_copy(self.plan["target"], self.plan["path"])

    def follow(self) -> None:
        standby = Standby(self.plan["target"], self.plan["path"], every="20ms")
        standby.run()


def break_folders(chance: random.Random, kind: str) -> None:
    """Have folders fail as disks and servers do, in one request of four."""
    old: dict[tuple[str, str], list[str]] = {}

    def broken(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def request(self: FolderObjects, *args: Any) -> Any:
            if kind == "slow":
                time.sleep(chance.random() * 0.02)
            elif kind == "stale" and name == "names":
                old.setdefault((self.uri, *args), whole(self, *args))
                if chance.random() < 0.1:
                    old[(self.uri, *args)] = whole(self, *args)
                return old[(self.uri, *args)]
            elif kind == "away" and chance.random() < 0.25:
                raise UnreachableError(f"{self.uri}: it is away")
            elif kind == "full" and name in ("create", "put", "replace") and chance.random() < 0.3:
                raise UnreachableError(f"{self.uri}: no space is left; next: make room")
            elif kind == "unheard" and chance.random() < 0.25:
                whole(self, *args)
                raise UnreachableError(f"{self.uri}: the answer is lost")
            return whole(self, *args)

        return request

    reading = ("get", "read", "size", "get_tagged", "names")
    for name in (*reading, "put", "create", "replace", "remove"):
        setattr(FolderObjects, name, broken(name, getattr(FolderObjects, name)))


def work(plan: dict[str, Any]) -> None:
    with small_journal(threads=True):
        getattr(Worker(plan), plan["does"])()


if __name__ == "__main__":
    serve(work, lambda plan: str(plan["log"]) + ".errors")
