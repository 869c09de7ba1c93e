"""What fsck and repair say of damaged stores: four files of text below `tests/golden/damage/`.

A file has a section for each case, in the order of their names:

    == SK001-row
    fsck:
        error SK001: ...
    repair:
        lost: ...

`STREAMKEEP_WRITE_EXPECTED=1 pytest tests/...` writes what the tests of these files find instead of
comparing with it; run them in one process then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

from conftest import ROOT

FOLDER: Final = ROOT / "tests" / "golden" / "damage"
WRITE: Final = os.environ.get("STREAMKEEP_WRITE_EXPECTED") == "1"
INDENT: Final = "    "

Part = Literal["fsck", "repair"]
Case = dict[Part, list[str]]
PARTS: Final[tuple[Part, ...]] = ("fsck", "repair")


def families() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read(family: str) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    lines: list[str] = []
    for line in _path(family).read_text().splitlines():
        if line.startswith("== "):
            case: Case = {part: [] for part in PARTS}
            cases[line[3:]] = case
        elif line.startswith(INDENT):
            lines.append(line[len(INDENT) :])
        elif line in ("fsck:", "repair:"):
            lines = case["fsck" if line == "fsck:" else "repair"]
        else:
            assert line == "", line
    return cases


def write(family: str, cases: dict[str, Case]) -> None:
    text = []
    for name, case in sorted(cases.items()):
        text.append(f"== {name}")
        for part in PARTS:
            text += [f"{part}:", *(INDENT + line for line in case[part])]
        text.append("")
    _path(family).write_text("\n".join(text))


def compare(family: str, name: str, part: Part, lines: Iterable[str]) -> None:
    """Compare lines with the expected ones, or write them."""
    found = [_without_chance(line) for line in lines]
    if WRITE:
        cases = read(family)
        cases.setdefault(name, {part: [] for part in PARTS})[part] = found
        write(family, cases)
    assert read(family)[name][part] == found


def _without_chance(line: str) -> str:
    """Take out of a line what differs from run to run."""
    line = re.sub(r"\b[0-9a-f]{32}\b", "UUID", line)  # stores get a random one
    return re.sub(r"\bchecksum [0-9a-f]{16}\b", "checksum OF-IT", line)  # so do segments


def _path(family: str) -> Path:
    return FOLDER / f"{family}.txt"
