"""create: a store with the mode that it was given."""

from __future__ import annotations

from pathlib import Path

from cli_runner import lines, objects, reply, run


def test_a_store_with_a_mode(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert lines("create", path, "--mode", "660") == [
        f"{path}: created; its files have the mode 660"
    ]
    run("add", path, "k", "f", "v")
    assert {one.stat().st_mode & 0o777 for one in path.rglob("*") if one.is_file()} == {0o660}
    told = run("create", path, status=3).stderr
    assert "there is a store already" in told
    assert "next: chmod -R" in told
    assert reply(path, "XLEN", "k") == 1


def test_what_cannot_be_a_mode_or_a_group(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert (
        "'rw' is not a mode in octal digits" in run("create", path, "--mode", "rw", status=2).stderr
    )
    assert "choose 0o600, 0o640" in run("create", path, "--mode", "666", status=1).stderr
    assert "no group 'nobodies'" in run("create", path, "--group", "nobodies", status=1).stderr
    assert not path.exists()
    [summary] = objects("create", path, "--mode", "640")
    assert summary["mode"] == "640"
