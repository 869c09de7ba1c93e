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

import json
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

import lmdb

from patience import PATIENCE_S
from specimens import CRASHED, HUNG, PAGE, Specimen, all_entries, in_child, shown
from streamkeep import recovery
from streamkeep.format.core.keys import TABLES
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.salvage.repair import Repaired, repair


class Damage:
    """Changes the data file of a copy of a specimen."""

    def __init__(self, specimen: Specimen, rng: random.Random) -> None:
        self.specimen = specimen
        self.rng = rng
        self.data = bytearray(specimen.data)
        self.stale = False  # whole pages were put back to an older state

    def any(self) -> str:
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
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def lines(self) -> list[str]:
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
    # Without the table, the free list or the rows of streams it is unknown what had been deleted or
    # archived: then lost+found has it. The free list says which pages are live without a tree.
    aside = _put_aside(target)
    no_free_list = bool(specimen.free & touched)
    no_records = any(node.tail and node.pages & touched for node in specimen.nodes)
    unsure = damage.table is not None or no_records
    for node in specimen.nodes:
        untouched = not node.pages & touched
        doubtful = unsure or (no_free_list and bool((specimen.main | node.leads) & touched))
        figures.nodes += 1
        figures.untouched += untouched
        figures.entries += len(node.entries)
        for place, pairs in node.entries.items():
            if untouched and (doubtful or (node.retired and no_free_list)) and place in aside:
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
