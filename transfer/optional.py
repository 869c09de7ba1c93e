"""Packages that only some formats need."""

from __future__ import annotations

from typing import Any

from streamkeep.format.core.errors import TransferError
from streamkeep.supported import install_hint


def arrow() -> Any:
    """Return pyarrow with its Parquet module; raise TransferError where it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise TransferError("Parquet needs pyarrow", hint=install_hint("parquet")) from None
    return pyarrow
