"""`streamkeep status`: one look, and an exit status that says whether a store needs attention."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from cli_runner import lines, objects, run
from patience import PATIENCE_S, line_of
from streamkeep.format.humanize import size_text
from streamkeep.jobs import Queue
from streamkeep.metrics import figures
from streamkeep.recovery import backup
from streamkeep.server.http import overview


@pytest.fixture(autouse=True)
def _folder() -> None:
    """A store `s` with a stream of five entries and a group that has read two of them."""
    with streamkeep.open("s") as store:
        store.xadd_many("k", [{"n": n} for n in range(5)])
        store.xgroup_create("k", "g", 0)
        store.xreadgroup("g", "c", {"k": ">"}, count=2)


def facts(*args: str, status: int = 0) -> dict[str, Any]:
    [summary] = objects("status", "s", *args, status=status)
    return summary


def test_a_store_without_a_known_problem_is_status_0() -> None:
    text = lines("status", "s")
    assert text[0] == "s: no problem is known"
    assert text[-1].split() == ["checked", "never;", "next:", "streamkeep", "fsck", "s"]
    assert any(line.split()[:3] == ["groups", "1", "stream,"] for line in text)
    found = facts()
    assert (found["state"], found["last_check"], found["problems"]) == ("ok", None, [])
    assert (found["streams"], found["groups"]) == (1, 1)
    assert (found["pending"], found["highest_lag"]) == (2, 3)
    assert found["data_bytes"] == os.path.getsize("s/data.mdb")
    assert found["open_by"] == []


def test_it_says_when_the_store_was_last_checked_and_what_has_come_since() -> None:
    run("fsck", "s", "--quick")
    run("add", "s", "k", "n", "6")
    run("fsck", "s", "--stream", "k")  # is no check of the store
    found = facts()["last_check"]
    assert (found["errors"], found["warnings"], found["quick"]) == (0, 0, True)
    assert re.search(r"checked +clean, quickly, .* ago, 1 commit before now", output("s"))
    run("fsck", "s")
    assert re.search(r"checked +clean, 20.* ago$", output("s").strip())
    Path("s/last_check").write_text("{")
    assert facts()["last_check"] is None


def test_it_says_what_compact_would_free() -> None:
    assert "compact" not in output("s")
    with streamkeep.open("s") as store:
        for _ in range(40):
            store.xadd("k", {"f": os.urandom(1 << 16)})
    with streamkeep.open("s") as store:
        store.delete("k")
    free = facts()["reusable_bytes"]
    assert f"(`compact` would free {size_text(free)})" in output("s")
    before = os.path.getsize("s/data.mdb")
    run("compact", "s")
    assert before - os.path.getsize("s/data.mdb") > free - (64 << 10)


def test_damage_that_a_check_has_found_stays_known() -> None:
    with streamkeep.open("s") as store:
        store.xadd_many("long", [{"n": f"entry-{number:04}"} for number in range(1000)])
    data = Path("s/data.mdb").read_bytes()
    at = data.index(b"entry-0500")  # in a sealed node, which nothing of the status needs
    Path("s/data.mdb").write_bytes(data[:at] + bytes(40) + data[at + 40 :])
    assert facts()["state"] == "ok"
    run("fsck", "s", status=4)
    found = facts(status=4)
    assert found["state"] == "damaged"
    assert found["problems"][0].endswith("; next: streamkeep fsck s")
    assert lines("status", "s", status=4)[0] == "s: damaged"
    Path("s/data.mdb").write_bytes(data)
    run("fsck", "s")
    assert facts()["state"] == "ok"


def output(store: str) -> str:
    return run("status", store).stdout


def test_an_unfinished_erasure_needs_attention() -> None:
    with streamkeep.open("s") as store:
        secret = store.xadd("k", {"a": "b"}).decode()
        with store.snapshot():
            run("erase", "s", "k", secret, "--yes", "--timeout", "10ms", status=3)
    assert "an erasure is unfinished; next: " in run("status", "s", status=8).stdout
    run("erase", "s", "--finish")
    run("status", "s")


def test_a_group_that_lags_needs_attention_on_request() -> None:
    assert facts("--max-lag", "3")["state"] == "ok"
    found = facts("--max-lag", "2", status=8)
    assert (found["state"], found["lagging_key"], found["lagging_group"]) == ("lagging", "k", "g")
    assert found["problems"] == ["group 'g' of 'k' has 3 entries to read"]
    assert lines("status", "s", "--max-lag", "2", status=8)[0] == "s: lagging"


def test_a_full_disk_needs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "LOW_DISK", 1 << 60)
    assert facts(status=8)["state"] == "full"


def test_a_store_knows_of_its_newest_backup() -> None:
    assert facts()["backup"] is None
    assert "none known" in run("status", "s").stdout
    assert facts("--max-backup-age", "1h", status=8)["problems"] == ["the store knows of no backup"]
    run("backup", "s", "b")
    assert facts("--max-backup-age", "1h")["backup"]["commits_since"] == 0
    run("add", "s", "k", "n", "5")
    found = facts("--max-backup-age", "0", status=8)
    assert (found["state"], found["backup"]["commits_since"]) == ("backup", 1)
    assert "1 commit ago" in run("status", "s").stdout
    assert run("fsck", "s").stdout == run("fsck", "b").stdout.replace("b:", "s:")


def test_a_store_that_cannot_be_written_does_not_know_of_its_backup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with streamkeep.open("s", readonly=True) as store:
        assert not backup(store, "b").recorded
    assert facts()["backup"] is None
    with streamkeep.open("s") as store:
        assert backup(store, "b").recorded
    assert facts()["backup"]["commits_since"] == 0


def test_a_backup_is_looked_at_where_it_is_named() -> None:
    run("backup", "s", "b")
    run("add", "s", "k", "n", "5")
    run("add", "s", "k", "n", "6")
    found = facts("--backup", "b")["backup"]
    assert (found["path"], found["commits_since"]) == ("b", 2)
    assert facts("--backup", "b", "--max-backup-age", "1h")["state"] == "ok"
    assert facts("--backup", "b", "--max-backup-age", "0", status=8)["state"] == "backup"
    assert "2 commits ago" in run("status", "s", "--backup", "b").stdout
    assert "not a backup" in run("status", "s", "--backup", "s", status=3).stderr
    run("add", "t", "k", "a", "b")
    run("backup", "t", "bt")
    refused = run("status", "s", "--backup", "bt", "--max-backup-age", "1d", status=3)
    assert "bt: a backup of another store (" in refused.stderr
    run("status", "s", "--backup", "nosuch", status=6)


def test_processes_that_have_the_store_open_are_named() -> None:
    program = (
        "import streamkeep, sys\n"
        "with streamkeep.open('s'):\n"
        "    print('open', flush=True); sys.stdin.read()\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as child:
        assert line_of(child) == b"open\n"
        [one] = facts()["open_by"]
        assert one["process"] == child.pid
        assert f"{child.pid} ({one['name']})" in run("status", "s").stdout
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(PATIENCE_S) == 0


def test_a_store_after_a_power_failure_is_recovering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        streamkeep,
        "open",
        Mock(side_effect=streamkeep.RecoveryNeededError("s: the system has been restarted")),
    )
    found = facts(status=8)
    assert found["state"] == "recovering"
    assert found["problems"] == ["s: the system has been restarted"]
    assert "data_bytes" in found
    assert "groups" not in found


def test_queues_that_need_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page shows them: dead letters, and jobs that no worker takes."""
    with Queue("s") as queue:
        fails = queue.task(name="fails", retries=0)(_fail)
        fails.delay()
        assert facts()["queues"]["default"]["waiting"] == 1
        queue.run_until_idle()
        found = facts(status=8)
        assert (found["state"], found["queues"]["default"]["failed"]) == ("dead", 1)
        text = "queue 'default' has 1 dead letter; next: streamkeep queue dead s --queue default"
        assert found["problems"] == [text]
        told = [line.split() for line in lines("status", "s", status=8)]
        assert ["queue", "'default':", "1", "dead", "letter,", "1", "worker"] in told
        queue.drop_dead()
        fails.delay()
    monkeypatch.setattr(overview, "STUCK_MS", 0)
    found = facts(status=8)
    assert found["state"] == "idle"
    assert "1 job waits" in found["problems"][0]
    assert "no worker lives" in found["problems"][0]


def _fail() -> None:
    raise ValueError
