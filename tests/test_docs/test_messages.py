"""Messages and help texts may only name what a user of the installed package has."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("engine", "recovery", "tools", "src/streamkeep")


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_text_sends_people_to_a_file_that_the_package_does_not_hold(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.strip()[:60]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "docs/" in path.read_text()
        for part in ast.parse(path.read_text()).body[1:]  # the first is the module's docstring
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "docs/" in node.value
    ]
    assert found == []
