"""The page docs/integrations/django.md: what it prints runs, from the built wheel, and alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT
from patience import PATIENCE_S

PAGE = ROOT / "docs" / "integrations" / "django.md"


def commands() -> str:
    """Return the first block of commands of the page."""
    found = re.search(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def run(command: list[str], **options: object) -> str:
    """Run a command; return what it prints."""
    done = subprocess.run(
        command,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def test_the_page_prints_twenty_lines() -> None:
    lines = [line for line in commands().splitlines() if line.strip()]
    assert len(lines) <= 22


@pytest.mark.slow
def test_the_lines_of_the_page_run_in_an_environment_with_the_extra_only(tmp_path: Path) -> None:
    environ = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PYTHON")},
        "STREAMKEEP_PURE": "1",
    }
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    source = tmp_path / "source"
    source.mkdir()
    copied = subprocess.run(
        "git ls-files -z --cached --others --exclude-standard | "
        f"tar --create --null --files-from=- | tar --extract --directory={source}",
        shell=True,
        check=True,
        cwd=ROOT,
    )
    assert copied.returncode == 0
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)], env=environ)
    [wheel] = wheels.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "streamkeep/integrations/django/templates/admin/streamkeep/tasks.html" in names
    venv, project = tmp_path / "venv", tmp_path / "project"
    run([sys.executable, "-m", "venv", str(venv)])
    project.mkdir()
    text = commands().replace("'.[django]'", f"'streamkeep[django] @ file://{wheel}'")
    if sys.version_info < (3, 12):
        text = text.replace("from django.tasks", "from django_tasks")
    environ["PATH"] = f"{venv / 'bin'}:{os.environ['PATH']}"
    script = f"set -e\n{text}"
    printed = run(["bash", "-c", script], cwd=project, env=environ)
    assert printed.splitlines()[-1] == "sent to ann"
