"""Which users are trusted with the files of a store: owners, members of its group, those named."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamkeep
from cli_runner import run
from other_users import ANN, BOB, EVE, TEAM, Failed, as_root, as_user, common_folder, contents_below
from streamkeep import UntrustedFileError
from streamkeep.engine.system.owners import TRUST_VARIABLE
from streamkeep.engine.whole_store.compact import compact
from streamkeep.recovery.fsck.store import check

NOBODY = 65534
STRANGER = 54321  # a number of no user
PLACES = [".", "journal", "waiters", "data.mdb", "lock.mdb", "steady", "journal/head"]


@as_root
@pytest.mark.parametrize("name", PLACES)
def test_what_a_stranger_owns_is_opened_when_that_is_said(path: Path, name: str) -> None:
    os.chown(path / name, STRANGER, -1)
    before = contents_below(path)
    with pytest.raises(UntrustedFileError, match=rf"{STRANGER}.*trust_owners=\['{STRANGER}'\]"):
        streamkeep.open(path)
    with pytest.raises(UntrustedFileError):
        streamkeep.open(path, readonly=True)
    with pytest.raises(UntrustedFileError):
        list(check(path))
    assert contents_below(path) == before
    with streamkeep.open(path, trust_owners=[STRANGER], readonly=True) as store:
        assert store.xlen("s") == 5
    with pytest.raises(UntrustedFileError, match=str(STRANGER)):
        streamkeep.open(path, trust_owners=[NOBODY])


@as_root
def test_users_are_trusted_by_name_number_or_environment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pwd.getpwuid(NOBODY).pw_name
    os.chown(path / "steady", NOBODY, -1)
    for trusted in (name, NOBODY, [name], (str(NOBODY),)):
        with streamkeep.open(path, trust_owners=trusted) as store:
            store.xadd("s", {"f": "v"})
    monkeypatch.setenv(TRUST_VARIABLE, f"{STRANGER},{name}")
    with streamkeep.open(path) as store:
        assert store.xlen("s") == 9
    assert [str(one) for one in check(path)] == []


@as_root
def test_the_command_line_names_whom_to_trust(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(path / "data.mdb", STRANGER, -1)
    before = contents_below(path)
    for command in ("fsck", "dump"):
        assert f"{TRUST_VARIABLE}={STRANGER}" in run(command, path, status=3).stderr
    assert contents_below(path) == before
    monkeypatch.setenv(TRUST_VARIABLE, str(STRANGER))
    run("fsck", path)


def add(path: Path, trusted: list[int] | None = None) -> int:
    with streamkeep.open(path, trust_owners=trusted or []) as store:
        store.xadd("s", {"f": "v"})
        return store.xlen("s")


@pytest.fixture
def shared() -> Iterator[Path]:
    """Make a folder that ann owns and her team may write to, where all may come."""
    with common_folder() as above:
        folder = above / "shared"
        folder.mkdir()
        os.chown(folder, ANN, TEAM)
        folder.chmod(0o2770)
        yield folder


@as_root
def test_members_of_a_group_share_a_store_whose_folder_is_theirs(shared: Path) -> None:
    assert as_user(ANN, [TEAM], lambda: add(shared)) == 1
    for place in shared.rglob("*"):
        status = place.stat()
        wanted = 0o770 if place.is_dir() else 0o660
        assert (status.st_mode & 0o777, status.st_gid, status.st_uid) == (wanted, TEAM, ANN)
    assert as_user(BOB, [TEAM], lambda: add(shared)) == 2
    shared.chmod(0o2775)
    with pytest.raises(Failed, match="UntrustedFileError"):
        as_user(EVE, [], lambda: add(shared))
    # Ann trusts what bob made since: this machine does not know bob, so she has to say so.
    assert as_user(ANN, [TEAM], lambda: add(shared, [BOB])) == 3


@as_root
def test_root_leaves_a_shared_store_to_its_group(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert as_user(ANN, [TEAM], lambda: add(shared)) == 1
    with pytest.raises(UntrustedFileError, match=str(ANN)):
        streamkeep.open(shared)
    with streamkeep.open(shared, trust_owners=ANN) as store:
        store.xadd("s", {"f": "v"})
    monkeypatch.setenv(TRUST_VARIABLE, str(ANN))
    compact(shared)
    assert {one.stat().st_gid for one in shared.rglob("*")} == {TEAM}
    assert as_user(ANN, [TEAM], lambda: add(shared)) == 3


@as_root
def test_a_group_that_the_caller_is_not_in_earns_no_trust(path: Path) -> None:
    """Otherwise everybody could make a store that is trusted."""
    os.chown(path, STRANGER, TEAM)
    path.chmod(0o2770)
    with pytest.raises(UntrustedFileError, match=str(STRANGER)):
        streamkeep.open(path)


@as_root
def test_members_of_the_group_are_trusted_and_others_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {BOB: pwd.struct_passwd(("bob", "x", BOB, BOB, "", "/", "/bin/sh"))}
    known[EVE] = pwd.struct_passwd(("eve", "x", EVE, EVE, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", known.__getitem__)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("team", "x", 0, ["bob"])))
    os.chown(path / "steady", BOB, -1)
    with pytest.raises(UntrustedFileError):
        streamkeep.open(path)  # the group may not write
    path.chmod(0o770)
    with streamkeep.open(path) as store:
        assert store.xlen("s") == 5
    os.chown(path / "steady", EVE, -1)
    with pytest.raises(UntrustedFileError, match="eve"):
        streamkeep.open(path)
