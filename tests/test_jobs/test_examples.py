"""The examples of the queue print what they are there to show."""

from __future__ import annotations

import importlib.util
import logging
import runpy
from pathlib import Path

import pytest

from conftest import ROOT, assert_sound

PRINTS = {
    "fan_out": ["mail about 7", "reserved for 7"],
    "exactly_once": ["the 3", "and 2"],
    "mail_retries": ["ann: attempt 2", "bob: attempt 2", "builtins.ValueError is not retried"],
    "thumbnails": [
        "[[4, 3], [4, 3], [4, 3]]",
        "['small-0.pgm', 'small-1.pgm', 'small-2.pgm']",
    ],
    "nightly": ["report 0 3 * * * Europe/Berlin", "made"],
    "web_outbox": ["2 forwarded", "2 shipped"],
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_shows(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/queue/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path / "store"
    monkeypatch.setattr(logging.root.manager, "disable", 0)  # an example silences the log
    module.main(
        str(path), *([str(tmp_path / "more")] if name in ("web_outbox", "thumbnails") else [])
    )
    assert capsys.readouterr().out.splitlines() == PRINTS[name]
    assert_sound(path)


@pytest.mark.parametrize("name", [*PRINTS, "web_outbox_postgresql"])
def test_an_example_without_its_arguments_says_which_it_needs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = ROOT / f"examples/queue/{name}.py"
    monkeypatch.setattr("sys.argv", [str(program)])
    with pytest.raises(SystemExit, match=f"python {name}.py STORE"):
        runpy.run_path(str(program), run_name="__main__")


def test_every_example_is_run() -> None:
    found = {one.stem for one in (ROOT / "examples/queue").glob("*.py")}
    assert found == {*PRINTS, "web_outbox_postgresql"}  # which test_outbox_postgresql runs
