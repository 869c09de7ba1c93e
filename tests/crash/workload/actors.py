"""One actor: it chooses transactions at random, notes them, and knows what it has in streams.

How a transaction is run is the concern of `worker.py`: by a thread, a task, a client of a server.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from crash.workload import oracle

_OF_DEAD: Final = ("requeue", "drop")
_KEPT: Final = ("sync", "checkpoint", "get", *_OF_DEAD)  # of those below, what promises something
ALONE: Final = ("erase", "archive", "maintain", "soon", *_KEPT)  # in no transaction
_MOST_JOBS: Final = 60  # of an actor; beyond it, it takes more than it puts
_HOUR_S: Final = 3600
_MOST_LIVE: Final = 40  # entries of an actor in one stream; beyond it, the oldest go
_SIZES: Final = (0, 10, 10, 40, 40, 150, 700, 3000)
_BIG: Final = (20_000, 140_000)


@dataclass
class Style:
    """What an actor is like; drawn once in each round.

    Attributes:
        streams: how many streams of its own it uses.
        syncs: the sync modes of its transactions; first that of its store.
        several: how often it makes several commands one transaction.
        most: how many commands such a transaction has at most.
        big: how often an entry is big.
        hows: how several commands become one transaction.
        fails: how often a transaction raises in the middle.
        rest_s: how long it rests between two transactions, at most.
        served: it is a client of a server, and knows only Redis's commands.
        archived: its own streams have an archive.
        jobs: how often it puts jobs into a queue of its own, takes them, and ends them.
        erases: it erases entries now and then.
        publishes: the archive of its store is under a URI.
    """

    streams: int = 4
    syncs: tuple[str, ...] = ("commit",)
    several: float = 0.3
    most: int = 6
    big: float = 0.01
    hows: tuple[str, ...] = ("transaction", "pipeline")
    fails: float = 0.02
    rest_s: float = 0.0
    served: bool = False
    archived: bool = False
    jobs: float = 0.0
    erases: bool = False
    publishes: bool = False


@dataclass
class Step:
    """A transaction that was chosen."""

    number: int
    sync: str
    operations: list[oracle.Operation]
    how: str  # "single", "transaction", "pipeline"
    fails_after: int = -1  # raise after so many commands; -1 for never


@dataclass
class Actor:
    """See the module."""

    name: str
    number: int
    state: oracle.State
    style: Style
    common: list[str]
    notes: Path
    seed: int
    queue: Any = None  # that it uses, where it is at work
    held: dict[str, Any] = field(default_factory=dict)  # jobs that it has taken there, by token
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._file = os.open(self.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def close(self) -> None:
        """Close the file of notes, in the process that has forked the one which writes them."""
        os.close(self._file)

    def _note(self, *words: Any) -> None:
        os.write(self._file, json.dumps(words).encode() + b"\n")

    def begin(self, step: Step) -> None:
        self._note("?", step.number, time.monotonic(), step.sync, step.operations)

    def done(self, step: Step, results: list[Any]) -> None:
        """Note what a transaction has returned, and that it is over."""
        self._note("!", step.number, time.monotonic(), results)
        for operation, result in zip(step.operations, results, strict=True):
            if operation[1]:
                oracle.apply(self.state.setdefault(operation[1], oracle.View()), operation, result)
            if oracle.kind_of(operation[1]) == oracle.QUEUE and operation[0] != "get":
                for token in operation[2]:
                    self.held.pop(token, None)

    def refused(self, step: Step) -> None:
        """Note that nothing of a transaction has happened."""
        self._note("-", step.number, time.monotonic())

    def step(self) -> Step:
        several = self.random.random() < self.style.several
        count = self.random.randrange(2, self.style.most + 1) if several else 1
        operations: list[oracle.Operation] = []
        self.number += 1
        for part in range(count):
            operation = self._operation(part)
            # One command for each stream: what it does follows from what was told before.
            if operation[1] not in [one[1] for one in operations]:
                operations.append(operation)
            if operations[0][0] in ALONE:
                break
        operations = [one for one in operations if len(operations) == 1 or one[0] not in ALONE]
        how = "single" if len(operations) == 1 else self.random.choice(self.style.hows)
        if how == "single" and operations[0][0] not in ALONE and self.random.random() < 0.1:
            how = self.random.choice(self.style.hows)
        of_jobs = [one for one in operations if oracle.kind_of(one[1]) == oracle.QUEUE]
        if how == "pipeline" and of_jobs:
            how = "transaction"
        home = self.style.syncs[0]
        free = how == "transaction" or not of_jobs
        sync = home if how == "pipeline" or not free else self.random.choice(self.style.syncs)
        if operations[0][0] in ("sync", "checkpoint"):
            sync = "commit"
        elif operations[0][0] in ALONE and operations[0][0] not in _KEPT:
            sync = "none"
        step = Step(self.number - 1, sync, operations, how)
        if (
            how == "transaction"
            and not self.style.served
            and (self.random.random() < self.style.fails)
        ):
            step.fails_after = self.random.randrange(len(operations) + 1)
        return step

    def _operation(self, part: int) -> oracle.Operation:
        chance = self.random.random()
        if not self.style.served:
            if chance < 0.01:
                return [self.random.choice(["sync", "checkpoint", "maintain"]), ""]
            if chance < 0.02:
                return ["archive", ""]
        if self.random.random() < self.style.jobs:
            return self._of_jobs(part)
        key = self._key()
        view = self.state.get(key) or oracle.View()
        if oracle.kind_of(key) not in (oracle.COMMON, oracle.ARCHIVED):
            return self._own(key, view, part)
        if oracle.kind_of(key) == oracle.COMMON:
            return self._in_common(key, view, part)
        if self._erases(0.02) and len(view.live) > 5:
            return self._of_entries("erase", key, list(view.live)[:3], view)
        return self._add(key, part)

    def _of_jobs(self, part: int) -> oracle.Operation:
        key = f"{oracle.QUEUE}:{self.name}"
        jobs = (self.state.get(key) or oracle.View()).jobs
        chance = self.random.random()
        if self.held and chance < 0.5:
            name = self.random.choice(["done", "done", "retry", "fail", "back"])
            if name == "done" and not part and self.random.random() < 0.3:
                name = "soon"
            tokens = self._some(list(self.held))
            return [name, key, tokens if name == "done" else tokens[:1]]
        dead = [token for token, one in jobs.items() if one.failed == oracle.DEAD]
        if dead and not part and chance < 0.6:
            token = self.random.choice(dead)
            # One that is put again comes after those of its key that were put before.
            may = jobs[token].key is None and self.random.random() < 0.7
            return [_OF_DEAD[0] if may else _OF_DEAD[1], key, [token]]
        now_ms = int(time.time() * 1000)
        later = [token for token, one in jobs.items() if one.due_ms > now_ms + _HOUR_S * 500]
        if later and chance < 0.65:
            return ["cancel", key, [self.random.choice(later)]]
        if not part and (chance < 0.8 or len(jobs) > _MOST_JOBS):
            return ["get", key, self.random.randrange(1, 6)]
        tokens = [
            oracle.token_of(self.name, self.number - 1, part * 100 + one, 0)
            for one in range(self.random.randrange(1, 4))
        ]
        of_key = self.random.choice([None, None, "a", "b"])
        delay_s = 0.0 if of_key else self.random.choice([0.0, 0.0, 0.005, 0.05, _HOUR_S])
        priority = "normal" if of_key else self.random.choice(["high", "normal", "low"])
        return ["put", key, tokens, of_key, now_ms + int(delay_s * 1000), delay_s, priority]

    def _key(self) -> str:
        if self.common and self.random.random() < 0.35:
            return self.random.choice(self.common)
        # Some streams are busy, and many are not.
        share = self.random.random() ** 2
        return oracle.own_key(self.name, int(share * self.style.streams))

    def _own(self, key: str, view: oracle.View, part: int) -> oracle.Operation:
        chance = self.random.random()
        if not view.exists and chance < 0.3:
            return ["group", key]
        if view.exists and self.style.archived and not (view.archived or self.style.served):
            return ["retain", key]
        if len(view.live) > _MOST_LIVE:
            return ["trim", key, self.random.randrange(_MOST_LIVE)]
        if view.group and view.fresh and chance < 0.25:
            return ["read", key, self.random.randrange(1, 6)]
        if view.pending and chance < 0.4:
            return ["ack", key, self._some(list(view.pending))]
        if len(view.live) > 3 and chance < 0.5:
            name = "erase" if self._erases(0.03) else "delete"
            return self._of_entries(name, key, [], view)
        if view.live and not view.group and chance < 0.55:
            return ["group", key]
        return self._add(key, part)

    def _in_common(self, key: str, view: oracle.View, part: int) -> oracle.Operation:
        chance = self.random.random()
        if view.pending and chance < 0.25:
            return ["ack", key, self._some(list(view.pending))]
        if chance < 0.4:
            return ["take", key, self.random.randrange(1, 6)]
        if len(view.live) > _MOST_LIVE or (len(view.live) > 3 and chance < 0.5):
            return self._of_entries("delete", key, [], view)
        return self._add(key, part)

    def _add(self, key: str, part: int) -> oracle.Operation:
        many = 1
        if not self.style.served and self.random.random() < 0.1:
            many = self.random.randrange(2, 12)
        tokens = []
        for one in range(many):
            size = self.random.choice(_SIZES)
            if many == 1 and self.random.random() < self.style.big:
                size = self.random.choice(_BIG)
            tokens.append(oracle.token_of(self.name, self.number - 1, part * 100 + one, size))
        return ["add", key, tokens]

    def _erases(self, share: float) -> bool:
        may = self.style.erases and not self.style.served
        return may and self.random.random() < share

    def _of_entries(
        self, name: str, key: str, tokens: list[str], view: oracle.View
    ) -> oracle.Operation:
        tokens = tokens or self._some(list(view.live))
        return [name, key, tokens, [view.live[token] for token in tokens]]

    def _some(self, items: list[str]) -> list[str]:
        oldest = items[: self.random.randrange(1, 6)]
        return oldest if self.random.random() < 0.7 else [self.random.choice(items)]
