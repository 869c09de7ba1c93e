"""A function that fails for some calls, as a store that is full or gone for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def failing(errors: Iterable[Exception], work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function, or a method, that first raises these errors, and then does its work."""
    left = iter(errors)

    def call(*args: Any, **options: Any) -> Any:
        for error in left:
            raise error
        return work(*args, **options)

    return call
