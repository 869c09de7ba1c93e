"""A store as a container of keys: `key in store`, `len(store)`, `for key in store`."""

from __future__ import annotations

from collections.abc import Iterator

from streamkeep.engine.api.command_base import read
from streamkeep.engine.api.key_commands import KeyCommands
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.format.core.entry import Text
from streamkeep.format.core.keys import KEYS


class KeyContainer(KeyCommands[Text]):
    """The keys of a store; a base of the classes whose commands return their results."""

    def __contains__(self, name: object) -> bool:
        """Return whether a stream has this key."""
        return self.exists(name) == 1  # type: ignore[arg-type]  # it refuses what is not a key

    def __iter__(self) -> Iterator[Text]:
        """Iterate over the keys, ascending, on one snapshot."""
        return self.scan_iter()

    def __len__(self) -> int:
        """Return the number of streams."""
        return self._run(read(_count, ()))

    def __bool__(self) -> bool:
        """A store without streams is true, too."""
        return True


def _count(txn: Txn) -> int:
    return txn.rows(KEYS)
