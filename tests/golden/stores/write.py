"""Writes the golden stores of format 1.

    python tests/golden/stores/write.py FOLDER

closed.tar.zst  closed cleanly
killed.tar.zst  its process was killed while its newest commits were only in the journal
torn.tar.zst    its process was killed, and data.mdb is as it was at the last checkpoint

After the first release they are never written again: a new format gets new files. digests.json has
the digest of what each of them answers (`golden_stores.digest`). A test that finds another one
fills a store with this program and shows the difference.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import golden_stores  # noqa: E402
import inside  # noqa: E402
from streamkeep.engine.api.store import Store  # noqa: E402
from streamkeep.engine.system.clock import ManualClock  # noqa: E402

NOW_MS = 1_718_004_800_000  # 2024-06-10T07:33:20Z


def entries(first: int, count: int) -> list[dict[str, str | int]]:
    """Return entries that fill several nodes: most with the same fields, some with others."""
    found: list[dict[str, str | int]] = []
    for index in range(first, first + count):
        one: dict[str, str | int] = {"sku": f"part-{index % 7}", "quantity": index, "note": "x" * 9}
        if index % 10 == 0:
            one = {"event": "inventory", "total": index * 1000, "place": "Zürich \x1b \x00"}
        found.append(one)
    return found


def ids(first_ms: int, count: int) -> list[str]:
    return [f"{first_ms + index // 3}-{index % 3}" for index in range(count)]


def fill(store: Store[bytes], clock: ManualClock) -> None:
    store.xadd_many("orders", entries(0, 600), ids(NOW_MS, 600))
    store.xdel("orders", f"{NOW_MS + 3}-0", f"{NOW_MS + 3}-1", f"{NOW_MS + 60}-2")
    store.xadd("orders", [("same", "1"), ("same", "2"), ("", "")], f"{NOW_MS + 900}-0")
    store.xtrim("orders", maxlen=500, approximate=False)

    # Groups: NACKs in the group's own row, in pages, claimed, released, of deleted entries.
    store.xgroup_create("orders", "mail", id="0")
    store.xgroup_create("orders", "few", id="0")
    store.xgroup_create("orders", "new", id="$", entries_read=3)
    store.xreadgroup("mail", "ann", {"orders": ">"}, count=150)
    clock.ms += 1_000
    store.xreadgroup("mail", "bob", {"orders": ">"}, count=100)
    clock.ms += 1_000
    pending = [row["message_id"] for row in store.xpending_range("orders", "mail", "-", "+", 250)]
    store.xack("orders", "mail", *pending[10:60:2])
    store.xclaim("orders", "mail", "carol \xff", 0, pending[60:70], retrycount=7)
    store.xautoclaim("orders", "mail", "dave", 1_500, "0", count=20)
    store.xdel("orders", *pending[100:103])
    store.xnack("orders", "mail", "SILENT", pending[105], pending[106])
    store.xgroup_createconsumer("orders", "mail", "idle")
    store.xreadgroup("few", "ann", {"orders": ">"}, count=5)
    store.xreadgroup("new", "eve", {"orders": ">"}, count=5, noack=True)

    # Archive: segments, retired nodes that wait, an erased entry, a deleted and a renamed stream.
    store.set_retention("log", archive=True, maxlen=100, approximate=True)
    store.xadd_many("log", entries(0, 900), ids(NOW_MS, 900))
    store.maintain()
    store.archive()
    store.xadd_many("log", entries(900, 600), ids(NOW_MS + 1_000, 600))
    store.erase("log", f"{NOW_MS + 10}-1")
    store.maintain()
    store.archive()
    store.xtrim("log", maxlen=20, approximate=False)
    store.set_retention("gone", archive=True)
    store.xadd_many("gone", entries(0, 90), ids(NOW_MS, 90))
    store.xtrim("gone", maxlen=10, approximate=False)
    store.archive()
    store.delete("gone")
    store.xadd("gone", {"made": "again"}, f"{NOW_MS}-0")
    store.xadd("old name", {"a": 1}, "1-1")
    store.rename("old name", "new name")

    # Idempotence: by message ID and by content, some forgotten, with settings of its own.
    store.xadd("events", {"first": 1}, f"{NOW_MS}-0")
    store.xcfgset("events", idmp_duration=300, idmp_maxsize=50)
    for index in range(40):
        clock.ms += 1
        store.xadd("events", {"n": index}, idmp=("producer", f"message-{index}"))
        store.xadd("events", {"n": index}, idmp=("producer", f"message-{index}"))
    store.xadd("events", {"payload": "same"}, idmpauto="other \xfe")
    clock.ms += 10

    # Odd ones: names of any bytes, an empty stream, the last ID there is, a large entry.
    store.xadd(b"\xff\x00\n", {b"\x80": b"\x00" * 300, b"int": b"-9223372036854775808"}, "0-1")
    store.xadd("", {"empty": ""}, "5")
    store.xgroup_create("empty", "g", mkstream=True)
    store.xadd("last", {"a": "b"}, "18446744073709551615-18446744073709551615")
    store.xadd("large", {"body": "ab" * 40_000}, "1-1")
    store.xadd("counters", {"a": 1}, "7-7")
    store.xsetid("counters", "9-9", entries_added=11, max_deleted_id="8-8")
    store.set_retention("kept", maxlen=1000, max_age=86400, keep_unacknowledged=True)


def fill_more(store: Store[bytes], clock: ManualClock) -> None:
    """Write what only the journal holds in the torn store: single commits and a transaction."""
    for index in range(120):
        store.xadd("orders", {"sku": "late", "quantity": index}, f"{NOW_MS + 2_000 + index}-0")
    clock.ms += 5
    store.xreadgroup("mail", "bob", {"orders": ">"}, count=30)
    with store.transaction() as txn:
        txn.xadd("orders", {"in": "transaction"}, f"{NOW_MS + 3_000}-0")
        txn.xadd("second", {"in": "transaction"}, f"{NOW_MS + 3_000}-0")
    store.xdel("orders", f"{NOW_MS + 2_005}-0")
    store.xadd("events", {"n": "late"}, idmp=("producer", "message-late"))
    store.xtrim("log", maxlen=10, approximate=False)
    store.delete("large")


def fill_rows(store: Store[bytes]) -> None:
    for number in range(300):
        store.row_put("counters", b"%04d" % number, b"value %d" % number * 20)
    store.row_put("settings \xff", b"\x00", b"")
    store.row_delete("counters", b"0007")


def fill_all(store: Store[bytes], clock: ManualClock) -> None:
    fill(store, clock)
    fill_more(store, clock)
    fill_rows(store)


def fill_and_die(path: Path, deferred: bool, work: Path) -> None:
    """Fill a store, keep its data file of the last checkpoint, and end as if killed."""
    clock = ManualClock(NOW_MS)
    store = Store(path, clock=clock)
    fill(store, clock)
    inside.checkpointer_of(store).stop()  # it makes no checkpoint of its own from now on
    inside.checkpoint_now(store)
    shutil.copyfile(path / "data.mdb", work / "data.old")
    if not deferred:
        inside.flush_each_commit(store)
    fill_more(store, clock)
    fill_rows(store)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    clock = ManualClock(NOW_MS)
    with Store(work / "closed", clock=clock) as store:
        fill_all(store, clock)
        digest = golden_stores.digest(golden_stores.describe(store))
    digests = dict.fromkeys(golden_stores.NAMES, digest)  # the same streams, however it ended
    (folder / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
    for name in ("killed", "torn"):
        child = os.fork()
        if child == 0:
            fill_and_die(work / name, name == "killed", work)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        data = (work / name / "data.mdb").read_bytes()
        if name == "killed":
            assert b"value 299" not in data  # the newest commits are only in the journal
        else:
            assert b"value 299" in data
            shutil.copyfile(work / "data.old", work / name / "data.mdb")
    for name in golden_stores.NAMES:
        golden_stores.pack(work / name, folder / f"{name}.tar.zst")
    shutil.rmtree(work)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
