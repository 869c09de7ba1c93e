"""LMDB is opened again by itself after a commit that it could not finish.

LMDB then refuses every transaction of its environment. `tests/crash/test_real_disks.py` fills the
disks on which that happens; here, the environment is replaced by one that refuses.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import pytest

from inside import environment_of
from streamkeep import Store, StoreError
from streamkeep.engine.store import environment
from tiers import slow_but

_OTHER = """
import sys, streamkeep
with streamkeep.open(sys.argv[1]) as store:
    for n in range(int(sys.argv[2])):
        store.xadd("other", {"n": n})
"""


class Panicked:
    """An environment of LMDB after a commit that it could not finish."""

    def __init__(self, raw: lmdb.Environment) -> None:
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def begin(self, *args: object, **options: object) -> NoReturn:
        raise lmdb.PanicError("mdb_txn_begin")


def panic(store: Store[Any]) -> None:
    context = environment_of(store).context
    context.use(Panicked(context.raw), context.tables)  # type: ignore[arg-type]


COMMANDS: dict[str, Callable[[Store[Any]], object]] = {
    "append": lambda store: store.xadd("s", {"n": "1"}),
    "read": lambda store: store.xlen("s"),
    "group": lambda store: store.xreadgroup("g", "c", {"s": ">"}, count=1),
    "pipeline": lambda store: store.pipeline().xadd("s", {"n": "1"}).xlen("s").execute(),
    "snapshot": lambda store: store.snapshot().close(),
    "sync": lambda store: store.sync(),
    "archive": lambda store: store.archive(),
    "durability": lambda store: store.durability(),
}


@pytest.mark.parametrize("sync", slow_but(["none", "interval", "commit"], "commit"))
@pytest.mark.parametrize("name", COMMANDS)
def test_each_call_opens_it_again_and_answers(
    tmp_path: Path, name: str, sync: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Store(tmp_path / "store", sync=sync) as store:  # type: ignore[arg-type]
        acknowledged = [store.xadd("s", {"n": str(n)}) for n in range(20)]
        store.xgroup_create("s", "g", id="0")
        panic(store)
        with caplog.at_level(logging.WARNING, "streamkeep"):
            COMMANDS[name](store)
        assert "opened again" in caplog.text
        assert [entry.id for entry in store.xrange("s")][:20] == acknowledged
        last = store.xadd("s", {"n": "last"})
    with Store(tmp_path / "store") as store:
        assert [entry.id for entry in store.xrevrange("s", count=1)] == [last]


def test_other_processes_write_in_the_meantime(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with Store(path) as store:
        for n in range(20):
            store.xadd("s", {"n": str(n)})
        panic(store)
        subprocess.run([sys.executable, "-c", _OTHER, str(path), "30"], check=True)
        store.xadd("s", {"n": "20"})
        panic(store)
        assert (store.xlen("s"), store.xlen("other")) == (21, 30)
        subprocess.run([sys.executable, "-c", _OTHER, str(path), "30"], check=True)
        assert store.xlen("other") == 60


def test_an_open_snapshot_prevents_it_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "READERS_WAIT_S", 0.01)
    with Store(tmp_path / "store") as store:
        store.xadd("s", {"n": "1"})
        with store.snapshot() as snapshot:
            panic(store)
            with pytest.raises(StoreError, match="opened again, which open snapshots"):
                store.xadd("s", {"n": "2"})
            assert snapshot.xlen("s") == 1
        store.xadd("s", {"n": "3"})
        assert store.xlen("s") == 2


def test_an_opening_that_fails_is_tried_again_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> NoReturn:
        raise OSError(24, "Too many open files")

    with Store(tmp_path / "store") as store:
        added = store.xadd("s", {"n": "1"})
        environment = environment_of(store)
        panic(store)
        with monkeypatch.context() as broken:
            broken.setattr(environment, "_open_lmdb", fails)
            for _ in range(2):
                with pytest.raises(StoreError, match="as many files open"):
                    store.xlen("s")
                with pytest.raises(StoreError, match="as many files open"):
                    store.xadd("s", {"n": "2"})
        assert [entry.id for entry in store.xrange("s")] == [added]
        store.xadd("s", {"n": "3"})
    with Store(tmp_path / "store") as store:
        assert store.xlen("s") == 2
