"""Frames of zstd: the file for zstd's own tools, and frames that lie about their content."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard

from patience import PATIENCE_S
from segments import nodes_of, some, write
from streamkeep.format.segment.index import max_content
from test_format.made_segments import trained


def test_zstd_of_the_system_reads_a_segment(tmp_path: Path) -> None:
    tool = shutil.which("zstd")
    if tool is None:
        pytest.skip("no zstd command")
    envelopes = nodes_of(some(500))
    path = tmp_path / "one.zst"
    path.write_bytes(write(envelopes))
    done = subprocess.run([tool, "-dc", path], capture_output=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == b"".join(envelopes)
    dictionary = trained(4096, nodes_of(some(3000), 400))
    path.write_bytes(write(envelopes, dictionary=dictionary))
    (tmp_path / "dictionary").write_bytes(dictionary)
    command = [tool, "-dc", "-D", str(tmp_path / "dictionary"), str(path)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == b"".join(envelopes)


def test_the_file_is_a_zstd_stream_with_a_seek_table_of_all_its_frames() -> None:
    envelopes = nodes_of(some(200))
    data = write(envelopes)
    reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
    assert reader.read() == b"".join(envelopes)
    count = int.from_bytes(data[-9:-5], "little")
    rows = data[-9 - 8 * count : -9]
    sizes = [int.from_bytes(rows[i : i + 4], "little") for i in range(0, len(rows), 8)]
    assert sum(sizes) + 8 + 8 * count + 9 == len(data)


@pytest.mark.parametrize(
    ("size", "level"),
    [
        *((size, level) for size in (0, 1, 1000, 128 << 10, (128 << 10) + 1) for level in (-1, 3)),
        *((1_000_000, 1), (1000, 19), ((128 << 10) + 1, 19)),
    ],
)
def test_what_a_frame_may_hold_is_known_from_its_blocks(size: int, level: int) -> None:
    text = b"".join(b"%d" % number for number in range(size // 4))
    noise = random.Random(1).randbytes(size)
    compress = zstandard.ZstdCompressor(level=level, write_checksum=True).compress
    for raw in (bytes(size), text, noise):
        assert max_content(compress(raw)) >= len(raw)
    assert max_content(compress(noise)) == size  # its blocks are as they were
