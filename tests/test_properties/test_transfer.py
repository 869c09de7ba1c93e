"""Dumps and loads of random stores, held against what each format promises; and diff, fsck, repair.

What a format does not carry, the dump must have said. A file that was damaged at random is loaded
as it stands or refused, and a store whose files were damaged is reported or shows what it held.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from conftest import assert_sound
from random_life import RandomLife, Shown, shown, unlike
from specimens import CRASHED, HUNG, in_child
from stores import open_at
from streamkeep import recovery, transfer
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import KeyExistsError, LoadError, StreamkeepError
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.salvage.repair import repair
from streamkeep.transfer.dump_file import REDIS_VERSIONS, ROW_LOSS, DumpReport

REDIS_FORMATS: Final = ("rdb", "dump", "resp")
CASES: Final = [
    ("jsonl", "7.2"),
    *((kind, version) for kind in REDIS_FORMATS for version in REDIS_VERSIONS),
    ("csv", "7.2"),
    ("parquet", "7.2"),
]


def expected_of(held: Shown, report: DumpReport) -> Shown:
    """Return what a format that says what it drops must bring."""
    if report.format in ("csv", "parquet"):
        return {key: {"entries": one["entries"]} for key, one in held.items() if one["entries"]}
    kept = {"entries", "length", "last-generated-id", "retention"}
    whole = not {*report.dropped} - {"retention of a stream", ROW_LOSS}
    names = None if whole else kept
    return {
        key: {
            name: value
            for name, value in one.items()
            if (names is None or name in names)
            and (name != "retention" or "retention of a stream" not in report.dropped)
        }
        for key, one in held.items()
    }


def as_cells(entries: list[Any]) -> list[Any]:
    """Return what a table keeps: the last of each field, unless it is empty."""
    return [
        (one, {name: value for name, value in dict(flat).items() if value}) for one, flat in entries
    ]


def check_formats(folder: Path, seed: int, cases: list[tuple[Any, str]]) -> None:
    """Dump a random store, load it, and hold what came against what was there."""
    life = RandomLife(folder / "store", seed)
    life.live(life.random.choice([20, 80]))
    held = shown(life.store)
    for number, (kind, version) in enumerate(cases):
        print(kind, version)
        file = folder / f"dump.{kind}"
        report = transfer.dump(life.store, file, redis=version, overwrite=True)
        with open_at(folder / f"loaded-{number}", clock=life.clock) as loaded:
            entries = transfer.load(loaded, file).entries
            empty = 0 if kind != "resp" else sum(1 for one in held.values() if not one["entries"])
            assert entries == report.entries + empty  # of one entry each, which is trimmed
            found = shown(loaded)
            differs = bool(unlike(held, found)) or ROW_LOSS in report.dropped
            hold_diff(life.store, loaded, differs=differs)
        expected = expected_of(held, report)
        if kind == "csv":
            for reading in (expected, found):
                for one in reading.values():
                    one["entries"] = as_cells(one["entries"])
        only = {
            key: {name: one[name] for name in expected.get(key, one)} for key, one in found.items()
        }
        assert unlike(expected, only) == []
        assert_sound(folder / f"loaded-{number}")
    life.store.close()


def hold_diff(one: Store[bytes], other: Store[bytes], *, differs: bool) -> None:
    """Hold diff against whether two readings differ, which do not show the order of XNACK."""
    kinds = {found.kind for found in transfer.diff(one, other)}
    assert kinds if differs else kinds <= {"zone"}, kinds


def check_differences(folder: Path, seed: int) -> None:
    """Take steps on a copy; diff must find a difference when a command shows one."""
    life = RandomLife(folder / "store", seed)
    life.live(60)
    recovery.backup(life.store, folder / "copy")
    original, life.path = life.store, folder / "copy"
    life.store = open_at(life.path, **life.options)
    assert list(transfer.diff(original, life.store)) == []
    for _ in range(10):
        life.live(1)
        rows = [one.row_range("space") for one in (original, life.store)]
        differs = shown(original) != shown(life.store) or rows[0] != rows[1]
        hold_diff(original, life.store, differs=differs)
    original.close()
    life.store.close()


def changed(chance: random.Random, before: bytes) -> bytes:
    data = bytearray(before)
    for _ in range(chance.choice([1, 1, 3])):
        at, kind = chance.randrange(len(data) + 1), chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            del data[at : at + chance.choice([1, 8, 100])]
        elif kind == 3:
            data[at:at] = chance.choice([b"\xff" * 8, b"-1", b"9" * 21, b"\n", b'"', b"\0" * 4])
        elif kind == 4:
            start = chance.randrange(len(data) + 1)
            data[at : at + 40] = data[start : start + 40]
        else:
            data[at : at + 4] = chance.randbytes(4)
    return bytes(data)


def check_hostile(folder: Path, seed: int, tries: int) -> None:
    """Load damaged dumps. A refused file of whole streams changes nothing."""
    life = RandomLife(folder / "store", seed)
    life.live(40)
    chance = life.random
    for kind, version in (("jsonl", "7.2"), *((one, "8.10") for one in REDIS_FORMATS), CASES[-1]):
        whole = folder / f"whole.{kind}"
        transfer.dump(life.store, whole, redis=version)
        for number in range(tries):
            file, path = folder / f"{kind}-{number}.{kind}", folder / f"{kind}-{number}"
            data = changed(chance, whole.read_bytes())
            file.write_bytes(data[:-8] + bytes(8) if kind == "rdb" else data)  # without a checksum
            with open_at(path, clock=life.clock) as store:
                store.xadd("there", {"n": 1}, id="1-1")
                before = shown(store)
                refused = False
                try:
                    transfer.load(store, file)
                except (LoadError, KeyExistsError):
                    refused = kind != "resp"  # of which the commands before are applied
                assert not refused or shown(store) == before
            assert_sound(path)
            shutil.rmtree(path)
    life.store.close()


def check_damage(folder: Path, seed: int, tries: int) -> None:
    """Damage one file of a store, closed or as a kill leaves it."""
    life = RandomLife(folder / "store", seed)
    chance = life.random
    life.live(60)
    life.store.close()
    if chance.random() < 0.5:

        def killed() -> None:
            life.store = open_at(life.path, **life.options)
            life.live(20)  # and the process ends, without closing the store

        assert in_child(killed, 60, folder / "stack") is None
    base = life.path
    with open_at(shutil.copytree(base, folder / "held"), clock=life.clock) as store:
        held = shown(store, history=True)
    files = [  # those that lead to no data are made again
        one.relative_to(base)
        for one in sorted(base.rglob("*"))
        if one.is_file() and one.stat().st_size and one.parent.name not in ("waiters", "leases")
    ]
    for number in range(tries):
        path, target = folder / f"damaged-{number}", folder / f"repaired-{number}"
        shutil.copytree(base, path, ignore=shutil.ignore_patterns("waiters"))
        file = path / chance.choice(files)
        data = file.read_bytes()
        used = len(data.rstrip(b"\0"))
        file.write_bytes(changed(chance, data[:used]) + data[used:])
        print(number, file.name)
        hold(path, target, held, life)
        shutil.rmtree(path)
        shutil.rmtree(target, ignore_errors=True)


def hold(path: Path, target: Path, held: Shown, life: RandomLife) -> None:
    """Check, repair and open a damaged store, and hold the three against what it held."""

    def read(store_path: Path) -> Shown | str:
        try:
            with open_at(store_path, clock=life.clock) as store:
                return shown(store, history=True)
        except StreamkeepError as error:
            return str(error)

    try:
        reported = any(one.severity > Severity.NOTE for one in recovery.check(path))
    except StreamkeepError:
        reported = True
    try:
        repaired = repair(path, target)
    except StreamkeepError:
        assert reported
    else:
        assert not repaired.damaged()
        found = read(target)
        assert isinstance(found, dict), found
        assert repaired.report.lost_anything() or unlike(held, found) == []
    state = in_child(
        lambda: read(path), 60, target.with_suffix(".stack")
    )  # LMDB may not survive it
    assert reported or (state not in (CRASHED, HUNG) and state == held), state


@pytest.mark.parametrize("seed", [3])
def test_a_dump_brings_what_its_format_holds_and_names_the_rest(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    check_formats(tmp_path, seed, [CASES[0], *chance.sample(CASES[1:-2], 3), *CASES[-2:]])


@pytest.mark.parametrize("seed", [1])
def test_diff_finds_what_commands_show(tmp_path: Path, seed: int) -> None:
    check_differences(tmp_path, seed)


@pytest.mark.parametrize("seed", [1])
def test_a_damaged_dump_is_loaded_or_refused_as_a_whole(tmp_path: Path, seed: int) -> None:
    check_hostile(tmp_path, seed, 3)


@pytest.mark.parametrize("seed", [1])
def test_damage_to_any_file_is_reported_or_changes_nothing(tmp_path: Path, seed: int) -> None:
    check_damage(tmp_path, seed, 6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_stores_for_long(tmp_path: Path) -> None:
    start = random.SystemRandom().randrange(1 << 30)
    for seed in range(start, start + 40):
        for name in ("formats", "differences", "hostile", "damage"):
            (folder := tmp_path / f"{name}-{seed}").mkdir()
            if name == "formats":
                check_formats(folder, seed, CASES)
            elif name == "differences":
                check_differences(folder, seed)
            elif name == "hostile":
                check_hostile(folder, seed, 10)
            else:
                check_damage(folder, seed, 20)
            shutil.rmtree(folder)
