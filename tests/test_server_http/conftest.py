"""Fixtures: an application with every right, and one that only reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")

from http_client import TOKEN, Client
from streamkeep import Store
from streamkeep.server.access import Access
from streamkeep.server.http.app import App, create_app


@pytest.fixture
def app(store: Store) -> App:
    """An application whose callers may write."""
    return create_app(store, Access(TOKEN), write=True)


@pytest.fixture
def client(app: App) -> Client:
    return Client(app)


@pytest.fixture
def client_of(store: Store) -> Callable[..., Client]:
    """A function that makes an application with a password, users and options, and calls it."""

    def make(
        headers: dict[str, str] | None = None,
        token: str | None = None,
        users: Sequence[str] = (),
        **options: Any,
    ) -> Client:
        return Client(create_app(store, Access(token, list(users)), **options), headers or {})

    return make
