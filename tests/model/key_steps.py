"""Commands on keys as steps; see `steps`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from model.steps import Step
from model.streams import ModelStore


@dataclass(frozen=True)
class Delete(Step):
    """DEL."""

    keys: tuple[bytes, ...]

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.delete(*self.keys)

    def on_store(self, commands: Any) -> Any:
        return commands.delete(*self.keys)


@dataclass(frozen=True)
class Rename(Step):
    """RENAME, or RENAMENX."""

    source: bytes
    target: bytes
    keep_target: bool = False

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        if self.keep_target:
            return model.renamenx(self.source, self.target)
        return model.rename(self.source, self.target)

    def on_store(self, commands: Any) -> Any:
        if self.keep_target:
            return commands.renamenx(self.source, self.target)
        return commands.rename(self.source, self.target)


@dataclass(frozen=True)
class Keys(Step):
    """KEYS *, sorted: the order of a server is that of its hash table."""

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.keys()

    def on_store(self, commands: Any) -> Any:
        return commands.keys()


@dataclass(frozen=True)
class Exists(Step):
    """EXISTS."""

    keys: tuple[bytes, ...]

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.exists(*self.keys)

    def on_store(self, commands: Any) -> Any:
        return commands.exists(*self.keys)


@dataclass(frozen=True)
class Type(Step):
    """TYPE."""

    key: bytes

    def on_model(self, model: ModelStore, now_ms: int) -> Any:
        return model.type(self.key)

    def on_store(self, commands: Any) -> Any:
        return commands.type(self.key)
