"""The two tiers: `make test` runs the daily tests, `make test-all` runs everything.

A test belongs to the daily tier unless it is marked `slow`. STREAMKEEP_TESTS=all, which
`make test-all` sets, also has the daily tests repeat what they do more often.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import pytest

ALL: Final = os.environ.get("STREAMKEEP_TESTS") == "all"

T = TypeVar("T")


def daily_or_all(daily: T, everything: T) -> T:
    """Return the first value in the daily tier, the second in `make test-all`."""
    return everything if ALL else daily


def first_of_each(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Mark cases `slow`, except the first of each kind, which is the first item of a case."""
    known: set[Any] = set()
    marked = []
    for case in cases:
        marks = [pytest.mark.slow] if case[0] in known else []
        known.add(case[0])
        marked.append(pytest.param(*case, marks=marks))
    return marked


def slow_but(cases: Iterable[Any], *daily: Any) -> list[Any]:
    """Mark cases `slow`, except some. A case that is a tuple is a value for each name."""
    cases = list(cases)
    missing = [one for one in daily if one not in cases]
    assert not missing, missing
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[] if case in daily else [pytest.mark.slow],
        )
        for case in cases
    ]


def pairs_of(names: Iterable[Any], kinds: Iterable[Any]) -> list[Any]:
    """Return all pairs of two lists, most of them marked `slow`.

    The daily tier has one pair for each name, and each kind if there are enough names.
    """
    kinds = list(kinds)
    return [
        pytest.param(name, kind, marks=[] if number % len(kinds) == place else [pytest.mark.slow])
        for number, name in enumerate(names)
        for place, kind in enumerate(kinds)
    ]
