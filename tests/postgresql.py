"""A PostgreSQL for one test: a cluster in a folder, which listens on a Unix socket only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patience import PATIENCE_S


def _programs() -> Path:
    """Return the folder of initdb and postgres, or skip the test."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    found = shutil.which("initdb")
    if found is None:
        pytest.skip("no PostgreSQL: on Debian, apt-get install postgresql")
    return Path(found).resolve().parent


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a server; yield the folder of its socket. It has a database and a user `postgres`."""
    programs = _programs()
    as_user: list[str] = []
    if os.getuid() == 0:  # which PostgreSQL refuses to run as
        if shutil.which("runuser") is None or subprocess.run(["id", "postgres"]).returncode:
            pytest.skip("root cannot run PostgreSQL without runuser and a user postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # short: the path of a socket has 107 bytes
    folder.chmod(0o755)
    if as_user:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    try:
        arguments = ["-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(
            [*as_user, str(programs / "initdb"), *arguments],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
            cwd=folder,
        )
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        control = [*as_user, str(programs / "pg_ctl"), "-D", str(data), "-w"]
        log = str(folder / "log")
        subprocess.run(
            [*control, "-l", log, "-o", options, "-t", str(round(PATIENCE_S)), "start"],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            cwd=folder,
        )
        try:
            yield str(folder)
        finally:
            subprocess.run(
                [*control, "-m", "immediate", "stop"],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=PATIENCE_S,
                cwd=folder,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
