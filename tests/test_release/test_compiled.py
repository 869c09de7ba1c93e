"""The list of compiled modules in setup.py, which no test of the package reads."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def names(name: str) -> list[str]:
    """Return a list or tuple of texts that `setup.py` assigns to a name."""
    for one in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == name:
            return list(ast.literal_eval(one.value))
    raise LookupError(name)


def test_compiled_modules_exist_and_are_listed_once() -> None:
    hot = names("HOT")
    assert [path for path in hot if not (ROOT / path).is_file()] == []
    assert len(set(hot)) == len(hot)


def test_each_loop_is_a_compiled_module_or_a_folder_of_them() -> None:
    hot = [path.removeprefix("src/streamkeep/").replace("/", ".") for path in names("HOT")]
    for loop in names("LOOPS"):
        assert any(path.startswith(loop) for path in hot), loop
