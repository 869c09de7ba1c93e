"""A command that breaks a rule changes nothing, whatever it shares a commit with.

Group commit, pipelines and transactions commit what a refused command has done so far. So random
commands with hostile arguments run in each of them, and where one is refused every table of the
store must be, byte for byte, what it was. After every command, refused or not, what memory keeps of
streams and groups must be what is stored: a change that nobody noted would be lost, or come later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamkeep
from conftest import NOW_MS, assert_sound
from inside import context_of
from model.profile import configured
from refused import assert_cached_is_stored, rows_of, unchanged
from streamkeep.engine.api.store import Store
from streamkeep.engine.system.clock import ManualClock

MOST: Final = "18446744073709551615-18446744073709551615"
HOW: Final = ("store", "pipeline", "transaction", "undone", "undone", "undone")

Call = Callable[[Any], Any]
Step = tuple[str, str, tuple[Any, ...], dict[str, Any]]  # how, method, arguments


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


KEYS = one_of("s", "s", "s", "full", "none", "")
GROUPS = one_of("g", "g", "h", "", "no group")
CONSUMERS = one_of("c", "d", "", "new")
IDS = one_of("1-1", "2-0", "3-1", "0-0", "7-7", MOST, f"{NOW_MS}-0", "50")
HOSTILE = one_of("1-1", "2-0", "0", MOST, "x", "-", "+", "$", ">", "(1-1", "", "1-1-1", "-1", "*")
COUNTS = one_of(None, 1, 2, 100, 0, -1, 1 << 62, 1 << 64)
POLICIES = one_of("KEEPREF", "DELREF", "ACKED", "ALL")
SMALL = one_of(None, 0, 1, 3, -1, 1 << 70)
TEXTS = st.lists(st.one_of(IDS, HOSTILE), min_size=0, max_size=3)


def call(method: str, *args: Any, **named: Any) -> st.SearchStrategy[Step]:
    """Return steps with this method, and arguments drawn from these strategies."""
    return st.tuples(
        st.sampled_from(HOW),
        st.just(method),
        st.tuples(*args),
        st.fixed_dictionaries({}, optional=named),
    )


def spread(method: str, *args: Any) -> st.SearchStrategy[Step]:
    """As `call`; the last strategy draws a list of arguments."""
    return st.tuples(
        st.sampled_from(HOW),
        st.just(method),
        st.tuples(*args).map(lambda drawn: (*drawn[:-1], *drawn[-1])),
        st.just({}),
    )


REMEMBERED = one_of(("p", "1"), ("p", "9"), ("q", "1"), ("", "1"), ("p", ""))
FIELDS = one_of({"f": "v"}, {"f": "v", "g": b"\xff"}, {"big": b"x" * 600}, {})
STEPS = st.one_of(
    call(
        "xadd",
        KEYS,
        FIELDS,
        id=one_of("*", "*", "1-1", "7-*", MOST, "0-0", "x", "18446744073709551615-*"),
        maxlen=SMALL,
        minid=one_of(None, "2-0", "x"),
        approximate=st.booleans(),
        nomkstream=st.booleans(),
        limit=SMALL,
        ref_policy=POLICIES,
    ),
    call("xadd", KEYS, FIELDS, idmp=REMEMBERED),
    call("xadd", KEYS, FIELDS, idmp=REMEMBERED, maxlen=SMALL),
    call("xadd", KEYS, FIELDS, idmpauto=one_of("p", "q", "")),
    call(
        "xadd_many",
        KEYS,
        st.lists(FIELDS, min_size=1, max_size=3),
        ids=st.lists(one_of("*", "7-*", "8-1", "9-1", MOST, "0-0"), min_size=1, max_size=3),
    ),
    spread("xdel", KEYS, TEXTS),
    call("xtrim", KEYS, maxlen=SMALL, minid=one_of(None, "2-0"), limit=SMALL, ref_policy=POLICIES),
    call("xtrim", KEYS, maxlen=SMALL, approximate=st.booleans(), ref_policy=POLICIES),
    call("xsetid", KEYS, st.one_of(IDS, HOSTILE), entries_added=SMALL, max_deleted_id=IDS),
    call("xgroup_create", KEYS, GROUPS, HOSTILE, mkstream=st.booleans(), entries_read=SMALL),
    call("xgroup_setid", KEYS, GROUPS, HOSTILE, entries_read=SMALL),
    call("xgroup_destroy", KEYS, one_of("h", "no group")),
    call("xgroup_createconsumer", KEYS, GROUPS, CONSUMERS),
    call("xgroup_delconsumer", KEYS, GROUPS, CONSUMERS),
    call(
        "xreadgroup",
        GROUPS,
        CONSUMERS,
        st.dictionaries(KEYS, st.one_of(st.just(">"), st.just("0"), HOSTILE), max_size=3),
        count=COUNTS,
        noack=st.booleans(),
        claim_min_idle_time=SMALL,
        max_count=COUNTS,
        max_size=COUNTS,
    ),
    spread("xack", KEYS, GROUPS, TEXTS),
    spread("xackdel", KEYS, GROUPS, TEXTS),
    spread("xdelex", KEYS, TEXTS),
    st.tuples(
        st.sampled_from(HOW),
        st.just("xnack"),
        st.tuples(KEYS, GROUPS, one_of("SILENT", "FAIL", "FATAL", "x"), TEXTS).map(
            lambda drawn: (*drawn[:3], *drawn[3])
        ),
        st.fixed_dictionaries({}, optional={"retrycount": SMALL, "force": st.booleans()}),
    ),
    call(
        "xclaim",
        KEYS,
        GROUPS,
        CONSUMERS,
        SMALL,
        TEXTS,
        idle=SMALL,
        time=SMALL,
        retrycount=SMALL,
        force=st.booleans(),
        justid=st.booleans(),
        last_id=st.one_of(IDS, HOSTILE),
    ),
    call("xautoclaim", KEYS, GROUPS, CONSUMERS, SMALL, HOSTILE, count=COUNTS, justid=st.booleans()),
    call("xcfgset", KEYS, idmp_duration=one_of(1, 100, 0, 86_401), idmp_maxsize=one_of(1, 2, 0)),
    call("xidmprecord", KEYS, one_of("p", ""), one_of("1", "9", ""), IDS),
    call("rename", KEYS, one_of("s", "t", "none")),
    call("renamenx", KEYS, one_of("s", "t")),
    spread("delete", st.lists(one_of("t", "none"), max_size=2)),
    call(
        "restore", KEYS, one_of(0, 1), one_of(b"", b"dump", b"dump, damaged"), replace=st.booleans()
    ),
    call("trim_range", KEYS, HOSTILE, HOSTILE),
    call(
        "set_retention",
        one_of("s", "full"),
        maxlen=SMALL,
        max_bytes=one_of(-1, 4096, "x"),
        keep_unacknowledged=one_of(True, False, "x"),
        keep_max_bytes=one_of(-1, 1000, 5000),
        approximate=st.booleans(),
        when_full=one_of("refuse", "trim", "x"),
    ),
    call("pass_time", one_of(1, 1_000, 200_000)),
)


class Player:
    """A store with some streams, and what runs a step on it."""

    def __init__(self, path: Path, exhausted: bool, late: bool) -> None:
        self.clock = ManualClock(NOW_MS)
        self.store: Store[Any] = Store(path, clock=self.clock, node_max_entries=3)
        store = self.store
        for number in range(1, 9):
            store.xadd("s", {"f": number}, id=f"{number}-1")
        store.xgroup_create("s", "g", 0)
        store.xgroup_create("s", "h", "2-1")
        store.xreadgroup("g", "c", {"s": ">"}, count=4)
        store.xgroup_create("full", "g", 0, mkstream=True)
        store.set_retention(
            "full", maxlen=3, keep_unacknowledged=True, keep_max_bytes=1500, when_full="refuse"
        )
        for number in range(1, 4):
            store.xadd("s", {"f": "v"}, idmp=("p", f"{number}"))
        for _ in range(6):
            refusal(lambda on: on.xadd("full", {"big": b"x" * 300}), store)
        # The first entry may go, which makes no room: others of its node may not.
        store.xreadgroup("g", "c", {"full": ">"}, count=2)
        store.xack("full", "g", f"{NOW_MS}-0")
        self.dump: bytes = store.dump("s", server="8.8") or b""
        if exhausted:
            for name in ("s", "full"):
                store.xsetid(name, MOST)
        if late:
            self.clock.ms += 200_000

    def run(self, step: Step) -> None:
        how, method, args, named = step
        if method == "pass_time":
            self.clock.ms += args[0]
            return
        if method == "restore":
            body = args[2]
            if body:
                at = len(self.dump) // 2
                damaged = self.dump[:at] + bytes([self.dump[at] ^ 1]) + self.dump[at + 1 :]
                args = (*args[:2], damaged if b"," in body else self.dump)
        try:
            self._run(how, lambda on: getattr(on, method)(*args, **named))
        finally:
            with self.store.snapshot() as snapshot:
                assert_cached_is_stored(snapshot.txn, self.store)

    def _run(self, how: str, command: Call) -> None:
        store = self.store
        if how in ("transaction", "undone"):
            with store.transaction() as txn:
                txn.xadd("beside", {"f": "v"})
                before = rows_of(txn)
                error = refusal(command, txn)
                assert error is None or rows_of(txn) == before, repr(error)
                if how == "undone":
                    txn.abort()
            return
        store._collect_garbage()  # of earlier commands: a pipeline does that in passing
        before = rows_of(store)
        if how == "store":
            error = refusal(command, store)
        else:
            pipeline = store.pipeline()
            error = refusal(command, pipeline)
            if error is None:
                (result,) = pipeline.execute(raise_on_error=False)
                error = result if isinstance(result, Exception) else None
        assert error is None or rows_of(store) == before, repr(error)


def refusal(command: Call, on: Any) -> Exception | None:
    """Run a command; return the error if it was refused."""
    try:
        command(on)
    except (streamkeep.CommandError, streamkeep.ArgumentError) as error:
        return error
    return None


def in_all_ways(method: str, *args: Any, **named: Any) -> list[Step]:
    return [(how, method, args, named) for how in HOW]


@configured(60)
@example(in_all_ways("xadd", "s", {"f": "v"}, idmp=("p", "9")), True, True)
@example(in_all_ways("xadd", "full", {"f": "v"}), False, False)
@example(in_all_ways("xadd", "full", {"f": "v"}, id="1-1"), False, False)
@example(in_all_ways("xadd_many", "full", [{"f": "v"}]), False, False)
@example(in_all_ways("restore", "s", 0, b"dump, damaged", replace=True), False, False)
@given(st.lists(STEPS, min_size=25, max_size=25), st.booleans(), st.booleans())
def test_a_refused_command_changes_no_byte(steps: list[Step], exhausted: bool, late: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        player = Player(Path(folder) / "store", exhausted, late)
        try:
            for step in steps:
                player.run(step)
        finally:
            player.store.close()
        assert_sound(Path(folder) / "store")


def test_a_change_by_a_refused_command_is_found(store: Store[bytes]) -> None:
    """In the rows, in a transaction, and in what is kept decoded."""
    store.xadd("s", {"f": "v"})
    with unchanged(store), pytest.raises(streamkeep.CommandError):
        store.xadd("s", {"f": "v"}, id="1-1")
    with pytest.raises(AssertionError), unchanged(store):
        store.xadd("s", {"f": "v"})
    with store.transaction() as txn, pytest.raises(AssertionError), unchanged(txn):
        txn.xadd("s", {"f": "v"})
    store.xadd("s", {"f": "v"})
    with pytest.raises(AssertionError), unchanged(store):
        context_of(store).cache[b"s"].record.length += 1
    context_of(store).forget()
