"""Times to live: keys that end at their deadline.

The deadlines are rows of the store (`commands.strings`); a server keeps a copy in memory,
which it renews once a second, since other servers may change them; after a command that does, only
for the keys of that command. A key whose deadline has passed is deleted before the next command
that names it, and otherwise within about a second. A server that only reads hides it. While there
are no deadlines, commands run without any of this.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamkeep.commands.command_table import READS
from streamkeep.commands.strings import (
    DEADLINES,
    FOREVER,
    deadline_of,
    deadlines,
    expire,
    stored_string,
    string_deadlines,
)
from streamkeep.engine.commands import rows
from streamkeep.engine.commands.keys import name_of
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.format.core.errors import NoSuchKeyError, StreamkeepError
from streamkeep.format.core.keys import pack_number
from streamkeep.server.resp.turn import Step, Turn
from streamkeep.server.resp.turns import ClientState

if TYPE_CHECKING:
    from streamkeep.commands.command_table import Spec
    from streamkeep.engine.txn.read_txn import ReadTxn
    from streamkeep.engine.txn.txn import WriteTxn
    from streamkeep.server.resp.server import Server

_PERIOD_S: Final = 1.0
_LEAST_S: Final = 0.005

CHANGES: Final = frozenset(
    ("set", "eval", "evalsha", "expire", "pexpire", "expireat", "pexpireat", "persist", "restore",
     "copy", "rename", "renamenx", "del", "unlink", "flushdb", "flushall")
)  # fmt: skip


class Expiry:
    """The deadlines of the keys of one server.

    Attributes:
        by_name: the deadlines of the keys that have one.
        changed: the last turn may have changed rows, or has used the timer.
        watches: deadlines exist, so that each command must be checked.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._readonly = server.settings.readonly
        self._nobody = _Nobody(server.turns)
        self.by_name: dict[bytes, int] = {}
        # Streams only, which may have other names by now; what there was when all rows were read.
        self._by_number: dict[int, int] = {}
        self._touched: set[bytes] = set()  # keys whose rows may have changed
        self._whole_s = 0.0  # when to read all rows, in the time of the loop
        self.changed = True
        self.watches = False
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self.expired = 0
        self.renew()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    # --- the copy in memory -----------------------------------------------------------------

    def note(self, spec: Spec, words: list[bytes]) -> None:
        """Note that a command may have changed deadlines."""
        if spec.name in CHANGES:
            self.changed = self._server.turns.ends = True
            self._touched.update(spec.keys(words))
            if not spec.first:  # of all keys
                self._whole_s = 0.0
            if spec.name in ("set", "expire", "pexpire", "expireat", "pexpireat", "restore"):
                self._watch(True)

    def renew(self) -> None:
        """Read rows that may have changed, and set the timer for the next deadline."""
        self.changed = False
        server = self._server
        now_s = server.loop.time()
        load = self._load_touched
        if now_s + _LEAST_S >= self._whole_s:
            self._whole_s, load = now_s + _PERIOD_S, self._load
        try:
            server.environment.read(load)
        except StreamkeepError as error:
            server.log(f"deadlines cannot be read: {error}")
        self._touched.clear()
        self._watch(bool(self._by_number or self.by_name))
        if self._timer is not None:
            self._timer.cancel()
        now_ms = server.environment.context.clock.now_ms()
        ahead = self._deadlines()
        if self._readonly:
            server.turns.hidden = {name for name, when in self.by_name.items() if when <= now_ms}
            ahead = [when for when in ahead if when > now_ms]
        wait_s = self._whole_s - now_s
        if ahead and not server.turns.locked_out:
            wait_s = max(_LEAST_S, min(wait_s, (min(ahead) - now_ms) / 1000))
        self._timer = server.loop.call_later(wait_s, self._on_timer)

    def _watch(self, needed: bool) -> None:
        if self.watches != needed:
            self.watches = needed
            self._server.renew_plain()

    def _load(self, txn: ReadTxn) -> None:
        self.by_name = {name: when for name, when in string_deadlines(txn) if when != FOREVER}
        self._by_number = dict(deadlines(txn))
        for number, when in self._by_number.items():
            name = name_of(txn, number)
            if name is not None:
                self.by_name[name] = when

    def _load_touched(self, txn: ReadTxn) -> None:
        for name in self._touched:
            self.by_name.pop(name, None)
            when = deadline_of(txn, name)
            if when is None:  # perhaps there is a string that is over
                string = stored_string(txn, name)
                when = FOREVER if string is None else string[1]
            if when != FOREVER:
                self.by_name[name] = when

    def _deadlines(self) -> list[int]:
        return [*self.by_name.values(), *self._by_number.values()]

    def _on_timer(self) -> None:
        now_ms = self._server.environment.context.clock.now_ms()
        if not self._readonly and any(when <= now_ms for when in self._deadlines()):
            self._due = True
            self._server.schedule()
        else:
            self.renew()

    # --- in a turn --------------------------------------------------------------------------

    def is_over(self, name: bytes) -> bool:
        """Return whether a key is over but still there: to read only, or without the write lock."""
        when = self.by_name.get(name)
        if when is None or name in self._touched:
            return False
        return when <= self._server.environment.context.clock.now_ms()

    async def end(self, name: bytes) -> None:
        """Delete a key that is over, before a request over HTTP that names it.

        Raises:
            NoSuchKeyError: the store is open for reading only.
        """
        if self._readonly:
            raise NoSuchKeyError("no such key")
        write = self._server.environment.write
        deleted = await asyncio.to_thread(lambda: write(expire, name, frees=True))
        self.expired += deleted
        self._touched.add(name)
        self.renew()

    def run_due(self, turn: Turn) -> None:
        """Delete the keys whose time has come."""
        if not self._due:
            return
        self._due = False
        now_ms = self._server.environment.context.clock.now_ms()
        due = {name for name, when in self.by_name.items() if when <= now_ms}
        gone: list[int] = []
        for number, when in list(self._by_number.items()):
            if when <= now_ms:
                del self._by_number[number]
                name = name_of(turn.read_txn(), number)
                if name is None:
                    gone.append(number)
                else:
                    due.add(name)
        self.changed = True  # for the timer, also if the lock is taken
        try:
            self._expire(turn, list(due), gone)
        except StillTaken:
            self._server.lock_wait.put_off()

    def before(self, spec: Spec, words: list[bytes], turn: Turn) -> None:
        """Delete the keys of a command whose deadline has passed."""
        if self.by_name and spec.first and not self._readonly:
            now_ms = self._server.environment.context.clock.now_ms()
            names = [key for key in spec.keys(words) if self.by_name.get(key, now_ms + 1) <= now_ms]
            if names:
                try:
                    self._expire(turn, names, [])
                except StillTaken:
                    if spec.kind != READS:
                        raise
                    self._server.lock_wait.put_off()
                    txn = turn.read_txn()
                    txn.hidden = txn.hidden.union(names)

    def _expire(self, turn: Turn, names: list[bytes], gone: list[int]) -> None:
        turn.run_step(_Deletion(self._nobody, self, names, gone))
        self._touched.update(names)
        self.changed = self._server.turns.ends = True


class _Deletion(Step):
    """Deletes keys if their deadlines have really passed, and wakes their consumers.

    A step: where a turn must run its commands apart, those after it must not see the old keys.

    Args:
        gone: numbers of streams that are gone, and have left a deadline.
    """

    def __init__(
        self, nobody: ClientState, expiry: Expiry, names: list[bytes], gone: list[int]
    ) -> None:
        super().__init__(nobody, [])
        self._expiry = expiry
        self._names = names
        self._gone = gone
        self._deleted = 0

    def keys(self) -> list[bytes]:
        return self._names

    def run(self, txn: WriteTxn) -> bytes:
        """Delete them; there is no reply."""
        deleted = sum(expire(txn, name) for name in self._names)
        for number in self._gone:
            rows.row_delete(txn, rows.row_key(DEADLINES, pack_number(number)))
        self._expiry.expired += deleted - self._deleted
        self._deleted = deleted
        return b""


class _Nobody(ClientState):
    def reply(self, data: bytes) -> None:
        """Take nothing."""
