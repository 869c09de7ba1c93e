"""The first example of README.md, as printed: a queue whose worker is killed, and continued."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from html import unescape
from pathlib import Path

from conftest import ROOT
from page_blocks import blocks
from patience import PATIENCE_S, wait_until


class Shell:
    """Runs the lines of a session; `streamkeep` and `python` are those of the tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.jobs: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, line: str, expected: list[str]) -> None:
        """Run a line and compare what it prints; leave it running if it ends with &."""
        words = line.removesuffix("&").split(None, 1)
        if words[0] == "kill":
            self._kill(words[1])
            return
        program = "python" if words[0] == "python" else "streamkeep"
        start = f"{sys.executable} " if program == "python" else f"{sys.executable} -m streamkeep "
        out = self._folder / f"out.{len(self.jobs)}"
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {start}{words[1]}"],
                cwd=self._folder,
                stdout=file,
                stderr=subprocess.DEVNULL,
            )
        if line.endswith("&"):
            self.jobs.append((process, out))
            # Whole lines: a line that is being written may be there in part.
            wait_until(lambda: out.read_text().count("\n") >= len(expected))
        else:
            assert process.wait(PATIENCE_S) == 0, line
        assert [one.split() for one in out.read_text().splitlines()] == [
            one.split() for one in expected
        ]

    def _kill(self, what: str) -> None:
        *options, job = what.split()
        process, _ = self.jobs[int(job.removeprefix("%")) - 1]
        process.send_signal(signal.SIGKILL if options == ["-9"] else signal.SIGTERM)
        process.wait(PATIENCE_S)

    def end(self) -> None:
        for process, _ in self.jobs:
            process.kill()
            process.wait(PATIENCE_S)


def test_the_recording_shows_the_session() -> None:
    picture = (ROOT / "docs" / "guide" / "pictures" / "kill.svg").read_text()
    shown = [unescape(one) for one in re.findall("<text[^>]*>([^<]*)", picture)]
    assert shown == blocks(ROOT / "README.md")[1].text.splitlines()


def test_the_first_example_runs_as_printed(tmp_path: Path) -> None:
    program, session = blocks(ROOT / "README.md")[:2]
    assert len(program.text.splitlines()) - program.text.count("\n\n") <= 11
    (tmp_path / "tasks.py").write_text(program.text)
    steps: list[tuple[str, list[str]]] = []
    for line in session.text.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    shell = Shell(tmp_path)
    try:
        for line, expected in steps:
            shell.run(line, expected)
    finally:
        shell.end()
    assert os.path.isdir(tmp_path / "shop.store")
