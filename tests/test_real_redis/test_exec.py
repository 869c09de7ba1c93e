"""`streamkeep exec` prints what redis-cli prints of a real server, command by command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli_runner import spawn
from real_redis.server import running_redis

pytestmark = pytest.mark.redis

# 7.0 knows no XNACK, XACKDEL, XDELEX, IDMP; XINFO STREAM reports them, and nodes that differ.
SESSION = r"""
XADD k 1-0 f v
xadd k 1-0 f v
XADD k 2-* a "two words" b '\x00'
XADD k 2-5 "\xff\n\"" "caf\xc3\xa9"
XADD k nomkstream 3-0 a
XADD missing NOMKSTREAM * a b
XLEN k
XLEN
XRANGE k - +
XRANGE k - + COUNT x
XRANGE missing - +
XREAD COUNT 1 STREAMS k missing 0 0
XREAD BLOCK 1 STREAMS k $
XREAD GROUP g c STREAMS k 0
XGROUP CREATE k g 0
XGROUP CREATE k g 0
XGROUP CREATE missing g $
XGROUP FOO k
XGROUP CREATECONSUMER k g ann
XREADGROUP GROUP g ann COUNT 3 STREAMS k >
XREADGROUP GROUP none ann STREAMS k >
XDEL k 2-0
XREADGROUP GROUP g ann STREAMS k 0
XPENDING k g
XPENDING k none
XPENDING k g IDLE 100000 - + 10
XACK k g 1-0 9-9
XCLAIM k g cy 0 2-5 JUSTID
XCLAIM k g cy x 2-5
XAUTOCLAIM k g dan 0 0
XINFO GROUPS k
XINFO STREAM missing
XTRIM k MAXLEN 0 LIMIT 10
XSETID k 5-0
XSETID k 9-0 ENTRIESADDED -3
TYPE k
TYPE missing
EXISTS k missing n
KEYS k*
RENAME n m
RENAMENX k m
DEL m missing
DBSIZE
PING
PING hello
FOO bar "b az"
"""


def test_replies_and_errors_are_those_of_redis_cli(tmp_path: Path) -> None:
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("redis-cli is not installed; this test compares with it")
    with running_redis() as server:
        config: Any = server.call(b"CONFIG", b"GET", b"unixsocket")
        socket = config[1].decode()
        theirs = subprocess.run(
            [program, "-s", socket, "--no-raw"],
            input=SESSION.encode(),
            capture_output=True,
            check=False,
        )
    store = str(tmp_path / "s")
    ours = spawn("exec", store, input=SESSION.encode())
    assert ours.returncode == 1
    expected = theirs.stdout.decode().splitlines()
    errors = [line for line in expected if line.startswith("(error) ")]
    assert len(errors) > 10
    assert ours.stdout.decode().splitlines() == [one for one in expected if one not in errors]
    assert ours.stderr.decode().splitlines() == errors
