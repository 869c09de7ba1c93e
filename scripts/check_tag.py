"""Fail unless a tag may be released: `python scripts/check_tag.py v0.1.0`.

It must name the version of the package, the changelog must give that version a date, and hints and
pages must name the package in place of a clone (`RELEASED` in `src/streamkeep/supported.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent


def problems(tag: str, root: Path) -> Iterator[str]:
    """Yield a sentence for each thing that has to be done before the release."""
    package = root / "src" / "streamkeep"
    found = re.search(r'^__version__ = "(.+)"$', (package / "__init__.py").read_text(), re.M)
    version = found[1] if found else "?"
    if tag != f"v{version}":
        yield f"the tag {tag} is not v{version}, the version in src/streamkeep/__init__.py"
    short = re.escape(re.sub(r"\.0$", "", version))
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {short}(\.0)? \(\d{{4}}-\d\d-\d\d\)$", changes, re.M):
        yield f"CHANGELOG.md has no heading with {version} and the date of its release"
    if not re.search(r"^RELEASED = True$", (package / "supported.py").read_text(), re.M):
        yield "RELEASED is False in src/streamkeep/supported.py; set it, and run `make docs`"


if __name__ == "__main__":
    told = list(problems(sys.argv[1], ROOT))
    sys.exit("\n".join(told))
