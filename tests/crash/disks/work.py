"""What processes do with a store until they are killed, and what must be there after a loss.

Each worker has a stream of its own, with a group and an archive, and makes one commit after the
other. Some of them also add an entry to the stream `all`: these show the order of the commits of
all workers. A worker notes each commit before and after, as a line of JSON in a shared file:

    ["?", worker, number, operation, in all]
    ["!", worker, number]                     the call has returned, and waited for the disk
    [".", worker, number]                     it has returned without waiting
    ["s", [[worker, number], ...]]            these commits, and all before them, were synced

The IDs of a worker's entries are 1-1, 2-1 and so on, so what its stream holds after each of its
commits follows from the notes alone.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import streamkeep
from streamkeep import recovery
from streamkeep.engine.checkpoint import checkpoint
from streamkeep.engine.system import files

ALL: Final = "all"
GROUP: Final = "g"
Mode = Literal["commit", "interval", "none"]

MODES: Final[tuple[Mode, ...]] = ("commit", "commit", "interval", "none")
_WEIGHTS: Final = {
    **{"add": 12, "add_many": 3, "big": 1, "delete": 3, "trim": 1, "read": 5, "ack": 4},
    "archive": 1,
}

Operation = list[Any]  # its name and a number


class Model:
    """The stream of one worker: what it holds after each of its commits."""

    def __init__(self) -> None:
        self.last = 0  # the number of the newest entry
        self.live: list[int] = []
        self.old: list[int] = []  # trimmed, which history shows
        self.delivered = 0
        self.pending: list[int] = []

    def apply(self, operation: Operation) -> None:
        name, count = operation
        if name in ("add", "add_many", "big"):
            added = range(self.last + 1, self.last + 1 + (count if name == "add_many" else 1))
            self.live += added
            self.last = added[-1]
        elif name == "delete":
            del self.live[:count]
        elif name == "trim":
            trimmed = max(0, len(self.live) - count)
            self.old += self.live[:trimmed]
            del self.live[:trimmed]
        elif name == "read":
            found = [number for number in self.live if number > self.delivered][:count]
            self.pending += found
            self.delivered = max([self.delivered, *found])
        elif name == "ack":
            del self.pending[:count]

    def state(self) -> tuple[Any, ...]:
        return self.last, tuple(self.live), tuple(sorted(self.pending)), tuple(self.old)


def pad(number: int, operation: str) -> str:
    """Return the contents of an entry."""
    return f"{number}:{'x' * (number * 37 % 400)}{'y' * 30_000 if operation == 'big' else ''}"


class Worker:
    """One process at work on a store.

    Args:
        name: of the worker, and of its stream.
    """

    def __init__(self, path: Path, notes: Path, name: str, seed: int, mode: Mode) -> None:
        self.name = name
        self.mode = mode
        self.random = random.Random(seed)
        self.notes = os.open(notes, os.O_WRONLY | os.O_APPEND)
        self.model = Model()
        self.number = 0
        self.store: Any = streamkeep.open(path, sync=mode, interval=0.03, decode_responses=True)

    def note(self, *words: Any) -> None:
        os.write(self.notes, json.dumps(words).encode() + b"\n")

    def run(self, most: int) -> None:
        """Make random commits."""
        self.commit(["begin", 0], False)
        names, weights = [*_WEIGHTS], [*_WEIGHTS.values()]
        for _ in range(most):
            name = self.random.choices(names, weights)[0]
            shown = self.random.random() < 0.5 and name != "archive"
            self.commit([name, self.random.randrange(1, 12)], shown)
            if self.random.random() < 0.03 and self.mode != "commit":
                self.sync()
        self.store.close()

    def commit(self, operation: Operation, shown: bool) -> None:
        """Make one commit; `shown` adds an entry to ALL."""
        before = self.model.state()
        self.model.apply(operation)
        alone = operation[0] in ("begin", "archive")
        if not alone and not shown and before == self.model.state():
            return  # it would change nothing
        self.number += 1
        self.note("?", self.name, self.number, operation, shown)
        if shown:
            with self.store.transaction() as txn:
                txn.xadd(ALL, {"t": f"{self.name}.{self.number}"})
                self.do(txn, operation, before)
        else:
            self.do(self.store, operation, before)
        self.note("!" if self.mode == "commit" else ".", self.name, self.number)

    def do(self, on: Any, operation: Operation, before: tuple[Any, ...]) -> None:
        name, count = operation
        key, (last, live, pending, _) = self.name, before
        if name == "begin":
            on.xgroup_create(key, GROUP, id="0", mkstream=True)
            on.set_retention(key, archive=True)
        elif name == "archive":
            on.archive()
        elif name in ("add", "big"):
            on.xadd(key, {"pad": pad(last + 1, name)}, id=f"{last + 1}-1")
        elif name == "add_many":
            added = range(last + 1, last + 1 + count)
            fields = [{"pad": pad(number, name)} for number in added]
            on.xadd_many(key, fields, ids=[f"{number}-1" for number in added])
        elif name == "delete":
            on.xdel(key, *(f"{number}-1" for number in live[:count] or (last + 9,)))
        elif name == "trim":
            on.xtrim(key, maxlen=count, approximate=False)
        elif name == "read":
            on.xreadgroup(GROUP, "c", {key: ">"}, count=count)
        elif name == "ack":
            on.xack(key, GROUP, *(f"{number}-1" for number in pending[:count] or (last + 9,)))

    def sync(self) -> None:
        """Sync what was committed before."""
        newest = [entry.fields["t"] for entry in self.store.xrevrange(ALL, count=1)]
        known = [[token.split(".")[0], int(token.split(".")[1])] for token in newest]
        self.store.sync()
        self.note("s", [*known, [self.name, self.number]])


def leave_out(what: str) -> None:
    """Have this process leave out something that the harness must miss."""
    if what == "every sync":
        files.sync_data = lambda handle: None
        checkpoint.sync_lmdb = lambda raw: None
    elif what == "the sync of checkpoints":
        checkpoint.sync_lmdb = lambda raw: None


class Notes:
    """The notes of all workers.

    Args:
        order: the entries of ALL at the end of the work, in their order.
    """

    def __init__(self, path: Path, order: list[str]) -> None:
        self.order = order
        self.place = {token: place for place, token in enumerate(order)}
        self.operations: dict[str, list[tuple[Operation, bool]]] = {}
        self.returned: set[tuple[str, int]] = set()
        self._lines: list[tuple[int, Any]] = []  # the end of each line in the file, and its words
        end = 0
        for line in path.read_bytes().splitlines(keepends=True):
            end += len(line)
            words = json.loads(line)
            self._lines.append((end, words))
            if words[0] == "?":
                self.operations.setdefault(words[1], []).append((words[3], words[4]))
            elif words[0] in "!.":
                self.returned.add((words[1], words[2]))

    def commits(self) -> int:
        """Return the number of commits that returned."""
        return len(self.returned)

    def promised(self, noted: int) -> tuple[dict[str, int], int]:
        """Return what must be there if the power was lost when the notes had this length.

        Returns:
            The newest such commit of each worker, and the number of such entries of ALL.
        """
        durable: dict[str, int] = {}
        entries = 0

        def must(worker: str, number: int) -> None:
            nonlocal entries
            durable[worker] = max(durable.get(worker, 0), number)
            place = self.place.get(f"{worker}.{number}", -1)
            entries = max(entries, place + 1)

        for end, words in self._lines:
            if end > noted:
                break
            if words[0] == "!":
                must(words[1], words[2])
            elif words[0] == "s":
                for worker, number in words[1]:
                    must(worker, number)
        return durable, entries


def wrong(path: Path, notes: Notes, noted: int) -> str:
    """Return what is wrong with a store after a loss; empty if nothing is.

    Args:
        noted: the length of the notes when the power was lost.
    """
    durable, entries = notes.promised(noted)
    with streamkeep.open(path, decode_responses=True) as store:
        problem = _wrong(store, notes, durable, entries)
        store.xadd("after", {"f": "v"})
    # Files of an archiver that was cut off only take room.
    findings = [str(one) for one in recovery.check(path) if one.code not in ("SK311", "SK312")]
    return problem or (f"fsck: {findings[:3]}" if findings else "")


def _wrong(store: Any, notes: Notes, durable: dict[str, int], entries: int) -> str:
    found = [entry.fields["t"] for entry in store.xrange(ALL)] if store.exists(ALL) else []
    # The last one may be a commit of a killed process, which no other has seen.
    unseen = found[-1:] if found and found[-1] not in notes.place else []
    if found != [*notes.order[: len(found) - len(unseen)], *unseen]:
        return f"the order of commits is broken: {found[-5:]} of {len(found)}"
    if len(found) < entries:
        return f"{entries - len(found)} of {entries} promised entries of `all` are lost"
    names = set(store.keys()) - {ALL, "after"}
    if not names <= notes.operations.keys():
        return f"unknown streams: {sorted(names)}"
    for worker, operations in notes.operations.items():
        shown = sum(token.split(".")[0] == worker for token in found)
        problem = _wrong_stream(store, worker, operations, shown, durable.get(worker, 0))
        if problem:
            return problem
    return ""


def _wrong_stream(
    store: Any, name: str, operations: list[tuple[Operation, bool]], shown: int, least: int
) -> str:
    """Compare the stream of a worker with what it was after each of its commits."""
    if not store.exists(name):
        return f"{name}: its stream is lost, commit {least} was promised" if least or shown else ""
    entries = store.xrange(name)
    for entry in entries:
        number = int(entry.id.split("-")[0])
        if entry.fields["pad"] not in (pad(number, "add"), pad(number, "big")):
            return f"{name}: entry {entry.id} has other contents"
    rows = store.xpending_range(name, GROUP, "-", "+", 1 << 20)
    info = store.xinfo_stream(name)
    live = tuple(int(entry.id.split("-")[0]) for entry in entries)
    there = [int(entry.id.split("-")[0]) for entry in store.xrange(name, history=True)]
    if there != sorted(set(there)):
        return f"{name}: history is out of order"
    state = (
        int(info["last-generated-id"].split("-")[0]),
        live,
        tuple(int(row["message_id"].split("-")[0]) for row in rows),
        tuple(sorted({*there} - {*live})),
    )
    model, seen, fitting = Model(), 0, []
    for number, (operation, in_all) in enumerate(operations, 1):
        model.apply(operation)
        seen += in_all
        if seen == shown and model.state() == state:
            fitting.append(number)
    if not fitting:
        return f"{name}: a state that never was with {shown} entries in `all`: {str(state)[:200]}"
    if fitting[-1] < least:
        return f"{name}: the state after commit {fitting[-1]}, but {least} was promised"
    return ""


def in_child(run: Callable[[], str]) -> str:
    """Run something in a process of its own; return its text, or how it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = run()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, (text or "-")[:4000].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    status = os.waitpid(child, 0)[1]
    return "" if said == "-" else said or f"the process died with status {status}"
