"""`benchmarks/`: that ages, rates and sizes are what the tables call them; small, and no speed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `benchmarks` where this process and its children import it from."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(ROOT)


def test_the_age_of_a_share_is_that_of_the_last_of_it() -> None:
    load: Any = import_module("benchmarks.load")
    result = load.Result(1.0, 0.0, [(1_000_000, 98), (2_000_000, 1), (50_000_000, 1)])
    assert [result.age_ms(share) for share in (0.5, 0.98, 0.99, 0.999, 1)] == [1, 1, 2, 50, 50]
    assert result.within(2_000_000) == 0.99


def test_entries_that_wait_for_consumers_are_as_old_as_they_were_due(tmp_path: Path) -> None:
    load: Any = import_module("benchmarks.load")
    waits = load.Load(
        400, 0.5, producers=2, consumers=2, streams=3, size=10, batch=7, warm=0, late=0.5
    )
    with load.running("store", "none", tmp_path) as where:
        result = load.run_load(where, waits)
        with load.client_of(where) as store:
            assert sum(store.xlen(str(stream)) for stream in range(3)) == 200
            assert all(store.xpending(str(stream), "g")["pending"] == 0 for stream in range(3))
    assert result.counted == 200
    assert result.age_ms(1) >= 490  # rounded down, by 1 % at most


@pytest.mark.parametrize("limit", [150, 3_000, 40_000])
def test_the_highest_rate_is_the_last_that_was_kept(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    rates: Any = import_module("benchmarks.rates")
    load: Any = import_module("benchmarks.load")

    def measure(system: str, sync: str, one: Any) -> Any:
        return load.Result(one.rate, 0.0, [(1_000_000 if one.rate <= limit else 10**9, 1)])

    monkeypatch.setattr(rates, "measure", measure)
    rate, result = rates.highest("store", "commit", load.Load(4_000, 5))
    assert 0.9 * limit <= rate <= limit
    assert result.rate == rate


def test_all_tests_of_redis_have_data_for_their_ranges_at_every_size() -> None:
    rulers: Any = import_module("benchmarks.rulers")
    for line in rulers._TESTS.strip().splitlines():
        whole, part = (rulers._parse(line, part_of) for part_of in (1, 50))
        assert whole.title == part.title
        assert [one.words for one in whole.commands] == [one.words for one in part.commands]
        for test in (whole, part):
            assert hasattr(rulers._Data, test.data[0])
            if test.data[0] in ("streams", "groups") and test.keys > 1:
                assert int(test.data[1]) >= test.keys or test.keys == test.entries


@pytest.mark.parametrize("kind", ["entries", "streams", "groups", "pending"])
def test_each_call_that_grows_can_be_made_at_two_sizes(tmp_path: Path, kind: str) -> None:
    growth: Any = import_module("benchmarks.growth")
    grown = growth._GROWN[kind](tmp_path / "store")
    for size in (20, 40):
        grown.grow(size)
        for call in grown.calls().values():
            call()
    grown.store.close()
