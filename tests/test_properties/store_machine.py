"""What the machines that run the engine against the model have in common.

A machine runs each step on both and compares the answers. Its base brings the rules that do not
care which commands there are: transactions, pipelines, snapshots, reopening; and when a run ends,
it compares everything, opens the store for reading only, compares again, and checks the store.
Where a step is refused, every row must be what it was.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import SearchStrategy

from conftest import assert_sound
from model import ModelStore
from model.steps import Failed, Keys, Step, attempt
from refused import unchanged
from stores import SYNC_MODES, open_at
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Snapshot, Sync, Transaction
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError

THOROUGH = 20  # in so many parts the tests marked `slow` run, each with examples of its own


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CommandError as error:
        return Failed(error.redis_error)


class StoreMachine(RuleBasedStateMachine):
    """The rules for any commands; subclasses bring the commands, and open the store."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="streamkeep-"))
        self.clock = ManualClock(0)
        self.limits: dict[str, Any] = {}
        self.sync: Sync = "commit"
        self.model = ModelStore()
        self.store: Store | None = None
        self.snapshots: list[tuple[Snapshot, ModelStore]] = []

    def any_step(self) -> SearchStrategy[Step]:
        """What transactions and pipelines are made of, for the model's present state."""
        raise NotImplementedError

    def any_look(self) -> SearchStrategy[Step]:
        raise NotImplementedError

    def compare_all(self) -> None:
        raise NotImplementedError

    def shown(self, step: Step, answer: Any) -> Any:
        """Take out of an answer what the model cannot know."""
        return answer

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def open(self, **options: Any) -> None:
        self.store = open_at(self.path, sync=self.sync, clock=self.clock, **self.limits, **options)

    def expect(self, step: Step, now_ms: int) -> Any:
        """Run a step on the model; return what the store must answer."""
        value = attempt(lambda: step.on_model(self.model, now_ms))
        return self.shown(step, value if isinstance(value, Failed) else step.from_model(value))

    def call(self, step: Step, commands: Any) -> Any:
        return self.shown(step, outcome(lambda: step.from_store(step.on_store(commands))))

    def run_step(self, step: Step) -> None:
        self.compare(step, self.opened)

    def compare(self, step: Step, commands: Store | Transaction) -> None:
        """Do so for commands of a store or a transaction; where one is refused, no row changes."""
        expected = self.expect(step, self.clock.ms)
        with unchanged(commands) if isinstance(expected, Failed) else nullcontext():
            assert self.call(step, commands) == expected

    @rule(data=st.data(), commits=st.booleans())
    def transaction(self, data: st.DataObject, commits: bool) -> None:
        """Commands see those before them; when the block raises, none of them happened."""
        before = self.model.copy()

        class Stop(Exception):
            pass

        def run() -> None:
            with self.opened.transaction() as txn:
                for _ in range(data.draw(st.integers(1, 6), "number of steps")):
                    self.compare(data.draw(self.any_step()), txn)
                if not commits:
                    raise Stop

        if commits:
            run()
        else:
            with pytest.raises(Stop):
                run()
            self.model = before

    @rule(data=st.data())
    def pipeline(self, data: st.DataObject) -> None:
        """A command that fails leaves the others alone."""
        queue = self.opened.pipeline()
        steps: list[Step] = []
        expected: list[Any] = []
        for _ in range(data.draw(st.integers(1, 6), "number of steps")):
            step = data.draw(self.any_step())
            queued = outcome(lambda step=step: step.on_store(queue))  # type: ignore[misc]
            answer = self.expect(step, self.clock.ms)
            if queued is not queue:  # an argument that is wrong by itself is not queued
                assert queued == answer
                continue
            steps.append(step)
            expected.append(answer)
        refused = all(isinstance(answer, Failed) for answer in expected)
        with unchanged(self.opened) if refused else nullcontext():
            answers = queue.execute(raise_on_error=False)
        assert len(answers) == len(steps)
        shown = [
            Failed(answer.redis_error)
            if isinstance(answer, CommandError)
            else self.shown(step, step.from_store(answer))
            for step, answer in zip(steps, answers, strict=True)
        ]
        assert shown == expected

    @rule(data=st.data(), what=st.sampled_from(["take", "read", "drop"]))
    def snapshot(self, data: st.DataObject, what: str) -> None:
        """What was written since a snapshot was taken does not show in it."""
        if what == "drop":
            self.drop_snapshots()
        elif what == "take" and len(self.snapshots) < 3:
            self.snapshots.append((self.opened.snapshot(), self.model.copy()))
        present = self.model
        for snapshot, then in self.snapshots:
            self.model = then
            for step in (Keys(), data.draw(self.any_look())):
                expected = self.expect(step, self.clock.ms)
                assert self.call(step, snapshot) == expected
        self.model = present

    def drop_snapshots(self) -> None:
        for snapshot, _ in self.snapshots:
            snapshot.close()
        self.snapshots = []

    @rule(sync=SYNC_MODES)
    def reopen(self, sync: Sync) -> None:
        self.drop_snapshots()
        self.opened.close()
        self.sync = sync
        self.open()

    def teardown(self) -> None:
        try:
            if self.store is not None:
                self.compare_all()
                self.drop_snapshots()
                self.store.close()
                self.open(readonly=True)
                self.compare_all()
                self.store.close()
                assert_sound(self.path)
        finally:
            self.drop_snapshots()
            if self.store is not None:
                self.store.close()
            shutil.rmtree(self.path)
