"""Errors that concern several callers: each raises one of its own."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from inside import group_commit_of
from patience import PATIENCE_S, wait_until
from streamkeep.engine.store.command import Write
from streamkeep.engine.system import files
from streamkeep.engine.system.failures import copy_of
from streamkeep.format.core.errors import (
    ChecksumError,
    CommandError,
    CorruptionError,
    ErasureBlockedError,
    RecoveryNeededError,
)

CALLERS = 4


def test_a_copy_has_all_of_an_error_and_shares_nothing_that_changes() -> None:
    blocked = ErasureBlockedError("blocked")
    blocked.processes = (1, 2)
    refused = CommandError("refused")
    refused.entry_index = 3
    for error in (
        RecoveryNeededError("failed"),
        ChecksumError("node 1", "no match", offset=5),
        OSError(5, "Input/output error", "data.mdb"),
        blocked,
        refused,
    ):
        error.add_note("first")
        copied = copy_of(error)
        copied.add_note("second")
        assert type(copied) is type(error)
        assert copied is not error
        assert str(copied) == str(error)
        assert copied.__cause__ is error
        assert error.__notes__ == ["first"]
        assert copied.__notes__ == ["first", "second"]
    assert copy_of(blocked).processes == (1, 2)
    assert copy_of(refused).entry_index == 3
    damaged = copy_of(CorruptionError("node 1", "torn", offset=5))
    assert (damaged.where, damaged.problem, damaged.offset) == ("node 1", "torn", 5)


def test_an_error_that_cannot_be_copied_stays_as_it_is() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")

    error = Odd(1, 2)
    assert copy_of(error) is error


def test_callers_of_one_group_commit_raise_errors_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    store = streamkeep.open(tmp_path / "store", sync="commit")
    store.xadd("s", {"n": 0})
    group_commit = group_commit_of(store)
    begun, go_on = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def slow(txn: Any) -> None:
        begun.set()
        assert go_on.wait(PATIENCE_S)

    def add() -> None:
        try:
            store.xadd("s", {"n": 1})
        except BaseException as error:
            errors.append(error)

    first = threading.Thread(target=lambda: group_commit.run(Write(slow, ())))
    first.start()
    assert begun.wait(PATIENCE_S)
    callers = [threading.Thread(target=add) for _ in range(CALLERS)]
    for thread in callers:
        thread.start()
    wait_until(lambda: len(group_commit._queue) == CALLERS)
    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_data", fails)
        go_on.set()
        for thread in (first, *callers):
            thread.join(PATIENCE_S)
    assert len(errors) == CALLERS
    assert {type(error) for error in errors} == {RecoveryNeededError}
    assert len({id(error) for error in errors}) == CALLERS
    assert len({str(error) for error in errors}) == 1
    # All but the leader's say by their cause where it happened.
    causes = [error.__cause__ for error in errors if error.__cause__ in errors]
    assert len(causes) == CALLERS - 1
    assert "Input/output error" in "".join(traceback.format_exception(errors[0]))
    with pytest.raises(RecoveryNeededError):
        store.close()
