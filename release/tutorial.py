"""The tutorial as a stranger runs it: from a wheel, and in stores of another user.

    python release/tutorial.py dist/streamkeep-...whl [PYTHON ...]    (as root)

For each Python, ann creates the stores of a page for her team. Bob, who is in the team, installs
the wheel into an empty environment and runs the page in these stores, as printed. Neither has an
account: their numbers are made up. Ends with 1 at the first difference.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ("docs/tutorial.md", "docs/guide/tour.md")
_RUNNERS: Final = ("tests/page_blocks.py", "tests/patience.py")
TEAM, ANN, BOB = 54100, 54101, 54102
_STORE: Final = re.compile(r'"(\w+\.store)"|^\$ streamkeep [\w-]+ (\w+\.store)', re.MULTILINE)
# Run by bob in the folder of the stores; the modules of the tests run the page.
_RUN: Final = """
import sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from page_blocks import run_page
import streamkeep
assert "site-packages" in streamkeep.__file__, streamkeep.__file__
run_page(Path(sys.argv[2]), {"__name__": "__main__"})
"""


class Wrong(Exception):
    """What a stranger would stumble over."""


def run(user: int, *words: str | Path, cwd: Path, umask: int = 0o077) -> None:
    """Run a program as a user of the team; its output is shown only when it fails."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C.UTF-8"}
    environment["LD_LIBRARY_PATH"] = str(cwd.parent / "python" / "lib")  # of a copied Python
    if user == ANN:  # the machine does not know that bob is in the team
        environment["STREAMKEEP_TRUST_OWNERS"] = str(BOB)
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=environment,
        user=user,
        group=user,
        extra_groups=[TEAM],
        umask=umask,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, words))}\n{done.stdout}")


def give(folder: Path, user: int) -> Path:
    """Make a folder of a user that the team shares."""
    folder.mkdir()
    os.chown(folder, user, TEAM)
    folder.chmod(0o2770)
    return folder


def for_all(python: str | Path, top: Path) -> Path:
    """Return a Python that all users can run: this one, or a copy of a private installation."""
    found = Path(python).resolve()
    if all(one.stat().st_mode & 0o001 for one in (found, *found.parents)):
        return found
    prefix = found.parent.parent
    tests = shutil.ignore_patterns("test", "__pycache__", "*.a")
    shutil.copytree(prefix, top / "python", symlinks=True, ignore=tests)
    return top / "python" / found.relative_to(prefix)


def run_pages(wheel: Path, python: str | Path, top: Path) -> None:
    """Install the wheel as bob, and run each page in stores that ann has made."""
    pages = top / "pages"
    for name in (*PAGES, *_RUNNERS):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, pages / name)
    wheels = top / "wheels"
    wheels.mkdir()
    subprocess.run([python, "-m", "venv", top / "fetch"], check=True)  # Debian's has no pip
    pip = top / "fetch" / "bin" / "pip"  # of root: others may not read its settings
    subprocess.run([pip, "download", "--quiet", "--dest", wheels, wheel], check=True)
    python = for_all(python, top)
    bobs = give(top / "bob", BOB)
    run(BOB, python, "-m", "venv", bobs / "venv", cwd=bobs, umask=0o027)
    binary = bobs / "venv" / "bin"
    offline = ("install", "--quiet", "--no-index", "--find-links", wheels)
    run(BOB, binary / "pip", *offline, wheels / wheel.name, cwd=bobs, umask=0o027)
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        place = give(top / Path(page).stem, ANN)
        stores = sorted({one or other for one, other in _STORE.findall(text)})
        for store in stores:
            run(ANN, binary / "streamkeep", "create", store, "--group", str(TEAM), cwd=place)
        run(BOB, binary / "python", "-c", _RUN, pages / "tests", pages / page, cwd=place)
        for store in stores:
            run(ANN, binary / "streamkeep", "streams", store, cwd=place)
        print(f"{page}: as printed, in {', '.join(stores)} of another user", flush=True)


def main(wheel: Path, pythons: list[str]) -> int:
    """Run all pages with each Python; return the exit status."""
    if os.geteuid() != 0:
        raise Wrong("only root can work as other users; next: run this as root")
    for python in pythons:
        version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
        print(f"{version.stdout.strip()}, {wheel.name}", flush=True)
        with tempfile.TemporaryDirectory() as top:
            os.chmod(top, 0o711)
            run_pages(wheel, python, Path(top))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:] or [sys.executable]))
    except Wrong as error:
        sys.exit(f"tutorial: {error}")
