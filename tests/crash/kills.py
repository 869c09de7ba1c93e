"""Processes that share a store and are killed, and what must be in the store afterwards."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import streamkeep
from crash.kill_worker import ADDED, BOTH, GROUP, TRIMMED
from crash.losses import small_journal
from crash.places import Places
from crash.power import another_boot, copy_store
from fork_server import Server
from patience import PATIENCE_S
from streamkeep import recovery
from streamkeep.engine.api.store import Store

MODES: Final = ("commit", "interval", "none")
_STEPS: Final = 20_000  # of a worker that is to pass a failpoint, at most


@dataclass
class Plan:
    """What a worker is to do.

    Args:
        consumes: it reads from the group; otherwise it writes.
        failpoint: where it kills itself, at the passage number `passages`; empty for nowhere.
        archives: what it trims goes to the archive.
        flushes: it flushes after so many commits.
        fails: its commit with this number fails; 0 for none.
        boot: it believes to be in another boot than the tests; 0 for the same.
        recover: it only opens and closes the store.
        most: it ends by itself after this many steps.
    """

    path: str
    log: str
    name: str
    seed: int
    sync: str = "commit"
    consumes: bool = False
    archives: bool = False
    flushes: int = 1000
    fails: int = 0
    failpoint: str = ""
    passages: int = 1
    boot: int = 0
    recover: bool = False
    most: int = 1 << 30


@dataclass
class Told:
    """What the logs of all workers say: tried is what was begun, the rest was acknowledged."""

    added: dict[str, tuple[str, str]] = field(default_factory=dict)  # token: stream, ID
    groups_of_tokens: list[list[tuple[str, str]]] = field(default_factory=list)  # all or nothing
    tried_added: dict[str, str] = field(default_factory=dict)  # token: stream
    deleted: set[str] = field(default_factory=set)
    tried_deleted: set[str] = field(default_factory=set)
    erased: set[str] = field(default_factory=set)
    tried_erased: set[str] = field(default_factory=set)
    archived: int = 0
    trimmed: list[str] = field(default_factory=list)
    tried_trimmed: list[str] = field(default_factory=list)
    delivered: list[tuple[str, str]] = field(default_factory=list)  # consumer, ID
    readers: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    tried_acked: set[str] = field(default_factory=set)
    claimers: dict[str, set[str]] = field(default_factory=dict)  # of an ID: who tried to claim it
    commands: int = 0

    def read(self, log: Path) -> None:
        """Take in one log; its last line may be cut off."""
        for line in log.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                break  # its author was killed in the middle of it
            words = json.loads(line)
            self.commands += words[0] == "!"
            getattr(self, f"_{words[1]}")(words[0] == "!", words[2], *words[3:])

    def _add(self, done: bool, what: list[list[str]], ids: list[str] | None = None) -> None:
        tokens, keys = what
        if done:
            for token, key, one in zip(tokens, keys, ids or (), strict=True):
                self.added[token] = (key, one)
        else:
            self.tried_added.update(zip(tokens, keys, strict=True))
            self.groups_of_tokens.append(list(zip(tokens, keys, strict=True)))

    def _del(self, done: bool, ids: list[str], count: int = 0) -> None:
        (self.deleted if done else self.tried_deleted).update(ids)

    def _erase(self, done: bool, ids: list[str], count: int = 0) -> None:
        (self.erased if done else self.tried_erased).update(ids)

    def _archive(self, done: bool, what: str, count: int = 0) -> None:
        self.archived += count

    def _trim(self, done: bool, least: str, count: int = 0) -> None:
        (self.trimmed if done else self.tried_trimmed).append(least)

    def _read(self, done: bool, name: str, found: Any = None) -> None:
        self.readers.add(name)
        for _, ids in found or ():
            self.delivered += [(name, one) for one in ids]

    def _ack(self, done: bool, ids: list[str], count: int = 0) -> None:
        (self.acked if done else self.tried_acked).update(ids)

    def _claim(self, done: bool, what: Any, ids: Any = None) -> None:
        for one in what[1]:
            self.claimers.setdefault(one, set()).add(what[0])

    def _group(self, done: bool, what: str, result: Any = None) -> None:
        pass

    def _point(self, done: bool, what: str, result: Any = None) -> None:
        pass


def order(one: str) -> tuple[int, int]:
    """Return an ID as what it is compared by."""
    ms, seq = one.split("-")
    return int(ms), int(seq)


def verify(path: Path, told: Told, *, archives: bool = False) -> None:
    """Check a store that no process has open against what was acknowledged."""
    left = {"SK311", "SK312"} if archives else set()  # files that only take room
    assert [str(one) for one in recovery.check(path) if one.code not in left] == []
    with streamkeep.open(path, readonly=True) as store:
        tokens: Counter[str] = Counter()
        ids: dict[bytes, set[str]] = {}
        for key in BOTH:
            entries = store.xrange(key)
            ids[key] = {entry.id.decode() for entry in entries}
            tokens.update(entry.fields[b"t"].decode() for entry in entries)
            found = {entry.fields[b"t"].decode(): entry.id.decode() for entry in entries}
            assert all(told.tried_added[token] == key.decode() for token in found)
            verify_added(told, key.decode(), found, ids[key])
        assert set(tokens.values()) <= {1}, "an entry is there twice"
        verify_atomic(told, tokens)
        if store.exists(ADDED):
            verify_group(store, told)
        if archives:
            verify_history(store, told)


def verify_history(store: Store[bytes], told: Told) -> None:
    """Every acknowledged XADD is live, retired or in a segment, once; what was erased is not."""
    places = Places(store).named(store, TRIMMED)
    there = {f"{ms}-{seq}" for ms, seq in places}
    assert {entry.id.decode() for entry in store.scan(TRIMMED, history=True)} == there
    for token, (key, one) in told.added.items():
        if key == TRIMMED.decode():
            assert one in there or one in told.tried_erased, f"{token} ({one}) is lost"
    assert not there & told.erased, "erased entries are back"


def verify_added(told: Told, key: str, found: dict[str, str], ids: set[str]) -> None:
    """Every acknowledged XADD is there, unless deleted or trimmed; and those were."""
    low = max(map(order, told.trimmed), default=(0, 0))
    may_be_low = max(map(order, told.tried_trimmed), default=(0, 0))
    for token, (where, one) in told.added.items():
        if where != key:
            continue
        may_be_gone = (
            one in told.tried_deleted
            if key == ADDED.decode()
            else order(one) < may_be_low or one in told.tried_erased
        )
        assert found.get(token) == one or may_be_gone, f"{token} ({one}) is lost from {key}"
    if key == ADDED.decode():
        assert not ids & told.deleted, "deleted entries are back"
    else:
        assert all(order(one) >= low for one in ids), "trimmed entries are back"


def verify_atomic(told: Told, tokens: Counter[str]) -> None:
    """What was added together is there together, unless some of it may have been removed."""
    for group in told.groups_of_tokens:
        here = [token in tokens for token, key in group if key == ADDED.decode()]
        known = [told.added[token][1] for token, _ in group if token in told.added]
        if not any(one in told.tried_deleted for one in known):
            assert len(set(here)) <= 1, f"a half of {group} is there"


def verify_group(store: Store[bytes], told: Told) -> None:
    """Deliveries, acknowledgements and claims are as they were told."""
    groups = store.xinfo_groups(ADDED)
    if not groups:
        return
    assert [group["name"] for group in groups] == [GROUP]
    last = order(groups[0]["last-delivered-id"].decode())
    rows = store.xpending_range(ADDED, GROUP, "-", "+", 1 << 30)
    pending = {row["message_id"].decode(): row["consumer"].decode() for row in rows}
    twice = [one for one, count in Counter(one for _, one in told.delivered).items() if count > 1]
    assert not twice, f"delivered to two consumers: {twice[:5]}"
    assert not told.acked & pending.keys(), "acknowledged entries are pending again"
    receiver = {one: name for name, one in told.delivered}
    for one, name in receiver.items():
        assert order(one) <= last
        assert one in pending or one in told.tried_acked or one in told.tried_deleted, (
            f"the delivery of {one} to {name} is lost"
        )
    for one, owner in pending.items():
        first = {receiver[one]} if one in receiver else told.readers
        assert owner in first | told.claimers.get(one, set()), f"{one} is with {owner}"
    for entry in store.xrange(ADDED):
        one = entry.id.decode()
        if order(one) <= last:
            assert one in pending or one in told.tried_acked, f"{one} was never delivered"


class Run:
    """Rounds of kills on one store.

    Args:
        folder: for the store, its logs and copies.
        archives: what is trimmed goes to the archive.
    """

    def __init__(self, server: Server, folder: Path, seed: int, *, archives: bool = False) -> None:
        self.archives = archives
        self.server = server
        self.folder = folder
        self.random = random.Random(seed)
        self.seed = seed
        self.path = folder / f"store-{seed}"
        self.logs: list[Path] = []
        self.kills = 0
        self.copies = 0
        self.commands = 0
        self._workers = 0

    def plan(self, **options: Any) -> Plan:
        """Return the plan of a new worker."""
        self._workers += 1
        name = f"w{self.seed}.{self._workers}"
        log = self.folder / f"{name}.log"
        self.logs.append(log)
        options.setdefault("sync", self.random.choice(MODES))
        options["flushes"] = self.random.choice([1, 20, 1000])
        options["archives"] = self.archives
        return Plan(str(self.path), str(log), name, self.random.randrange(1 << 30), **options)

    def random_kills(self, kills: int) -> None:
        """Have four processes at work; kill one after the other, and each time start another."""
        alive: list[int] = []

        def start() -> None:
            alive.append(self.server.fork(self.plan(consumes=self.random.random() < 0.4)))

        for _ in range(4):
            start()
        for _ in range(kills - 4):
            if self.random.random() < 0.5:
                self._await_work()  # however long it takes on a busy machine
            time.sleep(self.random.choice([0.002, 0.02, 0.06]))
            self.kill(alive.pop(self.random.randrange(len(alive))))
            start()
        while alive:
            self.kill(alive.pop())
        self.verify()

    def _await_work(self) -> None:
        """Return when a worker has noted something since this call."""

        def noted() -> int:
            return sum(log.stat().st_size for log in self.logs if log.exists())

        before = noted()
        deadline = time.monotonic() + PATIENCE_S
        while noted() == before:
            assert time.monotonic() < deadline, (
                f"no worker works (seed {self.seed}): {self.errors()}"
            )
            time.sleep(0.001)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.killed(pid)

    def killed(self, pid: int) -> None:
        """Wait for a worker that was to be killed."""
        status = self.server.wait(pid)
        assert status == -signal.SIGKILL, f"ended with {status} (seed {self.seed}): {self.errors()}"
        self.kills += 1

    def kill_at(self, failpoint: str, *, beside: int = 0) -> None:
        """Make a worker kill itself at a failpoint while others are at work.

        What a recovery has to do was left by one that is killed before.
        """
        others = [self.server.fork(self.plan(consumes=number == 0)) for number in range(beside)]
        options: dict[str, Any] = {"failpoint": failpoint, "sync": "commit", "most": _STEPS}
        if failpoint == "commit:failed":
            options["fails"] = self.random.randrange(1, 60)
        elif failpoint.startswith(("commit", "journal:sync")):
            options["passages"] = self.random.randrange(1, 60)
        elif not failpoint.startswith(("create", "recover")):
            options["passages"] = self.random.randrange(1, 3)
        if failpoint.startswith("recover"):
            before = {"failpoint": "commit:journaled", "passages": 50, "boot": 77}
            boot = before.pop("boot")
            self.killed(self.server.fork(self.plan(sync="none", **before)))
            options |= {"recover": True, "boot": boot}
        self.killed(self.server.fork(self.plan(**options)))
        for pid in others:
            self.kill(pid)
        self.verify()

    def errors(self) -> str:
        """Return what workers that failed have said."""
        texts = [Path(f"{log}.err") for log in self.logs]
        said = "".join(text.read_text() for text in texts if text.exists())
        lines = said.splitlines(keepends=True)
        known = ("an erasure is unfinished", "a file that a killed archiver has left")
        return "".join(line for line in lines if not any(one in line for one in known))[-3000:]

    def verify(self) -> None:
        """Check the store as it is, and what a power loss leaves of it; go on with either."""
        told = Told()
        for log in self.logs:
            if log.exists():
                told.read(log)
        self.commands, self.archived = told.commands, told.archived
        assert self.errors() == "", self.errors()
        copy = self.folder / f"copy-{self.seed}-{self.copies}"
        self.copies += 1
        copy_store(self.path, copy)
        with small_journal():
            boot = 1000 + self.copies
            with another_boot(boot), streamkeep.open(copy):
                pass
            with streamkeep.open(self.path) as store:
                if self.archives:
                    store.archive()
        try:
            verify(copy, told, archives=self.archives)
            verify(self.path, told, archives=self.archives)
        except AssertionError as error:
            raise AssertionError(f"{self.path}, {copy} (seed {self.seed}): {error}") from error
        if self.random.random() < 0.5:
            self.path, copy = copy, self.path
        shutil.rmtree(copy)
