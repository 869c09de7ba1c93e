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
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from conftest import assert_sound
from inside import begin_write, checkpoint_now, context_of, flush_now
from patience import PATIENCE_S, line_of
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Transaction
from streamkeep.engine.system.clock import ManualClock
from streamkeep.format.core.errors import CommandError
from tiers import slow_but

KEYS, GROUPS, CONSUMERS = ("s", "t"), ("g", "h"), ("a", "b")
Call = tuple[str, list[Any], dict[str, Any]]


def flush(store: Store[Any]) -> None:
    begin_write(store).abort()  # a process may flush while it has a pin
    flush_now(store)


# What shows in no result. It takes the place of a call.
MAINTENANCE: Final[dict[str, Callable[[Store[Any]], None]]] = {
    "flush": flush,
    "checkpoint": checkpoint_now,
    "forget": lambda store: context_of(store).forget(),
}

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


def open_one(path: str | Path, **options: Any) -> Store[Any]:
    """Open a store whose nodes hold few entries, where time stands still, before all IDs."""
    return Store(
        path,
        sync="none",
        clock=ManualClock(1),
        node_max_entries=4,
        decode_responses=True,
        **options,
    )


def run(store: Store[Any] | Transaction[Any], call: Call) -> Any:
    """Make a call; return its result, or its error, as JSON has it."""
    name, args, options = call
    if name in MAINTENANCE:
        if isinstance(store, Store):  # in a transaction, nothing
            MAINTENANCE[name](store)
        return None
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
        return line_of(self._process).strip()

    def run(self, call: Call) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return json.loads(self._read())

    def close(self) -> None:
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
        if rng.random() < 0.05:
            yield rng.choice([*MAINTENANCE]), [], {}
        elif kind < 0.02:
            yield "xadd", [key, {"once": rng.randrange(9)}], {"idmpauto": rng.choice("pq")}
        elif kind < 0.3:
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
        elif kind < 0.972:
            yield "xsetid", [key, f"{top}-9"], {}
        elif kind < 0.98:
            yield "renamenx", [key, "u"], {}
        elif kind < 0.99:
            yield "rename", ["u", key], {}
        else:
            yield "xackdel", [key, group, *some], {"ref_policy": rng.choice(("KEEPREF", "ACKED"))}


LOOKS: Final[tuple[dict[str, Any], ...]] = ({}, {"full": True, "count": 0})


def state(store: Store[Any]) -> list[Any]:
    return [
        [key, *(run(store, ("xinfo_stream", [key], options)) for options in LOOKS)]
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
