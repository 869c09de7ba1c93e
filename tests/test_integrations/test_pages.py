"""The programs that the pages of the frameworks print: run as printed, apart from the install."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from patience import PATIENCE_S

PAGES = ("celery", "dramatiq", "taskiq")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_the_first_program_of_a_page_runs(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "integrations" / f"{name}.md").read_text(encoding="utf-8")
    found = SHELL.search(page)
    assert found is not None
    install, _, program = found[1].partition("\n")
    assert install.startswith(f"pip install '.[{name}]'")
    assert len(program.splitlines()) <= 20
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with subprocess.Popen(
        ["bash", "-e", "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            assert shell.stdout is not None
            last = shell.stdout.readline()
            assert shell.wait(PATIENCE_S) == 0
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert f"The last line prints `{last.strip()}`." in page
