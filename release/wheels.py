"""Build the sdist and a wheel for every Python of this machine, and check each of them.

    python release/wheels.py [dist]

The sdist is built first and every wheel from it, so it is complete. A wheel is compiled, repaired
by auditwheel to the oldest manylinux that its symbols allow, and checked: what it contains, its
size, and that it works in an empty environment, compiled. Ends with 1 when a check fails, or when
there is no Python to build for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final = ((3, 11), (3, 12), (3, 13), (3, 14))
MOST_BYTES: Final = 5_000_000
FOLDERS: Final = tuple(
    sorted(path.parent.name for path in (ROOT / "src" / "streamkeep").glob("*/__init__.py"))
)
_NOT_PASSED: Final = ("PYTHONPATH", "STREAMKEEP_PURE")  # what decides which modules are used


class Wrong(Exception):
    """A wheel that must not be published."""


def pythons() -> Iterator[str]:
    """Yield the Pythons that can compile: one for each version that the project supports."""
    places = [*os.environ.get("PATH", "").split(os.pathsep)]
    places += map(str, sorted(Path.home().glob(".pyenv/versions/*/bin"), reverse=True))
    for major, minor in VERSIONS:
        for place in places:
            found = Path(place) / f"python{major}.{minor}"
            if found.exists() and can_compile(found):
                yield str(found)
                break


def can_compile(python: Path) -> bool:
    """Return whether a Python runs, and has its headers and venv."""
    program = (
        "import ensurepip, os, sys, sysconfig, venv; "
        "sys.exit(not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    )
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


def run(*words: str | Path, **settings: str) -> None:
    """Run a program; its output is shown only when it fails."""
    env = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED} | settings
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=env)
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def build(python: str, sdist: Path, target: Path) -> Path:
    """Build the wheel of a Python from the sdist; return the repaired one in `target`."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", place / "venv")
        pip = place / "venv" / "bin" / "pip"
        run(pip, "install", "--quiet", "--upgrade", "pip")
        settings = {"STREAMKEEP_REQUIRE_EXT": "1", "CFLAGS": "-g0"}  # symbols of a debugger: 10 MB
        run(pip, "wheel", "--quiet", "--no-deps", "-w", place / "built", sdist, **settings)
        [built] = (place / "built").glob("*.whl")
        repair = (
            Path(sys.executable).parent / "auditwheel",
            "repair",
            "--strip",
            "-w",
            place / "fit",
        )
        run(*repair, built, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        [fit] = (place / "fit").glob("*.whl")
        return Path(shutil.copy(fit, target))


def check_contents(wheel: Path) -> None:
    """Raise Wrong unless the wheel has what the package needs, and nothing else."""
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        raise Wrong(f"{wheel.name} has {size:,} bytes, more than {MOST_BYTES:,}")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    # Spark finds data sources by the prefix `pyspark_`.
    ours = ("streamkeep", "pyspark_streamkeep")
    extra = {one for one in tops if not one.startswith(ours) and "__mypyc" not in one}
    if extra:
        raise Wrong(f"{wheel.name} installs {', '.join(sorted(extra))} beside the package")
    for folder in FOLDERS:
        if f"streamkeep/{folder}/__init__.py" not in names:
            raise Wrong(f"{wheel.name} lacks streamkeep/{folder}")
    if "streamkeep/py.typed" not in names:
        raise Wrong(f"{wheel.name} lacks streamkeep/py.typed")
    unwanted = [name for name in names if name.endswith((".c", ".h", ".pyc"))]
    if unwanted:
        raise Wrong(f"{wheel.name} has {unwanted[0]}, which nothing needs at run time")


def check_use(python: str, wheel: Path) -> None:
    """Raise Wrong unless the wheel works in an empty environment, and the command as well."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        run(python, "-m", "venv", place / "venv")
        run(place / "venv" / "bin" / "pip", "install", "--quiet", "--only-binary", ":all:", wheel)
        run(place / "venv" / "bin" / "python", "-I", ROOT / "release" / "smoke.py")
        run(place / "venv" / "bin" / "streamkeep", "--version")


def main(target: Path) -> int:
    """Build and check everything; return the exit status."""
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("streamkeep-*"):
        old.unlink()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", target, ROOT)
    [sdist] = target.glob("*.tar.gz")
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB", flush=True)
    found = 0
    for python in pythons():
        print(f"building for {python}", flush=True)
        wheel = build(python, sdist, target)
        check_contents(wheel)
        check_use(python, wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed and used", flush=True)
        found += 1
    if not found:
        raise Wrong("no Python from 3.11 on with its headers was found")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()))
    except Wrong as error:
        sys.exit(f"wheels: {error}")
