"""The version of the store format, which a store records in `meta`."""

from __future__ import annotations

from typing import Final

STORE_VERSION: Final = 1
