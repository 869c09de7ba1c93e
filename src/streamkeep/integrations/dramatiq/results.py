"""The results backend: results as values that expire. Callers sleep until a result is stored."""

from __future__ import annotations

import os
from typing import Any

from dramatiq.encoder import Encoder
from dramatiq.results.backend import DEFAULT_TIMEOUT, ResultBackend
from dramatiq.results.errors import ResultMissing, ResultTimeout

from streamkeep.engine.api.views import Snapshot, Sync
from streamkeep.integrations.values import OpenedStore, Values


class StreamkeepBackend(ResultBackend):
    """Results of dramatiq in a store, which may be that of the broker."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        sync: Sync | None = None,
    ) -> None:
        """Name a store; it is opened at the first use, in each process.

        Args:
            path: the directory of the store, or a URL `streamkeep:////path`.
            namespace: results of applications with different namespaces are apart.
            encoder: by default dramatiq's own, JSON.
            sync: when a result is durable; see `streamkeep.open`.
        """
        super().__init__(namespace=namespace, encoder=encoder)
        self._opened = OpenedStore(path, sync)
        self._values = Values(f"{namespace}:results")

    def close(self) -> None:
        """Close the store; a later use opens it again."""
        self._opened.close()

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """Return the result of a message.

        Args:
            block: sleep until there is one.
            timeout: milliseconds, 10 seconds by default.

        Raises:
            ResultMissing: there is none, and `block` is False.
            ResultTimeout: there was none in time.
        """
        key = self.build_message_key(message)
        wait_ms = DEFAULT_TIMEOUT if timeout is None else timeout

        def look(snapshot: Snapshot[Any]) -> list[bytes]:
            found = self._values.get(snapshot, key)
            return [] if found is None else [found]

        found = self._opened.use(lambda: self._opened.read(look))
        if not found and block and wait_ms > 0:
            bells = [self._values.bell(key)]
            found = self._opened.use(lambda: self._opened.read_when(look, bells, wait_ms))
        if not found:
            raise ResultTimeout(message) if block else ResultMissing(message)
        [data] = found
        return self.unwrap_result(self.encoder.decode(data))

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        data, opened = self.encoder.encode(result), self._opened
        opened.use(lambda: opened.apply(lambda txn: self._values.put(txn, message_key, data, ttl)))
