"""Which cases `make test` runs; `make test-all` runs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_of_each(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Mark cases `slow` but for the first of each kind, which is the first item of a case."""
    known: set[Any] = set()
    marked = []
    for case in cases:
        marks = [pytest.mark.slow] if case[0] in known else []
        known.add(case[0])
        marked.append(pytest.param(*case, marks=marks))
    return marked


def slow_but(cases: Iterable[Any], *fast: Any) -> list[Any]:
    """Mark cases `slow` but for some."""
    cases = list(cases)
    missing = set(fast).difference(cases)
    assert not missing, missing
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]
