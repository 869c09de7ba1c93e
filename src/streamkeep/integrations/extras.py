"""The error of a room whose peer is not installed."""

from __future__ import annotations

from streamkeep.supported import install_hint


def missing(extra: str, error: ImportError) -> ImportError:
    """Return the error to raise where an import of a room's peer failed; it names the install.

    >>> try:
    ...     import celery
    ... except ImportError as error:
    ...     raise missing("celery", error) from error
    """
    text = (
        f"streamkeep.integrations.{extra} needs the extra `{extra}` ({error}); "
        f"next: {install_hint(extra)}"
    )
    return ImportError(text, name=error.name, path=error.path)
