"""Random damages to a store's files, and what must hold afterwards.

A `Specimen` is a store with everything in it, and what it holds: the state that commands show, and
the macro nodes with the pages that hold them. `damage` changes a copy of it at random. Then

- `check` reports every damage that changes what a command answers;
- `repair` brings back every entry of every node whose own pages were not touched;
- a second check finds nothing; nothing crashes, nothing hangs.

Each damage is worked on in a child process, so that one that ends or stops it is a failure like any
other: the run continues, and reports all of them at its end. A child that hangs is ended after
`PATIENCE_S`, with the Python stack of each of its threads. The stores of failures are kept.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import pickle
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import lmdb

from patience import PATIENCE_S
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.keys import NODES, RETIRED, STREAMS, TABLES
from streamkeep.format.lmdb_file.lmdb_pages import BIG, overflow_pages
from streamkeep.format.node.check import read_until_damage
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.source import open_source
from streamkeep.recovery.pages.tree import Cursor, Tables
from streamkeep.recovery.salvage.repair import Repaired, repair

PAGE: Final = 4096
NOW_MS: Final = 1_718_004_800_000
CRASHED: Final = b"crashed"
HUNG: Final = b"hung"

Entries = dict[tuple[int, int, int], tuple[bytes, ...]]  # (stream number, ms, seq)


# --- specimens ----------------------------------------------------------------------------------


def build(path: Path, seed: int, *, scale: int = 1) -> None:
    """Write a store with streams of all sizes, groups, pending entries and producers."""
    rng = random.Random(seed)
    clock = ManualClock(NOW_MS)
    with Store(path, sync="none", clock=clock) as store:
        names: list[Any] = ["orders", "mails", b"\xff\x00bin", "long" * 200, "few", "big"]
        counts = {"orders": 2500 * scale, "mails": 1500 * scale, "few": 3, "big": 12}
        for name in names:
            with store.transaction() as txn:
                fill(txn, name, counts.get(name, 300), rng, clock)
        store.xadd("gone", {"a": "b"})
        store.delete("gone")
        store.xgroup_create("quiet", "idle", 0, mkstream=True)
        store.set_retention("mails", archive=True)
        store.xtrim("mails", maxlen=700, approximate=False)
        store.archive()
        store.xtrim("mails", maxlen=500, approximate=False)  # retired, and in no segment yet


def fill(txn: Any, name: Any, count: int, rng: random.Random, clock: ManualClock) -> None:
    """Fill one stream."""
    ids: list[Any] = []
    for _ in range(count):
        size = rng.randrange(3000, 20_000) if name == "big" else rng.randrange(80)
        ms = NOW_MS + 3 * len(ids) + rng.randrange(3)
        fields = {"n": str(rng.random()), "text": rng.randbytes(size)}
        ids.append(txn.xadd(name, fields, id=f"{ms}-0"))
    for group in ("mail", "print"):
        txn.xgroup_create(name, group, 0)
        for consumer in ("ann", "bob", "consumer" * 90):
            txn.xreadgroup(group, consumer, {name: ">"}, count=rng.randrange(1, 120))
        pending = [one["message_id"] for one in txn.xpending_range(name, group, "-", "+", 50)]
        txn.xack(name, group, *rng.sample(pending, 1 + len(pending) // 3))
    txn.xdel(name, *rng.sample(ids, 1 + len(ids) // 10))
    txn.xtrim(name, maxlen=count * 8 // 10, approximate=False)
    clock.ms = NOW_MS + 3 * count
    for message in range(12):
        txn.xadd(name, {"a": "b"}, idmp=(f"p{message % 3}", f"m{message}"))


@dataclass(slots=True)
class Node:
    """A macro node of a specimen: the pages that hold it, and its live entries."""

    pages: frozenset[int]
    entries: Entries
    retired: bool  # it waits for the archive


@dataclass(slots=True)
class Specimen:
    """A store, and what it holds."""

    path: Path
    data: bytes
    older: bytes  # the data file some commits before
    state: bytes
    nodes: list[Node]
    trees: list[int]  # branches and leaves
    used: list[int]  # those, and all others that are used
    free: set[int]  # of the free list, and the meta pages that lead to it
    main: set[int]  # of the tree that leads to the tables

    @classmethod
    def make(cls, folder: Path, seed: int, *, scale: int = 1) -> Specimen:
        """Build one."""
        path = folder / f"specimen-{seed}"
        build(path, seed, scale=scale)
        older = (path / "data.mdb").read_bytes()
        with Store(path, sync="none", clock=ManualClock(NOW_MS + 10_000)) as store:
            for name in ("orders", "mails"):
                for part in range(3):
                    store.xadd_many(name, [{"later": f"{part}{one}"} for one in range(50)])
                store.xreadgroup("mail", "ann", {name: ">"}, count=40)
        nodes, trees, free, main = inspect(path)
        used = sorted({0, 1, *trees, *(page for node in nodes for page in node.pages)})
        data, state = (path / "data.mdb").read_bytes(), shown(path)
        return cls(path, data, older, state, nodes, trees, used, free, main)


def inspect(path: Path) -> tuple[list[Node], list[int], set[int], set[int]]:
    """Return the nodes of a sound store; the pages of all trees, the free list, the main tree."""
    with open_source(path) as source:
        tables = source.tables
        assert tables is not None
        nodes = [node for table in (NODES, STREAMS, RETIRED) for node in _nodes_in(tables, table)]
        trees = _branches(tables)
        for table in TABLES:
            trees |= {page.number for page in tables.cursor(table).leaves()}
        free = {0, 1, *(page.number for page in Cursor(tables.free).leaves())}
        if tables.free.database.root is not None:
            free.add(tables.free.database.root)
        main = {page.number for page in Cursor(tables.main).leaves()}
        return nodes, sorted(trees), free, main


def _branches(tables: Tables) -> set[int]:
    roots = [tables.main.database.root, tables.free.database.root]
    roots += [tables.tree(table).database.root for table in TABLES]
    found = {root for root in roots if root is not None}
    for number in list(found):
        page = tables.pages.tree_page(number)
        found |= set(page.children)
    return found


def _nodes_in(tables: Tables, table: int) -> list[Node]:
    nodes = []
    cursor = tables.cursor(table)
    found = cursor.first()
    while found:
        page, index = cursor.place()
        envelope = decode_envelope(cursor.value(), "test")
        pages = {page.number}
        if page.flags[index] == BIG:
            first = page.places[index]
            pages = set(range(first, first + overflow_pages(page.sizes[index], PAGE)))
        entries: Entries = {}
        listpack = envelope.listpack
        if table == RETIRED:  # live there is what history shows
            listpack = history_form(listpack, envelope.ms, envelope.seq, envelope.trimmed)
        if listpack:
            for slot in read_until_damage(listpack, envelope.ms, envelope.seq)[0]:
                if not slot.deleted:
                    entries[envelope.number, slot.ms, slot.seq] = tuple(slot.pairs)
        nodes.append(Node(frozenset(pages), entries, table == RETIRED))
        found = cursor.next()
    return nodes


def all_entries(path: Path) -> Entries:
    """Return the live entries of a sound store."""
    entries: Entries = {}
    for node in inspect(path)[0]:
        entries |= node.entries
    return entries


def in_child(work: Callable[[], Any], limit_s: int, stack: Path) -> Any:
    """Return what `work` returns in a process of its own, or `CRASHED`, or `HUNG`.

    One that takes longer than `limit_s` is ended, and its stack is in the file `stack`; else the
    file is there only when a signal ended the process.
    """
    reading, writing = os.pipe()
    began = time.monotonic()
    faulthandler.cancel_dump_traceback_later()  # its thread is not in the child, and waited for
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            with stack.open("w") as file:
                os.dup2(file.fileno(), 2)
                faulthandler.enable(file)
                faulthandler.dump_traceback_later(limit_s, exit=True, file=file)
                with os.fdopen(writing, "wb") as pipe:
                    pickle.dump(work(), pipe)
                faulthandler.cancel_dump_traceback_later()
                status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    ended = os.waitpid(child, 0)[1]
    if ended == 0:
        stack.unlink()
        return pickle.loads(told)
    return HUNG if time.monotonic() - began >= limit_s else CRASHED


def shown(path: Path) -> bytes:
    """Return a digest of what commands show of a store.

    In a process of its own: what LMDB makes of damaged pages may end it, or go round in circles.
    """
    stack = path.with_name(f"{path.name}.stack")
    told: bytes = in_child(lambda: _state(path), int(PATIENCE_S), stack)
    return told


def _state(path: Path) -> bytes:
    digest = hashlib.sha256()
    try:
        with Store(path, sync="none", create=False, clock=ManualClock(NOW_MS + 20_000)) as store:
            for name in sorted(store.keys()):
                digest.update(repr(name).encode())
                digest.update(repr(store.xrange(name)).encode())
                digest.update(repr(store.xrange(name, history=True)).encode())
                digest.update(repr(store.xinfo_stream(name, full=True, count=0)).encode())
                digest.update(repr(store.xlen(name)).encode())
                for group in store.xinfo_groups(name):
                    digest.update(repr(group).encode())
                    for consumer in store.xinfo_consumers(name, group["name"]):
                        digest.update(repr(consumer).encode())
                    more = store.xpending_range(name, group["name"], "-", "+", 10_000)
                    digest.update(repr(more).encode())
    except Exception as error:
        return hashlib.sha256(type(error).__name__.encode()).digest()
    return digest.digest()


# --- damages ------------------------------------------------------------------------------------


class Damage:
    """Changes the data file of a copy of a specimen."""

    def __init__(self, specimen: Specimen, rng: random.Random) -> None:
        self.specimen = specimen
        self.rng = rng
        self.data = bytearray(specimen.data)
        self.stale = False  # whole pages were put back to an older state

    def any(self) -> str:
        """Do one at random; return its name."""
        kinds = (
            self.flip_bits,
            self.flip_bits,
            self.flip_bits,
            self.change_bytes,
            self.zero_page,
            self.zero_page,
            self.zero_part,
            self.duplicate_page,
            self.swap_pages,
            self.stale_pages,
            self.noise,
            self.truncate,
            self.lose_table,
            self.damage_segment,
            self.damage_checkpoint,
        )
        kind: Callable[[], None] = self.rng.choice(kinds)
        kind()
        return kind.__name__

    def flip_bits(self) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 2, 8))):
            at = self._page() * PAGE + self.rng.randrange(PAGE)
            self.data[at] ^= 1 << self.rng.randrange(8)

    def change_bytes(self) -> None:
        size = self.rng.randrange(1, 64)
        at = self._page() * PAGE + self.rng.randrange(PAGE - size)
        self.data[at : at + size] = self.rng.randbytes(size)

    def zero_page(self) -> None:
        for _ in range(self.rng.choice((1, 1, 2, 5))):
            at = self._page() * PAGE
            self.data[at : at + PAGE] = bytes(PAGE)

    def zero_part(self) -> None:
        at = self._page() * PAGE + self.rng.choice((0, 512, 2048, 3584))
        self.data[at : at + 512] = bytes(512)

    def duplicate_page(self) -> None:
        self._copy(self._page(), self._page())

    def swap_pages(self) -> None:
        self.swap(self._page(), self._page())

    def swap(self, one: int, other: int) -> None:
        """Let two pages change places."""
        saved = bytes(self.data[one * PAGE : (one + 1) * PAGE])
        self._copy(other, one)
        self.data[other * PAGE : (other + 1) * PAGE] = saved

    def stale_pages(self) -> None:
        older = self.specimen.older
        for _ in range(self.rng.choice((1, 1, 3))):
            page = self._page()
            if page > 1 and (page + 1) * PAGE <= len(older):
                self.data[page * PAGE : (page + 1) * PAGE] = older[page * PAGE : (page + 1) * PAGE]
        self.stale = True

    def noise(self) -> None:
        at = self._page() * PAGE
        self.data[at : at + PAGE] = self.rng.randbytes(PAGE)

    def truncate(self) -> None:
        pages = len(self.data) // PAGE
        keep = self.rng.randrange(pages // 2, pages) * PAGE + self.rng.choice((0, 0, 100, 4095))
        del self.data[keep:]

    def lose_table(self) -> None:
        self.table = self.rng.choice(list(TABLES))

    def damage_segment(self) -> None:
        self._damage_file(self.rng.choice(sorted(self.specimen.path.rglob("*.seg"))))

    def damage_checkpoint(self) -> None:
        self._damage_file(self.specimen.path / "steady")

    def _damage_file(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        at = self.rng.randrange(len(data))
        change = self.rng.randrange(5)
        if change == 0:
            data = data[:at]
        elif change == 1:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        elif change < 4:
            data[at] ^= 1 << self.rng.randrange(8)
        self.file = path.relative_to(self.specimen.path), None if change == 4 else bytes(data)

    table: int | None = None
    file: tuple[Path, bytes | None] | None = None  # a file, and its new bytes; None: it is gone

    def write(self, path: Path) -> None:
        """Write a damaged copy of the specimen."""
        shutil.copytree(self.specimen.path, path)
        (path / "data.mdb").write_bytes(self.data)
        if self.file is not None:
            name, data = self.file
            (path / name).unlink()
            if data is not None:
                (path / name).write_bytes(data)
        if self.table is not None:
            with lmdb.open(str(path), max_dbs=40) as raw:
                table = raw.open_db(TABLES[self.table].name.encode(), create=False)
                with raw.begin(write=True) as txn:
                    txn.drop(table)

    def touched(self, path: Path) -> set[int]:
        """Return the pages that are not as they were."""
        now, before = (path / "data.mdb").read_bytes(), self.specimen.data
        return {
            page
            for page in range(-(-len(before) // PAGE))
            if now[page * PAGE : (page + 1) * PAGE] != before[page * PAGE : (page + 1) * PAGE]
        }

    def _page(self) -> int:
        chance = self.rng.random()
        if chance < 0.1:
            return self.rng.randrange(len(self.specimen.data) // PAGE)
        return self.rng.choice(self.specimen.trees if chance < 0.4 else self.specimen.used)

    def _copy(self, source: int, target: int) -> None:
        page = self.data[source * PAGE : (source + 1) * PAGE]
        self.data[target * PAGE : (target + 1) * PAGE] = page


# --- a run --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Figures:
    """What a run of random damages came to."""

    damages: int = 0
    changed: int = 0  # change what a command answers
    reported: int = 0  # were reported, whether or not they change an answer
    missed_stale: int = 0  # not reported: whole stale pages that agree with every check
    nodes: int = 0
    untouched: int = 0  # nodes whose own pages were not touched
    entries: int = 0
    lost_entries: int = 0
    unverified: int = 0
    corrected: int = 0
    recovered: int = 0
    aside: int = 0  # entries of untouched nodes that went to lost+found, with their table gone
    crashed: int = 0  # damages that end a process which opens the store with LMDB
    hung: int = 0  # damages that keep such a process busy without end
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Add the figures of another part of the run."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def lines(self) -> list[str]:
        """Return the figures as text."""
        return [
            f"{self.damages:,} damages: {self.changed:,} change what a command answers, of which "
            f"{self.changed - self.missed_stale:,} were reported",
            f"not reported: {self.missed_stale:,} (whole stale pages that agree with every check)",
            f"{self.crashed:,} end a process that opens the store with LMDB, {self.hung:,} keep it "
            "busy without end; no check or repair",
            f"{self.nodes:,} macro nodes, {self.untouched:,} of them untouched: all came back",
            f"{self.entries:,} entries: {self.lost_entries:,} lost, {self.unverified:,} not proven",
            f"{self.aside:,} entries in lost+found, since they may have been deleted",
            f"{self.corrected:,} values corrected, {self.recovered:,} nodes found without a tree",
            "kinds: " + ", ".join(f"{name} {count}" for name, count in self.kinds.most_common()),
            "seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in self.seconds.most_common()),
            *self.failures,
        ]


def run(specimen: Specimen, seed: int, work: Path, figures: Figures) -> None:
    """Damage a specimen, check it, repair it, and hold the result against what must be.

    The figures record the result. The store of a failure is kept in `work/kept-SEED`, also if it
    kept LMDB busy without end.
    """
    stack = work / "child.stack"
    told = in_child(lambda: _try(specimen, seed, work), int(PATIENCE_S), stack)
    if isinstance(told, bytes):
        failure = f"seed {seed}: {told.decode()}:\n{stack.read_text()}"
        told = Figures(damages=1, failures=[failure])
    if told.failures or told.hung:
        kept = work / f"kept-{seed}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for path in {*work.glob("damaged*"), *work.glob("repaired*"), stack}:
            if path.exists():
                path.rename(kept / path.name)
    figures.add(told)


def _try(specimen: Specimen, seed: int, work: Path) -> Figures:
    figures = Figures(damages=1)
    try:
        _run(specimen, seed, work, figures)
    except Exception:
        figures.failures.append(f"seed {seed}: {traceback.format_exc()}")
    return figures


def _run(specimen: Specimen, seed: int, work: Path, figures: Figures) -> None:
    damage = Damage(specimen, random.Random(seed))
    kind = damage.any()
    figures.kinds[kind] += 1
    hold(specimen, damage, work, figures, f"seed {seed}, {kind}")


def hold(specimen: Specimen, damage: Damage, work: Path, figures: Figures, where: str) -> None:
    """Hold what becomes of a damaged store against what must be."""
    path, target = work / "damaged", work / "repaired"
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    damage.write(path)
    touched = damage.touched(path)
    before = (path / "data.mdb").read_bytes()
    with _timed(figures, "check"):
        findings = list(recovery.check(path))
    reported = any(one.severity > Severity.NOTE for one in findings)
    with _timed(figures, "repair"):
        repaired = repair(path, target)
    assert (path / "data.mdb").read_bytes() == before, f"{where}: the damaged store was changed"
    assert repaired.findings == [], f"{where}: {repaired.findings[:3]}"
    with _timed(figures, "compare"):
        _compare(specimen, damage, target, repaired, touched, figures, where)
    with _timed(figures, "commands"):
        state = shown(path)
    figures.reported += reported
    figures.crashed += state == CRASHED
    figures.hung += state == HUNG
    if state != specimen.state:
        figures.changed += 1
        if not reported:
            assert damage.stale, f"{where}: it changes an answer and is not reported"
            figures.missed_stale += 1


@contextmanager
def _timed(figures: Figures, what: str) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        figures.seconds[what] += time.perf_counter() - began  # type: ignore[assignment]


def _compare(
    specimen: Specimen,
    damage: Damage,
    target: Path,
    repaired: Repaired,
    touched: set[int],
    figures: Figures,
    where: str,
) -> None:
    found = all_entries(target)
    unverified = sum(loss.unverified for loss in repaired.report.streams.values())
    wrong = 0
    # Without the table or the free list it is unknown what had been deleted or archived: then
    # lost+found has it.
    aside = _put_aside(target)
    no_free_list = bool(specimen.free & touched)
    unsure = damage.table is not None or (no_free_list and bool(specimen.main & touched))
    for node in specimen.nodes:
        untouched = not node.pages & touched
        figures.nodes += 1
        figures.untouched += untouched
        figures.entries += len(node.entries)
        for place, pairs in node.entries.items():
            if untouched and (unsure or (node.retired and no_free_list)) and place in aside:
                figures.aside += 1
            elif untouched:
                assert found.get(place) == pairs, f"{where}: {place} did not come back"
            elif place not in found:
                figures.lost_entries += 1
            elif found[place] != pairs:
                wrong += 1
    assert wrong <= unverified, (
        f"{where}: {wrong} entries are wrong, {unverified} said to be unsure"
    )
    figures.unverified += unverified
    figures.corrected += repaired.report.corrected
    figures.recovered += repaired.report.recovered


def _put_aside(target: Path) -> set[tuple[int, int, int]]:
    """Return the places of the entries in lost+found."""
    found = set()
    path = target / "lost+found" / "entries.jsonl"
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        ms, seq = entry["id"].split("-")
        found.add((entry["stream_number"], int(ms), int(seq)))
    return found
