"""A command that fails leaves no store that was not there before, unless it put something in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import streamkeep
from cli_runner import reply, run
from streamkeep.engine.store.place import remove_empty
from streamkeep.transfer import stores


@pytest.fixture(autouse=True)
def _folder() -> None:
    """A folder with files that cannot be loaded, and nothing else."""
    with streamkeep.open("good") as store:
        store.xadd("k", {"a": "b"}, "5-0")
    for kind in ("rdb", "jsonl"):
        run("dump", "good", "--format", kind, "--output", f"cut.{kind}")
        data = Path(f"cut.{kind}").read_bytes()
        Path(f"cut.{kind}").write_bytes(data[:-4])
    Path("bad.resp").write_text("XADD k 0-0 a b\r\nXADD k 1-0 a b\r\n")
    Path("bad.csv").write_text("stream,id,a\nk,1-0,x\nk,1-0,y\n")
    Path("rows.csv").write_text("id,a\n5-0,x\n18446744073709551615-99,y\n")


def test_a_failing_command_leaves_no_store() -> None:
    before = sorted(os.listdir())
    for args, status in (
        ("load new bad.resp", 1),
        ("load new cut.rdb", 1),
        ("load new cut.jsonl", 1),
        ("load new bad.csv", 1),
        ("load new k cut.jsonl", 1),
        ("load new absent bad.csv", 1),
        ("load new k nix.csv", 2),
        ("load new k rows.csv --time id", 1),
        ("add new k a b --id 0-0", 1),
        ("add new k a b --id x", 1),
        ("add new k a b --idmp  ", 1),
        ("add new k a b --nomkstream", 6),
        ("add new k a", 2),
        ("exec new XGROUP CREATE k g x MKSTREAM", 1),
        ("archive adopt new good", 6),
    ):
        told = run(*args.split(" "), status=status).stderr
        assert told
        assert "info new" not in told
        assert sorted(os.listdir()) == before, args


def test_a_folder_that_was_there_stays_and_can_become_a_store() -> None:
    Path("new").mkdir()
    run("load", "new", "cut.rdb", status=1)
    assert not Path("new/data.mdb").exists()
    run("streams", "new", status=3)
    run("fsck", "new", status=3)
    run("add", "new", "k", "a", "b")
    assert reply("new", "XLEN", "k") == 1
    run("fsck", "new")


def test_a_store_that_was_there_stays_though_it_is_empty() -> None:
    with streamkeep.open("new"):
        pass
    run("load", "new", "bad.resp", status=1)
    run("fsck", "new")


def test_a_staging_folder_that_was_there_before_stays() -> None:
    """A pipeline may have written files there that it has not committed yet."""
    staged = Path("new") / "staging" / "job" / "part-0"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"rows")
    streamkeep.open("new").close()
    assert remove_empty(Path("new"), made=False)
    assert not (Path("new") / "data.mdb").exists()
    assert staged.read_bytes() == b"rows"


def test_a_store_that_others_have_opened_meanwhile_stays() -> None:
    with streamkeep.open("new") as store:
        assert not remove_empty(Path("new"), made=True)
        store.xadd("k", {"a": "b"})
    assert not remove_empty(Path("new"), made=True)
    assert reply("new", "XLEN", "k") == 1


def test_a_store_stays_to_which_a_process_has_written_that_was_killed() -> None:
    """What it has written is in the journal; `data.mdb` alone was once looked at."""
    add = "streamkeep.open('new').xadd('k', {'a': 'b'}); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", f"import os, streamkeep; {add}"], check=False)
    assert not remove_empty(Path("new"), made=True)
    assert reply("new", "XLEN", "k") == 1


def test_a_store_that_others_have_written_to_since_it_was_looked_at_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look = stores.holds_nothing

    def looked_at(store: streamkeep.Store) -> bool:
        empty = look(store)
        words = [sys.executable, "-m", "streamkeep", "add", "new", "k", "a", "b", "--id", "1-0"]
        subprocess.run(words, check=True, capture_output=True)
        return empty

    with monkeypatch.context() as patched:
        patched.setattr(stores, "holds_nothing", looked_at)
        run("load", "new", "cut.jsonl", status=1)
    assert reply("new", "XLEN", "k") == 1


def test_a_mistyped_path_makes_no_folders(tmp_path: Path) -> None:
    path = tmp_path / "nosuch" / "x.store"
    with pytest.raises(streamkeep.StoreError, match=f"{path.parent} does not exist; next: correct"):
        streamkeep.open(path)
    assert f"{path.parent} does not exist" in run("add", path, "k", "a", "1", status=3).stderr
    assert not path.parent.exists()
    with pytest.raises(streamkeep.NotAStoreError, match="without create=False, which creates it"):
        streamkeep.open(tmp_path / "x", create=False)
