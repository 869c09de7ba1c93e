"""What each command of Redis does to a store: words in, reply out.

The words are read here, and only what the store cannot know is checked: numbers, options, how many
words there are. All else is checked by the store, whose errors are the lines of Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamkeep.engine.commands.help_texts import HELP
from streamkeep.format.core.errors import ArgumentError, CommandError
from streamkeep.tools.base import output
from streamkeep.tools.redis_words.arguments import Words, ids_block, integer, syntax
from streamkeep.tools.redis_words.group_commands import (
    xack,
    xackdel,
    xautoclaim,
    xclaim,
    xgroup,
    xinfo_consumers,
    xnack,
    xpending,
    xreadgroup,
)
from streamkeep.tools.redis_words.read_options import read_options
from streamkeep.tools.redis_words.replies import Status, entries, entry, wire

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

OK: Final = Status("OK")
POLICIES: Final = ("KEEPREF", "DELREF", "ACKED")
Run = Callable[["Store", Words], Any]


class Command(NamedTuple):
    """How one command runs.

    Attributes:
        least: how many words it needs after its name.
        writes: whether it may change the store.
        creates: whether it may create the store.
    """

    run: Run
    least: int
    writes: bool = False
    creates: bool = False


class Trim:
    """What XADD and XTRIM say about trimming."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {"approximate": False}

    def accept(self, words: Words) -> bool:
        """Take an option; say whether there was one."""
        word = words.accept("MAXLEN", "MINID", "LIMIT", *POLICIES)
        if word in ("MAXLEN", "MINID"):
            if "maxlen" in self.options or "minid" in self.options:
                raise syntax("MAXLEN and MINID options at the same time are not compatible")
            self.options["approximate"] = words.accept("~", "=") == "~"
            self.options[word.lower()] = words.integer() if word == "MAXLEN" else words.next()
            if self.options.get("maxlen", 0) < 0:
                raise CommandError("The MAXLEN argument must be >= 0.")
        elif word == "LIMIT":
            self.options["limit"] = words.integer()
        elif word:
            self.options["ref_policy"] = word
        return bool(word)


# --- entries ------------------------------------------------------------------------------------


def _xadd(store: Store, words: Words) -> Any:
    key, trim = words.next(), Trim()
    options: dict[str, Any] = {}
    while True:
        if trim.accept(words):
            continue
        word = words.accept("NOMKSTREAM", "IDMP", "IDMPAUTO")
        if word == "NOMKSTREAM":
            options["nomkstream"] = True
        elif word == "IDMP":
            options["idmp"] = (words.next(), words.next())
        elif word == "IDMPAUTO":
            options["idmpauto"] = words.next()
        else:
            break
    if len(words) < 3 or len(words) % 2 == 0:
        raise words.wrong_count()
    new_id, flat = words.next(), words.rest()
    pairs = list(zip(flat[0::2], flat[1::2], strict=True))
    return store.xadd_pairs(key, pairs, new_id, **options, **trim.options)


def _xtrim(store: Store, words: Words) -> Any:
    key, trim = words.next(), Trim()
    while trim.accept(words):
        pass
    words.end()
    if "maxlen" not in trim.options and "minid" not in trim.options:
        raise syntax("XTRIM must be called with at least one trimming strategy")
    return store.xtrim(key, **trim.options)


def _xdelex(store: Store, words: Words) -> Any:
    key, ids, policy = words.next(), [], "KEEPREF"
    while word := words.accept("IDS", *POLICIES):
        if word == "IDS":
            ids = ids_block(words)
        else:
            policy = word
    words.end()
    if not ids:
        raise syntax()
    return store.xdelex(key, *ids, ref_policy=policy)  # type: ignore[arg-type]  # one of these


def _xrange(store: Store, words: Words) -> Any:
    key, first, second = words.take(3)
    count = None
    if words.accept("COUNT"):
        count = words.integer()
    words.end()
    if count is not None and count <= 0 and store.exists(key):
        return None
    run = store.xrevrange if words.name == "XREVRANGE" else store.xrange
    return entries(run(key, first, second, count or None))


def _xread(store: Store, words: Words) -> Any:
    options, streams = read_options(words, {})
    found = store.xread(streams, **options)
    return [[name, entries(batch)] for name, batch in found] or None


def _xsetid(store: Store, words: Words) -> Any:
    key, last_id = words.take(2)
    options: dict[str, Any] = {}
    while word := words.accept("ENTRIESADDED", "MAXDELETEDID"):
        if word == "ENTRIESADDED":
            options["entries_added"] = words.integer()
            if options["entries_added"] < 0:
                raise CommandError("entries_added must be positive")
        else:
            options["max_deleted_id"] = words.next()
    words.end()
    store.xsetid(key, last_id, **options)
    return OK


def _xcfgset(store: Store, words: Words) -> Any:
    key = words.next()
    options: dict[str, Any] = {}
    while word := words.accept("IDMP-DURATION", "IDMP-MAXSIZE"):
        options[word.lower().replace("-", "_")] = words.integer()
    words.end()
    store.xcfgset(key, **options)
    return OK


def _xidmprecord(store: Store, words: Words) -> Any:
    store.xidmprecord(*words.take(4))
    return OK


# --- what there is ------------------------------------------------------------------------------


def _xinfo(store: Store, words: Words) -> Any:
    what = (given := output.shown(words.next())).upper()
    if what == "HELP":
        return [Status(line) for line in HELP["XINFO"]]
    rest = Words(f"XINFO|{what}", words.rest())
    if what == "STREAM":
        rest.check_count(1)
        return _xinfo_stream(store, rest)
    if what == "GROUPS":
        rest.check_count(1, exact=True)
        return [wire(one) for one in store.xinfo_groups(rest.next())]
    if what == "CONSUMERS":
        rest.check_count(2, exact=True)
        return xinfo_consumers(store, rest)
    raise CommandError(f"unknown subcommand '{given}'. Try XINFO HELP.")


def _xinfo_stream(store: Store, words: Words) -> Any:
    key, count = words.next(), 10
    if not words:
        found = store.xinfo_stream(key)
        ends = {
            name: None if found[name] is None else entry(found[name])
            for name in ("first-entry", "last-entry")
        }
        return wire({**found, **ends})
    full = words.accept("FULL")
    if full and words.accept("COUNT"):
        count = words.integer()
    if not full or words:
        problem = "unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."
        raise CommandError(problem)
    found = store.xinfo_stream(key, full=True, count=count)
    return wire({**found, "entries": entries(list(found["entries"].items()))})


# --- keys ---------------------------------------------------------------------------------------


def _ping(store: Store, words: Words) -> Any:
    return words.next() if words else Status("PONG")


def _rename(store: Store, words: Words) -> Any:
    store.rename(*words.take(2))
    return OK


def _restore(store: Store, words: Words) -> Any:
    key, ttl, payload = words.take(3)
    replace = bool(words.accept("REPLACE"))
    words.end()
    store.restore(key, integer(ttl), payload, replace=replace)
    return OK


def _keys(store: Store, words: Words) -> Any:
    return store.keys(words.next())


COMMANDS: Final[dict[str, Command]] = {
    "XADD": Command(_xadd, 4, writes=True, creates=True),
    "XTRIM": Command(_xtrim, 3, writes=True),
    "XDEL": Command(lambda store, words: store.xdel(words.next(), *words.rest()), 2, True),
    "XDELEX": Command(_xdelex, 4, writes=True),
    "XLEN": Command(lambda store, words: store.xlen(words.next()), 1),
    "XRANGE": Command(_xrange, 3),
    "XREVRANGE": Command(_xrange, 3),
    "XREAD": Command(_xread, 3),
    "XSETID": Command(_xsetid, 2, writes=True),
    "XCFGSET": Command(_xcfgset, 3, writes=True),
    "XIDMPRECORD": Command(_xidmprecord, 4, writes=True),
    "XGROUP": Command(xgroup, 1, writes=True, creates=True),
    "XREADGROUP": Command(xreadgroup, 6, writes=True),
    "XACK": Command(xack, 3, writes=True),
    "XACKDEL": Command(xackdel, 5, writes=True),
    "XNACK": Command(xnack, 6, writes=True),
    "XPENDING": Command(xpending, 2),
    "XCLAIM": Command(xclaim, 5, writes=True),
    "XAUTOCLAIM": Command(xautoclaim, 5, writes=True),
    "XINFO": Command(_xinfo, 1),
    "PING": Command(_ping, 0),
    "DBSIZE": Command(lambda store, words: sum(1 for _ in store.scan_iter()), 0),
    "EXISTS": Command(lambda store, words: store.exists(*words.rest()), 1),
    "TYPE": Command(lambda store, words: Status(store.type(words.next()).decode()), 1),
    "KEYS": Command(_keys, 1),
    "DEL": Command(lambda store, words: store.delete(*words.rest()), 1, True),
    "UNLINK": Command(lambda store, words: store.delete(*words.rest()), 1, True),
    "RENAME": Command(_rename, 2, writes=True),
    "RENAMENX": Command(lambda store, words: store.renamenx(*words.take(2)), 2, True),
    "DUMP": Command(lambda store, words: store.dump(words.next()), 1),
    "RESTORE": Command(_restore, 3, writes=True, creates=True),
}
_EXACT: Final = {"XLEN": 1, "XIDMPRECORD": 4, "TYPE": 1, "KEYS": 1, "RENAME": 2, "RENAMENX": 2}
_EXACT.update({"DUMP": 1, "DBSIZE": 0})


def find(words: list[bytes]) -> Command:
    """Return the command that the first word names; raise CommandError where there is none."""
    name = words[0].decode("latin-1").upper()
    command = COMMANDS.get(name)
    if command is None:
        args = " ".join(f"'{output.shown(word)}'" for word in words[1:])
        named = output.shown(words[0])
        raise CommandError(f"unknown command '{named}', with args beginning with: {args} ")
    return command


def run(command: Command, store: Store, words: list[bytes]) -> Any:
    """Run a command; return its reply, or raise CommandError."""
    name = words[0].decode("latin-1").upper()
    given = Words(name, words[1:])
    given.check_count(_EXACT.get(name, command.least), exact=name in _EXACT)
    try:
        return wire(command.run(store, given))
    except ArgumentError as error:
        raise CommandError(str(error)) from error
