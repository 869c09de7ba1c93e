"""How much memory loading takes: a small compressed file may not ask for gigabytes."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import pytest

BOMB_MIB = 500
MOST_MIB = 450  # of which an interpreter with all modules takes less than 150


def limited() -> None:
    """Let a child have no more data than that."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MIB << 20, MOST_MIB << 20))


@pytest.mark.parametrize(
    ("name", "start", "piece", "args"),
    [
        ("a.jsonl", b'{"a":"', b"x", ("k",)),
        ("a.csv", b"a\n", b"x", ("k",)),
        pytest.param("a.jsonl", b'{"type":"dump",', b" ", (), marks=pytest.mark.slow),
        pytest.param("a.csv", b'a\n"', b"x\n", ("k",), marks=pytest.mark.slow),
        pytest.param("a.csv", b"stream,id,a\nk,1-0,", b"y", (), marks=pytest.mark.slow),
    ],
)
def test_a_line_without_an_end_costs_bounded_memory(
    tmp_path: Path, name: str, start: bytes, piece: bytes, args: tuple[str, ...]
) -> None:
    file = tmp_path / f"{name}.gz"
    mib = gzip.compress(piece * ((1 << 20) // len(piece)))
    file.write_bytes(gzip.compress(start) + mib * BOMB_MIB)
    words = [sys.executable, "-m", "streamkeep", "load", str(tmp_path / "s"), *args, str(file)]
    done = subprocess.run(words, capture_output=True, check=False, preexec_fn=limited)
    assert done.returncode == 1, done.stderr
    assert b"longer than 16.0 MiB, the limit of a line" in done.stderr
    assert not (tmp_path / "s").exists()
