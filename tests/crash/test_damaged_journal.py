"""A damaged journal: what can be kept is kept, and what would be lost is an error that says so."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from crash.losses import killed_after
from crash.power import another_boot, another_mount
from inside import checkpoint_now, flush_now
from stopped import child_of, ended, killed, killed_at
from streamkeep import recovery
from streamkeep.engine.checkpoint.checkpoint_file import CheckpointFile
from streamkeep.engine.journal.reader import Reader, file_name
from streamkeep.engine.system import boot_id
from streamkeep.engine.system.safe_files import Folder
from streamkeep.engine.txn.stream import decode_stream
from streamkeep.format.core.errors import ArgumentError, CorruptionError, RecoveryNeededError
from streamkeep.format.core.keys import NODES, STREAMS, TABLES, pack_number
from streamkeep.format.journal import journal
from streamkeep.format.journal.checkpoint import CheckpointSlot
from streamkeep.format.journal.position import LogPosition, encode_position
from streamkeep.recovery.fsck.findings import Severity
from streamkeep.recovery.fsck.source import open_source
from streamkeep.recovery.salvage.repair import repair
from tiers import daily_or_all

SHOWN, ALL = 11, 21  # entries of `s` that LMDB has, and that were acknowledged; one is older


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store whose process was killed.

    `s` got an entry before the checkpoint, ten that LMDB has, and ten that it lacks. With each of
    the latter, `t` got one in the same pipeline; it is as old. With the parameter `checkpoint_now`,
    there is another checkpoint after the ten that LMDB has.
    """
    path = tmp_path / "store"
    flush = getattr(request, "param", flush_now)

    def work() -> None:
        one = streamkeep.open(path)
        one.xadd("s", {"n": 0})
        one.xadd("t", {"n": 0})
        checkpoint_now(one)
        for number in range(1, SHOWN):
            one.xadd("s", {"n": number})
        flush(one)
        for number in range(SHOWN, ALL):
            with one.pipeline() as both:
                both.xadd("s", {"n": number}).xadd("t", {"n": number}).execute()

    killed(work)
    return path


def slot_of(path: Path) -> CheckpointSlot:
    lock = CheckpointFile(Folder(path), readonly=True)
    slot = lock.newest()
    lock.close()
    assert slot is not None
    return slot


def records(path: Path) -> Iterator[tuple[LogPosition, bytes]]:
    """Yield where each record after the checkpoint begins, and its body."""
    slot = slot_of(path)
    reader = Reader(Folder(path / "journal"), slot, slot.position())
    while True:
        before = reader.position
        body = reader.next()
        if body is None:
            return
        yield before, body


def file_of(path: Path, position: LogPosition) -> Path:
    return path / "journal" / file_name(position.file_number)


def flip(file: Path, at: int, bits: int = 4) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= bits
    file.write_bytes(data)


def damage(path: Path, number: int, original: Path | None = None) -> None:
    """Flip a bit of a record after the checkpoint, counted from 1.

    Args:
        original: what `path` is a copy of, where a checkpoint may have removed the file since.
    """
    position, _ = list(records(original or path))[number - 1]
    file = file_of(path, position)
    if original is None or file.exists():
        flip(file, position.offset + 30)


def entries(path: Path, name: str = "s", **options: object) -> list[int]:
    with streamkeep.open(path, **options) as store:  # type: ignore[call-overload]
        return [int(entry.fields[b"n"]) for entry in store.xrange(name)]


def lost(path: Path) -> int:
    with streamkeep.open(path, readonly=True) as store:
        recovered = store.durability().last_recovery
        assert recovered is not None
        return recovered.lost


def publish(path: Path, commit_number: int, place: int = 1) -> None:
    """Have the control file say that this is the newest commit."""
    control = path / "journal" / "head"
    words = memoryview(bytearray(control.read_bytes())).cast("q")
    words[place] = commit_number
    control.write_bytes(words.tobytes())


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.name != "lock.mdb"
    }


def errors(path: Path) -> list[str]:
    """Return what fsck finds, without notes."""
    return [str(one) for one in recovery.check(path) if one.severity]


# --- damage between the checkpoint and the newest commit of LMDB ----------------------------------


def test_damage_before_the_newest_commit_of_lmdb_loses_nothing(store: Path) -> None:
    damage(store, 5)
    assert [one.partition(":")[0] for one in errors(store)] == ["warning SK027"]
    assert entries(store) == list(range(ALL))
    assert lost(store) == 0
    assert errors(store) == []
    assert entries(store, "t") == [0, *range(SHOWN, ALL)]


def test_a_reader_sees_what_lmdb_has_in_spite_of_damage_before_it(store: Path) -> None:
    torn_off(store, SHOWN)
    damage(store, 5)
    publish(store, 13)  # the newest commit is that of LMDB
    assert entries(store, readonly=True) == list(range(SHOWN))
    assert entries(store) == list(range(SHOWN))
    assert lost(store) == 0


def test_a_control_file_of_before_hides_nothing_that_lmdb_has(store: Path) -> None:
    publish(store, 8)
    damage(store, 5)
    assert "SK024" in str(errors(store))
    with pytest.raises(RecoveryNeededError, match="commits 8 to 13 were made and would be lost"):
        streamkeep.open(store)


def test_a_control_file_with_a_number_that_is_too_low_is_not_followed(store: Path) -> None:
    """A reader would hide commits, and a writer that joins it would overwrite them."""
    publish(store, 22)  # perhaps a process was killed before it published the last one
    assert entries(store, readonly=True) == list(range(ALL - 1))
    publish(store, 21)
    with pytest.raises(RecoveryNeededError, match=r"holds 10 commits that data\.mdb lacks"):
        streamkeep.open(store, readonly=True)
    assert entries(store) == list(range(ALL))


def test_without_numbers_of_mounts_lmdb_is_kept_only_by_choice(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then nothing shows that the kernel still has every page."""
    damage(store, 5)
    monkeypatch.setattr(boot_id, "mount_id", lambda path: 0)
    publish(store, 0, 10)
    with pytest.raises(RecoveryNeededError, match="commits 8 to 23 were made and would be lost"):
        entries(store)
    assert entries(store, force_recovery="data.mdb") == list(range(ALL))


def recoveries_killed_at_each_step(store: Path) -> Iterator[Path]:
    """Yield copies of a store, whose recovery was killed one step later each time, and once not."""
    step, goes_on = 0, True
    while goes_on:
        step += 1
        copy = shutil.copytree(store, store.with_name("copy"))
        goes_on = killed_after(step, lambda: entries(store.with_name("copy")))
        yield copy
        shutil.rmtree(copy)
    assert step > 8


def test_a_recovery_from_the_newest_commit_of_lmdb_may_be_killed_anywhere(store: Path) -> None:
    damage(store, 5)
    found = errors(store)
    for copy in recoveries_killed_at_each_step(store):
        assert errors(copy) in ([], found)
        assert entries(copy) == list(range(ALL))
        assert lost(copy) == 0


@pytest.mark.parametrize("number", [1, 5, 15])
def test_damage_after_a_recovery_was_killed_loses_nothing_without_a_word(
    store: Path, number: int
) -> None:
    """The recovery has put what LMDB had back, and only the journal has it until a checkpoint."""
    refused = 0
    for copy in recoveries_killed_at_each_step(store):
        damage(copy, number, store)
        told = "SK024" in str(errors(copy))
        try:
            assert entries(copy) == list(range(ALL))
            assert not told
        except RecoveryNeededError:
            assert told
            refused += 1
    assert refused > 1


@pytest.mark.parametrize("boot", [nullcontext, another_boot, another_mount])
def test_a_recovery_that_is_killed_forgets_nothing_that_was_on_disk(
    store: Path, boot: Callable[[], AbstractContextManager[None]]
) -> None:
    """Nor what it has replayed, though its checkpoint is not made yet."""
    copy = shutil.copytree(store, store.with_name("copy"))
    with boot():
        killed_at("checkpoint:pinned", lambda: streamkeep.open(copy))
        damage(copy, 15, store)
        again = shutil.copytree(copy, store.with_name("again"))
        assert entries(again) == list(range(ALL))
        assert lost(again) == 0
    with another_boot(2):
        assert "SK024" in str(errors(copy))
        with pytest.raises(RecoveryNeededError, match="commits 18 to 23 were made"):
            streamkeep.open(copy)


@pytest.mark.parametrize(
    ("flush", "force"), [(flush_now, None), (lambda _: None, None), (flush_now, "checkpoint")]
)
def test_damage_to_the_checkpoint_of_a_recovery_loses_no_commit_after_it(
    store: Path, flush: Callable[[streamkeep.Store[bytes]], object], force: Any
) -> None:
    """The checkpoint before is of another epoch, whose journal is gone.

    Nor does it count a loss again that was told.
    """
    if force:
        damage(store, 15)

    def work() -> None:
        one = streamkeep.open(store, force_recovery=force)
        for number in range(ALL, ALL + 5):
            one.xadd("s", {"n": number})
        flush(one)
        one.xadd("s", {"n": ALL + 5})

    killed(work)
    newest = slot_of(store)
    flip(store / "steady", (store / "steady").read_bytes().index(newest.encode()) + 20)
    assert slot_of(store).epoch < newest.epoch
    assert entries(store) == [*range(ALL - 6 if force else ALL), *range(ALL, ALL + 6)]
    assert lost(store) == 0
    assert not errors(store)


def test_the_commits_that_a_recovery_gave_up_are_counted_also_if_it_is_killed(store: Path) -> None:
    damage(store, 15)
    killed_at("checkpoint:pinned", lambda: streamkeep.open(store, force_recovery="checkpoint"))
    assert entries(store) == list(range(ALL - 6))
    assert lost(store) == 6


# --- damage after it ------------------------------------------------------------------------------


def test_a_loss_is_refused_with_both_ways_out_and_nothing_changes(store: Path) -> None:
    damage(store, 15)
    before = contents(store)
    assert errors(store) == [
        "error SK024: journal: commits 18 to 23 were made and would be lost: the journal cannot be "
        "read after commit 17"
    ]
    for readonly in (False, True):
        with pytest.raises(RecoveryNeededError) as caught:
            streamkeep.open(store, readonly=readonly)
        for text in (
            "commits 18 to 23 were made",
            "`streamkeep repair`",
            'force_recovery="data.mdb", which keeps data.mdb and ends at commit 17',
            "goes back to the checkpoint of commit 3 and ends at commit 17",
        ):
            assert text in str(caught.value) or readonly
    assert contents(store) == before


@pytest.mark.parametrize("way", ["data.mdb", "checkpoint"])
def test_a_loss_that_the_caller_accepts_is_counted(store: Path, way: str) -> None:
    damage(store, 15)
    assert entries(store, force_recovery=way) == list(range(ALL - 6))
    assert lost(store) == 6
    assert errors(store) == []
    assert entries(store, "t") == [0, *range(SHOWN, ALL - 6)]


def test_another_way_of_recovery_is_refused(store: Path) -> None:
    with pytest.raises(ArgumentError, match=r"'data\.mdb' or 'checkpoint', not True"):
        streamkeep.open(store, force_recovery=True)  # type: ignore[call-overload]


@pytest.mark.parametrize("checkpoints", [True, False], ids=["", "without checkpoints"])
def test_repair_applies_what_follows_the_damage_and_names_what_it_cannot(
    store: Path, checkpoints: bool
) -> None:
    damage(store, 15)
    with nullcontext() if checkpoints else another_mount():
        if not checkpoints:
            (store / "steady").unlink()
            with pytest.raises(CorruptionError, match="there is no checkpoint"):
                streamkeep.open(store)
        repaired = repair(store, store.with_name("new"))
    assert repaired.findings == []
    lines = repaired.report.lines()
    assert "lost: commit 18: the journal is damaged there" in lines
    assert any("stream 's': 1 entry, from" in line for line in lines), lines
    missing = ALL - 6
    assert entries(store.with_name("new")) == [one for one in range(ALL) if one != missing]
    expected = [0] + [one for one in range(SHOWN, ALL) if one != missing]
    assert {*entries(store.with_name("new"), "t")} >= {*expected}


@pytest.mark.parametrize(
    ("first", "commits"), [(15, "commits 18 to 23"), (20, "commit 23")], ids=["several", "one"]
)
def test_repair_names_commits_at_the_end_that_cannot_be_read(
    store: Path, first: int, commits: str
) -> None:
    for number in reversed(range(first, 21)):
        damage(store, number)
    repaired = repair(store, store.with_name("new"))
    assert repaired.report.lines() == [f"lost: {commits}: the journal is damaged there"]
    assert entries(store.with_name("new")) == list(range(ALL - (21 - first)))


@pytest.mark.parametrize(("node", "kept"), [(0, 25), (1, 20)])
def test_repair_keeps_the_node_that_was_sealed_in_a_record_that_is_damaged(
    tmp_path: Path, node: int, kept: int
) -> None:
    """That record also begins the next node, of which the others are nothing without its first."""
    path, new = tmp_path / "store", tmp_path / "new"

    def work() -> None:
        one = streamkeep.open(path, node_max_entries=10)
        for number in range(25):
            one.xadd("s", {"n": number}, id=f"{number + 1}-{number}")

    killed(work)
    sealing = [
        number
        for number, (_, body) in enumerate(records(path), start=1)
        if any(change.table == NODES for change in journal.read_changes(body, TABLES))
    ]
    damage(path, sealing[node])
    repaired = repair(path, new)
    assert repaired.findings == []
    with streamkeep.open(new) as store:
        found = [(entry.id.decode(), int(entry.fields[b"n"])) for entry in store.xrange("s")]
    assert found == [(f"{number + 1}-{number}", number) for number in range(kept)]
    lines = repaired.report.lines()
    assert ("lost: stream 's': 5 entries" in lines) == (kept == 20)


def test_repair_keeps_a_tail_whose_head_became_longer_in_a_damaged_record(tmp_path: Path) -> None:
    """From 128 entries on, their count takes another byte."""
    path = tmp_path / "store"

    def work() -> None:
        one = streamkeep.open(path)
        for number in range(132):
            one.xadd("s", {"n": number})

    killed(work)
    damage(path, 128)
    repaired = repair(path, tmp_path / "new")
    assert "lost: stream 's': 1 entry" in str(repaired.report.lines())
    assert entries(tmp_path / "new") == [one for one in range(132) if one != 127]


@pytest.mark.parametrize("fits", [True, False], ids=["", "the next record does not fit"])
def test_repair_corrects_a_byte_of_a_row_before_the_journal_extends_it(
    tmp_path: Path, fits: bool
) -> None:
    """Afterwards, no checksum says what it was."""
    path, first = tmp_path / "store", b"an entry that the checkpoint has"

    def work() -> None:
        one = streamkeep.open(path)
        one.xadd("s", {"n": first})
        checkpoint_now(one)
        for number in range(1, 4):
            one.xadd("s", {"n": number})

    killed(work)
    if not fits:
        damage(path, 1)
    flip(path / "data.mdb", (path / "data.mdb").read_bytes().index(first), 0x17)
    repaired = repair(path, tmp_path / "new")
    assert repaired.report.corrected == 1
    with streamkeep.open(tmp_path / "new") as store:
        found = [entry.fields[b"n"] for entry in store.xrange("s")]
    assert found == [first, *[b"1"][:fits], b"2", b"3"]


def test_repair_tells_of_an_entry_that_is_lost_together_with_deletions(tmp_path: Path) -> None:
    """The entries whose deletion is lost are there again, so the length lacks nothing."""
    path = tmp_path / "store"

    def work() -> None:
        one = streamkeep.open(path)
        for number in range(30):
            one.xadd("s", {"n": number}, f"1-{number}")
        with one.transaction() as txn:
            txn.xadd("s", {"n": 30}, "1-30")
            txn.xdel("s", "1-3", "1-4")
        for number in range(31, 34):
            one.xadd("s", {"n": number}, f"1-{number}")

    killed(work)
    damage(path, 31)
    repaired = repair(path, tmp_path / "new")
    assert entries(tmp_path / "new") == [one for one in range(34) if one != 30]
    lost = "lost: stream 's': an unknown number of entries, from 1-30 up to but not including 1-31"
    assert lost in repaired.report.lines()


def test_a_check_says_that_a_changed_page_prevents_a_recovery(store: Path) -> None:
    """Which no other check finds: a recovery takes the log position from the checkpoint itself."""
    row = encode_position(*slot_of(store).position())
    data = (store / "data.mdb").read_bytes()
    assert data.count(row) == 1
    flip(store / "data.mdb", data.index(row), 1)
    with another_boot():
        assert "SK004: data.mdb: page" in str(errors(store))
        with pytest.raises(CorruptionError, match="is not the root of commit 3"):
            streamkeep.open(store)
    repair(store, store.with_name("new"))
    assert entries(store.with_name("new")) == list(range(ALL))


def test_repair_goes_on_from_an_older_data_file_as_far_as_the_journal_leads(tmp_path: Path) -> None:
    path, older = tmp_path / "store", tmp_path / "older"

    def work() -> None:
        one = streamkeep.open(path)
        shutil.copy(path / "data.mdb", older)
        for number in range(ALL):
            one.xadd("s", {"n": number})
        checkpoint_now(one)
        one.xadd("s", {"n": ALL})

    killed(work)
    older.replace(path / "data.mdb")
    assert errors(path)
    with pytest.raises(CorruptionError, match="run `streamkeep repair`"):
        streamkeep.open(path)
    assert repair(path, tmp_path / "new").report.lines() == []
    assert entries(tmp_path / "new") == [*range(ALL + 1)]


@pytest.mark.parametrize("store", [flush_now, checkpoint_now], indirect=True)
def test_a_flipped_bit_loses_nothing_or_is_an_error_that_fsck_announces(store: Path) -> None:
    """In all bytes of all records, also if the first one that is needed follows the checkpoint."""
    bodies = list(records(store))
    bits = [
        (number, file_of(store, position), 8 * position.offset + bit)
        for number, (position, body) in enumerate(bodies)
        for bit in range(0, 8 * (journal.RECORD_HEADER.size + len(body)), daily_or_all(1777, 97))
    ]
    refused = set()
    for number, file, bit in bits:
        copy = shutil.copytree(store, store.with_name("copy"))
        flip(copy / "journal" / file.name, bit // 8, 1 << bit % 8)
        found = errors(copy)
        try:
            assert entries(copy) == list(range(ALL))
            assert "SK024" not in str(found)
        except RecoveryNeededError:
            refused.add(number)
            assert "SK024" in str(found)
        shutil.rmtree(copy)
    assert refused == set(range(len(bodies))[SHOWN - ALL :])


def test_the_header_of_a_file_is_not_needed_after_a_checkpoint_in_it(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "open") as store:
        store.xadd("s", {"n": 0})
        checkpoint_now(store)
        store.xadd("s", {"n": 1})
        shutil.copytree(tmp_path / "open", tmp_path / "store")
    (file,) = (tmp_path / "store" / "journal").glob("*.skj")
    flip(file, 0, 1)
    (file.parent / "head").unlink()
    with another_boot():
        assert entries(tmp_path / "store") == [0, 1]


# --- records that do not fit ----------------------------------------------------------------------


def rewrite(path: Path, change: Callable[[int, bytes], bytes]) -> None:
    """Write the records after the checkpoint again, with other bodies; in one file."""
    found = list(records(path))
    position = found[0][0]
    file = file_of(path, position)
    assert {one.file_number for one, _ in found} == {position.file_number}
    chain, out = position.chain, b""
    for number, (_, body) in enumerate(found, start=1):
        body = change(number, body)
        chain = journal.record_checksum(body, chain)
        out += journal.encode_record(body, chain)
    data = file.read_bytes()
    file.write_bytes((data[: position.offset] + out).ljust(len(data), b"\0"))


def without_append(body: bytes) -> bytes:
    """Return a record without its change of the stream `s`."""
    at, out = 8, body[:8]
    for change in journal.read_changes(body, TABLES):
        if (change.table, change.db_key) != (STREAMS, pack_number(1)):
            out += body[at : at + change.size()]
        at += change.size()
    assert len(out) < len(body) == at
    return out


@pytest.fixture
def unfit(store: Path) -> Path:
    """The same store; the fifth commit that LMDB lacks has no record of its append to `s`."""
    rewrite(store, lambda number, body: without_append(body) if number == 15 else body)
    return store


def test_a_record_that_does_not_fit_is_found_before_anything_is_changed(unfit: Path) -> None:
    before = contents(unfit)
    (found,) = errors(unfit)
    assert found.startswith("error SK024: journal: commits 19 to 23 were made and would be lost")
    assert "the record of commit 19 cannot be applied: journal: " in found
    with pytest.raises(RecoveryNeededError, match="commits 19 to 23 were made and would be lost"):
        streamkeep.open(unfit)
    assert contents(unfit) == before
    assert entries(unfit, force_recovery="checkpoint") == [*range(ALL - 6)]
    assert lost(unfit) == 5


def test_repair_applies_each_row_of_the_records_that_fits(unfit: Path) -> None:
    repaired = repair(unfit, unfit.with_name("new"))
    assert repaired.findings == []
    assert entries(unfit.with_name("new"), "t") == [0, *range(SHOWN, ALL)]
    missing = ALL - 6
    assert entries(unfit.with_name("new")) == [one for one in range(ALL) if one != missing]
    lines = repaired.report.lines()
    assert any("stream 's': 1 entry, from" in line for line in lines), lines
    assert any("precedes commit 19 in row" in line for line in lines)


def test_a_row_that_the_journal_does_not_make_is_found(store: Path) -> None:
    """LMDB has an entry that no record has: a recovery would lose it."""
    rewrite(store, lambda number, body: without_append(body) if number == SHOWN - 1 else body)
    found = errors(store)
    assert [one[:11] for one in found] == ["error SK024", "error SK028"] or (
        [one[:13] for one in found] == ["warning SK027"]
    )


# --- power losses ---------------------------------------------------------------------------------


def torn_off(path: Path, number: int) -> None:
    """Remove what a record after the checkpoint, and all later ones, wrote: it was not on disk."""
    position, _ = list(records(path))[number - 1]
    file = file_of(path, position)
    data = file.read_bytes()
    file.write_bytes(data[: position.offset].ljust(len(data), b"\0"))


@pytest.mark.parametrize("cut", [torn_off, damage])
def test_after_a_power_loss_the_end_of_the_journal_may_be_torn(
    store: Path, cut: Callable[[Path, int], None]
) -> None:
    cut(store, 5)
    (store / "journal" / "head").unlink()  # was never synced
    with another_boot():
        assert errors(store) == []
        (note,) = (str(one) for one in recovery.check(store))
        assert note.endswith("6 later commits, which were not on disk, are lost")
        assert entries(store) == list(range(5))
        assert lost(store) == 6  # as far as `data.mdb` shows it


@pytest.mark.parametrize("loss", [another_boot, another_mount])
def test_a_loss_of_what_was_on_disk_is_an_error_also_after_a_power_loss(
    store: Path, loss: Callable[[], object]
) -> None:
    """The control file says what was on disk, as far as it was written itself."""
    damage(store, 5)
    with loss():  # type: ignore[attr-defined]
        assert "SK024" in str(errors(store))
        with pytest.raises(RecoveryNeededError, match="commits 8 to 23 were made"):
            streamkeep.open(store)
        with pytest.raises(RecoveryNeededError, match=r"data\.mdb cannot be kept as it is"):
            streamkeep.open(store, force_recovery="data.mdb")
        assert entries(store, force_recovery="checkpoint") == list(range(5))


def test_who_removes_the_journal_is_told_that_it_may_have_had_commits(tmp_path: Path) -> None:
    """Here it had none after the checkpoint, but only the journal says that."""
    path = tmp_path / "store"
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})
    shutil.rmtree(path / "journal")
    assert "SK024: journal: if any commits were made after 2, they would" in str(errors(path))
    for readonly in (True, False):
        with pytest.raises(RecoveryNeededError, match=r"0001\.skj and journal/head are missing"):
            streamkeep.open(path, readonly=readonly)
    assert entries(path, force_recovery="checkpoint") == [0]
    assert errors(path) == []


# --- without checkpoints --------------------------------------------------------------------------


def test_without_the_file_of_checkpoints_no_commit_is_hidden(store: Path) -> None:
    (store / "steady").unlink()
    with pytest.raises(RecoveryNeededError, match=r"holds 10 commits that data\.mdb lacks"):
        entries(store, readonly=True)
    assert "SK020" in str(errors(store))
    repair(store, store.with_name("new"))
    assert entries(store.with_name("new")) == list(range(ALL))
    assert entries(store) == list(range(ALL))
    assert errors(store) == []


def test_a_closed_store_needs_no_file_of_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path) as store:
        store.xadd("s", {"n": 0})
    for name in ("steady", "lock.mdb"):
        (path / name).unlink()
    shutil.rmtree(path / "journal")
    with another_boot():
        assert entries(path, readonly=True) == [0]
        assert entries(path) == [0]


# --- stores in use -------------------------------------------------------------------------------


def test_a_check_of_a_store_in_use_reads_the_commits_that_lmdb_lacks(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ready, told = os.pipe()

    def work() -> None:
        one = streamkeep.open(path)
        for number in range(ALL):
            one.xadd("s", {"n": number})
        os.write(told, b"!")
        signal.pause()

    child = child_of(work)
    os.close(told)
    with ended(child), open(ready, "rb", 0):
        assert os.read(ready, 1) == b"!"
        assert list(recovery.check(path)) == []
        with open_source(path) as source:
            assert source.tables is not None
            row = source.tables.get(STREAMS, pack_number(1))
            assert row is not None
            assert decode_stream(1, b"s", row).record.length == ALL
            lmdb_has = source.tables.tree(STREAMS).find(pack_number(1))[0]
            assert row != lmdb_has
        newest = list(records(path))[-1][0]
        file = file_of(path, newest)
        with file.open("r+b") as damaged:
            damaged.seek(newest.offset + 30)
            damaged.write(b"damage")
        assert "SK024" in str(errors(path))


# --- records that extend a damaged row ------------------------------------------------------------


def damage_row(path: Path) -> None:
    """Change the entry of `s` that `data.mdb` had at the checkpoint: more than repair corrects."""
    data = (path / "data.mdb").read_bytes()
    assert data.count(b"before the checkpoint") == 1
    with (path / "data.mdb").open("r+b") as file:
        file.seek(data.index(b"before the checkpoint"))
        file.write(b"BE")


def two_streams(path: Path) -> streamkeep.Store[bytes]:
    """Return an open store whose `data.mdb` has an entry each of `s` and `other`."""
    one = streamkeep.open(path)
    one.xadd("s", {"n": "before the checkpoint"})
    one.xadd("other", {"n": 0})
    checkpoint_now(one)
    return one


def assert_only_s_is_damaged(one: streamkeep.Store[bytes], others: int) -> None:
    assert [entry.fields[b"n"] for entry in one.xrange("other")] == [
        str(number).encode() for number in range(others)
    ]
    with pytest.raises(CorruptionError, match=r"stream 1: the checksum .* does not match"):
        one.xrange("s")


def test_a_record_that_extends_a_damaged_row_gives_it_no_right_checksum(tmp_path: Path) -> None:
    """It would hide the damage from everybody. A recovery goes on, for the other streams."""
    path = tmp_path / "store"

    def work() -> None:
        one = two_streams(path)
        for number in (1, 2):
            one.xadd("s", {"n": "after it"})
            one.xadd("other", {"n": number})

    killed(work)
    damage_row(path)
    for new in ("before", "after"):  # its recovery
        (found,) = [str(one) for one in recovery.check(path) if one.severity > Severity.NOTE]
        assert "does not match" in found
        lines = repair(path, tmp_path / new).report.lines()
        assert "unverified: stream 's': 3 entries from damaged nodes; the values may be wrong" in (
            lines
        )
        with streamkeep.open(tmp_path / new) as saved:
            assert [one.fields[b"n"] for one in saved.xrange("s")][1:] == [b"after it"] * 2
        with streamkeep.open(path) as one:
            assert_only_s_is_damaged(one, 3)


def test_the_other_streams_of_a_damaged_row_stay_readable_for_all_processes(tmp_path: Path) -> None:
    """Also after a process that met the damage has put the row into LMDB."""
    path = tmp_path / "store"
    to_child, from_parent = os.pipe()
    to_parent, from_child = os.pipe()

    def work() -> None:
        one = two_streams(path)
        for number in range(1, 5):
            os.write(from_child, b"!")
            os.read(to_child, 1)
            one.xadd("s", {"n": "after it"})
            one.xadd("other", {"n": number})
        os.write(from_child, b"!")
        os.read(to_child, 1)

    child = child_of(work)
    os.close(from_child)
    try:
        os.read(to_parent, 1)
        damage_row(path)
        os.write(from_parent, b"!")
        os.read(to_parent, 1)
        with streamkeep.open(path) as one:
            for others in (2, 3, 4):
                assert_only_s_is_damaged(one, others)
                if others == 3:
                    flush_now(one)
                    assert_only_s_is_damaged(one, others)
                os.write(from_parent, b"!")
                os.read(to_parent, 1)
            flush_now(one)
            assert_only_s_is_damaged(one, 5)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        for handle in (to_child, from_parent, to_parent):
            os.close(handle)
    with streamkeep.open(path) as one:
        assert_only_s_is_damaged(one, 5)


def test_repair_counts_the_entries_of_a_damaged_row_also_if_a_record_is_lost(
    tmp_path: Path,
) -> None:
    """It joins what later records add to the row, which has no right checksum then."""
    path = tmp_path / "store"

    def work() -> None:
        one = two_streams(path)
        for _ in range(3):
            one.xadd("s", {"n": "after it"})

    killed(work)
    damage_row(path)
    damage(path, 2)
    lines = repair(path, tmp_path / "new").report.lines()
    assert "unverified: stream 's': 3 entries from damaged nodes; the values may be wrong" in lines
    assert any(line.startswith("lost: stream 's': 1 entry, from") for line in lines), lines
