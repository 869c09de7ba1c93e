"""Where Streamkeep cannot run, or runs slowly, one sentence says so and what to do."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import streamkeep
from cli_runner import run
from streamkeep import supported
from streamkeep.format.node import listpack

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "streamkeep"


def imported_on(platform: str, *words: str) -> str:
    """Return the last line of an import on another system."""
    code = f"import sys; sys.platform = {platform!r}; import streamkeep"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, *(words or ("-c", code))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("platform", "why"), [("darwin", "a sync does not reach the drive"), ("win32", "this is win32")]
)
def test_an_import_on_another_system_names_containers_and_wsl(platform: str, why: str) -> None:
    told = imported_on(platform)
    assert told.startswith("ImportError: Streamkeep runs on Linux only")
    assert why in told
    assert "next: run it in a container" in told
    assert "WSL2" in told


def test_a_python_that_is_too_old_learns_which_one_is_needed() -> None:
    assert supported.problem(version=(3, 10)).startswith(
        "Streamkeep needs Python 3.11 or newer, and this is Python 3.10; next: "
    )
    assert supported.problem(version=(3, 11), platform="linux") == ""
    # What an old Python reads first.
    for one in ("supported.py", "__init__.py", "__main__.py", "../../setup.py"):
        ast.parse((SOURCE / one).read_text(), feature_version=(3, 7))


def test_an_interpreted_installation_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listpack, "__file__", "listpack.py")
    monkeypatch.setattr(supported, "_told", False)
    monkeypatch.delenv("STREAMKEEP_PURE", raising=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            streamkeep.open(tmp_path / "store").close()
    [told] = caught
    assert told.filename == __file__
    assert "python3-dev), then pip install --force-reinstall" in str(told.message)
    assert "STREAMKEEP_PURE=1 silences this" in str(told.message)


@pytest.mark.parametrize(("file", "pure"), [("listpack.py", "1"), ("listpack.so", "")])
def test_no_warning_where_it_was_chosen_or_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, pure: str
) -> None:
    monkeypatch.setattr(listpack, "__file__", file)
    monkeypatch.setattr(supported, "_told", False)
    monkeypatch.setenv("STREAMKEEP_PURE", pure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamkeep.open(tmp_path / "store").close()


def test_the_command_line_warns_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listpack, "__file__", "listpack.py")
    monkeypatch.delenv("STREAMKEEP_PURE", raising=False)
    assert run("create", tmp_path / "store").stderr == ""
