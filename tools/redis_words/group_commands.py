"""The commands of consumer groups: words in, reply out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamkeep.engine.commands.help_texts import HELP
from streamkeep.format.core.errors import CommandError
from streamkeep.tools.base import output
from streamkeep.tools.redis_words.arguments import Words, ids_block, syntax
from streamkeep.tools.redis_words.read_options import read_options
from streamkeep.tools.redis_words.replies import Status, entries

if TYPE_CHECKING:
    from streamkeep.engine.api.store import Store

OK: Final = Status("OK")
_COUNTS: Final = {"CREATE": 3, "SETID": 3, "DESTROY": 2, "CREATECONSUMER": 3, "DELCONSUMER": 3}


def xgroup(store: Store, words: Words) -> Any:
    """XGROUP CREATE, SETID, DESTROY, CREATECONSUMER, DELCONSUMER, HELP."""
    what = (given := output.shown(words.next())).upper()
    if what == "HELP":
        return [Status(line) for line in HELP["XGROUP"]]
    if what not in _COUNTS:
        raise CommandError(f"unknown subcommand '{given}'. Try XGROUP HELP.")
    rest = Words(f"XGROUP|{what}", words.rest())
    rest.check_count(_COUNTS[what], exact=what not in ("CREATE", "SETID"))
    if what == "DESTROY":
        return store.xgroup_destroy(*rest.take(2))
    if what == "CREATECONSUMER":
        return store.xgroup_createconsumer(*rest.take(3))
    if what == "DELCONSUMER":
        return store.xgroup_delconsumer(*rest.take(3))
    key, group, last_id = rest.take(3)
    options: dict[str, Any] = {}
    flags = ("ENTRIESREAD", "MKSTREAM") if what == "CREATE" else ("ENTRIESREAD",)
    while word := rest.accept(*flags):
        if word == "MKSTREAM":
            options["mkstream"] = True
        else:
            options["entries_read"] = rest.integer()
            if options["entries_read"] < -1:
                raise CommandError("value for ENTRIESREAD must be positive or -1")
    rest.end()
    (store.xgroup_create if what == "CREATE" else store.xgroup_setid)(
        key, group, last_id, **options
    )
    return OK


def xreadgroup(store: Store, words: Words) -> Any:
    """XREADGROUP."""
    flags = {"NOACK": "noack", "CLAIM": "claim_min_idle_time"}
    options, streams = read_options(words, flags)
    if "groupname" not in options:
        raise CommandError("Missing GROUP option for XREADGROUP")
    group, consumer = options.pop("groupname"), options.pop("consumername")
    found = store.xreadgroup(group, consumer, streams, **options)
    return [[name, entries(batch)] for name, batch in found] or None


def xack(store: Store, words: Words) -> Any:
    """XACK."""
    key, group = words.take(2)
    return store.xack(key, group, *words.rest())


def xackdel(store: Store, words: Words) -> Any:
    """XACKDEL."""
    key, group = words.take(2)
    ids, policy = [], "KEEPREF"
    while word := words.accept("IDS", "KEEPREF", "DELREF", "ACKED"):
        if word == "IDS":
            ids = ids_block(words)
        else:
            policy = word
    words.end()
    if not ids:
        raise syntax()
    return store.xackdel(key, group, *ids, ref_policy=policy)  # type: ignore[arg-type]


def xnack(store: Store, words: Words) -> Any:
    """XNACK."""
    key, group = words.take(2)
    mode = words.accept("SILENT", "FAIL", "FATAL")
    ids: list[bytes] = []
    options: dict[str, Any] = {}
    while word := words.accept("IDS", "RETRYCOUNT", "FORCE"):
        if word == "IDS":
            ids = ids_block(words)
        elif word == "FORCE":
            options["force"] = True
        else:
            options["retrycount"] = words.integer("Invalid RETRYCOUNT value, must be >= 0")
    words.end()
    if not mode or not ids:
        raise syntax()
    return store.xnack(key, group, mode, *ids, **options)  # type: ignore[arg-type]


def xpending(store: Store, words: Words) -> Any:
    """XPENDING, as a summary or of a range."""
    key, group = words.take(2)
    if not words:
        found = store.xpending(key, group)
        owners = [[one["name"], b"%d" % one["pending"]] for one in found["consumers"]]
        return [found["pending"], found["min"], found["max"], owners or None]
    idle = words.integer() if words.accept("IDLE") else None
    if not 3 <= len(words) <= 4:
        raise syntax()
    start, end = words.take(2)
    count = max(words.integer(), 0)
    consumer = words.next() if words else None
    rows = store.xpending_range(key, group, start, end, count, consumer, idle)
    names = ("message_id", "consumer", "time_since_delivered", "times_delivered")
    return [[row[name] for name in names] for row in rows]


def xclaim(store: Store, words: Words) -> Any:
    """XCLAIM; the IDs end where the first option begins."""
    key, group, consumer = words.take(3)
    least = words.integer("Invalid min-idle-time argument for XCLAIM")
    flags = ("FORCE", "JUSTID", "IDLE", "TIME", "RETRYCOUNT", "LASTID")
    ids: list[bytes] = []
    options: dict[str, Any] = {}
    while words and words.peek() not in flags and _begins_as_id(words.peek()):
        ids.append(words.next())
    while words:
        word = words.accept(*flags)
        if not word:
            unknown = words.next().decode("utf-8", "backslashreplace")
            raise CommandError(f"Unrecognized XCLAIM option '{unknown}'")
        if word in ("FORCE", "JUSTID"):
            options[word.lower()] = True
        elif word == "LASTID":
            options["last_id"] = words.next()
        else:
            problem = f"Invalid {word} option argument for XCLAIM"
            options[word.lower()] = words.integer(problem)
    if not ids:
        raise CommandError("Invalid stream ID specified as stream command argument")
    found = store.xclaim(key, group, consumer, max(least, 0), ids, **options)
    return found if options.get("justid") else entries(found)


def _begins_as_id(word: str) -> bool:
    return word[:1].isdigit() or word in ("-", "+")


def xautoclaim(store: Store, words: Words) -> Any:
    """XAUTOCLAIM."""
    key, group, consumer = words.take(3)
    least = words.integer("Invalid min-idle-time argument for XAUTOCLAIM")
    start, count, justid = words.next(), 100, False
    while word := words.accept("COUNT", "JUSTID"):
        if word == "JUSTID":
            justid = True
        else:
            count = words.integer("COUNT must be > 0")
            if count < 1:
                raise CommandError("COUNT must be > 0")
    words.end()
    found = store.xautoclaim(key, group, consumer, max(least, 0), start, count, justid, whole=True)
    cursor, claimed, gone = found
    return [cursor, claimed if justid else entries(claimed), gone]


def xinfo_consumers(store: Store, words: Words) -> Any:
    """XINFO CONSUMERS."""
    return store.xinfo_consumers(*words.take(2))
