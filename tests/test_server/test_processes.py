"""Servers as processes: several on one store, and one whose store is deleted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import streamkeep
from cli_runner import start
from patience import PATIENCE_S, line_of, wait_until
from resp_peer import Peer, decode

pytestmark = pytest.mark.slow


@contextmanager
def server(store: Path, path: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a store in a process of its own, until the block ends."""
    with start("serve", str(store), "--socket", str(path), *options) as child:
        try:
            assert child.stderr is not None
            assert b"serving" in line_of(child, child.stderr)
            yield child
        finally:
            child.terminate()
            child.wait(PATIENCE_S)


def test_a_client_of_one_server_sees_what_a_client_of_another_writes(tmp_path: Path) -> None:
    store, one, two = tmp_path / "s", tmp_path / "one", tmp_path / "two"
    with ExitStack() as stack:
        stack.enter_context(server(store, one))
        stack.enter_context(server(store, two))
        reader, writer = stack.enter_context(Peer(one)), stack.enter_context(Peer(two))
        writer.call("XGROUP", "CREATE", "k", "g", 0, "MKSTREAM")
        for number in range(1, 20):
            reader.send("XREADGROUP", "GROUP", "g", "c", "BLOCK", 0, "STREAMS", "k", ">")
            wait_until(lambda: b"blocked_clients:1\r\n" in waiting_at(one))
            assert writer.call("XADD", "k", f"{number}-0", "f", "v").startswith(b"$")
            [[name, [[entry_id, _]]]] = decode(reader.read())
            assert (name, entry_id) == (b"k", b"%d-0" % number)
            assert writer.call("XACK", "k", "g", entry_id) == b":1\r\n"
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "other", "$")
        wait_until(lambda: b"blocked_clients:1\r\n" in waiting_at(one))
        with streamkeep.open(store) as here:
            here.xadd("other", {"f": "v"}, id="1-0")
        assert b"1-0" in reader.read()


@pytest.mark.parametrize("sync", ["commit", "none"])
def test_a_server_whose_store_was_deleted_ends_at_sigterm(tmp_path: Path, sync: str) -> None:
    store, path = tmp_path / "s", tmp_path / "sock"
    with (
        start("serve", str(store), "--socket", str(path), "--sync", sync) as child,
        ExitStack() as stack,
    ):
        assert child.stderr is not None
        assert b"serving" in line_of(child, child.stderr)
        peer, reader = stack.enter_context(Peer(path)), stack.enter_context(Peer(path))
        peer.call("XADD", "k", "1-0", "f", "v")
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
        wait_until(lambda: b"blocked_clients:1\r\n" in waiting_at(path))
        shutil.rmtree(store)
        peer.send("XADD", "k", "2-0", "f", "v")  # no reply is expected, nor its absence
        child.terminate()
        assert child.wait(PATIENCE_S) == 3
        assert b"was deleted or moved while it was open" in child.stderr.read()


def waiting_at(path: Path) -> bytes:
    with Peer(path) as peer:
        found: bytes = peer.ask("INFO", "clients")
        return found
