"""Programs that drive Spark from a process of their own: a session is as its environment was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from patience import PATIENCE_S


def run_driver(
    program: str, *arguments: object, environment: Mapping[str, str], folder: Path
) -> list[str]:
    """Run a program of Python in a folder; return the lines it printed. It must not fail."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(program), *map(str, arguments)],
        env=dict(environment),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()
