"""A store for Celery, and an application on it.

Other tests here run without Celery, so the fixtures import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from celery import Celery


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    from streamkeep.integrations.celery import stores

    yield f"streamkeep:///{tmp_path}/s"
    stores.close_all()


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    from celery import Celery

    one = Celery("test", broker=url, backend=url, set_as_current=False)
    yield one
    one.close()
