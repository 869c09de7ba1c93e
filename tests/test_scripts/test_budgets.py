"""`scripts/budgets.py`: what is counted, and what makes `make lint` fail."""

from __future__ import annotations

from pathlib import Path

import budgets
import pytest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a package of six lines, linked as ours are, and no budgets."""
    for name, text in (("a.py", '"""A."""\n\nx = 1\n'), ("b.js", "1\n2\n"), ("c.css", "1\n")):
        (tmp_path / "engine" / "room").mkdir(parents=True, exist_ok=True)
        (tmp_path / "engine" / "room" / name).write_text(text)
    (tmp_path / "engine" / "made.pyi").write_text("x: int\n")
    (tmp_path / "src" / "streamkeep").mkdir(parents=True)
    (tmp_path / "src" / "streamkeep" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "src" / "streamkeep" / "engine").symlink_to("../../engine")
    return tmp_path


def found(root: Path, **given: int) -> list[str]:
    rows = "\n".join(f"{name} = {lines}" for name, lines in given.items())
    (root / "pyproject.toml").write_text(f"[tool.streamkeep.budgets]\n{rows}\n")
    return list(budgets.problems(root))


def test_a_package_may_fill_its_budget_and_no_more(root: Path) -> None:
    assert found(root, engine=6, src=1) == []
    assert found(root, engine=5, src=1) == [
        "engine: 6 lines, and its budget in pyproject.toml is 5"
    ]


def test_a_package_below_src_counts_for_itself_only(root: Path) -> None:
    (root / "src" / "streamkeep" / "jobs").mkdir()
    (root / "src" / "streamkeep" / "jobs" / "__init__.py").write_text("x = 1\ny = 2\n")
    assert found(root, engine=6, jobs=2, src=1) == []
    assert found(root, engine=6, jobs=1, src=1) == [
        "jobs: 2 lines, and its budget in pyproject.toml is 1"
    ]


def test_a_package_has_a_budget_and_a_budget_a_package(root: Path) -> None:
    assert found(root, src=1, gone=9) == [
        "engine: has no budget in [tool.streamkeep.budgets] of pyproject.toml",
        "gone: has a budget in pyproject.toml, but no lines",
    ]
