"""Stores with everything in them, for random damages, and what they hold."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import pickle
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from patience import PATIENCE_S
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.keys import NODES, RETIRED, STREAMS, TABLES
from streamkeep.format.lmdb_file.lmdb_pages import BIG, overflow_pages
from streamkeep.format.node.check import read_until_damage
from streamkeep.format.node.envelope import decode_envelope
from streamkeep.format.node.tombstones import history_form
from streamkeep.recovery.fsck.source import open_source
from streamkeep.recovery.pages.tree import Tables

PAGE: Final = 4096
NOW_MS: Final = 1_718_004_800_000
CRASHED: Final = b"crashed"
HUNG: Final = b"hung"

Entries = dict[tuple[int, int, int], tuple[bytes, ...]]  # (stream number, ms, seq)


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
    leads: frozenset[int]  # the root of its table and its leaf: without them, no tree leads to it
    entries: Entries
    retired: bool  # it waits for the archive
    tail: bool  # it is in the row of its stream


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
            trees |= {page.number for page in tables.tree(table).leaves()}
        free = {0, 1, *(page.number for page in tables.free.leaves())}
        if tables.free.database.root is not None:
            free.add(tables.free.database.root)
        main = {page.number for page in tables.main.leaves()}
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
    for row in tables.walk(table):
        page, index = row.leaf, row.at
        assert page is not None
        envelope = decode_envelope(row.value(), "test")
        pages = {page.number}
        if page.flags[index] == BIG:
            first = page.places[index]
            pages = set(range(first, first + overflow_pages(page.sizes[index], PAGE)))
        entries: Entries = {}
        listpack = envelope.listpack
        if table == RETIRED:  # live there is what history shows
            listpack = history_form(listpack, envelope.ms, envelope.seq, envelope.trimmed)
        if listpack:
            for slot in read_until_damage(listpack, envelope.ms, envelope.seq):
                if not slot.deleted:
                    entries[envelope.number, slot.ms, slot.seq] = tuple(slot.pairs)
        root = tables.tree(table).database.root
        assert root is not None
        leads = frozenset((root, page.number))
        nodes.append(Node(frozenset(pages), leads, entries, table == RETIRED, table == STREAMS))
    return nodes


def all_entries(path: Path) -> Entries:
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
