"""Packages that only some formats need."""

from __future__ import annotations

from typing import Any

from streamkeep.format.core.errors import TransferError


def arrow() -> Any:
    """Return pyarrow with its Parquet module; raise TransferError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'streamkeep[parquet]'"
        raise TransferError("Parquet needs pyarrow", hint=hint) from None
    return pyarrow
