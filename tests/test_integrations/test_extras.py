"""The error of a room whose extra is not installed."""

from __future__ import annotations

from streamkeep.integrations.extras import missing


def test_the_error_names_the_install() -> None:
    error = missing("celery", ModuleNotFoundError("No module named 'kombu'", name="kombu"))
    assert isinstance(error, ImportError)
    assert error.name == "kombu"
    assert str(error) == (
        "streamkeep.integrations.celery needs the extra `celery` (No module named 'kombu'); "
        "next: pip install '.[celery]' in a clone of Streamkeep"
    )
