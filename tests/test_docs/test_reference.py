"""The page docs/reference/errors.md and the docstring of `open` name what there is."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import streamkeep
from conftest import ROOT, module_at
from streamkeep import StreamkeepError, jobs, replication

PAGES = ROOT / "docs" / "reference"


def generator() -> ModuleType:
    return module_at(ROOT / "docs" / "generate.py")


def test_every_error_is_explained_and_no_other() -> None:
    text = (PAGES / "errors.md").read_text(encoding="utf-8")
    modules = (streamkeep, jobs, replication)
    public = [getattr(module, name) for module in modules for name in module.__all__]
    kinds = [one for one in public if isinstance(one, type)]
    there = {one.__name__ for one in kinds if issubclass(one, StreamkeepError)}
    assert {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)} == there - {"StreamkeepError"}


def test_the_docstring_of_open_explains_each_option() -> None:
    explained = re.findall(r"^    ([\w, ]+): ", inspect.getdoc(streamkeep.open) or "", re.MULTILINE)
    names = {name for names in explained for name in names.split(", ")}
    options = inspect.signature(streamkeep.open).parameters.values()
    assert {one.name for one in options if one.kind is one.KEYWORD_ONLY} <= names


def test_files_and_modules_that_pages_name_exist() -> None:
    assert list(generator().missing_names(ROOT)) == []


def test_a_name_that_does_not_exist_is_reported_with_its_line(tmp_path: Path) -> None:
    module = tmp_path / "src" / "streamkeep" / "engine"
    module.mkdir(parents=True)
    (module / "store.py").write_text("class Store: ...")
    (tmp_path / "engine").mkdir()
    page = tmp_path / "docs" / "guide" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text(
        "`engine/` and `streamkeep.engine.store.Store`\n"
        "`engine/old.py` and `streamkeep.engine.old` and `streamkeep.engine.store.Old`\n"
    )
    assert list(generator().missing_names(tmp_path)) == [
        "docs/guide/page.md:2: `engine/old.py` does not exist",
        "docs/guide/page.md:2: `streamkeep.engine.old` does not exist",
        "docs/guide/page.md:2: `streamkeep.engine.store.Old` does not exist",
    ]


def test_a_room_that_its_folder_does_not_name_is_reported(tmp_path: Path) -> None:
    package = tmp_path / "src" / "streamkeep" / "engine"
    for room in ("old", "new"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "__init__.py").write_text('"""Rooms: `old`."""\n')
    assert list(generator().missing_names(tmp_path)) == [
        "src/streamkeep/engine/__init__.py: the room `new` is not named"
    ]


# --- messages and help texts may only name what a user of the installed package has ---------------

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
