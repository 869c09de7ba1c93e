"""The figures of a store, and their Prometheus text."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import streamkeep
from cli_runner import lines, objects, run
from patience import PATIENCE_S
from streamkeep import Store
from streamkeep.engine.system.clock import ManualClock
from streamkeep.jobs import Queue
from streamkeep.metrics import figures_of, prometheus_text, write_textfile

LABEL = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"[a-z_]+(?:\{{{LABEL}(?:,{LABEL})*\}})? -?[0-9.]+")


@pytest.fixture
def filled(store: Store, clock: ManualClock) -> Store:
    """A store with a stream, a group that lags, and a queue."""
    store.xadd_many('or"ders\n\xff', [{"n": str(number)} for number in range(10)])
    store.xgroup_create('or"ders\n\xff', "mail", id="0")
    store.xreadgroup("mail", "ann", {'or"ders\n\xff': ">"}, count=3)
    clock.ms += 2_500
    queue = Queue(store)
    queue.put_many(range(4))
    queue.get_many(2)[0].done()
    return store


def test_figures(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is read for them: of 100,000 streams, that took longer than all else."""
    monkeypatch.delattr("streamkeep.engine.commands.xinfo.read_entries")
    found = figures_of(filled)
    stream = next(one for one in found.streams if one.key.startswith(b"or"))
    assert (stream.length, stream.entries_added) == (10, 10)
    (group,) = stream.groups
    assert (group.pending, group.lag, group.consumers, group.alive, group.dead) == (3, 7, 1, 1, 0)
    assert group.oldest_pending_ms == 2_500
    (queue,) = found.queues
    stats = queue.stats
    assert (queue.name, stats.waiting, stats.running, stats.done) == ("default", 2, 1, 1)
    assert found.store.last_commit > 0
    assert found.store.data_bytes > 0


def test_every_line_of_the_text_is_valid(filled: Store) -> None:
    text = prometheus_text(filled)
    assert text.endswith("\n")
    seen = []
    for line in text.splitlines():
        if line.startswith("# "):
            assert re.fullmatch(r"# (HELP [a-z_]+ [^\n]+\.|TYPE [a-z_]+ (gauge|counter))", line)
            continue
        assert SAMPLE.fullmatch(line), line
        seen.append(line.rpartition(" ")[0])
    assert len(seen) == len(set(seen))
    assert 'streamkeep_queue_jobs{queue="default",state="waiting"} 2\n' in text
    assert 'streamkeep_queue_parked{queue="default"} 0\n' in text
    assert 'streamkeep_group_oldest_pending_seconds{stream="or\\"ders\\n' in text


def test_a_textfile_is_replaced_at_once(filled: Store, tmp_path: Path) -> None:
    target = tmp_path / "store.prom"
    target.write_text("old")
    write_textfile(filled, target)
    assert target.read_text().startswith("# HELP streamkeep_commit_number ")
    assert sorted(path.name for path in tmp_path.iterdir() if "prom" in path.name) == ["store.prom"]
    with pytest.raises(FileNotFoundError):
        write_textfile(filled, tmp_path / "missing" / "store.prom")


def test_a_textfile_that_is_a_link_or_a_pipe_stays_one(filled: Store, tmp_path: Path) -> None:
    for name in ("old.prom", "none.prom"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(name)
        (tmp_path / "old.prom").write_text("old")
        write_textfile(filled, link)
        assert link.is_symlink()
        assert (tmp_path / name).read_text().startswith("# HELP streamkeep_commit_number ")
    loop = tmp_path / "loop.prom"
    loop.symlink_to("other.prom")
    (tmp_path / "other.prom").symlink_to("loop.prom")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_textfile(filled, loop)
    assert loop.is_symlink()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    mode = pipe.stat().st_mode
    write_textfile(filled, pipe)
    assert reader.communicate(timeout=PATIENCE_S)[0].startswith(b"# HELP ")
    assert pipe.stat().st_mode == mode


def test_each_name_has_a_label_of_its_own(store: Store, tmp_path: Path) -> None:
    names = [
        b"\xff", b"\\xff", b"\\\\xff", b"\\\xff", b"\\\\\xff", b"\\\\\\xff", b"\\\\\\\\xff",
        b"plain\\text", b"plain\\\\text", "ä".encode(), b"\xe4",
    ]  # fmt: skip
    for name in names:
        store.xadd(name, {"f": "v"})
    text = prometheus_text(store)
    found = re.findall(rf"^streamkeep_stream_entries\{{({LABEL})\}}", text, re.MULTILINE)
    assert len(set(found)) == len(found) == len(names)
    assert {'stream="ä"', r'stream="plain\\text"', r'stream="\\xff"'} <= set(found)


def test_the_command_prints_each_character_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    name = "a\u3000b\u2028\x85\tc"
    with streamkeep.open(path) as store:
        store.xadd(name, {"f": "v"})
    assert f'streamkeep_stream_entries{{stream="{name}"}} 1\n' in run("metrics", path).stdout


def test_the_commands(tmp_path: Path) -> None:
    path = tmp_path / "store"
    run("add", path, "orders", "n", "1")
    run("queue", "put", path, "1")
    assert 'streamkeep_stream_entries{stream="orders"} 1' in lines("metrics", path)
    *found, summary = objects("metrics", path)
    assert summary["metrics"] == len(found)
    run("metrics", path, "--textfile", tmp_path / "one.prom")
    assert (tmp_path / "one.prom").exists()
    (loop := tmp_path / "loop.prom").symlink_to(loop)
    told = run("metrics", path, "--textfile", loop, status=1).stderr
    assert told.endswith("symbolic links\nnext: correct the links, or name another place\n")
    screen = "\n".join(lines("top", path, "--interval", "50ms"))
    assert re.search(r"^default +1( +0){4} +0/s +", screen, re.MULTILINE)
    assert re.search(r"^orders +1 +0/s +- +- +- +- +-$", screen, re.MULTILINE)
    kinds = [one["type"] for one in objects("top", path, "--once", "--interval", "50ms")]
    assert kinds == ["stream", "stream", "queue", "summary"]
