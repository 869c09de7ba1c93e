from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from streamkeep.engine.system import files


@pytest.mark.parametrize(
    ("number", "times", "calls"),
    [(errno.ENOSPC, 3, 4), (errno.ENOSPC, 1000, 101), (errno.EIO, 1, 1)],
)
def test_what_a_full_disk_refuses_at_first_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, times: int, calls: int
) -> None:
    made = []
    pwrite = os.pwrite

    def refuse(*arguments: Any) -> int:
        made.append(arguments)
        if len(made) <= times:
            raise OSError(number, os.strerror(number))
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(files, "_POLL_S", 0)
    with (tmp_path / "file").open("wb+") as file:
        if calls > times:
            files.overwrite(file.fileno(), b"data", 3)
            assert file.read() == b"\0\0\0data"
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                files.overwrite(file.fileno(), b"data", 3)
    assert len(made) == calls
