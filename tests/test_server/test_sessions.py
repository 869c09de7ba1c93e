"""A session as in Redis's introduction to streams: redis-cli shows the same as of Redis.

The commands are those of the introduction, in its order. What a terminal shows is compared, not
replies. Where a clock chooses IDs, they are numbered in the order in which they
appear; idle times are taken out.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
from pathlib import Path

import pytest

from patience import PATIENCE_S
from real_redis.commands import BUDGETS
from real_redis.server import RealRedis
from resp_peer import Running

pytestmark = pytest.mark.redis

# IDs of a clock: {1} is the first one that the server has returned.
SESSION = """
XADD readings 1518951480106-0 sensor-id 1234 temperature 19.8
XADD readings 1518951482479-0 sensor-id 9999 temperature 18.2
XLEN readings
XADD lowest 0-1 field value
XADD lowest 0-2 foo bar
XADD lowest 0-1 foo bar
XADD lowest 0-* baz qux
XRANGE readings - +
XRANGE readings 1518951480106 1518951480107
XADD readings 1519073278252-0 foo value_1
XADD readings 1519073279157-0 foo value_2
XADD readings 1519073280281-0 foo value_3
XRANGE readings - + COUNT 2
XRANGE readings (1518951482479-0 + COUNT 2
XRANGE readings (1519073280281-0 + COUNT 2
XREVRANGE readings + - COUNT 1
XREAD COUNT 2 STREAMS readings 0
XREAD COUNT 2 STREAMS readings lowest 0 0
XREAD BLOCK 5 STREAMS readings $
XGROUP CREATE fruit mygroup $
XGROUP CREATE fruit mygroup $ MKSTREAM
XGROUP CREATE fruit mygroup $
XADD fruit 1526569495631-0 message apple
XADD fruit 1526569498055-0 message orange
XADD fruit 1526569506935-0 message strawberry
XADD fruit 1526569535168-0 message apricot
XADD fruit 1526569544280-0 message banana
XREADGROUP GROUP mygroup Alice COUNT 1 STREAMS fruit >
XREADGROUP GROUP mygroup Alice STREAMS fruit 0
XACK fruit mygroup 1526569495631-0
XREADGROUP GROUP mygroup Alice STREAMS fruit 0
XREADGROUP GROUP mygroup Bob COUNT 2 STREAMS fruit >
XPENDING fruit mygroup
XPENDING fruit mygroup - + 10
XRANGE fruit 1526569498055-0 1526569498055-0
XCLAIM fruit mygroup Alice 3600000 1526569498055-0
XCLAIM fruit mygroup Alice 0 1526569498055-0
XCLAIM fruit mygroup Lora 0 1526569498055-0 JUSTID
XAUTOCLAIM fruit mygroup Alice 0 0-0 COUNT 1
XAUTOCLAIM fruit mygroup Lora 3600000 0-0 COUNT 1
XINFO GROUPS fruit
XREADGROUP GROUP nosuch Alice STREAMS fruit >
XREADGROUP GROUP mygroup Alice STREAMS fruit $
XADD capped MAXLEN 2 1-0 value 1
XADD capped MAXLEN 2 2-0 value 2
XADD capped MAXLEN 2 3-0 value 3
XTRIM capped MAXLEN ~ 10
XTRIM capped MINID 3-0
XDEL capped 3-0
XRANGE capped - + COUNT 2
XLEN capped
XADD clocked * sensor-id 1234 temperature 19.8
XADD clocked * sensor-id 9999 temperature 18.2
XRANGE clocked - +
XRANGE clocked {1} {1}
XRANGE clocked ({1} + COUNT 1
XGROUP CREATE clocked mygroup 0
XREADGROUP GROUP mygroup Alice COUNT 1 STREAMS clocked >
XPENDING clocked mygroup
XCLAIM clocked mygroup Bob 0 {1}
XACK clocked mygroup {1}
XADD clocked MAXLEN 1 * value 1
XREAD STREAMS clocked {2}
XINFO STREAM clocked
XINFO STREAM nosuch
XADD clocked
NOSUCH clocked
"""
_IDLE = re.compile(r"(?<=3\) \(integer\) )\d+(?=\r?\n +4\))")
_TIME = re.compile(r"^\(\d+\.\d+s\)\r?\n", re.MULTILINE)  # which redis-cli says of slow replies


def _without_times(shown: str) -> str:
    return _IDLE.sub("IDLE", _TIME.sub("", shown))


def pasted(path: Path | str, lines: str, folder: Path) -> str:
    """Return what a terminal shows when lines are pasted into redis-cli, one after the other."""
    program = shutil.which("redis-cli")
    if program is None:
        pytest.skip("there is no redis-cli")
    folder.mkdir()
    (folder / "server").symlink_to(path)  # the prompt names it
    master, slave = pty.openpty()
    words = {"TERM": "dumb", "HOME": str(folder), "REDISCLI_HISTFILE": "/dev/null"}
    with subprocess.Popen(
        [program, "-s", "server"],
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, **words},
        start_new_session=True,
    ) as process:
        os.close(slave)
        ids: list[str] = []
        try:
            shown = _until_prompt(master)
            for line in filter(None, lines.splitlines()):
                for number, found in enumerate(ids, 1):
                    line = line.replace(f"{{{number}}}", found)
                os.write(master, line.encode() + b"\n")
                shown += _until_prompt(master)
                ids = list(dict.fromkeys(re.findall(r"\b\d{13}-\d+", shown)))
        finally:
            os.close(master)  # redis-cli ends
            process.wait(PATIENCE_S)
    for number, found in enumerate(ids, 1):
        shown = shown.replace(found, f"ID {number}")
    return _without_times(shown)


def _until_prompt(terminal: int) -> str:
    data = b""
    while not data.endswith(b"redis server> "):
        ready, _, _ = select.select([terminal], [], [], PATIENCE_S)
        assert ready, data
        data += os.read(terminal, 1 << 16)
    return data.decode()


def test_a_terminal_shows_the_same(real: RealRedis, running: Running, tmp_path: Path) -> None:
    real.call(b"FLUSHALL")
    lines = SESSION
    if real.version < BUDGETS:
        # 7.0: XINFO STREAM has fewer rows, and the error without arguments another text.
        lines = lines.replace("XINFO STREAM clocked\n", "")
    theirs = pasted(str(real._connection.path), lines, tmp_path / "theirs")
    ours = pasted(running.path, lines, tmp_path / "ours")
    assert ours == theirs
    assert "redis server> X" in ours
