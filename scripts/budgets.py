"""Count the lines of each package, and fail where one has more than its budget in pyproject.toml.

Lines of Python, JavaScript, CSS and HTML, with blank ones and docstrings; and the words of the
docs, under `words`. Who needs more raises the number in the same commit, and says why in its
message.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
KINDS: Final = (".py", ".js", ".css", ".html")
PACKAGES: Final = Path("src/streamkeep")  # some of them are links to folders of the root
PAGES: Final = ("*.md", "docs/**/*.md")


def lines_of(folder: Path, without: frozenset[Path] = frozenset()) -> int:
    """Return the lines of a folder and of those below it, except for some."""
    count = 0
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if Path(path, name) not in without]
        for name in names:
            if name.endswith(KINDS):
                count += Path(path, name).read_bytes().count(b"\n")
    return count


def words_of(root: Path) -> int:
    """Return the words of all pages: twice they were cut by a third, and grew again."""
    return sum(len(page.read_text().split()) for kind in PAGES for page in root.glob(kind))


def problems(root: Path) -> Iterator[str]:
    """Yield a line for each package above its budget, without a budget, or without files."""
    with (root / "pyproject.toml").open("rb") as file:
        budgets = tomllib.load(file)["tool"]["streamkeep"]["budgets"]
    packages = {
        path.name: path
        for path in (root / PACKAGES).iterdir()
        if path.is_dir() and path.name != "__pycache__"
    }
    for name in sorted(packages.keys() - budgets.keys()):
        yield f"{name}: has no budget in [tool.streamkeep.budgets] of pyproject.toml"
    for name, most in budgets.items():
        if name == "words":
            found, unit = words_of(root), "in the docs"
        else:
            found = lines_of(packages.get(name, root / name), frozenset(packages.values()))
            unit = "lines"
        if found > most:
            yield f"{name}: {found:,} {unit}, and the budget in pyproject.toml is {most:,}"
        elif not found:
            yield f"{name}: has a budget in pyproject.toml, but no lines"


def main() -> int:
    """Print what is wrong; return the exit status."""
    found = list(problems(ROOT))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
