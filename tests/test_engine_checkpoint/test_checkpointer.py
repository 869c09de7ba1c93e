"""The checkpointer thread: when it works, and that nothing ends it."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import streamkeep
from conftest import assert_sound
from inside import checkpointer_of, journal_of
from patience import PATIENCE_S, wait_until
from streamkeep import aio
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.archive import maintenance
from streamkeep.engine.archive.maintenance import maintain
from streamkeep.engine.checkpoint import checkpointer
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.system import failpoints, files
from streamkeep.format.core.errors import NotAStoreError, RecoveryNeededError, StoreError
from tiers import slow_but

MODES = pytest.mark.parametrize("sync", slow_but(["commit", "none"], "commit"))


@MODES
def test_a_transaction_wakes_the_thread_no_more_often_than_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync
) -> None:
    notifications: list[None] = []
    notify = checkpointer.Checkpointer.notice

    def counted(self: checkpointer.Checkpointer) -> None:
        notifications.append(None)
        notify(self)

    monkeypatch.setattr(checkpointer.Checkpointer, "notice", counted)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        store.xadd("s", {"n": 0})
        for number in range(50):
            with store.transaction() as txn:
                txn.xadd("s", {"n": number})
        # Once for the first commit; again only if the store was quiet for seconds.
        assert 1 <= len(notifications) < 10
    assert_sound(tmp_path / "store")


class Broken:
    """Fails until it is mended; then it does what it replaces."""

    def __init__(self, works: Callable[..., Any], error: BaseException) -> None:
        self.works = works
        self.error = error
        self.mended = False
        self.calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if not self.mended:
            raise self.error
        return self.works(*args, **named)


def parts(store: Store[Any]) -> tuple[checkpointer.Checkpointer, Journal]:
    one = checkpointer_of(store)
    journal = journal_of(store)
    assert one is not None
    assert journal is not None
    return one, journal


@MODES
@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("unlisted"),
        OSError(24, "too many"),
        pytest.param(MemoryError(), marks=pytest.mark.slow),
        pytest.param(StoreError("listed"), marks=pytest.mark.slow),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_of_a_steady_point_ends_the_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sync: Sync,
    error: Exception,
) -> None:
    monkeypatch.setattr(checkpointer, "CHECKPOINT_EVERY_S", 0.3)
    with streamkeep.open(tmp_path / "store", sync=sync) as store:
        one, _ = parts(store)
        broken = Broken(one._make, error)
        monkeypatch.setattr(one, "_make", broken)
        store.xadd("s", {"n": 1})
        wait_until(lambda: broken.calls >= 2, "it does not try again")
        failures = store.durability().failures
        assert [text.split(":")[0] for text in failures] == ["the checkpoint"]
        broken.mended = True
        wait_until(lambda: not store.durability().failures, "it never succeeds")
        last = store.durability().last_commit
        wait_until(lambda: store.durability().checkpoint_commit == last, "there is no checkpoint")
        assert one._thread is not None
        assert one._thread.is_alive()
        assert caplog.text.count("the checkpoint failed and will be tried again") == 1
    assert_sound(tmp_path / "store")


@MODES
def test_the_interval_is_kept_while_steady_points_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync
) -> None:
    with streamkeep.open(tmp_path / "store", sync=sync, interval=0.05) as store:
        one, journal = parts(store)
        with monkeypatch.context() as broken:
            broken.setattr(one, "_make", Mock(side_effect=ZeroDivisionError("unlisted")))
            for _ in range(3):
                store.using("interval").xadd("s", {"n": 1})
                last = store.durability().last_commit
                wait_until(lambda last=last: journal.control.durable() >= last, "no sync")  # type: ignore[misc]
            wait_until(lambda: store.durability().failures, "nothing is reported")
            told = store.durability().failures
            assert any("ZeroDivisionError: unlisted" in text for text in told)
    assert_sound(tmp_path / "store")


def test_a_sync_that_raises_what_no_one_expects_is_tried_again_without_a_commit(
    tmp_path: Path,
) -> None:
    with streamkeep.open(tmp_path / "store", sync="interval", interval=0.05) as store:
        _, journal = parts(store)
        failures = 2
        calls = 0

        def fails() -> None:
            nonlocal calls
            calls += 1
            if calls < failures:
                failpoints.arm("journal:sync", fails)
            raise ZeroDivisionError("unlisted")

        failpoints.arm("journal:sync", fails)
        store.xadd("s", {"n": 1})
        last = store.durability().last_commit
        wait_until(lambda: journal.control.durable() >= last, "it was not tried again")
        assert calls == failures
    assert_sound(tmp_path / "store")


def test_a_sync_of_the_thread_that_fails_has_every_write_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = streamkeep.open(tmp_path / "store", sync="interval", interval=0.05)
    _, journal = parts(store)
    store.xadd("s", {"n": 0})
    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_data", Mock(side_effect=OSError(5, "Input/output error")))
        store.xadd("s", {"n": 1})
        wait_until(journal.control.poisoned, "it is not poisoned")
        wait_until(lambda: store.durability().failures, "nothing is reported")
        wait_until(lambda: "the sync of the journal failed" in caplog.text, "nothing is logged")
        with pytest.raises(RecoveryNeededError):
            store.xadd("s", {"n": 2})
    with pytest.raises(RecoveryNeededError):
        store.close()
    with streamkeep.open(tmp_path / "store") as again:
        assert again.xlen("s") <= 2
        again.xadd("s", {"n": 3})
    assert_sound(tmp_path / "store")


def test_who_waits_for_no_sync_learns_that_the_store_was_moved(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on when it is back."""
    monkeypatch.setattr(checkpointer, "CHORES_EVERY_S", 0.0)
    store = streamkeep.open(path, sync="none")

    def add() -> str:
        try:
            store.xadd("s", {"n": "1"})
        except NotAStoreError as error:
            return str(error)
        return ""

    add()
    path.rename(path.with_name("elsewhere"))
    streamkeep.open(path).close()
    wait_until(lambda: "deleted or moved while it was open" in add())
    with monkeypatch.context() as patch, pytest.raises(StoreError, match="Stale file handle"):
        patch.setattr("os.lstat", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
        store.xadd("s", {"n": "1"})
    path.rename(path.with_name("new"))
    path.with_name("elsewhere").rename(path)
    assert add() == ""
    store.close()
    assert_sound(path)


def test_a_thread_that_the_system_does_not_grant_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[None] = []

    def none_granted(self: threading.Thread) -> None:
        if self.name == "streamkeep-checkpointer" and len(refused) < 2:
            refused.append(None)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", none_granted)
    with streamkeep.open(tmp_path / "store") as store:
        one, _ = parts(store)
        store.xadd("s", {"n": 1})
        assert store.durability().failures == (
            "the start of the checkpointer thread: RuntimeError: can't start new thread",
        )
        store.xadd("s", {"n": 2})
        store.xadd("s", {"n": 3})
        assert len(refused) == 2
        assert store.durability().failures == ()
        assert one._thread is not None
        assert one._thread.is_alive()
    assert_sound(tmp_path / "store")


@MODES
def test_no_error_ends_the_thread_that_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Sync
) -> None:
    broken = Broken(maintain, ZeroDivisionError("unlisted"))
    monkeypatch.setattr(maintenance, "maintain", broken)
    with streamkeep.open(tmp_path / "store", sync=sync, archive_every=0.1) as store:
        wait_until(lambda: broken.calls >= 3, "it ended")
        assert store.durability().failures == ("archiving: ZeroDivisionError: unlisted",)
        broken.mended = True
        wait_until(lambda: not store.durability().failures, "it ended")
    assert_sound(tmp_path / "store")


def test_tasks_get_their_answer_though_the_system_granted_no_thread_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    refused: list[None] = []

    def none_granted(self: threading.Thread) -> None:
        if self.name == "streamkeep" and not refused:
            refused.append(None)
            raise RuntimeError("can't start new thread")
        start(self)

    async def main() -> None:
        async with await aio.open(tmp_path / "store") as store:
            monkeypatch.setattr(threading.Thread, "start", none_granted)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await store.xadd("s", {"n": 1})
            assert await asyncio.wait_for(store.xadd("s", {"n": 2}), PATIENCE_S)

    asyncio.run(main())
    assert refused
