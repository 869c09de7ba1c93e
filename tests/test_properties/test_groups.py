"""Consumer groups: the engine against the model, random commands, the same answers and errors.

After every rule both show the same in XINFO STREAM FULL, in the end also in XINFO GROUPS and XINFO
CONSUMERS. The order of delivery, which only XREADGROUP CLAIM shows, is compared by claiming
everything in a transaction that is undone.

A list of pending entries is kept in three ways: in the row of the group, in one page, in several.
Single steps keep it short, so a rule fills it with more than two pages at once.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from hypothesis.strategies import SearchStrategy

from model import ZERO, ModelStore
from model.group_steps import XAck, XGroupCreate, XInfoConsumers, XInfoGroups, XPending, XReadGroup
from model.group_strategies import CONSUMERS, GroupSteps
from model.profile import configured
from model.steps import Step, XAdd, XInfoFull
from model.strategies import mostly
from stores import SYNC_MODES
from streamkeep.engine.api.views import Sync
from streamkeep.engine.tables import pel
from streamkeep.format.rows import nacks
from test_properties.store_machine import THOROUGH, StoreMachine
from test_properties.test_stream import XAddMany

# What was appended at a time is forgotten after 100 seconds by IDMP; the clock stays below that.
BEGIN_MS = 50_000


class GroupMachine(StoreMachine):
    """All commands on groups, mixed with those on streams."""

    decode = False  # whether the store answers with text

    @initialize(sync=SYNC_MODES, max_entries=st.sampled_from([5, 5, 2, 100]))
    def begin(self, sync: Sync, max_entries: int) -> None:
        self.sync = sync
        self.clock.ms = BEGIN_MS
        self.limits = {"node_max_bytes": 4096, "node_max_entries": max_entries}
        self.model = ModelStore(4096, max_entries, rewrites=True)
        self.open()
        for number in range(8):
            self.run_step(XAdd(b"a", ((b"f", b"%d" % number),)))
        self.run_step(XGroupCreate(b"a", b"g", ZERO))
        self.run_step(XReadGroup(b"g", b"ann", ((b"a", ">"),), 5))

    def steps(self) -> GroupSteps:
        return GroupSteps(self.model, self.clock.ms)

    def any_step(self) -> SearchStrategy[Step]:
        """What transactions and pipelines are made of."""
        return self.steps().anything()

    def any_look(self) -> SearchStrategy[Step]:
        """What is asked of snapshots."""
        return self.steps().observations()

    def open(self, **options: Any) -> None:
        super().open(decode_responses=self.decode, **options)

    def expect(self, step: Step, now_ms: int) -> Any:
        answer = super().expect(step, now_ms)
        return decoded(answer) if self.decode else answer

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().appends()))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().removals()))

    @rule(data=st.data())
    def set_or_rename(self, data: st.DataObject) -> None:
        steps = self.steps()
        self.run_step(data.draw(mostly(steps.settings(), steps.keyspace())))

    @rule(data=st.data())
    def make_groups(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().groups_made()))

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().deliveries()))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().acknowledgements()))

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().claims()))

    @rule(data=st.data())
    def claim_any(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().sweeps()))

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        self.run_step(data.draw(self.steps().observations()))

    @rule(
        data=st.data(),
        consumer=CONSUMERS,
        count=st.sampled_from(
            [nacks.INLINE_NACKS, nacks.INLINE_NACKS + 1, nacks.PAGE_NACKS, 2 * nacks.PAGE_NACKS + 3]
        ),
    )
    def fill(self, data: st.DataObject, consumer: bytes, count: int) -> None:
        key, group = data.draw(self.steps().places())
        entries = tuple(((b"f", b"%d" % number),) for number in range(count))
        self.run_step(XAddMany(key, entries))
        self.run_step(XReadGroup(group, consumer, ((key, ">"),)))

    @rule(data=st.data(), every=st.integers(1, 5))
    def thin_out(self, data: st.DataObject, every: int) -> None:
        """Acknowledge what is pending here and there, or all of it."""
        key, group = data.draw(self.steps().places())
        found = self.steps().group(key, group)
        pending = sorted(found.pending)[::every] if found is not None else []
        if pending:
            self.run_step(XAck(key, group, tuple(pending)))

    @rule(ms=st.integers(0, 100), back=mostly(st.just(False), st.just(True)))
    def let_time_pass(self, ms: int, back: bool) -> None:
        """Time goes by; now and then the clock is set back."""
        self.clock.ms += -ms if back else ms

    @rule(sync=SYNC_MODES, text=st.booleans())
    def reopen(self, sync: Sync, text: bool = False) -> None:
        """The store comes back as it was, whether it then answers with bytes or with text."""
        self.decode = text
        super().reopen(sync)

    @invariant()
    def all_is_shown_alike(self) -> None:
        """Compare what XINFO STREAM FULL says of every stream, group and consumer."""
        for key in self.model.streams:
            self.run_step(XInfoFull(key, 0))

    @rule()
    def compare_orders(self) -> None:
        """Claim all pending entries, in the order of delivery, and undo it."""
        before, now_ms = self.model.copy(), self.clock.ms
        self.clock.ms = 2 * BEGIN_MS  # however the clock was set, nothing is too young then
        with self.opened.transaction() as txn:
            for key, stream in self.model.streams.items():
                for group in stream.groups:
                    step = XReadGroup(group, b"ann", ((key, ">"),), claim=1)
                    expected = self.expect(step, self.clock.ms)
                    assert self.call(step, txn) == expected
            txn.abort()
        self.model, self.clock.ms = before, now_ms

    def compare_all(self) -> None:
        self.all_is_shown_alike()
        for key, stream in self.model.streams.items():
            self.run_step(XInfoGroups(key))
            for group in stream.groups:
                self.run_step(XInfoConsumers(key, group))
                self.run_step(XPending(key, group))

    def teardown(self) -> None:
        if self.store is not None:
            self.compare_orders()
        super().teardown()


def decoded(answer: Any) -> Any:
    """Return an answer with all bytes as text, as with decode_responses."""
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, dict):
        return {decoded(name): decoded(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return type(answer)(map(decoded, answer))
    return answer


TestGroups = GroupMachine.TestCase
TestGroups.settings = configured(12)


def test_pages_of_few_entries_split_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With pages this small, single steps make and empty them."""
    if not str(pel.__file__).endswith(".py"):
        pytest.skip("nothing patches compiled modules; the interpreted run does this")
    for name, count in (("INLINE", 2), ("PAGE", 4)):
        monkeypatch.setattr(nacks, f"{name}_NACKS", count)
        monkeypatch.setattr(pel, f"_{name}_SIZE", count * nacks.NACK_SIZE)
    run_state_machine_as_test(GroupMachine, settings=configured(25))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(THOROUGH))
def test_groups_of_the_engine_answer_as_the_model_thoroughly(part: int) -> None:
    run_state_machine_as_test(GroupMachine, settings=configured(40))
