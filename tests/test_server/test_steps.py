"""The difference of two snapshots, run on another store: afterwards, both show the same."""

from __future__ import annotations

import io
import random
from contextlib import suppress
from pathlib import Path

import pytest

import replica_load
import streamkeep
from real_redis.shown import caller
from replica_load import batch, run, shown
from streamkeep.format.core.errors import CommandError
from streamkeep.format.redis.resp import read_commands
from streamkeep.format.redis.stream_dump import TARGETS, Losses
from streamkeep.replication.changes import Log
from streamkeep.replication.steps import Step
from tiers import daily_or_all


class Pair:
    """A store, and one that is sent what the first one does."""

    def __init__(self, folder: Path, target: str = "8.10") -> None:
        self.one = streamkeep.open(folder / "one", sync="none")
        self.other = streamkeep.open(folder / "other", sync="none")
        self.target = TARGETS[target]
        self.log = Log(self.one._environment)
        self.before = self.log.first
        self.sent: list[list[bytes]] = []  # in the newest step

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *error: object) -> None:
        self.before.close()
        self.log.close()
        self.one.close()
        self.other.close()

    def do(self, *lines: str) -> None:
        for line in lines:
            run(self.one, line.encode().split())

    def step(self) -> list[str]:
        """Send what has changed; return the names of the commands."""
        after = self.one._environment.begin_read()
        self.log.read(after.commit_number)
        step = Step(self.before, after, self.log.take(), self.target, Losses())
        data = b"".join(step.commands())
        self.before.close()
        self.before = after
        self.sent = [words for _, words in read_commands(io.BytesIO(data).read, "step")]
        for words in self.sent:
            caller(self.other)(*words)
        assert shown(caller(self.other)) == shown(caller(self.one))
        return [b" ".join(words[: 1 + (words[0] == b"XGROUP")]).decode() for words in self.sent]


FILL = [f"XADD s {number}-1 f v{number}" for number in range(1, 41)]
GROUP = ["XGROUP CREATE s g 0", "XREADGROUP GROUP g c COUNT 30 STREAMS s >"]


@pytest.mark.parametrize(
    ("commands", "sent"),
    [
        (["XADD s 50-1 f v"], ["XADD"]),
        (["XADD s 50-1 f v", "XDEL s 50-1"], ["XSETID"]),
        (["XDEL s 3-1 20-1", "XDEL s 40-1"], ["XDEL"]),
        (["XTRIM s MAXLEN = 7"], ["XTRIM"]),
        (["XTRIM s MAXLEN = 7", "XDEL s 38-1"], ["XTRIM", "XDEL"]),
        (["XTRIM s MAXLEN = 0"], ["XTRIM"]),
        (["XTRIM s MAXLEN = 0", "XADD s 50-1 f v"], ["XADD", "XTRIM"]),
        (["XSETID s 90-1"], ["XSETID"]),
        (["XTRIM s MAXLEN = 0", "XSETID s 1-1", "XADD s 2-1 other v"], ["RESTORE"]),
        (["XTRIM s MAXLEN = 0", "XSETID s 1-1", "XADD s 2-1 other v", "XADD s 60-1 f v"],
         ["XADD", "XSETID", "XTRIM", "XDEL", "RESTORE"]),
        (["XSETID s 40-1 ENTRIESADDED 40 MAXDELETEDID 0-0", "XDEL s 4-1"], ["XDEL"]),
        (["XACK s g 1-1 2-1"], ["XACK"]),
        (["XACK s g 31-1"], []),
        (["XREADGROUP GROUP g d COUNT 3 STREAMS s >"],
         ["XGROUP SETID", "XGROUP CREATECONSUMER", "XCLAIM"]),
        (["XREADGROUP GROUP g d COUNT 3 STREAMS s >", "XDEL s 31-1"],
         ["XGROUP SETID", "XGROUP CREATECONSUMER", "XCLAIM", "XDEL"]),
        (["XADD s 50-1 f v", "XREADGROUP GROUP g d STREAMS s >", "XDEL s 50-1"],
         ["XSETID", "XGROUP SETID", "XGROUP CREATECONSUMER", "RESTORE"]),
        (["XCLAIM s g d 0 4-1 JUSTID", "XGROUP DELCONSUMER s g c"],
         ["XGROUP CREATECONSUMER", "XCLAIM", "XACK", "XGROUP DELCONSUMER"]),
        (["XNACK s g FAIL IDS 2 3-1 2-1"], ["XNACK"]),
        (["XGROUP DESTROY s g"], ["XGROUP DESTROY"]),
        (["XGROUP DESTROY s g", "XGROUP CREATE s g 4-1"], ["XGROUP DESTROY", "XGROUP CREATE"]),
        (["XGROUP SETID s g 2-1 ENTRIESREAD 2"], ["XGROUP SETID"]),
        (["RENAME s t"], ["RENAME"]),
        (["RENAME s t", "XADD t 50-1 f v", "XADD s 1-1 f v"], ["RENAME", "RESTORE", "XADD"]),
        (["RENAME s t", "RENAME o s", "RENAME t o"], ["RESTORE", "RESTORE"]),
        (["RENAME o s"], ["RENAME"]),
        (["RENAME s o", "EXPIRE o 1000"], ["RENAME", "PEXPIREAT"]),
        (["EXPIRE s 1000"], ["PEXPIREAT"]),
        (["PERSIST kept"], ["PERSIST"]),
        (["COPY kept s REPLACE"], ["RESTORE"]),
        (["DEL s"], ["DEL"]),
        (["DEL s", "SET s v"], ["DEL", "SET"]),
        (["SET text w PX 100000"], ["SET"]),
        (["DEL text", "XADD text 1-1 f v"], ["RESTORE"]),
        (["FLUSHALL"], ["DEL", "DEL", "DEL", "DEL"]),
        (["XADD s 50-1 f v", "DEL s", "XADD s 1-1 f v"], ["RESTORE"]),
    ],
)  # fmt: skip
def test_what_is_sent(tmp_path: Path, commands: list[str], sent: list[str]) -> None:
    with Pair(tmp_path) as pair:
        pair.do(*FILL, *GROUP, "XADD o 1-1 f v", "XADD kept 1-1 f v", "EXPIRE kept 1000")
        pair.do("SET text v")
        pair.step()
        pair.do(*commands)
        assert pair.step() == sent
        assert pair.step() == []


@pytest.mark.parametrize(
    ("before", "commands"),
    [
        (["XTRIM s MAXLEN = 5", "XSETID s 60-1"],
         ["XSETID s 40-1 ENTRIESADDED 39", "XADD s 50-1 f low", "XADD s 61-1 f v", "XDEL s 36-1"]),
        (["XTRIM s MAXLEN = 0", "XSETID s 60-1"],
         ["XSETID s 40-1 ENTRIESADDED 39", "XADD s 50-1 f low", "XADD s 61-1 f v"]),
        (["XTRIM s MAXLEN = 1"],
         ["XTRIM s MAXLEN = 0", "XSETID s 1-1 ENTRIESADDED 39", "XADD s 40-1 f other"]),
    ],
)  # fmt: skip
def test_an_entry_below_the_last_id_is_found_whatever_the_counters_say(
    tmp_path: Path, before: list[str], commands: list[str]
) -> None:
    with Pair(tmp_path) as pair:
        pair.do(*FILL, *before)
        pair.step()
        pair.do(*commands)
        assert pair.step()[-1] == "RESTORE"


@pytest.mark.parametrize("target", ["8.10", "7.2"])
def test_random(tmp_path: Path, target: str) -> None:
    with Pair(tmp_path, target) as pair:
        rng, ids = random.Random(target), [b"1-1"]
        for _ in range(daily_or_all(25, 300)):
            for _ in range(rng.randrange(40)):
                batch(rng, ids, lambda words: run(pair.one, words))
                if target == "8.10" and rng.random() < 0.1:
                    key = rng.choice(replica_load.KEYS)
                    with suppress(CommandError):
                        run(pair.one, [b"XNACK", key, b"g", b"FAIL", b"IDS", b"1", ids[-1]])
            pair.step()


def test_many_pending_entries(tmp_path: Path) -> None:
    """Pages of pending entries come, split, and go."""
    with Pair(tmp_path) as pair:
        rng = random.Random(1)
        pair.do(*(f"XADD s {number}-1 f v" for number in range(1, 401)), "XGROUP CREATE s g 0")
        pair.step()
        for _ in range(9):
            pair.do(f"XREADGROUP GROUP g c{rng.randrange(3)} COUNT 50 STREAMS s >")
            some = " ".join(f"{rng.randrange(1, 401)}-1" for _ in range(30))
            pair.do(f"XACK s g {some}", f"XCLAIM s g c1 0 {some} FORCE JUSTID")
            assert "RESTORE" not in pair.step()
        pair.do("XACK s g " + " ".join(f"{number}-1" for number in range(1, 401)))
        assert set(pair.step()) == {"XACK"}
