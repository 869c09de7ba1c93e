"""Users: what their patterns for keys allow, beside a Redis server with the same rules."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from real_redis.server import RealRedis
from resp_peer import Peer, serving
from stores import open_at
from streamkeep.commands.command_table import BY_NAME
from streamkeep.server.access import Access, categories_of
from streamkeep.server.resp.turn import TABLE

RULES = {
    "read": "on >p %R~k %W~other +@all",
    "write": "on >p %W~k %R~other +@all",
    "both": "on >p %RW~k +@all",
    "apart": "on >p %R~k %W~k +@all",
}
COMMANDS = (
    "XADD k * f v", "XLEN k", "XRANGE k - +", "XREAD STREAMS k 0", "XREAD STREAMS k other 0 0",
    "XGROUP CREATE k g 0", "XREADGROUP GROUP g ann STREAMS k >", "XPENDING k g", "XACK k g 1-0",
    "XGROUP SETID k g 0", "XINFO STREAM k", "XINFO GROUPS k", "XDEL k 1-0", "XTRIM k MAXLEN 0",
    "XSETID k 99-0", "EXISTS k", "TYPE k", "OBJECT ENCODING k", "MEMORY USAGE k", "TTL k",
    "PEXPIRE k 1000000", "PERSIST k", "DUMP k", "COPY k other REPLACE", "COPY other k REPLACE",
    "RENAME k other", "RENAME other k", "RENAMENX k other", "DEL k", "SET k v", "SET k v GET",
    "GET k", "UNLINK k", "WATCH k", "UNWATCH",
)  # fmt: skip


def test_the_file_of_a_redis_is_read(tmp_path: Path) -> None:
    digest = f"#{hashlib.sha256(b'p').hexdigest()}"
    (tmp_path / "acl").write_text(
        f"user ann on sanitize-payload {digest} ~k* resetchannels &chan* +@all\n"
        f"user bob on skip-sanitize-payload {digest} ~* &* -@all +@read\n"
    )
    access = Access.from_file(tmp_path / "acl", None)
    assert all(access.log_in(name, b"p") for name in (b"ann", b"bob"))


def test_acl_list_has_no_rule_that_a_later_one_undoes() -> None:
    head = f"user a on #{'b' * 64} #{'a' * 64} ~x "
    access = Access(None, [head + "+xread -@all nocommands +@stream -xadd +xlen +xadd"])
    assert access.rules()[0].decode() == head + "-@all +@stream +xlen +xadd"


@pytest.mark.redis
@pytest.mark.parametrize("name", RULES)
def test_keys_are_open_to_what_a_pattern_allows(real: RealRedis, tmp_path: Path, name: str) -> None:
    lines = [f"user {name} {RULES[name]}"]
    real.call(b"FLUSHALL")
    real.call(b"ACL", b"SETUSER", name.encode(), *RULES[name].encode().split())
    with ExitStack() as stack:
        store = stack.enter_context(open_at(tmp_path / "s"))
        served = stack.enter_context(serving(store, tmp_path / "k", access=Access(None, lines)))
        peers = [stack.enter_context(Peer(at)) for at in (real._connection.path, served.path)]
        for peer in peers:
            assert peer.call("AUTH", name, "p") == b"+OK\r\n"
        for text in COMMANDS:
            theirs, ours = (peer.call(*text.split()).startswith(b"-NOPERM") for peer in peers)
            assert ours == theirs, text


@pytest.mark.redis
def test_the_categories_and_flags_of_commands_are_those_of_redis(
    real: RealRedis, peer: Peer
) -> None:
    """So a rule that takes a category away forbids what it forbids in Redis."""
    known = {"read", "write", "stream", "connection", "admin", "dangerous"}
    flags = {"readonly", "write", "blocking", "movablekeys"}
    for spec in {one.name: one for one in TABLE.values()}.values():
        [told] = peer.ask("COMMAND", "INFO", spec.name)
        assert {name[1:] for name in told[6]} == categories_of(spec) - {"all"}
        [real_one] = real.call(b"COMMAND", b"INFO", spec.name.encode())
        if real_one is None:  # an older server lacks the newest ones
            continue
        theirs = {name[1:].decode() for name in real_one[6]} & known
        if spec.name in ("eval", "evalsha"):  # what follows are the differences of the reference
            theirs = {"write"}
        elif spec.name == "function|flush":  # which changes nothing
            theirs = {"connection"}
        else:
            theirs_too = {one.decode() for one in real_one[2]} & flags
            if spec.name == "wait" and real.version < (7, 2):
                theirs_too.add("blocking")
            assert {*told[2]} == theirs_too, spec.name
            if theirs <= {"dangerous", "stream"} and (spec.name == "watch" or not spec.first):
                theirs.add("connection")
        assert spec.container or categories_of(spec) - {"all"} == theirs, spec.name


@pytest.mark.parametrize(
    "access", [Access(None, [f"user {name} {rules}" for name, rules in RULES.items()])], ids=[""]
)
def test_claims_return_entries_and_so_need_both_rights(peer: Peer) -> None:
    for name in RULES:
        peer.call("AUTH", name, "p")
        for words in ("XCLAIM k g ann 0 1-0", "XAUTOCLAIM k g ann 0 0"):
            refused = peer.call(*words.split()).startswith(b"-NOPERM")
            assert refused == (name in ("read", "write")), (name, words)


def test_every_command_with_keys_has_rights() -> None:
    for spec in BY_NAME.values():
        if spec.first > 0:
            words = [b"w"] * 8
            assert len(spec.rights_of(words)) == len(spec.keys(words))
