"""The processes that `kills.py` kills: what they do until then; the program that forks them.

A worker writes a line into its log before each command and another after it, with one write(2)
each: the system has them, even if the process dies.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import streamkeep
from crash.losses import small_journal
from crash.power import another_boot
from fork_server import serve
from inside import context_of, environment_of
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import CommandError, NoSuchGroupError

ADDED = b"added"  # entries are added and deleted; the group reads it
TRIMMED = b"trimmed"  # entries are added and trimmed; in some runs archived
BOTH = (ADDED, TRIMMED)
GROUP = b"g"


class Worker:
    """One process.

    Args:
        plan: see `kills.Plan`.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.name: str = plan["name"]
        self.random = random.Random(plan["seed"])
        self.log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.tokens = 0
        self.mine: list[str] = []  # IDs that this process added to ADDED and has not deleted
        self.held: list[str] = []  # IDs that were delivered to it
        self.old: list[str] = []  # IDs that this process added to TRIMMED and has not erased
        self.store = streamkeep.open(plan["path"], sync=plan["sync"], interval=0.02)
        context_of(self.store).memtable.most_commits = plan["flushes"]
        self.consumes: bool = plan["consumes"]
        self.archives: bool = plan["archives"]

    def write(self, *words: object) -> None:
        os.write(self.log, json.dumps(words).encode() + b"\n")

    def tell(self, kind: str, what: Any, command: Callable[[], Any]) -> Any:
        """Run a command between its two lines in the log; what Redis refuses changes nothing."""
        self.write("?", kind, what)
        try:
            result = command()
        except CommandError:
            return None
        self.write("!", kind, what, shown(result))
        return result

    def token(self) -> str:
        self.tokens += 1
        return f"{self.name}.{self.tokens}"

    def run(self, most: int) -> None:
        """Do random things, without end or so often."""
        choices = self.consumer() if self.consumes else self.writer()
        weights = [weight for weight, _ in choices]
        self.tell("group", "", self.make_group)
        if self.archives:
            self.store.set_retention(TRIMMED, archive=True)
        for _ in range(most):
            self.random.choices(choices, weights)[0][1]()
        self.store.close()

    def make_group(self) -> None:
        self.store.xgroup_create(ADDED, GROUP, id="0", mkstream=True)

    # --- writing --------------------------------------------------------------------------------

    def writer(self) -> list[tuple[int, Callable[[], object]]]:
        return [
            (12, self.add),
            (5, self.add_many),
            (3, self.add_in_transaction),
            (1, self.add_big),
            (5, self.delete),
            (3, self.trim),
            (2, self.checkpoint_file),
            (1, self.erase),
            (1, self.store.sync),
            *self.archivist(),
        ]

    def archivist(self) -> list[tuple[int, Callable[[], object]]]:
        if not self.archives:
            return []
        return [(4, self.archive), (2, self.look_back), (1, self.erase_old)]

    def archive(self) -> None:
        self.tell("archive", "", lambda: self.store.archive().entries)

    def look_back(self) -> None:
        """What was trimmed is there, in order and once, whatever the others are doing."""
        ids = [one.stream_id for one in self.store.scan(TRIMMED, history=True)]
        assert ids == sorted(set(ids)), f"history is out of order: {ids}"

    def erase_old(self) -> None:
        ids = self.old[: self.random.randrange(1, 4)]
        if ids:
            self.tell("erase", ids, lambda: self.store.erase(TRIMMED, *ids))
            self.old = self.old[len(ids) :]

    def add(self) -> None:
        token, key = self.token(), self.random.choice(BOTH)
        self.added([token], [key], lambda: [self.store.xadd(key, {"t": token, "pad": "x" * 200})])

    def add_big(self) -> None:
        token, key = self.token(), self.random.choice(BOTH)
        self.added([token], [key], lambda: [self.store.xadd(key, {"t": token, "big": "y" * 20000})])

    def add_many(self) -> None:
        tokens = [self.token() for _ in range(self.random.randrange(2, 30))]
        key = self.random.choice(BOTH)
        fields = [{"t": token} for token in tokens]
        self.added(tokens, [key] * len(tokens), lambda: self.store.xadd_many(key, fields))

    def add_in_transaction(self) -> None:
        tokens = [self.token(), self.token()]

        def run() -> list[bytes]:
            with self.store.transaction(sync=self.random.choice(["commit", "none"])) as txn:
                return [txn.xadd(key, {"t": t}) for key, t in zip(BOTH, tokens, strict=True)]

        self.added(tokens, list(BOTH), run)

    def added(self, tokens: list[str], keys: list[bytes], run: Callable[[], list[Any]]) -> None:
        where = [key.decode() for key in keys]
        ids = self.tell("add", [tokens, where], run)
        for one, key in zip(ids or (), keys, strict=False):
            (self.mine if key == ADDED else self.old).append(one.decode())

    def delete(self) -> None:
        ids = self.mine[: self.random.randrange(1, 6)]
        if ids:
            self.tell("del", ids, lambda: self.store.xdel(ADDED, *ids))
            self.mine = self.mine[len(ids) :]

    def erase(self) -> None:
        ids = self.mine[: self.random.randrange(1, 6)]
        if ids:
            self.tell("del", ids, lambda: self.store.erase(ADDED, *ids))
            self.mine = self.mine[len(ids) :]

    def trim(self) -> None:
        entries = self.store.xrange(TRIMMED, count=40)
        if len(entries) == 40:
            least = entries[20].id.decode()
            self.tell(
                "trim", least, lambda: self.store.xtrim(TRIMMED, minid=least, approximate=False)
            )

    def checkpoint_file(self) -> None:
        environment = environment_of(self.store)
        self.tell("point", "", environment.make_checkpoint)
        journal = environment.context.journal
        assert journal is not None
        journal.prepare_recycled()

    # --- consuming ------------------------------------------------------------------------------

    def consumer(self) -> list[tuple[int, Callable[[], object]]]:
        return [
            (8, self.read),
            (8, self.ack),
            (2, self.claim),
            (1, self.add),
            (1, self.checkpoint_file),
        ]

    def read(self) -> None:
        try:
            found = self.tell(
                "read",
                self.name,
                lambda: self.store.xreadgroup(GROUP, self.name, {ADDED: ">"}, count=7),
            )
        except NoSuchGroupError:
            return
        for _, entries in found or ():
            self.held += [entry.id.decode() for entry in entries]

    def ack(self) -> None:
        ids = self.random.sample(self.held, min(len(self.held), self.random.randrange(1, 9)))
        if ids:
            self.tell("ack", ids, lambda: self.store.xack(ADDED, GROUP, *ids))
            self.held = [one for one in self.held if one not in ids]

    def claim(self) -> None:
        rows = self.store.xpending_range(ADDED, GROUP, "-", "+", 5)
        ids = [row["message_id"].decode() for row in rows]
        if ids:
            won = self.tell(
                "claim",
                [self.name, ids],
                lambda: self.store.xclaim(ADDED, GROUP, self.name, 0, ids, justid=True),
            )
            self.held += [one.decode() for one in won or ()]


def shown(result: Any) -> Any:
    """Return a result as JSON can hold it: IDs as text."""
    if isinstance(result, bytes):
        return result.decode()
    if isinstance(result, (list, tuple)) and not hasattr(result, "fields"):
        return [shown(one) for one in result]
    return result.id.decode() if hasattr(result, "fields") else result


def work(plan: dict[str, Any]) -> None:
    """Be a worker, as planned."""
    with ExitStack() as stack:
        stack.enter_context(small_journal(threads=True))
        for name in ("CHECKPOINT_EVERY_S", "IDLE_S", "_TICK_S"):
            setattr(checkpointer, name, 0.02)
        if plan["boot"]:
            stack.enter_context(another_boot(plan["boot"]))
        if plan["failpoint"]:
            die_at(plan["failpoint"], plan["passages"])
        if plan["fails"]:
            act_at("commit:journaled", plan["fails"], fail)
        if plan["recover"]:
            streamkeep.open(plan["path"]).close()
        else:
            Worker(plan).run(plan["most"])


def fail() -> None:
    """Fail halfway."""
    raise RuntimeError("halfway")


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(name: str, passages: int) -> None:
    """Kill this process when it passes a failpoint for so-many-th time."""
    act_at(name, passages, die)


def act_at(name: str, passages: int, action: Callable[[], None]) -> None:
    """Do something when this process passes a failpoint for so-many-th time."""
    left = passages

    def passed() -> None:
        nonlocal left
        left -= 1
        if left:
            failpoints.arm(name, passed)
        else:
            action()

    failpoints.arm(name, passed)


if __name__ == "__main__":
    serve(work, lambda plan: f"{plan['log']}.err")
