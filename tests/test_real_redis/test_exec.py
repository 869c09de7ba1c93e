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
XADD k 0-0 f v
XADD k 2-* a "two words" b '\x00'
XADD k 2-5 "\xff\n\"" "caf\xc3\xa9"
XADD k nomkstream 3-0 a
XADD k
XADD missing NOMKSTREAM * a b
XADD k MAXLEN 5 LIMIT 3 4-0 a b
XADD k MAXLEN ~ -1 4-0 a b
XADD k MAXLEN x 4-0 a b
XADD k MAXLEN 1 MINID 1 4-0 a b
XLEN k
XLEN
XLEN k k
XRANGE k - +
XRANGE k - + COUNT 1
XRANGE k - + COUNT 0
XRANGE k - + COUNT -5
XRANGE k - + COUNT x
XRANGE missing - + COUNT 0
XRANGE k - + FOO
XRANGE k 1 x
XRANGE missing - +
XREVRANGE k + - COUNT 2
XREVRANGE k (2-5 -
XREAD STREAMS k 0
XREAD COUNT 1 STREAMS k missing 0 0
XREAD STREAMS k $
XREAD STREAMS k
XREAD COUNT x STREAMS k 0
XREAD BLOCK -1 STREAMS k 0
XREAD BLOCK x STREAMS k 0
XREAD BLOCK 1 STREAMS k $
XREAD FOO STREAMS k 0
XREAD GROUP g c STREAMS k 0
XGROUP CREATE k g 0
XGROUP CREATE k g 0
XGROUP CREATE missing g $
XGROUP CREATE n g $ MKSTREAM
XGROUP CREATE k h 1-0 ENTRIESREAD 1
XGROUP CREATE k i 1-0 ENTRIESREAD x
XGROUP CREATE k
XGROUP FOO k
XGROUP CREATECONSUMER k g ann
XGROUP CREATECONSUMER k g ann
XGROUP CREATECONSUMER k none ann
XREADGROUP GROUP g ann COUNT 2 STREAMS k >
XREADGROUP GROUP g bob STREAMS k >
XREADGROUP GROUP g bob STREAMS k >
XREADGROUP GROUP g ann STREAMS k 0
XREADGROUP STREAMS k > a b
XREADGROUP GROUP none ann STREAMS k >
XREADGROUP GROUP g ann NOACK STREAMS k >
XDEL k 2-0
XDEL k
XDEL k x
XREADGROUP GROUP g ann STREAMS k 0
XPENDING k g
XPENDING k h
XPENDING k none
XPENDING k g - +
XPENDING k g - + x
XPENDING k g IDLE 100000 - + 10
XPENDING k g - + 10 nobody
XACK k g 1-0 9-9
XACK k g
XACK missing g 1-0
XCLAIM k g cy 0 2-5 JUSTID
XCLAIM k g cy 0 2-5
XCLAIM k g cy x 2-5
XCLAIM k g cy 0 2-5 FOO
XCLAIM k g cy 0 2-5 IDLE x
XCLAIM k g cy 0 9-9
XAUTOCLAIM k g dan 0 0
XAUTOCLAIM k g dan 0 0 COUNT 0
XAUTOCLAIM k g dan 0 0 JUSTID
XAUTOCLAIM k g dan x 0
XINFO GROUPS k
XINFO GROUPS missing
XINFO GROUPS
XINFO FOO k
XINFO CONSUMERS k none
XINFO STREAM missing
XINFO STREAM k FOO
XGROUP SETID k g $
XGROUP SETID k none $
XGROUP DELCONSUMER k g dan
XGROUP DESTROY k h
XGROUP DESTROY k h
XTRIM k MAXLEN 0
XTRIM k
XTRIM k FOO 1
XTRIM k MAXLEN 0 LIMIT 10
XSETID k 5-0
XSETID missing 1-0
XSETID k 9-0 ENTRIESADDED 3 MAXDELETEDID 2-0
XSETID k 9-0 ENTRIESADDED -3
TYPE k
TYPE missing
EXISTS k missing n
KEYS n*
RENAME n m
RENAME n m
RENAMENX m k
DEL m missing
UNLINK k
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
    assert len(errors) > 40
    assert ours.stdout.decode().splitlines() == [one for one in expected if one not in errors]
    assert ours.stderr.decode().splitlines() == errors
