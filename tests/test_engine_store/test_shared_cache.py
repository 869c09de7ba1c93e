"""Two processes take turns on a store: each finds what the other has done, as if it were alone.

What a process keeps decoded between transactions must show in nothing but speed. So the same
calls are made on two stores, one of them shared with a second process that makes half of them, and
every result and the whole state are compared.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from conftest import assert_sound
from inside import context_of
from patience import PATIENCE_S, line_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Transaction
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError
from tiers import slow_but

NOW_MS = 1_718_004_800_000
KEYS, GROUPS, CONSUMERS = ("s", "t"), ("g", "h"), ("a", "b")
Call = tuple[str, list[Any], dict[str, Any]]

_OTHER = """
import json, sys
sys.path.insert(0, sys.argv[2])
from test_engine_store.test_shared_cache import open_one, run
store = open_one(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(run(store, json.loads(line))), flush=True)
store.close()
"""


def open_one(path: str | Path) -> Store[Any]:
    """Open a store whose nodes hold few entries, where time stands still."""
    return Store(
        path,
        sync="none",
        clock=ManualClock(NOW_MS),
        node_max_entries=4,
        decode_responses=True,
    )


def run(store: Store[Any] | Transaction[Any], call: Call) -> Any:
    """Make a call; return its result, or its error, as JSON has it."""
    name, args, options = call
    try:
        result = getattr(store, name)(*args, **options)
    except CommandError as error:
        result = str(error)
    return json.loads(json.dumps(result))


class Other:
    """A second process with the store open."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(path), str(Path(__file__).resolve().parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return line_of(self._process).strip()

    def run(self, call: Call) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[tuple[Store[Any], Other]]:
    """A store that two processes have open."""
    with open_one(tmp_path / "shared") as store:
        other = Other(tmp_path / "shared")
        try:
            yield store, other
        finally:
            other.close()


def calls(rng: random.Random) -> Iterator[Call]:
    """Yield calls at random, appends and deliveries mostly."""
    top = 0
    while True:
        key, group, consumer = rng.choice(KEYS), rng.choice(GROUPS), rng.choice(CONSUMERS)
        some = [f"{rng.randint(max(1, top - 12), top + 1)}-0" for _ in range(rng.choice((1, 3)))]
        kind = rng.random()
        if kind < 0.3:
            top += 1
            yield "xadd", [key, {"n": top, "pad": "x" * (top % 9)}], {"id": f"{top}-0"}
        elif kind < 0.55:
            count = rng.choice((1, 1, 2, 7))
            yield "xreadgroup", [group, consumer, {key: ">"}], {"count": count}
        elif kind < 0.65:
            yield "xack", [key, group, *some], {}
        elif kind < 0.7:
            yield "xreadgroup", [group, consumer, {key: "0"}], {"count": 3}
        elif kind < 0.75:
            yield "xdel", [key, *some], {}
        elif kind < 0.78:
            yield "xtrim", [key], {"maxlen": rng.randint(0, 12), "approximate": False}
        elif kind < 0.81:
            yield "xclaim", [key, group, consumer, 0, some], {"force": rng.random() < 0.3}
        elif kind < 0.83:
            yield "xautoclaim", [key, group, consumer, 0], {"count": 2}
        elif kind < 0.85:
            yield "xnack", [key, group, "FAIL", *some], {}
        elif kind < 0.93:
            where = rng.choice((0, "$", some[0]))
            yield "xgroup_create", [key, group], {"id": where, "mkstream": True}
        elif kind < 0.94:
            yield "xgroup_setid", [key, group, some[0]], {}
        elif kind < 0.95:
            yield "xgroup_delconsumer", [key, group, consumer], {}
        elif kind < 0.96:
            yield "xgroup_destroy", [key, group], {}
        elif kind < 0.97:
            yield "delete", [key], {}
        elif kind < 0.98:
            yield "renamenx", [key, "u"], {}
        elif kind < 0.99:
            yield "rename", ["u", key], {}
        else:
            yield "xackdel", [key, group, *some], {"ref_policy": rng.choice(("KEEPREF", "ACKED"))}


def state(store: Store[Any]) -> list[Any]:
    """Return everything there is."""
    return [
        (key, run(store, ("xinfo_stream", [key], {"full": True, "count": 0})))
        for key in store.keys()  # noqa: SIM118  # not those of a dict
    ]


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
def test_whoever_makes_a_call_the_result_is_the_same(
    seed: int, context: tuple[Store[Any], Other], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    store, other = context
    with open_one(tmp_path / "alone") as alone:
        for number, call in zip(range(700), calls(rng), strict=False):
            expected = run(alone, call)
            found = other.run(call) if rng.random() < 0.5 else run(store, call)
            assert found == expected, f"call {number}: {call}"
            if number % 20 == 0:
                assert state(store) == state(alone)
        assert state(store) == state(alone)


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
def test_calls_of_a_transaction_find_what_those_before_did(seed: int, tmp_path: Path) -> None:
    """Groups are written at its end, or when a call walks over their rows."""
    rng = random.Random(seed)
    made = calls(rng)
    with open_one(tmp_path / "alone") as alone, open_one(tmp_path / "together") as together:
        for _ in range(100):
            some = list(islice(made, rng.randint(1, 12)))
            expected = [run(alone, call) for call in some]
            with together.transaction() as txn:
                assert [run(txn, call) for call in some] == expected
            assert state(together) == state(alone)
    assert_sound(tmp_path / "together")


def test_decoded_streams_take_a_bounded_part_of_memory(tmp_path: Path) -> None:
    with Store(tmp_path / "store", sync="none", node_max_bytes=1 << 20) as store:
        names = [b"%d" % number for number in range(600)]
        for name in names:
            store.xadd(name, {"value": "x" * 100_000})
        context = context_of(store)
        cache = context.cache
        assert 100 < len(cache) < 400
        assert context.cached_bytes == sum(stream.cached_size for stream in cache.values())
        assert names[0] not in cache
        assert names[-1] in cache
        for name in names[:3]:
            store.xadd(name, {"value": "y"})
            assert store.xlen(name) == 2
        store.rename(names[0], "renamed")
        store.delete(names[1])
        assert list(context.cached_names.values()) == list(cache)
        assert context.cached_bytes == sum(stream.cached_size for stream in cache.values())


def test_groups_are_counted_anew_when_they_come_or_go(
    context: tuple[Store[Any], Other],
) -> None:
    store, other = context
    store.xgroup_create("s", "mine", mkstream=True)
    assert store.xinfo_stream("s")["groups"] == 1
    other.run(("xgroup_create", ["s", "theirs"], {}))
    assert store.xinfo_stream("s")["groups"] == 2
    with store.snapshot() as before:
        store.xgroup_create("s", "new")
        assert before.xinfo_stream("s")["groups"] == 2
        assert store.xinfo_stream("s")["groups"] == 3
    with pytest.raises(ZeroDivisionError), store.transaction() as txn:
        txn.xgroup_destroy("s", "new")
        assert txn.xinfo_stream("s")["groups"] == 2
        raise ZeroDivisionError
    assert store.xinfo_stream("s")["groups"] == 3
    other.run(("xgroup_destroy", ["s", "mine"], {}))
    assert store.xinfo_stream("s")["groups"] == 2


def test_an_aborted_transaction_between_two_processes(
    context: tuple[Store[Any], Other],
) -> None:
    store, other = context
    store.xgroup_create("s", "g", id=0, mkstream=True)
    other.run(("xadd", ["s", {"n": 1}], {"id": "1-0"}))
    transaction = store.transaction()
    with pytest.raises(ZeroDivisionError), transaction as txn:
        txn.xreadgroup("g", "a", {"s": ">"})
        txn.xadd("s", {"n": 2}, id="2-0")
        raise ZeroDivisionError
    assert other.run(("xadd", ["s", {"n": 9}], {"id": "2-0"})) == "2-0"
    (found,) = store.xreadgroup("g", "a", {"s": ">"})
    assert [(entry.id, entry.fields["n"]) for entry in found[1]] == [("1-0", "1"), ("2-0", "9")]
