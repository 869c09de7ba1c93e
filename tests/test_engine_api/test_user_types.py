"""The programs that `make type` checks as a user would, with mypy and pyright, use every name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

import streamkeep
from conftest import ROOT
from streamkeep import jobs, recovery, transfer

PROGRAMS = "\n".join(
    (ROOT / "tests" / name).read_text() for name in ("user_program.py", "user_queue.py")
)
API = ROOT / "docs" / "reference" / "api"
# For tools: what is in a file of a store.
TOOLS = re.compile(r"inspect_\w+|parse_time")
# Only for adapters, which a page of the API does not show.
KINDS: list[type] = [streamkeep.Store, jobs.Queue, jobs.Job, jobs.Task, jobs.Worker]


def hidden(kind: type) -> str:
    """Return an expression for the names of a class that its page leaves out."""
    page = (API / "queue.md").read_text()
    found = re.search(rf"::: streamkeep\.jobs\.{kind.__name__}\n((?: .*\n)*)", page)
    filters = re.findall(r'"!\^\((.*?)\)\$"', found[1]) if found else []
    return "|".join(["_.*", *filters])


def names(kind: type) -> Iterator[str]:
    left_out = re.compile(hidden(kind))
    for name, value in inspect.getmembers(kind):
        if not left_out.fullmatch(name) and (callable(value) or isinstance(value, property)):
            yield name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_public_method_is_in_a_program(kind: type) -> None:
    found = [*names(kind)]
    assert len(found) > 1
    assert [name for name in found if not re.search(rf"\.{name}\b", PROGRAMS)] == []


@pytest.mark.parametrize("module", [recovery, transfer], ids=lambda module: module.__name__)
def test_every_public_function_is_in_a_program(module: object) -> None:
    found = [name for name in module.__all__ if not name[0].isupper() and not TOOLS.fullmatch(name)]  # type: ignore[attr-defined]
    assert [name for name in found if not re.search(rf"\.{name}\b", PROGRAMS)] == []
