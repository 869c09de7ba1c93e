"""The examples of the queue print what they are there to show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from conftest import ROOT, assert_sound

PRINTS = {
    "fan_out": ["mail about 7", "reserved for 7"],
    "exactly_once": ["the 3", "and 2"],
    "nightly": ["report 0 3 * * * Europe/Berlin", "made"],
    "web_outbox": ["2 forwarded", "2 shipped"],
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_prints_what_it_shows(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/queue/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path = tmp_path / "store"
    module.main(str(path), *([str(tmp_path / "db")] if name == "web_outbox" else []))
    assert capsys.readouterr().out.splitlines() == PRINTS[name]
    assert_sound(path)


def test_every_example_is_run() -> None:
    assert {one.stem for one in (ROOT / "examples/queue").glob("*.py")} == set(PRINTS)
