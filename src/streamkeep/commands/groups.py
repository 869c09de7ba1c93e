"""XGROUP, XACK, XACKDEL, XNACK, XPENDING, XCLAIM, XAUTOCLAIM, XINFO."""

from __future__ import annotations

from typing import Any

from streamkeep.commands.entries import counted_ids
from streamkeep.commands.replies import NIL_ARRAY, OK
from streamkeep.commands.words import integer, option, options, syntax, text_of, wrong_subcommand
from streamkeep.engine.commands import xack, xclaim, xgroup, xinfo, xpending
from streamkeep.engine.commands.arguments import range_end, range_start
from streamkeep.engine.tables.existing import existing_group, existing_stream
from streamkeep.engine.txn.read_txn import Txn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core.errors import CommandError, InvalidIdError
from streamkeep.format.core.id_codec import id_text, parse_id
from streamkeep.format.node.node import PAIRS

_MODES = {b"SILENT": xack.SILENT, b"FAIL": xack.FAIL, b"FATAL": xack.FATAL}


# --- XGROUP -------------------------------------------------------------------------------------


def run_xgroup_create(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    mkstream, entries_read = _group_options(words, True)
    start: xgroup.StartId = wrong_subcommand(words)  # for an option that comes twice
    if len(words) <= 8:
        start = xgroup.start_id(words[4], interval=False)
    xgroup.xgroup_create(txn, words[2], words[3], start, mkstream, entries_read)
    return OK


def run_xgroup_setid(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    _, entries_read = _group_options(words, False)
    start: xgroup.StartId = wrong_subcommand(words)
    if len(words) in (5, 7):
        start = xgroup.start_id(words[4], interval=True)
    xgroup.xgroup_setid(txn, words[2], words[3], start, entries_read)
    return OK


def _group_options(words: list[bytes], creates: bool) -> tuple[bool, int | None]:
    mkstream = False
    entries_read: int | None = None
    flags: tuple[bytes, ...] = (b"MKSTREAM",) if creates else ()
    for name, value in options(words, 5, (b"ENTRIESREAD",), flags, wrong_subcommand):
        if name == b"MKSTREAM":
            mkstream = True
        else:
            entries_read = integer(value)
            xgroup.check_entries_read(entries_read)
    return mkstream, entries_read


# --- acknowledge --------------------------------------------------------------------------------


def run_xnack(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    existing_group(txn, words[1], words[2])
    mode = _MODES.get(option(words[3]), -1)
    if mode < 0:
        raise CommandError("mode must be SILENT, FAIL, or FATAL")
    ids: list[bytes] = []
    retrycount = -1
    force = False
    at = 4
    while at < len(words):
        name = option(words[at])
        if name == b"IDS" and at + 1 < len(words):
            ids = counted_ids(
                words,
                at,
                "numids must be a positive integer",
                "number of IDs doesn't match numids",
                (1 << 31) - 1,
            )
            at += 2 + len(ids)
        elif name == b"RETRYCOUNT" and at + 1 < len(words):
            retrycount = integer(words[at + 1])
            if retrycount < 0:
                raise CommandError("Invalid RETRYCOUNT value, must be >= 0")
            at += 2
        elif name == b"FORCE":
            force = True
            at += 1
        else:
            raise CommandError(f"Unrecognized XNACK option '{text_of(words[at])}'")
    if not ids:
        raise syntax("expected IDS keyword")
    return xack.xnack(txn, words[1], words[2], mode, ids, retrycount, force)


# --- pending entries ----------------------------------------------------------------------------


def run_xpending(txn: Txn, words: list[bytes], shape: int) -> object:
    count = len(words)
    if count == 3:
        found = xpending.xpending(txn, words[1], words[2])
        if found.lowest is None or found.highest is None:
            return [0, None, None, NIL_ARRAY]
        owners: object = [[name, b"%d" % number] for name, number in found.consumers]
        low = id_text(found.lowest[0], found.lowest[1])
        high = id_text(found.highest[0], found.highest[1])
        return [found.total, low, high, owners]
    if not 6 <= count <= 9:
        raise syntax()
    at = 3
    idle = 0
    if option(words[3]) == b"IDLE":
        idle = integer(words[4])
        if count < 8:
            raise syntax()
        at = 5
    most = max(integer(words[at + 2]), 0)
    start = range_start(words[at])
    end = range_end(words[at + 1])
    consumer = words[at + 3] if at + 3 < count else None
    rows = xpending.xpending_range(txn, words[1], words[2], start, end, most, consumer, idle)
    return [
        [id_text(row.id[0], row.id[1]), row.consumer, row.idle_ms, row.delivery_count]
        for row in rows
    ]


def run_xclaim(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    """XCLAIM; the IDs end at the first word that is not an ID."""
    existing_group(txn, words[1], words[2])
    least = max(integer(words[4], "Invalid min-idle-time argument for XCLAIM"), 0)
    count = len(words)
    at = 5
    while at < count and _is_id(words[at]):
        at += 1
    ids = words[5:at]
    chosen = xclaim.ClaimOptions(None, None, -1, False, None)
    justid = False
    valued = (b"IDLE", b"TIME", b"RETRYCOUNT", b"LASTID")

    def refused(words: list[bytes], at: int) -> CommandError:
        return CommandError(f"Unrecognized XCLAIM option '{text_of(words[at])}'")

    for name, word in options(words, at, valued, (b"FORCE", b"JUSTID"), refused):
        if name == b"FORCE":
            chosen.force = True
        elif name == b"JUSTID":
            justid = True
        elif name == b"LASTID":
            parse_id(word, 0)
            chosen.last_id = word
        else:
            value = integer(word, f"Invalid {name.decode()} option argument for XCLAIM")
            if name == b"RETRYCOUNT":
                chosen.retrycount = value
            else:  # the last of these two counts
                chosen.idle = value if name == b"IDLE" else None
                chosen.time = value if name == b"TIME" else None
    claimed: Any = xclaim.xclaim(
        txn, words[1], words[2], words[3], least, ids, chosen, int(PAIRS), justid
    )
    if justid:
        return [id_text(ms, seq) for ms, seq in claimed]
    return claimed


def _is_id(word: bytes) -> bool:
    try:
        parse_id(word, 0)
    except InvalidIdError:
        return False
    return True


def run_xautoclaim(txn: WriteTxn, words: list[bytes], shape: int) -> object:
    least = max(integer(words[4], "Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    start = range_start(words[5])
    most = 100
    justid = False
    for name, value in options(words, 6, (b"COUNT",), (b"JUSTID",)):
        if name == b"JUSTID":
            justid = True
            continue
        problem = "COUNT must be > 0"
        most = integer(value, problem)
        if not 0 < most <= xclaim.MOST_COUNT:
            raise CommandError(problem)
    found = xclaim.xautoclaim(
        txn, words[1], words[2], words[3], least, start, most, int(PAIRS), justid
    )
    claimed: Any = found.entries
    if justid:
        claimed = [id_text(ms, seq) for ms, seq in claimed]
    gone = [id_text(ms, seq) for ms, seq in found.gone]
    return [id_text(found.cursor[0], found.cursor[1]), claimed, gone]


# --- XINFO --------------------------------------------------------------------------------------


def run_xinfo_stream(txn: Txn, words: list[bytes], shape: int) -> object:
    existing_stream(txn, words[2])
    if len(words) == 3:
        return xinfo.xinfo_stream(txn, words[2], int(PAIRS))
    if len(words) not in (4, 6) or option(words[3]) != b"FULL":
        raise wrong_subcommand(words)
    most = 10
    for _, value in options(words, 4, (b"COUNT",), (), wrong_subcommand):
        most = integer(value)
        if most < 0:
            most = 10
    return xinfo.xinfo_stream_full(txn, words[2], most, int(PAIRS))
