"""Wrong steps of a user: each gets one message that says what is wrong and what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from cli_runner import run
from other_users import ANN, EVE, as_root, as_user, common_folder
from stopped import child_of, status_of
from streamkeep.engine.system import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd("orders", {"sku": "7"})
    return tmp_path / "s"


def says(text: str, *parts: str) -> None:
    """Check a message: a single line, or one with `next:` in it or below it, and these parts."""
    lines = text.strip().splitlines()
    assert len(lines) <= 2, text
    assert "Traceback" not in text
    assert text.count("next: ") == 1, text
    for part in parts:
        assert part in text


def test_a_wrong_path(tmp_path: Path) -> None:
    makes = "next: correct the path; `streamkeep create ordres` makes a store"
    for words, problem, following in (
        ("range ordres orders", "no such store", makes),
        ("tail ordres orders", "no such store", makes),
        ("trim ordres orders --maxlen 1", "no such store", makes),
        ("status ordres", "no such store", makes),
        ("dump ordres", "no such store", makes),
        ("backup ordres copy", "no such store", makes),
        ("restore ordres copy", "ordres: no such store", "next: correct the path\n"),
        ("standby ordres copy --once", "ordres: there is no copy", "next: correct the path\n"),
    ):
        says(run(*words.split(), status=6).stderr, problem, following)
    assert not Path("ordres").exists()
    Path("file").write_text("x")
    says(run("range", "file", "orders", status=3).stderr, "a file, and a store is a folder")
    Path("empty").mkdir()
    for words in ("range empty orders", "fsck empty", "status empty"):
        says(run(*words.split(), status=3).stderr, "it has no data.mdb")
    run("add", tmp_path / "s", "orders", "sku", "7")
    told = run("repair", tmp_path / "s", "--output", tmp_path / "s" / "new", status=3).stderr
    says(told, "in the damaged store", "next: name a new folder elsewhere")
    told = run("backup", tmp_path / "s", "/proc/copy", status=1).stderr
    says(told, "/proc/.copy.backup: No such file", "next: correct the path")
    told = run("dump", tmp_path / "s", "--output", "nowhere/a.csv", status=1).stderr
    says(told, "/nowhere/a.csv: No such file", "next: correct the path")
    for folder in ("empty", "new/"):
        told = run("dump", tmp_path / "s", "--output", folder, status=2).stderr
        assert f"{folder} names a folder, and a dump is one file: name a file in it" in told
    assert not Path("new").exists()
    (tmp_path / "s" / "data.mdb").unlink()
    for words in ("range s orders", "add s orders sku 8", "status s"):
        told = run(*words.split(), status=4).stderr
        assert "data.mdb: the file is missing" in told
        assert "`streamkeep restore`" in told


@as_root
def test_no_right_to_use_a_store_and_another_user() -> None:
    with common_folder() as folder:
        store = folder / "s"
        run("doctor", folder)  # loads what another user cannot
        as_user(ANN, [], lambda: run("create", store, "--mode", "600").stdout)
        told = as_user(EVE, [], lambda: run("range", store, "k", status=3).stderr)
        says(told, "Permission denied", f"next: work as {ANN}, or have {ANN} share the store")
        store.chmod(0o755)
        (store / "data.mdb").chmod(0o644)
        told = as_user(EVE, [], lambda: run("range", store, "k", status=3).stderr)
        says(told, f"belongs to user {ANN}", "STREAMKEEP_TRUST_OWNERS")
        folder.chmod(0o755)
        told = as_user(EVE, [], lambda: run("doctor", store, status=8).stdout)
        assert "so locks, maps and syncs were not tried" in told
        told = as_user(EVE, [], lambda: run("add", folder / "z", "k", "f", "v", status=3).stderr)
        says(told, "cannot create the folder: Permission denied")


def test_a_full_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "reserve", full)
    says(run("add", path.with_name("new"), "k", "f", "v", status=1).stderr, "the disk is full")


def test_a_typo_in_a_command_an_option_or_a_key(path: Path) -> None:
    told = run("rnage", path, "orders", status=2).stderr
    assert "No such command 'rnage'; did you mean range?" in told
    told = run("retention", "list", path, status=2).stderr
    assert "No such command 'list'; there are set, show" in told
    told = run("range", path, "orders", "--cuont", "1", status=2).stderr
    assert "--count" in told
    told = run("range", path, "orders", "20251021x", status=1).stderr
    assert "start is '20251021x'; it may also be a time such as 2025-10-21" in told
    told = run("info", path, "ordres", status=6).stderr
    says(told, "no such key", "streamkeep streams")


def test_a_wrong_type(path: Path) -> None:
    with streamkeep.open(path) as store:
        for value in (1.5j, None, object()):
            with pytest.raises((streamkeep.ArgumentError, TypeError)) as caught:
                store.xadd("orders", {"sku": value})  # type: ignore[dict-item]
            assert type(value).__name__ in str(caught.value)
        with pytest.raises((streamkeep.ArgumentError, TypeError), match="dict"):
            store.xadd("orders", "sku=7")  # type: ignore[arg-type]
        assert store.xlen("orders") == 1
    with pytest.raises(streamkeep.ArgumentError, match="mode must be a number such as 0o660"):
        streamkeep.open(path, mode="660")  # type: ignore[call-overload]


def test_a_forked_store(path: Path) -> None:
    """Neither the store nor what was begun before is used: its pages are kept for the parent."""
    with streamkeep.open(path) as store, store.snapshot() as snapshot:
        store.xadd_many("orders", [{"n": n} for n in range(9000)])
        scan = store.scan("orders")
        next(scan)
        calls: list[Callable[[], Any]] = [
            partial(store.xlen, "orders"),
            partial(snapshot.xlen, "orders"),
            partial(list, scan),
            partial(list, store.scan_iter()),
        ]
        reading, writing = os.pipe()

        def use() -> None:
            for call in calls:
                with pytest.raises(streamkeep.StoreClosedError) as caught:
                    call()
                os.write(writing, f"{caught.value}\n".encode())

        child = child_of(use)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read().splitlines()
        assert status_of(child) == 0
    assert len(told) == len(calls)
    for line in told:
        says(line, "opened before this process was forked", "open it again in the child")
