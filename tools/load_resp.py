"""Commands into a store: what `dump --format resp` writes, and Redis's append-only files.

Commands that change streams are run in their order, in batches of one transaction each. All other
commands, and those for other databases than 0, are passed over and counted. A command that the
store refuses ends the run; what stands before it is done, and `--from-line` goes on at any command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from streamkeep.engine.api import Store
from streamkeep.format.errors import ArgumentError, CommandError
from streamkeep.format.redis_dump import Losses

BATCH_COMMANDS: Final = 1000
BATCH_BYTES: Final = 4 << 20

Run = Callable[[Any, list[bytes]], object]


class CommandFailure(Exception):
    """A command that the store refused: its number, from 1 on, its offset, and why."""

    def __init__(self, number: int, offset: int, words: list[bytes], error: CommandError) -> None:
        name = words[0].decode("ascii", "backslashreplace")
        super().__init__(f"command {number} at byte {offset}, {name}: {error.redis_error}")


class Replay:
    """Runs commands on a store, which is opened for the first of them.

    Attributes:
        done: commands that are committed or were passed over.
        entries: entries that XADD has added.
        losses: what was passed over.
    """

    def __init__(
        self, opened: Callable[[], Store[Any]], first: int, moved: Callable[[int], None]
    ) -> None:
        self._opened = opened
        self._store: Store[Any] | None = None
        self._first = first
        self._moved = moved
        self._database = b"0"
        self.done = 0
        self.entries = 0
        self.losses = Losses()

    def run(self, commands: Iterator[tuple[int, list[bytes]]]) -> None:
        """Run commands from number `first` on; raise CommandFailure where the store refuses one."""
        batch: list[tuple[int, int, list[bytes]]] = []
        size = 0
        for number, (offset, words) in enumerate(commands, 1):
            if number < self._first:
                self.done = number
                continue
            batch.append((number, offset, words))
            size += sum(map(len, words))
            if len(batch) >= BATCH_COMMANDS or size >= BATCH_BYTES:
                self._run(batch)
                batch, size = [], 0
        self._run(batch)

    def _run(self, batch: list[tuple[int, int, list[bytes]]]) -> None:
        """Run a batch; of one with a bad command, what stands before it is committed."""
        if not batch:
            return
        if self._store is None:
            self._store = self._opened()
        failure: CommandFailure | None = None
        with self._store.transaction() as transaction:
            for number, offset, words in batch:
                try:
                    self._one(transaction, words)
                except CommandError as error:
                    failure = CommandFailure(number, offset, words, error)
                    break
                self.done = number
        self._moved(self.entries)
        if failure is not None:
            raise failure

    def _one(self, store: Any, words: list[bytes]) -> None:
        name = words[0].upper()
        if name == b"SELECT":
            self._database = words[-1]
            return
        if self._database != b"0":
            self.losses.add(f"command for database {self._database.decode('ascii', 'replace')}")
            return
        if name == b"XGROUP" and len(words) > 1:
            name += b" " + words[1].upper()
        run = _COMMANDS.get(name)
        if run is not None:
            try:
                run(store, words)
            except (IndexError, TypeError, ValueError) as error:
                raise ArgumentError(f"the arguments are not understood: {error}") from error
            self.entries += name == b"XADD"
        elif name not in _SILENT:
            self.losses.add(f"command {name.decode('ascii', 'backslashreplace')}")


# --- commands -----------------------------------------------------------------------------------


def _options(words: list[bytes], takes: dict[bytes, bool]) -> dict[bytes, bytes]:
    """Return the options among words: name to value, b"" for those that take none."""
    found: dict[bytes, bytes] = {}
    rest = iter(words)
    for word in rest:
        name = word.upper()
        if name not in takes:
            raise ValueError(f"{word!r} is no option")
        found[name] = next(rest, b"") if takes[name] else b""
    return found


def _integer(found: dict[bytes, bytes], name: bytes) -> int | None:
    return int(found[name]) if name in found else None


def _xadd(store: Any, words: list[bytes]) -> None:
    at = 2
    options: dict[str, Any] = {}
    while (word := words[at].upper()) in (b"NOMKSTREAM", b"MAXLEN", b"MINID", b"LIMIT"):
        at += 1
        if word == b"NOMKSTREAM":
            options["nomkstream"] = True
            continue
        if word in (b"MAXLEN", b"MINID"):
            options["approximate"] = words[at] == b"~"
            at += words[at] in (b"~", b"=")
        value = words[at]
        options[word.decode().lower()] = value if word == b"MINID" else int(value)
        at += 1
    fields = words[at + 1 :]
    if not fields or len(fields) % 2:
        raise ValueError("fields and values do not come in pairs")
    pairs = list(zip(fields[0::2], fields[1::2], strict=True))
    store.xadd_pairs(words[1], pairs, words[at], **options)


def _xtrim(store: Any, words: list[bytes]) -> None:
    rest = words[3:]
    approximate = rest[0] == b"~"
    if rest[0] in (b"~", b"="):
        rest = rest[1:]
    limit = _integer(_options(rest[1:], {b"LIMIT": True}), b"LIMIT")
    if words[2].upper() == b"MAXLEN":
        store.xtrim(words[1], maxlen=int(rest[0]), approximate=approximate, limit=limit)
    else:
        store.xtrim(words[1], minid=rest[0], approximate=approximate, limit=limit)


def _xsetid(store: Any, words: list[bytes]) -> None:
    found = _options(words[3:], {b"ENTRIESADDED": True, b"MAXDELETEDID": True})
    added = _integer(found, b"ENTRIESADDED")
    store.xsetid(words[1], words[2], added, found.get(b"MAXDELETEDID"))


def _xgroup_create(store: Any, words: list[bytes]) -> None:
    found = _options(words[5:], {b"MKSTREAM": False, b"ENTRIESREAD": True})
    read = _integer(found, b"ENTRIESREAD")
    store.xgroup_create(words[2], words[3], words[4], b"MKSTREAM" in found, read)


def _xgroup_setid(store: Any, words: list[bytes]) -> None:
    read = _integer(_options(words[5:], {b"ENTRIESREAD": True}), b"ENTRIESREAD")
    store.xgroup_setid(words[2], words[3], words[4], read)


def _xclaim(store: Any, words: list[bytes]) -> None:
    at = 5
    while at < len(words) and words[at][:1].isdigit():
        at += 1
    takes = {b"IDLE": True, b"TIME": True, b"RETRYCOUNT": True, b"LASTID": True}
    found = _options(words[at:], {**takes, b"FORCE": False, b"JUSTID": False})
    key, group, consumer = words[1:4]
    store.xclaim(
        key,
        group,
        consumer,
        int(words[4]),
        words[5:at],
        idle=_integer(found, b"IDLE"),
        time=_integer(found, b"TIME"),
        retrycount=_integer(found, b"RETRYCOUNT"),
        force=b"FORCE" in found,
        justid=b"JUSTID" in found,
        last_id=found.get(b"LASTID"),
    )


def _xnack(store: Any, words: list[bytes]) -> None:
    if words[4].upper() != b"IDS":
        raise ValueError("IDS is expected behind the mode")
    end = 6 + int(words[5])
    found = _options(words[end:], {b"RETRYCOUNT": True, b"FORCE": False})
    store.xnack(
        words[1],
        words[2],
        words[3].upper().decode(),
        *words[6:end],
        retrycount=_integer(found, b"RETRYCOUNT"),
        force=b"FORCE" in found,
    )


def _xcfgset(store: Any, words: list[bytes]) -> None:
    found = _options(words[2:], {b"IDMP-DURATION": True, b"IDMP-MAXSIZE": True})
    store.xcfgset(words[1], _integer(found, b"IDMP-DURATION"), _integer(found, b"IDMP-MAXSIZE"))


_COMMANDS: Final[dict[bytes, Run]] = {
    b"XADD": _xadd,
    b"XDEL": lambda store, words: store.xdel(words[1], *words[2:]),
    b"XTRIM": _xtrim,
    b"XSETID": _xsetid,
    b"XGROUP CREATE": _xgroup_create,
    b"XGROUP SETID": _xgroup_setid,
    b"XGROUP DESTROY": lambda store, words: store.xgroup_destroy(words[2], words[3]),
    b"XGROUP CREATECONSUMER": lambda store, words: store.xgroup_createconsumer(*words[2:5]),
    b"XGROUP DELCONSUMER": lambda store, words: store.xgroup_delconsumer(*words[2:5]),
    b"XACK": lambda store, words: store.xack(words[1], words[2], *words[3:]),
    b"XCLAIM": _xclaim,
    b"XNACK": _xnack,
    b"XCFGSET": _xcfgset,
    b"XIDMPRECORD": lambda store, words: store.xidmprecord(*words[1:5]),
    b"DEL": lambda store, words: store.delete(*words[1:]),
    b"UNLINK": lambda store, words: store.delete(*words[1:]),
    b"RENAME": lambda store, words: store.rename(words[1], words[2]),
}
_SILENT: Final = {b"MULTI", b"EXEC", b"PING"}
