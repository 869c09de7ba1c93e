"""Completion by the Tab key: its scripts, and what is offered."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, run, spawn


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store `s` with streams of plain and of hostile names."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with streamkeep.open("s") as store:
        for key in ("orders", "orders-2024", "returns", b"\x1b[31m", "two words", "$(reboot)"):
            store.xadd(key, {"f": "v"})
        store.xgroup_create("orders", "mail", 0)
        store.xgroup_create("orders", "billing", 0)
        store.xgroup_createconsumer("orders", "mail", "ann")


def offered(*words: str) -> list[str]:
    """Return what is offered for the last word, as fish asks for it."""
    text = " ".join(["streamkeep", *words[:-1]])
    environment = {
        **os.environ,
        "_STREAMKEEP_COMPLETE": "bash_complete",
        "COMP_WORDS": f"{text} {words[-1]}",
        "COMP_CWORD": str(len(words)),
    }
    done = spawn(env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    return [line.partition(",")[2] for line in done.stdout.decode().splitlines() if line]


@pytest.mark.slow
def test_names_of_commands_and_options_are_offered() -> None:
    assert offered("re") == ["retention", "repair", "restore"]
    assert "--count" in offered("range", "s", "orders", "--c")
    assert "--json" in offered("range", "--j")


@pytest.mark.slow
def test_streams_and_groups_of_the_store_are_offered() -> None:
    assert offered("range", "s", "ord") == ["orders", "orders-2024"]
    assert offered("range", "s", "nix") == []
    assert offered("pending", "s", "orders", "") == ["billing", "mail"]
    assert offered("pending", "s", "nix", "") == []
    assert offered("range", "nosuch", "ord") == []
    assert offered("dump", "s", "ret") == ["returns"]
    assert offered("pending", "s", "orders", "mail", "--consumer", "") == ["ann"]


def test_names_that_a_terminal_could_misread_are_not_offered() -> None:
    assert all(one.isprintable() and " " not in one for one in offered("range", "s", ""))


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", "data/bash-completion/completions/streamkeep"),
        ("zsh", "data/zsh/site-functions/_streamkeep"),
        ("fish", "config/fish/completions/streamkeep.fish"),
    ],
)
def test_a_script_is_installed_where_the_shell_looks(shell: str, file: str, tmp_path: Path) -> None:
    for _ in range(2):  # a second time it is replaced
        assert lines("completion", "install", shell) == [str(tmp_path / file)]
    assert f"_STREAMKEEP_COMPLETE={shell}_complete" in Path(file).read_text()


def test_the_shell_is_that_of_the_user_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "streamkeep.fish" in run("completion", "install").stdout
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "$SHELL is 'tcsh'" in run("completion", "install", status=2).stderr


def test_bash_accepts_the_script() -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    run("completion", "install", "bash")
    script = 'source "$0" && complete -p streamkeep'
    path = "data/bash-completion/completions/streamkeep"
    done = subprocess.run(["bash", "-c", script, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"_streamkeep_completion" in done.stdout
