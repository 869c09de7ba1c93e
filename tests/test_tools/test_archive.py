"""archive list, verify, restore, adopt, export, drop."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from cli_runner import lines, objects, reply, run
from conftest import assert_sound
from segments import archive, pairs_of, retire, some
from streamkeep.engine.api.store import Store
from streamkeep.engine.system import failpoints
from streamkeep.engine.tables.segment_files import open_segment
from streamkeep.tools.commands import archive_cmd

MAY = 1_714_521_600_000  # 2024-05-01
HOUR = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with two archived streams, of which one was deleted, and retired entries."""
    with Store(tmp_path / "orders.store", sync="none") as store:
        number = archive(store, "orders", some(60, MAY), some(60, MAY + HOUR))
        retire(store, number, some(60, MAY + 2 * HOUR))
        with store.transaction() as transaction:
            stream = transaction._txn.find_stream(b"orders")
            assert stream is not None
            stream.record.last_ms = MAY + 2 * HOUR + 100
        for hour in range(3, 6):
            store.xadd("orders", {"live": hour}, MAY + hour * HOUR)
        archive(store, "old\xff", some(60, MAY))
        store.delete("old\xff")
        return store.path


def test_list_shows_streams_and_segments(path: Path) -> None:
    shown = run("archive", "list", path)
    table = shown.stdout.splitlines()
    assert table[0].split() == [
        *("stream", "segments", "entries", "first", "last", "span", "size", "ratio", "retired")
    ]
    assert table[1].split()[:5] == [
        *("orders", "2", "120", "2024-05-01T00:00:00Z", "2024-05-01T01:00:00Z")
    ]
    assert table[1].split()[-1] == "60"
    assert "(deleted, number 2)" in table[2]
    assert "3 segments, 180 entries" in shown.stderr
    assert "60 entries retired, not yet in a segment" in shown.stderr

    found = lines("archive", "list", path, "orders", "--start", "2024-05-01T00:30:00Z")
    assert len(found) == 2
    assert found[1].startswith("1-orders/1714525200000-0_")
    assert found[1].endswith("archived")


def test_list_as_json(path: Path) -> None:
    *rows, summary = objects("archive", "list", path)
    assert [row["type"] for row in rows] == ["archived_stream"] * 2 + ["segment"] * 3
    assert rows[0]["retired_entries"] == 60
    assert rows[1]["exists"] is False
    assert rows[2]["first_id"] == f"{MAY}-0"
    assert rows[2]["size_bytes"] == Path(rows[2]["file"]).stat().st_size
    assert (summary["segments"], summary["entries"]) == (3, 180)
    *rows, summary = objects("archive", "list", path, "--stream-number", "2")
    assert [row["type"] for row in rows] == ["archived_stream", "segment"]


def test_erasing_from_a_deleted_stream_is_no_failure(path: Path) -> None:
    with Store(path) as store:
        store.delete("orders")
    first = f"{MAY + 2 * HOUR}-0"
    assert lines("erase", path, "orders", first, "--yes") == ["1"]
    assert lines("erase", path, "orders", first, "--yes") == ["0"]
    assert lines("erase", path, "orders", "--where", "no=such", "--yes") == ["0"]


def test_erasing_what_is_in_no_node_any_more(tmp_path: Path) -> None:
    """Its bytes are still in free pages and in the journal."""
    path = tmp_path / "s"
    run("add", str(path), "visits", "name", "SECRETANN", "--id", "5-1")
    run("exec", str(path), "XDEL", "visits", "5-1")

    def files() -> list[str]:
        found = [one for one in path.rglob("*") if one.is_file()]
        return [one.name for one in found if b"SECRETANN" in one.read_bytes()]

    assert "data.mdb" in files()
    mistyped = run("erase", str(path), "visit", "5-1", "--yes", status=6)
    assert "no stream 'visit'" in mistyped.stderr
    assert f"streamkeep erase {path} --finish" in mistyped.stderr
    assert run("erase", str(path), "visit", "--where", "name=SECRETANN", status=6).stdout == ""
    assert "data.mdb" in files()  # nothing was read or overwritten for it
    assert lines("erase", str(path), "visits", "--where", "name=SECRETANN", "--yes") == ["0"]
    assert files() == []


def test_erasing_what_only_a_killed_adoption_has_left(tmp_path: Path) -> None:
    with Store(tmp_path / "source") as source:
        archive(source, "k", some(9))
        list(source.export_segments(tmp_path / "out"))
    path = tmp_path / "s"
    with Store(path) as store:
        failpoints.arm("adopt:copied", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            list(store.adopt_segments(tmp_path / "out", key="visits"))
    [one, *_] = some(9)
    assert lines("erase", path, "visits", f"{one[0]}-{one[1]}", "--yes") == ["0"]
    [segment] = path.rglob("*.seg")
    assert open_segment(segment).trailer.entries == 8
    assert "no stream 'visit'" in run("erase", path, "visit", "1-0", "--yes", status=6).stderr


def test_erasing_what_only_a_published_archive_has(tmp_path: Path) -> None:
    path, fleet = tmp_path / "s", tmp_path / "fleet"
    with Store(path) as store:
        for number in range(1, 4):
            store.xadd("visits", {"name": f"SECRET{number}"}, f"{number}-0")
        store.archive(to=fleet, seal=True)
        store.delete("visits")
    run("erase", str(path), "visits", "2-0", "--yes", status=6)  # no stream, and not refused
    [segment] = fleet.rglob("*.seg")
    assert open_segment(segment).trailer.entries == 2


def test_list_of_nothing(tmp_path: Path) -> None:
    run("add", tmp_path / "s", "orders", "a", "1")
    shown = run("archive", "list", tmp_path / "s")
    assert shown.stdout == ""
    assert shown.stderr.startswith("0 segments, 0 entries")
    run("archive", "list", tmp_path / "s", "missing", status=6)
    run("archive", "list", tmp_path / "missing", status=6)


@pytest.mark.slow
def test_verify_says_what_is_damaged(path: Path) -> None:
    shown = run("archive", "verify", path)
    assert (shown.stdout, "3 segments" in shown.stderr) == ("", True)
    assert "all whole" in shown.stderr
    file = Path(objects("archive", "list", path)[2]["file"])
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    shown = run("archive", "verify", path, status=4)
    assert shown.stdout.startswith("block 0 of segment 1-orders/")
    assert "1 segment damaged" in shown.stderr
    *rows, summary = objects("archive", "verify", path, "orders", status=4)
    assert [len(row["problems"]) for row in rows] == [1, 0]
    assert (summary["segments"], summary["damaged"]) == (2, 1)


def test_a_lost_segment_is_adopted_and_not_repaired(path: Path, tmp_path: Path) -> None:
    run("archive", "export", path, tmp_path / "copy")
    for segment in (path / "archive").rglob("*.seg"):
        segment.unlink()
    told = run("fsck", path, status=4).stderr
    assert "next: `streamkeep archive adopt STORE FILE` restores it from a copy" in told
    damaged = tmp_path / "damaged"
    shutil.copytree(path, damaged)
    with Store(damaged) as store, store.transaction() as transaction:
        stream = transaction._txn.find_stream(b"orders")
        assert stream is not None
        stream.record.length += 1  # which a repair mends
    assert f"next: streamkeep repair {damaged} " in run("fsck", damaged, status=4).stderr
    run("archive", "adopt", path, tmp_path / "copy")
    assert "clean" in run("fsck", path).stderr


def test_restore_into_another_stream_and_another_store(path: Path, tmp_path: Path) -> None:
    said = run("archive", "restore", path, "may", "--source", "orders", "--end", f"{MAY + HOUR}")
    assert "restored 63 entries into 'may'" in said.stderr
    copy = tmp_path / "copy.store"
    for wrong, status in (
        ((path, "nix"), 6),
        ((path, "orders", "--start", "x"), 1),
        ((tmp_path / "nix", "orders"), 6),
    ):
        run("archive", "restore", *wrong, "--into", copy, status=status)
        assert not copy.exists()
    run("archive", "restore", path, "orders", "--into", copy)
    run("archive", "restore", path, "old", "--stream-number", "2", "--into", copy)
    with Store(copy) as store:
        assert pairs_of(store, "old") == some(60, MAY)
        assert store.xlen("orders") == 180
    assert_sound(copy)
    again = run("archive", "restore", path, "orders", "--into", copy)
    assert "nothing to do: 'orders' has the 180 entries already, " in again.stderr
    reply(copy, "XDEL", "orders", f"{MAY}-0")
    again = run("archive", "restore", path, "orders", "--into", copy, status=1)
    assert "cannot be restored into it, and its entries differ" in again.stderr
    assert f"next: streamkeep info {copy} orders" in again.stderr
    *_, summary = objects("archive", "restore", path, "again", "--source", "orders", "--into", path)
    assert summary["entries"] == 180
    run("archive", "restore", path, "x", "--source", "orders", "--stream-number", "1", status=2)
    run("archive", "restore", path, "orders", status=1)


def test_export_and_adopt(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = lines("archive", "export", path, out, "orders")
    assert len(printed) == 2
    copy = tmp_path / "copy.store"
    missing = run("archive", "adopt", copy, out, status=6)
    assert "copy.store: no such store\nnext: --create creates it" in missing.stderr
    run("archive", "adopt", copy, tmp_path / "missing", "--create", status=2)
    assert not copy.exists()
    said = run("archive", "adopt", copy, out, "--create")
    assert "adopted 2 segments with 120 entries" in said.stderr
    *rows, summary = objects("archive", "adopt", copy, out)
    assert [row["known"] for row in rows] == [True, True]
    assert (summary["adopted"], summary["known"]) == (0, 2)
    Path(printed[1]).unlink()  # as an export that was killed leaves it
    assert lines("archive", "export", path, out, "orders") == printed
    Path(printed[0]).write_bytes(Path(printed[0]).read_bytes()[::-1])
    other = run("archive", "export", path, out, "orders", status=3)
    assert "a segment never replaces a file" in other.stderr
    *rows, summary = objects("archive", "export", path, tmp_path / "one", "--end", "2024-05-01")
    assert summary["segments"] == len(rows) == 2
    assert len(lines("archive", "list", copy, "orders")) == 3


def test_one_stream_is_chosen_in_one_way(path: Path, tmp_path: Path) -> None:
    for command in (("list",), ("verify",), ("remove", "--before", "+"), ("export",)):
        folder = (tmp_path / "out",) if command == ("export",) else ()
        where = (path, *folder, "orders", "--stream-number", "1")
        told = run("archive", command[0], *where, *command[1:], status=2).stderr
        assert "KEY and --stream-number cannot be used together" in told


def test_archive_remove_asks_first(path: Path) -> None:
    before = ("--before", "2024-05-01T01:00:00Z")
    asked = run("archive", "remove", path, *before, input="n\n", status=1)
    assert "'orders': 1 segment with 60 entries, 2024-05-01T00:00:00Z to" in asked.stderr
    assert "nothing was changed" in asked.stderr
    said = run("archive", "remove", path, "orders", *before, "--yes")
    assert "removed 1 segment" in said.stderr
    *rows, summary = objects("archive", "remove", path, "--before", "+", "--yes")
    assert summary["segments"] == len(rows) == 2
    assert not any(Path(row["file"]).exists() for row in rows)
    assert "removed 0 segments" in run("archive", "remove", path, "--before", "+").stderr


def test_archive_remove_removes_what_it_has_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(losses: list[str], question: str, *, yes: bool) -> None:
        assert len(losses) == 1
        with Store(path) as store:  # meanwhile, an archiver runs
            assert store.archive().segments == 1

    monkeypatch.setattr(archive_cmd, "confirm_loss", ask)
    assert "removed 2 segments" in run("archive", "remove", path, "orders", "--before", "+").stderr
    with Store(path) as store:
        assert len(store.archived_segments("orders")) == 1


# --- trimmed entries on the command line: retention, archive run, trim --range, history -----------


def fill(count: int) -> None:
    for number in range(1, count + 1):
        run("add", "s", "k", "n", str(number), "--id", f"{number}-0")


def test_settings_are_told_in_words_and_as_json() -> None:
    fill(1)
    limits = ("--maxlen", "9", "--archive", "--archive-max-age", "30d")
    keeping = ("--keep-unacknowledged", "--keep-max-bytes", "1000000")
    (told,) = lines("retention", "set", "s", "k", *limits, *keeping)
    assert told == (
        "'k': at most 9 entries, after every group has acknowledged, from 976.6 KiB on it refuses "
        "entries, what is trimmed is archived, segments for 30d"
    )
    assert lines("retention", "show", "s", "k") == [told]
    shown = objects("retention", "show", "s", "k")[0]
    assert (shown["maxlen"], shown["keep_max_bytes"], shown["when_full"]) == (9, 1000000, "refuse")
    assert shown["archive_max_age_ms"] == 30 * 86_400_000
    assert "no stream 'other'" in run("retention", "show", "s", "other", status=6).stderr
    assert (
        "'-7' is not a number, or none"
        in run("retention", "set", "s", "k", "--maxlen", "-7", status=2).stderr
    )


def test_what_is_trimmed_is_archived_and_shown() -> None:
    fill(6)
    run("retention", "set", "s", "k", "--archive")
    everything = lines("range", "s", "k")
    assert lines("trim", "s", "k", "--range", "2", "3") == ["2 entries removed"]
    assert lines("trim", "s", "k", "--range", "9", "8") == ["0 entries removed"]
    assert lines("trim", "s", "k", "--minid", "6", "--exact") == ["3 entries removed"]
    assert lines("range", "s", "k") == everything[5:]
    assert lines("range", "s", "k", "--history") == everything
    run("trim", "s", "k", "--maxlen", "0", "--exact")
    report = objects("archive", "run", "s")[-1]
    assert (report["type"], report["entries"], report["segments"]) == ("summary", 6, 1)
    assert lines("range", "s", "k", "--history") == everything
    assert lines("tail", "s", "k", "--history", "-n", "2") == everything[4:]
    assert objects("archive", "run", "s")[-1]["segments"] == 0


def test_a_mistyped_stream_gets_no_retention_unless_it_is_to_be_created() -> None:
    fill(1)
    told = run("retention", "set", "s", "orderz", "--maxlen", "9", status=6).stderr
    assert "no stream 'orderz'" in told
    assert "next: streamkeep streams s; --create makes the stream" in told
    assert run("streams", "s").stdout.count("orderz") == 0
    run("retention", "set", "s", "orderz", "--maxlen", "9", "--create")
    assert lines("retention", "show", "s", "orderz") == [
        "'orderz': at most 9 entries, nothing is archived"
    ]


def test_a_move_says_what_stays_and_verify_reads_sealed_segments(tmp_path: Path) -> None:
    path = tmp_path / "s"
    run("add", str(path), "k", "name", "ann")
    run("archive", "run", path, "--to", tmp_path / "one", "--seal")
    moved = run("archive", "run", path, "--to", tmp_path / "two")
    assert f"what is at {(tmp_path / 'one').as_uri()}/" in moved.stderr
    row, summary = objects("archive", "verify", path)
    assert (row["sealed"], row["problems"], summary["segments"]) == (True, [], 1)
    assert Path(row["file"].removeprefix("file://")).stat().st_size == row["size_bytes"]
    Path(row["file"].removeprefix("file://")).unlink()
    assert "the object is not there" in run("archive", "verify", path, status=4).stdout
