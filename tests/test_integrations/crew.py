"""Processes of an application in a folder: workers that are killed, and programs that send."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from patience import PATIENCE_S

HERE = Path(sys.executable).parent  # the programs of this environment


class Crew:
    """The processes, each with its children; what still runs is killed when the block ends."""

    def __init__(
        self, folder: Path, programs: Path = HERE, environ: Mapping[str, str] | None = None
    ) -> None:
        """Name the folder in which they run."""
        self.folder = folder
        self.log = folder / "log"
        self.kills = 0
        self._environ = dict(os.environ if environ is None else environ)
        self._environ["PATH"] = f"{programs}:{self._environ['PATH']}"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *command: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start a command in a session of its own."""
        return self._start(command, cwd, None)

    def call(self, *command: str) -> subprocess.Popen[str]:
        """Start a command whose output `printed` returns."""
        return self._start(command, None, subprocess.PIPE)

    def _start(
        self, command: tuple[str, ...], cwd: Path | None, stdout: int | None
    ) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            one = subprocess.Popen(
                command,
                cwd=cwd or self.folder,
                env=self._environ,
                stdout=stdout or log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._started.append(one)
        return one

    def printed(self, one: subprocess.Popen[str]) -> str:
        """Return what a program has printed, when it has ended well."""
        text, _ = one.communicate(timeout=PATIENCE_S)
        assert one.returncode == 0, f"{text}\n{self.log.read_text()}"
        return text

    def kill(self, one: subprocess.Popen[str]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        if one.stdout is not None:
            one.stdout.close()
        self._started.remove(one)
        self.kills += 1

    def stop(self, one: subprocess.Popen[str], how: int = signal.SIGTERM) -> None:
        """Ask a process to end, and wait until it has."""
        one.send_signal(how)
        assert one.wait(PATIENCE_S) == 0, self.log.read_text()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for one in list(self._started):
            self.kill(one)


def lines(path: Path) -> list[str]:
    """Return the whole lines that processes have written to a file."""
    return path.read_text().split("\n")[:-1] if path.exists() else []
