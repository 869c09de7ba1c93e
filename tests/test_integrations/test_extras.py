"""The error of a room whose extra is not installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from patience import PATIENCE_S
from streamkeep.integrations.extras import missing

ROOMS: Final = {
    "asgi": "starlette",
    "celery": "celery",
    "django": "django",
    "dramatiq": "dramatiq",
    "prometheus": "prometheus_client",
    "sqlalchemy": "sqlalchemy",
    "taskiq": "taskiq",
}
# Imports everything that each room offers, where none of their peers is installed.
BARE: Final = """
import sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
from importlib import import_module
for room in ("asgi", "celery", "django", "dramatiq", "prometheus", "sqlalchemy", "taskiq"):
    try:
        found = import_module(f"streamkeep.integrations.{room}")
        for name in found.__all__:
            getattr(found, name)
    except ImportError as error:
        print(error)
"""


def test_the_error_names_the_install() -> None:
    error = missing("celery", ModuleNotFoundError("No module named 'kombu'", name="kombu"))
    assert isinstance(error, ImportError)
    assert error.name == "kombu"
    assert str(error) == (
        "streamkeep.integrations.celery needs the extra `celery` (No module named 'kombu'); "
        "next: pip install 'streamkeep[celery]'"
    )


def test_each_room_names_its_extra_where_its_peer_is_missing() -> None:
    command = [sys.executable, "-c", BARE, *ROOMS.values(), "kombu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    told = done.stdout.splitlines()
    assert [line.split()[0] for line in told] == [f"streamkeep.integrations.{one}" for one in ROOMS]
    for line, room in zip(told, ROOMS, strict=True):
        assert f"needs the extra `{room}`" in line
        assert f"next: pip install 'streamkeep[{room}]'" in line
