"""Redis's own tests of streams (redis-benchmarks-specification), on serve and on redis-server.

Commands, mixes, sizes, and numbers of streams, groups and pending entries are those of its stream
tests. What they load for minutes is smaller here, and 50 clients of redis-benchmark, over a Unix
socket, take the place of memtier_benchmark; in a mix, one redis-benchmark sends each command.

Both servers take turns. A ratio above 1 means that `streamkeep serve` is faster; it is the median.
The second ratio is that of the server's processor time for a command, which other processes disturb
less. RULERS selects tests by a regex.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.common import Report, cpu_s, redis_words, scratch, server, streamkeep_words, timed

_TURNS: Final = 3
_CLIENTS: Final = 50
_NUMBERED: Final = 100_000
_SERVERS: Final = ("streamkeep", "redis")

_DATA: Final = "x" * 100
_WORDS: Final = {
    "ADD": f"XADD s * field {_DATA}",
    "ADD_KEY": f"XADD k:__rand_int__ * field {_DATA}",
    "ADD_5": f"XADD k:__rand_int__ MAXLEN ~ 5 * {f'field {_DATA} ' * 5}",
    "ID": "__rand_int__-0",
    "TAKE": "XREADGROUP GROUP g{turn} consumer1",
    "TAKE_MANY": "XREADGROUP GROUP g{turn} c:__rand_int__",
    "TAKE_GROUP": "XREADGROUP GROUP g:__rand_int__ c",
    "TAKE_KEY": "XREADGROUP GROUP g consumer1 COUNT 100 STREAMS k:__rand_int__ >",
}

# Title; data (a method of `_Data`); range of __rand_int__; requests, perhaps with a pipeline;
# commands, with shares if there are several. `*` at the start: also with a sync per reply.
_TESTS: Final = """
* XADD                              | empty          | 1      | 100000    | ADD
* XADD by 16                        | empty          | 1      | 200000/16 | ADD
* XADD, 100,000 streams             | empty          | 100000 | 100000    | ADD_KEY
* XADD by 16, 100,000 streams       | empty          | 100000 | 100000/16 | ADD_KEY
* XADD MAXLEN ~ 5, five fields, by 10, 100,000 streams | empty | 100000 | 100000/10 | ADD_5
70 XADD, 30 XREADGROUP, 10 streams | streams 10 100000 | 10 | 40000 | 70 ADD_KEY; 30 TAKE_KEY
* 70 XADD, 30 XREADGROUP, 1,000 streams | streams 1000 100000 | 1000 | 40000 | 70 ADD_KEY; 30 TAKE_KEY
* 70 XADD, 30 XREADGROUP, 10,000 streams | streams 10000 200000  | 10000  | 40000 | 70 ADD_KEY; 30 TAKE_KEY
70 XADD, 30 XREADGROUP, 100,000 streams | streams 100000 500000 | 100000 | 40000 | 70 ADD_KEY; 30 TAKE_KEY
XREAD COUNT 100                     | entries 500000 | 1      | 20000     | XREAD COUNT 100 STREAMS s 0
XRANGE COUNT 10 by 16               | pending        | 1      | 200000/16 | XRANGE s - + COUNT 10
XREVRANGE COUNT 100                 | pending        | 1      | 20000     | XREVRANGE s + - COUNT 100
* XREADGROUP COUNT 1                | entries 60000  | 1      | 50000     | TAKE COUNT 1 STREAMS s >
XREADGROUP COUNT 100                | entries 500000 | 1      | 5000      | TAKE COUNT 100 STREAMS s >
XREADGROUP COUNT 100 NOACK          | entries 500000 | 1      | 5000      | TAKE COUNT 100 NOACK STREAMS s >
* 70 XADD, 30 XREADGROUP COUNT 10, 1,000 consumers | entries 200000 | 1000 | 50000 | 70 ADD; 30 TAKE_MANY COUNT 10 STREAMS s >
100 XADD to 1 XREADGROUP COUNT 100, 1,000 consumers | entries 200000 | 1000 | 80800 | 100 ADD; 1 TAKE_MANY COUNT 100 STREAMS s >
* XACK of 100,000 pending           | pending        | 100000 | 50000     | XACK s g{turn} ID
XCLAIM of 100,000 pending           | pending        | 100000 | 50000     | XCLAIM s g{turn} consumer2 0 ID
XPENDING of 100,000 pending         | pending        | 1      | 50000     | XPENDING s g{turn}
XPENDING IDLE of 100,000 pending    | pending        | 1      | 100       | XPENDING s g{turn} IDLE 3600000 - + 1000
XAUTOCLAIM COUNT 10 of 100,000 pending | pending     | 100000 | 20000     | XAUTOCLAIM s g{turn} consumer2 0 ID COUNT 10
XADD, 1,000 groups                  | groups 1000 0  | 1      | 100000    | ADD
XINFO STREAM, 1,000 groups          | groups 1000 0  | 1      | 50000     | XINFO STREAM s
70 XADD, 30 XREADGROUP COUNT 10 of 5,000 groups | groups 5000 0 | 5000 | 50000 | 70 ADD; 30 TAKE_GROUP COUNT 10 STREAMS s >
70 XADD, 30 XTRIM MAXLEN ~ 1000, 50 groups | groups 50 2000 | 1 | 50000    | 70 ADD; 30 XTRIM s MAXLEN ~ 1000
70 XADD, 30 XTRIM MAXLEN ~ 1000, 5,000 groups | groups 5000 20 | 1 | 50000 | 70 ADD; 30 XTRIM s MAXLEN ~ 1000
30 XADD, 50 XDEL, 20 XREADGROUP, 500 groups | groups 500 200 | 100000 | 50000 | 30 ADD; 50 XDEL s ID; 20 XREADGROUP GROUP g:000000000000 c COUNT 10 STREAMS s >
"""  # noqa: E501


class Command(NamedTuple):
    words: str
    requests: int
    clients: int
    pipeline: int


class Test(NamedTuple):
    title: str
    durable: bool
    data: list[str]
    keys: int
    commands: list[Command]
    entries: int  # of a stream whose entries have the IDs 1-0, 2-0 and so on


def _parse(line: str, part_of: int) -> Test:
    """Read a row; of all sizes, take a part."""
    title, data, keys, requests, commands = (part.strip() for part in line.split(" | "))
    count, _, pipeline = requests.partition("/")
    shares = re.findall(r"(?:(\d+) )?([A-Z][^;]*)", commands)
    whole = sum(int(share or 1) for share, _ in shares)
    sent = []
    for share, text in shares:
        words = " ".join(_WORDS.get(word, word) for word in text.split())
        all_of_it = int(count) // part_of
        part, clients = (every * int(share or 1) // whole for every in (all_of_it, _CLIENTS))
        sent.append(Command(words, max(50, part), max(1, clients), int(pipeline or 1)))
    kind, *sizes = data.split()
    less = [str(-(-int(size) // part_of)) for size in sizes]
    name = title.removeprefix("* ")
    some = max(1, int(keys) // part_of)
    return Test(name, name != title, [kind, *less], some, sent, _NUMBERED // part_of)


class _Data:
    """Fills a server for a turn; turn 0 comes before all others."""

    def __init__(self, path: Path, test: Test, turn: int) -> None:
        self._path, self._entries = path, test.entries
        name, *sizes = test.data
        getattr(self, name)(turn, *map(int, sizes))

    def _send(self, commands: Iterable[str]) -> None:
        pipe = ["redis-cli", "-s", str(self._path), "--pipe"]
        sent = "".join(f"{command}\r\n" for command in commands)
        done = subprocess.run(pipe, input=sent, capture_output=True, text=True, check=True)
        if "errors: 0" not in done.stdout:
            raise RuntimeError(done.stdout[-1000:])

    def _add(self, words: str, count: int, keys: int) -> None:
        _wait([_start(self._path, Command(_WORDS[words], count, _CLIENTS, 16), keys)])

    def _add_numbered(self) -> None:
        self._send(f"XADD s {number}-0 field {_DATA}" for number in range(1, self._entries + 1))

    def empty(self, turn: int) -> None:
        pass

    def entries(self, turn: int, count: int) -> None:
        if turn:
            self._send([f"XGROUP CREATE s g{turn} 0"])
        else:
            self._add("ADD", count, 1)

    def pending(self, turn: int) -> None:
        """Entries with the IDs 1-0 to 100000-0, all pending in the group of a turn."""
        if turn:
            read = f"XREADGROUP GROUP g{turn} consumer1 COUNT 20000 STREAMS s >"
            self._send([f"XGROUP CREATE s g{turn} 0", *[read] * 5])
        else:
            self._add_numbered()

    def streams(self, turn: int, keys: int, count: int) -> None:
        if not turn:
            self._send(f"XGROUP CREATE k:{number:012} g 0 MKSTREAM" for number in range(keys))
            self._add("ADD_KEY", count, keys)

    def groups(self, turn: int, groups: int, pending: int) -> None:
        """A stream of 100,000 entries with groups, of which each has read a few."""
        if not turn:
            self._add_numbered()
            names = list(map("g:{:012}".format, range(groups)))
            self._send(f"XGROUP CREATE s {name} 0" for name in names)
            read = f"consumer1 COUNT {pending} STREAMS s >"
            self._send(f"XREADGROUP GROUP {name} {read}" for name in names if pending)


def _start(path: Path, command: Command, keys: int) -> subprocess.Popen[str]:
    how = map(str, (command.requests, "-c", command.clients, "-P", command.pipeline, "-r", keys))
    words = ["redis-benchmark", "-s", str(path), "-q", "-n", *how, *command.words.split()]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _wait(running: Iterable[subprocess.Popen[str]]) -> None:
    for one in running:
        said, _ = one.communicate()
        if one.returncode or "rror" in said:
            raise RuntimeError(said[-1000:])


def _turn(path: Path, pid: int, test: Test, turn: int) -> dict[str, float]:
    """Run the commands of a test once; return the rate, and processor time per command."""
    _Data(path, test, turn)
    commands = [one._replace(words=one.words.replace("{turn}", str(turn))) for one in test.commands]
    count = sum(one.requests for one in commands)
    before = cpu_s(pid)
    seconds = timed(lambda: _wait([_start(path, one, test.keys) for one in commands]))
    used = cpu_s(pid) - before
    return {"per_s": round(count / seconds), "cpu_us": round(1e6 * used / count, 2)}


def measure(report: Report, test: Test, always: bool, turns: int) -> float:
    """Run a test on both servers, in turns; return our rate as a part of Redis's."""
    with scratch() as folder, ExitStack() as stack:
        ends = {name: folder / f"{name}.sock" for name in _SERVERS}
        words = {
            "streamkeep": streamkeep_words(ends["streamkeep"], "commit" if always else "none"),
            "redis": redis_words(ends["redis"], "always" if always else None),
        }
        pids = {name: stack.enter_context(server(words[name], ends[name])) for name in ends}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ends}
        for path in ends.values():
            _Data(path, test, 0)
        for turn in range(1, turns + 1):
            for name, path in ends.items():
                runs[name].append(_turn(path, pids[name], test, turn))
        info = ["redis-cli", "-s", str(ends["redis"]), "INFO", "memory"]
        said = subprocess.run(info, capture_output=True, text=True, check=True).stdout
        size = (folder / "store" / "data.mdb").stat().st_size
    pairs = list(zip(runs["streamkeep"], runs["redis"], strict=True))
    ratio = median(one["per_s"] / other["per_s"] for one, other in pairs)
    report.figure(test.title, ratio, "of Redis", least=1 if always else 0.4)
    cpu_ratio = median(other["cpu_us"] / (one["cpu_us"] or 1) for one, other in pairs)
    report.figure("  by processor time", cpu_ratio, "of Redis")
    for name in _SERVERS:
        report.figure(f"  {name}", median(one["per_s"] for one in runs[name]), "/s")
    report.figure("  data.mdb", size / 2**20, "MiB")
    used = int(said.split("used_memory_dataset:")[1].split()[0])
    report.figure("  memory of Redis", used / 2**20, "MiB")
    return ratio


def run(report: Report, *, quick: bool) -> None:
    """Measure all tests, without and with a sync per reply."""
    tests = [_parse(line, 50 if quick else 1) for line in _TESTS.strip().splitlines()]
    wanted = re.compile(os.environ.get("RULERS", ""))
    for always in (False, True):
        report.section(f"rulers, {'every reply on disk' if always else 'no sync'}")
        some = [one for one in tests if one.durable >= always and wanted.search(one.title)]
        if quick and always:
            del some[1:]
        ratios = [measure(report, one, always, 1 if quick else _TURNS) for one in some]
        if ratios:
            report.figure("median", median(ratios), "of Redis", least=1 if always else 0.8)
