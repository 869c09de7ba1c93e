"""The tests that redis-py and fakeredis have for streams and locks, run on a server of a store.

STREAMKEEP_SUITES names a folder in which `make suites` has unpacked their sdists, beside an
environment with what they need. Nothing is installed here.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import redis

from patience import PATIENCE_S
from test_server.conftest import served

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow

STREAMS = [
    *("tests/test_commands.py", "tests/test_asyncio/test_commands.py"),
    *("tests/test_pipeline.py", "tests/test_asyncio/test_pipeline.py"),
    "tests/test_legacy_responses_arg.py",
    *("-k", "test_x or Stream or stream"),
]
LOCKS = ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
VERSIONS = "test/test_mixins/test_specific_redis_versions/test_redis_"


@pytest.fixture(scope="module")
def suites() -> Path:
    """The folder with both sdists; the test is skipped without it."""
    folder = Path(os.environ.get("STREAMKEEP_SUITES", ROOT / "build" / "suites"))
    if not (folder / "venv").is_dir():
        pytest.skip("there are no tests of redis-py and fakeredis; `make suites` fetches them")
    return folder


def passed(suites: Path, name: str, *words: str, port: str) -> int:
    """Run tests of a package in a process; return how many there were, all of which passed."""
    [folder] = suites.glob(f"{name}-[0-9]*/")
    environment = {"PATH": os.environ["PATH"], "STREAMKEEP_PORT": port}
    done = subprocess.run(
        [
            suites / "venv" / "bin" / "python",
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *words,
        ],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT / "tests" / "clients")},
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


@pytest.mark.parametrize("protocol", ["2", "3"])
def test_the_tests_of_redis_py(suites: Path, tmp_path: Path, protocol: str) -> None:
    with served(tmp_path / "s", bind=["127.0.0.1:0"], allow_flush=True) as shown:
        port = shown["port"]
        where = ["--redis-url", f"redis://127.0.0.1:{port}/0", "--protocol", protocol]
        for words, least in ((STREAMS, 170), (LOCKS, 80)):
            assert passed(suites, "redis", *where, *words, port=port) > least


def test_the_tests_of_fakeredis(suites: Path, tmp_path: Path) -> None:
    with served(tmp_path / "s", bind=["127.0.0.1:0"], allow_flush=True) as shown:
        port = shown["port"]
        with redis.Redis(port=int(port)) as client:  # with its nodes `~` trims as much as Redis's
            client.config_set("stream-node-max-bytes", 4096, "stream-node-max-entries", 100)
        count = passed(
            suites, "fakeredis", "-p", "on_a_server", "-m", "real",
            "test/test_mixins/test_stream_groups.py",
            "test/test_mixins/test_stream_trimming.py",
            "test/test_mixins/test_streams_commands.py",
            *(f"{VERSIONS}{one}.py" for one in (
                "8_2_stream_ref_policy", "8_4_xreadgroup_claim", "8_6_idmp", "8_8_stream_cmds",
            )),
            port=port,
        )  # fmt: skip
        assert count > 300
