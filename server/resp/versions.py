"""The version of Redis whose commands the server has."""

from __future__ import annotations

from typing import Final

REDIS_VERSION: Final = "8.10.0"
