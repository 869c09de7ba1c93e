"""Damage in a target: each bit is named, no restore is wrong, and the shipper renews the copy."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import lmdb
import pytest
from xxhash import xxh3_64_intdigest

import streamkeep
from cli_runner import run
from golden_stores import describe, digest
from stores import Open
from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.copies.head import HEAD, VERIFIED
from streamkeep.format.copies.piece import PIECE, decode_piece
from streamkeep.format.core.errors import (
    CorruptionError,
    FormatVersionError,
    MissingSegmentError,
    StreamkeepError,
)
from streamkeep.recovery import restore_copy, ship, verify_copy
from streamkeep.recovery.copies import writer
from streamkeep.recovery.copies.changes import changes
from streamkeep.recovery.copies.standby import Standby
from streamkeep.recovery.copies.target import Target
from test_recovery.test_copies import (
    add,
    archive_some,
    assert_restored,
    assert_same,
    change,
    newest,
)
from tiers import slow_but

FLIPS = 20  # in each of 50 parts


class Copy(NamedTuple):
    """A copy, and what its store was at each commit."""

    target: Path
    states: dict[int, str]
    objects: dict[str, list[Path]]  # by their kind


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Two generations with bases and rows in several parts, records, and segments."""
    folder = tmp_path_factory.mktemp("damage")
    target, states, chance = folder / "target", dict[int, str](), random.Random(5)
    store = streamkeep.open(folder / "store")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "_SMALL", 5)
        patch.setattr(writer, "_PIECES_PER_ROWS", 4)
        patch.setattr(writer, "_MOST_ROWS", 3000)
        store.set_retention("s0", archive=True)
        store.xadd_many("s0", [{"n": str(n), "pad": "x" * 40} for n in range(200)])
        for number in range(22):
            for _ in range(6):
                change(store, chance)
            if number % 8 == 3:
                store.xadd_many("s0", [{"n": str(n)} for n in range(300)])
                store.xtrim("s0", maxlen=9, approximate=False)
                store.archive()
            if number == 11:  # another store goes on
                ship(store, target)
                restore_copy(target, folder / "second")
                store.close()
                store = streamkeep.open(folder / "second")
            states[newest(store)] = digest(describe(store))
            ship(store, target)
    store.close()
    verify_copy(target)
    paths = [path for path in target.rglob("*") if path.is_file() and path.stat().st_size]
    return Copy(
        target,
        states,
        {kind: [one for one in paths if kind_of(one) == kind] for kind in map(kind_of, paths)},
    )


def kind_of(path: Path) -> str:
    if path.suffix == ".skp":
        first = path.name.startswith("0" * 20)
        return "records" if path.parent.name == "0" else "base" if first else "rows"
    return path.name if path.name in (HEAD, VERIFIED) else "segment"


def flipped(copy: Copy, folder: Path, chance: random.Random) -> tuple[Path, Path, str]:
    """Copy a target and flip a bit; return it, the object, and what was done."""
    kind = chance.choice(sorted(copy.objects))
    path = chance.choice(copy.objects[kind])
    target = folder / "target"
    shutil.copytree(copy.target, target, copy_function=os_link)
    data = bytearray(path.read_bytes())
    # Headers, which plans are made of, are small: half of the bits are in them.
    size = PIECE.size if path.suffix == ".skp" and chance.random() < 0.5 else len(data)
    at = chance.randrange(8 * size)
    data[at // 8] ^= 1 << at % 8
    name = path.relative_to(copy.target)
    (target / name).unlink()
    (target / name).write_bytes(data)
    return target, name, f"{kind} {name}: bit {at}"


def os_link(source: str, target: str) -> None:
    """Link a file, which is not written to."""
    Path(target).hardlink_to(source)


def restored(copy: Copy, target: Path, new: Path, commit: int | None) -> str:
    """Restore a copy, and compare it with its store; return the error if it is refused."""
    try:
        done = restore_copy(target, new, commit=commit)
    except StreamkeepError as error:
        return str(error)
    expected = max(copy.states) if commit is None else commit
    assert done.commit_number == expected
    with streamkeep.open(new, readonly=True) as store:
        found = digest(describe(store))
    assert found == copy.states.get(expected, found), (new, commit)
    return ""


@pytest.mark.parametrize("seed", slow_but(range(50), 0))
def test_flipped_bits(copy: Copy, tmp_path: Path, seed: int) -> None:
    """Each is named; a restore refuses, or gives the store as it was at that commit.

    Only a segment stops none; see below.
    """
    chance = random.Random(seed)
    for number in range(FLIPS):
        folder = tmp_path / str(number)
        folder.mkdir()
        target, name, what = flipped(copy, folder, chance)
        try:
            report = verify_copy(target, everything=True)
            problems: list[Any] = list(report.problems)
        except (CorruptionError, FormatVersionError) as error:
            report, problems = None, [error]
        assert any(str(name) in str(one) for one in problems), (what, problems)
        sound = None if report is None else report.last_commit
        for commit in {None, sound, chance.choice(sorted(copy.states))}:
            new = folder / f"restored-{commit}"
            refusal = restored(copy, target, new, commit)
            if refusal:
                assert not new.exists()
                assert str(name) in refusal, (what, commit)
                # What rows cannot say, records do; and one can go back to before any damage.
                assert not what.startswith(("rows", VERIFIED)), (what, commit)
                assert commit != sound or not what.startswith("records"), (what, commit)
        shutil.rmtree(folder)


def test_no_flipped_bit_of_a_header_looks_like_a_newer_format(copy: Copy) -> None:
    """A restore makes up for damage with other pieces, and must not stop for it."""
    data = bytearray(copy.objects["rows"][0].read_bytes())
    for bit in range(8 * PIECE.size):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptionError):
            decode_piece(bytes(data), "piece")
        data[bit // 8] ^= 1 << bit % 8
    data[3] += 1
    with pytest.raises(FormatVersionError):
        decode_piece(bytes(data[:-8]) + xxh3_64_intdigest(data[:-8]).to_bytes(8, "big"), "piece")


def test_a_flipped_format_of_records_stops_no_restore_from_rows(
    copy: Copy, tmp_path: Path, target: Path
) -> None:
    shutil.copytree(copy.target, target)
    for path in target.glob("*/0/*.skp"):
        data = bytearray(path.read_bytes())
        data[3] ^= 16
        path.write_bytes(data)
    last = max(int(path.name[21:41]) for path in copy.objects["rows"])
    assert last in copy.states
    assert restored(copy, target, tmp_path / "restored", last) == ""


def test_damaged_rows_stop_no_reader_of_the_changes(copy: Copy, target: Path) -> None:
    """It begins at any commit that a restore can make, for which records make up for rows."""
    shutil.copytree(copy.target, target)
    before = list(changes(target, max(copy.states) - 3))
    for path in copy.objects["rows"]:
        spoil(target / path.relative_to(copy.target))
    assert list(changes(target, max(copy.states) - 3)) == before != []
    spoil(max(target.glob("*/0/*.skp")))  # a piece: what comes before it can be restored
    with pytest.raises(CorruptionError, match=r"next: `streamkeep ship restore --commit [0-9]+`"):
        list(changes(target, max(copy.states)))


def spoil(path: Path) -> None:
    """Change a byte in the middle of an object."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def names(target: Path) -> list[str]:
    return [one.name for one in Target(target).known_head().generations]


def test_a_damaged_generation_is_followed_by_another_one(
    store: Store, target: Path, tmp_path: Path
) -> None:
    """The damaged one goes on until then, and stays for what can be restored of it."""
    add(store, 6, target)
    pieces = sorted(target.rglob("0/*.skp"))
    spoil(pieces[2])
    failed = run("ship", "verify", target, status=4)
    assert f"{pieces[2].name}: the checksum" in failed.stdout
    assert "a shipper begins anew within ten minutes" in failed.stderr
    assert "`streamkeep ship STORE TARGET --once`; `ship restore --commit N`" in failed.stderr
    (before,) = names(target)
    run("ship", store.path, target, "--once")
    assert names(target)[0] == before
    assert len(names(target)) == 2
    report = verify_copy(target)
    assert (len(report.problems), report.damaged, report.last_commit) == (1, False, newest(store))
    assert "what goes on is sound" in run("ship", "verify", target, status=4).stderr
    restore_copy(target, tmp_path / "before", commit=newest(store) - 5)
    ship(store, target)
    assert len(names(target)) == 2  # once
    run("ship", store.path, target, "--once", "--renew")
    assert len(names(target)) == 1
    run("ship", "verify", target)
    assert_restored(target, tmp_path / "restored", store)


@pytest.mark.parametrize("what", ["0/*.skp", "1/*-end.skp"])
def test_damage_that_the_shipper_itself_finds(
    store: Store, target: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the last piece, from which it goes on, or in rows, into which it merges others."""
    monkeypatch.setattr(writer, "_PIECES_PER_ROWS", 2)
    add(store, 5, target)
    spoil(max(target.rglob(what)))
    add(store, 5, target)
    ship(store, target)
    assert len(names(target)) == 2
    assert not verify_copy(target).damaged
    assert_restored(target, tmp_path / "restored", store)


def test_a_damaged_segment_is_written_again(store: Store, target: Path) -> None:
    """A new generation needs the same segments; it is not enough that they are there."""
    archive_some(store, 900, 10)
    ship(store, target)
    segment = next(one for one in (target / "segments").rglob("*.seg.*"))
    spoil(segment)
    assert [segment.name in str(one) for one in verify_copy(target, everything=True).problems]
    ship(store, target)
    assert not verify_copy(target, everything=True).problems
    segment.write_bytes(segment.read_bytes()[:-9])
    ship(store, target, renew=True)
    assert not verify_copy(target, everything=True).problems


def test_a_lost_segment_is_told_and_takes_nothing_else_along(
    store: Store, tmp_path: Path, target: Path
) -> None:
    for _ in range(2):
        archive_some(store, 300, 0)
    ship(store, target)
    assert verify_copy(target).segments == 2
    lost = min((target / "segments").rglob("*.seg.*"))
    lost.unlink()  # after it was proved
    assert [lost.name in str(one) for one in verify_copy(target).problems] == [True]
    result = run("ship", "restore", target, tmp_path / "restored", status=5)
    assert f"error SK301: segment 1-s/{lost.name.rpartition('.')[0]}" in result.stdout
    assert "restored, but its archive has 1 problem" in result.stderr
    with streamkeep.open(tmp_path / "restored", readonly=True) as restored:
        assert restored.xrange("s") == store.xrange("s")
        assert restored.xrevrange("s", count=100, history=True)[-1].id
        with pytest.raises(MissingSegmentError):
            restored.xrange("s", history=True)
    run("standby", target, tmp_path / "standby", "--once", status=5)
    ship(store, target)
    assert not verify_copy(target).problems
    spoil(min((target / "segments").rglob("*.seg.*")))
    found = restore_copy(target, tmp_path / "other").archive_findings
    assert {one.code for one in found} == {"SK302"}


def test_a_segment_that_the_store_lacks_is_told(store: Store, target: Path, tmp_path: Path) -> None:
    """By the verification, too, in a base and in records; but not if it is elsewhere."""
    store.set_retention("s", archive=True)

    def trim() -> None:
        store.xadd_many("s", [{"n": "1"}] * 300)
        store.xtrim("s", maxlen=0, approximate=False)

    def archive() -> Path:
        trim()
        store.archive()
        return max((store.path / "archive").rglob("*.seg"))

    archive()
    ship(store, target)
    assert not verify_copy(target).problems
    path = archive()
    kept = path.rename(tmp_path / "kept")
    assert ship(store, target).missing_segments == 1
    for renew in (False, True):  # in a record, and in the base of the generation that follows
        assert {path.name in str(one) for one in verify_copy(target).problems} == {True}
        generation = ship(store, target).generation  # the same: another one would lack it, too
        assert ship(store, target, renew=renew).missing_segments == renew
        assert (ship(store, target).generation == generation) != renew
    kept.rename(path)
    ship(store, target, renew=True)
    assert not verify_copy(target).problems
    store.archive(to=tmp_path / "fleet")
    ship(store, target)
    assert not verify_copy(target).problems
    trim()
    store.archive()  # and the file is gone before it is shipped
    ship(store, target)
    assert not verify_copy(target).problems
    assert not restore_copy(target, tmp_path / "restored").archive_findings


def test_a_standby_follows_the_generation_after_a_damaged_one(
    store: Store, target: Path, tmp_path: Path
) -> None:
    ship(store, target)
    with closing(Standby(target, tmp_path / "standby")) as following:
        add(store, 1, target)
        spoil(max(target.rglob("0/*.skp")))
        with pytest.raises(CorruptionError, match="the checksum"):
            following.run(once=True)
        add(store, 1, target)
        assert following.run(once=True).commit_number == newest(store)
        assert_same(tmp_path / "standby", store)


def test_a_restore_to_a_time_trusts_no_header(
    open_store: Open, target: Path, tmp_path: Path
) -> None:
    """A flipped time would have it end too early, at a piece that it does not read."""
    clock = ManualClock(1_718_004_800_000)
    store = open_store(clock=clock)
    for n in range(6):
        clock.ms += 60_000
        store.xadd("s", {"n": str(n)})
        ship(store, target)
    wanted = clock.ms - 60_000
    piece = sorted(target.rglob("0/*.skp"))[-2]
    assert restore_copy(target, tmp_path / "sound", at_ms=wanted).commit_number == newest(store) - 1
    data = bytearray(piece.read_bytes())
    data[PIECE.offset("last_ms") + 2] ^= 1  # years later
    piece.write_bytes(data)
    with pytest.raises(CorruptionError, match=piece.name):
        restore_copy(target, tmp_path / "damaged", at_ms=wanted)


def test_a_page_that_lmdb_does_not_find_is_damage_of_the_store_to_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Mock(side_effect=lmdb.PageNotFoundError("mdb_cursor_get"))
    monkeypatch.setattr(writer.Writer, "send_base", missing)
    with Store(tmp_path / "store") as store, pytest.raises(CorruptionError, match="LMDB"):
        ship(store, tmp_path / "target")
