"""The commands fsck and repair: what they print, their exit statuses, and what they leave alone."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import streamkeep
from cli_runner import objects, run
from patience import beside
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.format.core.errors import CorruptionError
from streamkeep.recovery.fsck.source import open_source
from test_recovery.test_corpus import CASES, PAGE, build, other_boot


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sound store that no process has open."""
    build(tmp_path / "store")
    return tmp_path / "store"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("lock.mdb", "last_check")
    }


def test_a_sound_store_is_clean_and_stays_as_it_is(store: Path) -> None:
    before = contents(store)
    result = run("fsck", store)
    assert (result.stdout, contents(store)) == ("", before)
    assert f"{store}: clean; 2 streams, 10 nodes" in result.stderr


def test_damage_ends_with_status_4_and_the_next_step(store: Path) -> None:
    CASES["SK110-two-places"](store)
    result = run("fsck", store, status=4)
    assert result.stdout.startswith("error SK110: stream 'orders' macro node 1-20: ")
    following = f"next: streamkeep repair {store} --output {store}.repaired"
    assert following in result.stderr
    told = json.loads(run("fsck", store, "--json", status=4).stderr)
    assert told == {"type": "note", "message": following}
    finding, summary = objects("fsck", store, status=4)
    assert (finding["code"], finding["severity"]) == ("SK110", "error")
    assert (summary["verdict"], summary["errors"], summary["streams"]) == ("damaged", 1, 2)
    assert "SK110" in run("fsck", store, "--stream", "orders", status=4).stdout
    run("fsck", store, "--stream", "mails")
    assert "no such key" in run("fsck", store, "--stream", "none", status=6).stderr
    told = run("range", store, "orders", status=4).stderr
    assert "macro node 1-20 of stream 'orders': " in told


@pytest.mark.parametrize("copied", [False, True])
def test_a_damaged_meta_page_is_damage_not_another_kind_of_file(store: Path, copied: bool) -> None:
    if copied:  # without the file of checkpoints, only the other meta page says what it was
        (store / "steady").unlink()
    with open(store / "data.mdb", "r+b") as file:
        file.seek(16)
        file.write(b"\xaa" * 4)
    with pytest.raises(CorruptionError, match="next: run `streamkeep repair`"):
        streamkeep.open(store)
    for command in (("status", store), ("range", store, "orders"), ("info", store, "orders")):
        result = run(*command, status=4)
        assert "next: run `streamkeep repair`, which saves what is readable\n" in result.stderr


def test_quick_finds_what_breaks_a_checksum(store: Path) -> None:
    CASES["SK110-one-byte"](store)
    assert "SK110" in run("fsck", store, "--quick", status=4).stdout


def test_a_code_is_explained_without_a_store() -> None:
    assert "SK201: error: an entry is pending" in run("fsck", "--explain", "sk201").stdout
    found = objects("fsck", "--explain", "sk201")[0]
    assert (found["type"], found["code"]) == ("explanation", "SK201")
    assert "no such code" in run("fsck", "--explain", "SK999", status=2).stderr


def test_what_is_no_store_ends_with_status_3(tmp_path: Path) -> None:
    run("fsck", tmp_path / "none", status=6)
    (tmp_path / "data.mdb").write_bytes(b"no store" * 1000)
    run("fsck", tmp_path, status=3)
    run("repair", tmp_path, "--output", tmp_path / "new", status=3)
    assert not (tmp_path / "new").exists()


def test_repair_with_loss_ends_with_status_5_and_twice_changes_nothing(store: Path) -> None:
    CASES["SK110-two-places"](store)
    before = contents(store)
    target, again = store.with_name("new"), store.with_name("again")
    result = run("repair", store, "--output", target, status=5)
    assert (
        "lost: stream 'orders': 12 entries, from 1-28 up to but not including 1-40" in result.stdout
    )
    assert contents(store) == before
    run("fsck", target)
    run("repair", target, "--output", again)
    run("diff", target, again)


def test_a_dry_run_writes_nothing_and_says_the_same(store: Path) -> None:
    CASES["SK110-two-places"](store)
    summary = objects("repair", store, "--dry-run", status=5)[-1]
    assert (summary["verdict"], summary["lost_entries"], summary["dry_run"]) == ("loss", 12, True)
    assert [path.name for path in store.parent.iterdir()] == ["store"]


def test_lost_entries_of_segments_are_counted(tmp_path: Path) -> None:
    with streamkeep.open(tmp_path / "store") as opened:
        opened.set_retention("s", archive=True)
        opened.xadd_many("s", [{"n": 1}] * 7)
        opened.xtrim("s", maxlen=0, approximate=False)
        opened.archive()
        [segment] = (tmp_path / "store").rglob("*.seg")
    segment.unlink()
    loss, summary = objects("repair", tmp_path / "store", "--dry-run", status=5)
    assert (loss["entries"], loss["archived_entries"], summary["lost_entries"]) == (0, 7, 7)


def test_repair_without_loss_ends_with_status_0(store: Path) -> None:
    CASES["SK110-one-byte"](store)
    result = run("repair", store, "--output", store.with_name("new"))
    assert "corrected: one byte in each of 1 values" in result.stdout


def test_repair_tells_of_old_copies_that_it_left_out(store: Path) -> None:
    CASES["SK114-other-place"](store)
    result = run("repair", store, "--output", store.with_name("new"))
    assert "left out: 1 old copies, which newer data replaces" in result.stdout
    assert objects("repair", store, "--dry-run")[-1]["old_copies"] == 1


def test_repair_needs_a_new_folder(store: Path) -> None:
    told = run("repair", store, status=2).stderr
    assert f"`streamkeep repair {store} --output {store}.repaired`" in told
    assert "exists and is not empty" in run("repair", store, "--output", store, status=3).stderr


def test_a_folder_of_the_archive_that_the_disk_does_not_read_stops_no_repair(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamkeep.open(store) as opened:
        for key in ("s", "t"):
            opened.set_retention(key, archive=True)
            opened.xadd_many(key, [{"n": "1"}] * 400)
            opened.xtrim(key, maxlen=1, approximate=False)
        opened.archive()
    CASES["SK110-two-places"](store)
    [folder] = (one.name for one in (store / "archive").glob("*-s"))
    original = os.open

    def failing(name: str, *args: Any, **options: Any) -> int:
        if name == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return original(name, *args, **options)

    monkeypatch.setattr(os, "open", failing)
    told = run("fsck", store, status=4).stdout  # 1 means that the check did not come to an end
    assert re.search("error SK302: segment .*: it cannot be read: Input", told)
    assert f"warning SK317: folder {folder}: it cannot be listed: Input" in told
    told = run("repair", store, "--output", store.with_name("new"), status=5).stdout
    assert re.search(
        "lost: stream 's': [0-9]+ archived entries, .*: it cannot be read: Input", told
    )
    assert f"lost: segments in {folder} that no row names: it cannot be listed: Input" in told
    monkeypatch.undo()
    with streamkeep.open(store.with_name("new")) as opened:
        assert opened.archived_segments("t")


def test_a_store_in_use_is_checked_while_others_write(tmp_path: Path) -> None:
    with Store(tmp_path / "store", sync="none") as store:
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                store.xadd_many("s", [{"n": "1"}] * 50)
                store.xtrim("s", maxlen=2000)

        with beside(write, stop=stop.set):
            for _ in range(15):
                assert list(recovery.check(store)) == []
                assert list(recovery.check(tmp_path / "store")) == []


def test_a_store_that_needs_recovery_is_named_and_its_journal_saved(store: Path) -> None:
    other_boot(store)
    before = contents(store)
    result = run("fsck", store)
    assert "note SK022: store: checked as of commit" in result.stdout
    assert contents(store) == before
    target = store.with_name("new")
    run("repair", store, "--output", target)
    with Store(target, readonly=True) as repaired:
        assert repaired.xrevrange("orders", count=1)[0].id == b"2-0"


def test_read_only_media_are_checked(store: Path) -> None:
    (store / "lock.mdb").unlink()
    for path in (store, *store.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert list(recovery.check(store)) == []
        assert not (store / "lock.mdb").exists()
    finally:
        for path in (store, *store.rglob("*")):
            path.chmod(0o700)


def test_a_copy_cut_off_anywhere_is_damaged_or_no_store_but_never_a_crash(store: Path) -> None:
    size = (store / "data.mdb").stat().st_size
    copy = store.with_name("copy")
    for keep in (0, 1, 100, 152, PAGE, 2 * PAGE, 2 * PAGE + 20, size // 2, size - 1):
        shutil.copytree(store, copy)
        os.truncate(copy / "data.mdb", keep)
        assert any(one.severity > 0 for one in recovery.check(copy)), keep
        shutil.rmtree(copy)


def test_fsck_agrees_with_the_verifier_of_lmdb(store: Path) -> None:
    verify = import_module("lmdb.verify").verify
    assert verify(str(store)) == []
    with open_source(store) as source:
        assert source.tables is not None
        pages = [source.tables.tree(table).leaves() for table in range(4)]
        numbers = sorted({page.number for leaves in pages for page in leaves})
    data = (store / "data.mdb").read_bytes()
    for number in numbers:
        for offset in (0, 10, 12, 14, 16, 18):
            damaged = bytearray(data)
            damaged[number * PAGE + offset] ^= 4
            (store / "data.mdb").write_bytes(damaged)
            problems = verify(str(store))
            found = [one for one in recovery.check(store) if one.code in ("SK004", "SK005")]
            assert bool(found) >= bool(problems), (number, offset, problems)


@pytest.mark.parametrize("size", [0, 4096, 8192, 40_960])
def test_a_store_that_was_cut_off_has_lost_something(store: Path, size: int) -> None:
    os.truncate(store / "data.mdb", size)
    run("fsck", store, status=4)
    result = run("repair", store, "--output", store.with_name("repaired"), status=5)
    assert "data.mdb" in result.stdout + result.stderr
    with pytest.raises(CorruptionError, match="repair"):
        Store(store)


def test_a_dry_run_writes_beside_the_store_or_where_it_is_told_and_needs_room(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    free = 1 << 40

    def disk_usage(folder: Path) -> object:
        asked.append(folder)
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    scratch = store.parent / "scratch"
    scratch.mkdir()
    run("repair", store, "--dry-run")
    run("repair", store, "--dry-run", "--scratch", scratch)
    assert asked == [store.parent, scratch]
    assert list(scratch.iterdir()) == []
    wrong = run("repair", store, "--output", "x", "--scratch", scratch, status=2).stderr
    assert "--scratch is for --dry-run" in wrong
    free = 1
    told = run("repair", store, "--dry-run", "--scratch", scratch, status=3).stderr
    assert "a trial repair needs about" in told
    assert list(scratch.iterdir()) == []
