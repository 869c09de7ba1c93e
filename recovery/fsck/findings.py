"""Findings: each is one problem at one place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """The severity of a finding."""

    NOTE = 0  # for information; nothing is damaged
    WARNING = 1  # derived data is wrong; repair rebuilds it without loss
    ERROR = 2  # primary data is damaged


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem at one place. `code` is permanent; the catalogue explains it."""

    code: str
    severity: Severity
    where: str
    problem: str

    def __str__(self) -> str:
        return f"{self.severity.name.lower()} {self.code}: {self.where}: {self.problem}"

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            "type": "finding",
            "code": self.code,
            "severity": self.severity.name.lower(),
            "where": self.where,
            "problem": self.problem,
        }


def quoted(name: bytes) -> str:
    """Return a name as findings show it: as quoted text if it is printable UTF-8, else as bytes."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return repr(name)
    return repr(text) if text.isprintable() else repr(name)
