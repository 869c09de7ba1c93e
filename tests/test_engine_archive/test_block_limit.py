"""Segments from elsewhere: a small file may not take gigabytes of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import streamkeep
from cli_runner import run
from conftest import assert_sound
from patience import peak_of
from segments import entries_of, nodes_of, opened, write
from streamkeep.engine.api.views import Sync
from streamkeep.format.core.errors import StoreError
from streamkeep.format.segment.segment import MAX_BLOCK_BYTES, Segment
from tiers import slow_but

SIZE = MAX_BLOCK_BYTES + (1 << 20)
MODES = pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid segment of a few kilobytes with a block of more than the limit."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.seg"
    path.write_bytes(write(nodes_of([(1, 0, [b"f", bytes(SIZE)])])))
    assert path.stat().st_size < 64 << 10
    return path


@MODES
def test_adopting_a_small_file_with_a_huge_block_allocates_nothing_of_it(
    tmp_path: Path, bomb: Path, sync: Sync
) -> None:
    with streamkeep.open(tmp_path / "store", sync=sync) as store:

        def refused() -> None:
            with pytest.raises(StoreError) as error:
                list(store.adopt_segments(bomb))
            told = str(error.value)
            assert f"block 0 of segment {bomb}" in told
            assert f"max_block_bytes is {MAX_BLOCK_BYTES:,}" in told
            assert "(--max-block-bytes)" in told

        assert peak_of(refused, limit=8 << 20) < 8 << 20
        assert store.keys() == []
        (adopted,) = store.adopt_segments(bomb, max_block_bytes=2 * SIZE)
        assert adopted.record is not None
        ((_, fields),) = store.xrange("orders", history=True)
        assert [len(value) for value in fields.values()] == [SIZE]
    assert_sound(tmp_path / "store")


def test_the_limit_is_for_one_block_whatever_the_segment_takes() -> None:
    data = write(nodes_of([(n, 0, [b"f", bytes(3000)]) for n in range(1, 200)]), block_bytes=5000)
    segment = Segment.open(lambda at, size: data[at : at + size], len(data), "it", 20_000)
    assert segment.trailer.raw_size > 500_000
    assert entries_of(segment) == entries_of(opened(data))


def test_dump_refuses_it_and_takes_the_limit_as_an_option(bomb: Path) -> None:
    def refused() -> None:
        for more in ([], ["--bytes"], ["--json"]):
            ended = run("dump", "--segment", str(bomb), *more, status=3)
            assert f"block 0 of {bomb}: needs" in ended.stderr
            assert "--max-block-bytes" in ended.stderr

    assert peak_of(refused, limit=16 << 20) < 16 << 20
    ended = run("dump", "--segment", str(bomb), "--max-block-bytes", str(2 * SIZE))
    assert "live     1-0" in ended.stdout


def test_archive_adopt_takes_the_limit_as_an_option(tmp_path: Path, bomb: Path) -> None:
    place = str(tmp_path / "store")
    ended = run("archive", "adopt", place, str(bomb), "--create", status=3)
    assert "max_block_bytes is" in ended.stderr
    run("archive", "adopt", place, str(bomb), "--create", "--max-block-bytes", str(2 * SIZE))
    assert_sound(tmp_path / "store")


def test_the_limit_is_for_segments_only(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    streamkeep.open(place).close()
    ended = run("dump", place, "--max-block-bytes", "1000", status=2)
    assert "--max-block-bytes is for the blocks of --segment" in ended.stderr


@pytest.mark.parametrize("slots", slow_but([1, 200_000], 1))
def test_what_the_limit_lets_through_needs_a_few_times_as_much(tmp_path: Path, slots: int) -> None:
    """In a process that is granted no more: one large entry, and very many small ones."""
    size = (8 << 20) // slots
    entries = [(1, n, [b"f", bytes(max(1, size - 40))]) for n in range(slots)]
    (tmp_path / "it.seg").write_bytes(write(nodes_of(entries, 64 << 20), block_bytes=16 << 20))
    program = """
import resource, sys
import streamkeep
from streamkeep.__main__ import main
sys.argv[1:] = ["dump", "--segment", sys.argv[1]]
import streamkeep.tools.commands.dump_cmd
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
main()
"""
    command = [sys.executable, "-c", program, str(tmp_path / "it.seg")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.count("live ") == slots
