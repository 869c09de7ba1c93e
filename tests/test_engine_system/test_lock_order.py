"""Locks: the order is checked in the tests, and costs nothing otherwise."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from lock_order import ORDER, LockOrderError
from streamkeep.engine.system import locks
from streamkeep.engine.system.locks import make_lock
from streamkeep.engine.system.locks import make_reentrant_lock as make_reentrant

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_lock_out_of_order_names_both_locks() -> None:
    write, gate = make_lock("write", "a"), make_lock("gate", "a")
    with write, gate:
        pass
    with gate, pytest.raises(LockOrderError, match=r"takes the lock 'write' .* holds 'gate'"):
        write.acquire()
    with write:  # neither is held any more
        assert not gate.locked()


def test_a_lock_that_its_thread_holds_is_not_waited_for() -> None:
    with make_lock("write", "a"), pytest.raises(LockOrderError):
        make_lock("write", "a").acquire()


def test_locks_of_two_stores_have_no_order_but_common_locks_come_last() -> None:
    with make_lock("gate", "a"), make_lock("write", "b"):
        pass
    with make_lock("registry"), pytest.raises(LockOrderError):
        make_lock("write", "b").acquire()


def test_a_try_that_does_not_wait_is_allowed_in_any_order() -> None:
    with make_lock("gate", "a"):
        write = make_lock("write", "a")
        assert write.acquire(blocking=False)
        write.release()


def test_a_reentrant_lock_may_be_taken_again_and_waited_on() -> None:
    condition = threading.Condition(make_reentrant("registry"))
    with condition, condition:
        assert not condition.wait(timeout=0.001)
        condition.notify_all()
    with pytest.raises(RuntimeError):
        condition.notify_all()


def test_another_thread_may_release_a_lock() -> None:
    write = make_lock("write", "a")
    write.acquire()
    thread = threading.Thread(target=write.release)
    thread.start()
    thread.join()
    with write:
        pass


def test_without_the_check_a_lock_is_a_plain_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(make_lock("write")) is not type(threading.Lock())
    monkeypatch.setattr(locks, "checked", None)
    assert type(make_lock("write")) is type(threading.Lock())
    assert type(make_reentrant("registry")) is type(threading.RLock())


def test_the_table_has_every_lock_of_the_engine_and_no_other() -> None:
    made: dict[str, set[str]] = {}
    for path in sorted((ROOT / "engine").rglob("*.py")):
        for name in re.findall(r'(?:make_\w*lock|OwnedLock)\(\s*"([^"]+)"', path.read_text()):
            made.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    listed = {lock.name: lock.where.split(":")[0] for lock in ORDER if not lock.file}
    assert made.keys() == listed.keys()
    assert [name for name, where in listed.items() if where not in made[name]] == []


def test_other_locks_of_the_engine_only_pass_signals_between_threads() -> None:
    plain = {
        f"{path.relative_to(ROOT).as_posix()}: {line.strip()}"
        for path in sorted((ROOT / "engine").rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"threading\.(R?Lock|Condition|Semaphore)\(", line)
        and path.name != "locks.py"
        and "make_" not in line
    }
    assert plain == {
        "engine/checkpoint/checkpointer.py: self._waiting = threading.Lock()  "
        "# free from `notify` to the end of the next `wait`",
        "engine/journal/write_lock.py: self._wakeup = threading.Lock()  "
        "# free when the thread has something to do",
        "engine/store/group_commit.py: call.lock = threading.Lock()  # which `wake` releases",
    }
