"""`streamkeep serve`: sockets, signals, TLS, what systemd hands over, HTTP beside it."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from certificates import make_certificate
from cli_runner import run, start
from patience import PATIENCE_S, line_of, wait_until
from resp_peer import Peer
from streamkeep.format.core.errors import ArgumentError, StoreError
from streamkeep.format.redis.resp import encode_command
from streamkeep.server import handshakes, serve
from streamkeep.server.access import Access
from streamkeep.server.resp.info import client_line
from streamkeep.server.resp.server import Server
from test_server.conftest import served


def test_a_unix_socket_is_for_this_user_only_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with served(tmp_path / "s", unix=path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with Peer(path) as peer:
            with pytest.raises(StoreError, match="Address already in use"), serve.unix_socket(path):
                pass
            assert peer.call("PING") == b"+PONG\r\n"  # it has also taken who tried the address
    assert not path.exists()


def test_a_unix_socket_may_be_for_its_group(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with served(tmp_path / "s", unix=path, unix_mode=0o660):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_socket_that_a_dead_server_left_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    place = tmp_path / os.fsdecode(b"\xff")
    with served(place, unix=path), Peer(path) as peer:
        assert peer.ask("CONFIG", "GET", "dir") == [b"dir", os.fsencode(place)]
    path.write_text("mine")
    with pytest.raises(StoreError, match=r"next: .*--socket"), served(tmp_path / "s", unix=path):
        pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("files", "most"), [(1000, 744), (200, 1)])
def test_there_are_no_more_clients_than_the_process_may_have_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    files: int,
    most: int,
) -> None:
    limits = [(100, files)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, given: limits.append(given))
    with served(tmp_path / "s", unix=tmp_path / "k", max_clients=5000), Peer(tmp_path / "k") as one:
        assert one.ask("CONFIG", "GET", "maxclients") == [b"maxclients", b"%d" % most]
        reply = one.call("CONFIG", "SET", "maxclients", most + 1)
        assert reply.endswith(b"handle the specified number of clients, try with %d\r\n" % most)
        assert one.call("CONFIG", "SET", "maxclients", most) == b"+OK\r\n"
    assert limits[-1] == (files, files)
    assert f"{most} clients at most: the process may have {files} files" in caplog.text


def test_connections_over_http_leave_files_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("starlette")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (400, 400))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    with (
        served(tmp_path / "s", unix=tmp_path / "k", http="127.0.0.1:0") as shown,
        Peer(tmp_path / "k") as peer,
        ExitStack() as stack,
    ):
        assert peer.ask("CONFIG", "GET", "maxclients") == [b"maxclients", b"44"]
        place = ("127.0.0.1", int(shown["http"].rpartition(":")[2]))
        silent = [stack.enter_context(socket.create_connection(place)) for _ in range(101)]
        with suppress(ConnectionResetError):
            assert silent[-1].recv(1) == b""
        silent[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent[0].recv(100).startswith(b"HTTP/1.1 503 ")  # so that it can be told
    with (
        served(tmp_path / "s", unix=tmp_path / "k", http="127.0.0.1:0", max_clients=10),
        Peer(tmp_path / "k") as peer,
    ):
        assert b"try with 10" in peer.call("CONFIG", "SET", "maxclients", 44)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"bind": ["0.0.0.0:6379"]}, "needs a password"),
        ({"bind": ["[::]:6379"]}, "needs a password"),
        ({"http": "10.0.0.1:80"}, "needs a password"),
        ({"http": "127.0.0.1:80", "write": True}, "changes over HTTP need a password"),
        ({"bind": ["10.0.0.1:1"], "access": Access("x")}, "sent in the clear"),
        ({"bind": ["6379"]}, "an address is HOST:PORT"),
        ({"bind": ["h:70000"]}, "an address is HOST:PORT"),
        (
            {"bind": ["10.0.0.1:1"], "access": Access("x", ["user bob on nopass ~* +@all"])},
            "needs a password",
        ),
    ],
)
def test_an_address_that_strangers_reach_must_be_safe(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ArgumentError, match=problem):
        serve.check(serve.Options(**options))


def test_a_rule_that_would_forbid_nothing_is_refused() -> None:
    for rule in ("-@dangerouss", "-@pubsub", "+@"):
        with pytest.raises(ArgumentError, match="the categories here are @all"):
            Access(None, [f"user ann on >x ~* +@all {rule}"])
    for rule, problem in (("-flushal", "no command 'flushal' here"), ("-CLIENT|KILL", "")):
        options = serve.Options(access=Access(None, [f"user ann on >x ~* +@all {rule}"]))
        with pytest.raises(ArgumentError, match=problem) if problem else nullcontext():
            serve.check(options)


def test_a_socket_of_systemd_must_be_safe_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "is_loopback", lambda host: False)
    for access, problem in ((Access(), "needs a password"), (Access("x"), "sent in the clear")):
        with socket.create_server(("127.0.0.1", 0)) as one:
            monkeypatch.setattr(serve, "_handed_over", lambda one=one: iter([one]))
            with (
                pytest.raises(ArgumentError, match=f"the socket 127.0.0.1:.* {problem}"),
                served(tmp_path / "s", access=access),
            ):
                pass


def test_a_default_user_without_a_password_may_read_beside_changes_over_http() -> None:
    for rules in ("off nopass ~* +@all", "on nopass ~public:* +@read", "off"):
        access = Access(None, [f"user default {rules}", "user ann on >x ~* +@all"])
        serve.check(serve.Options(http="127.0.0.1:80", write=True, access=access))


def test_tls_or_its_refusal_makes_an_address_safe() -> None:
    secured = (Path("c"), Path("k"), None)
    serve.check(serve.Options(bind=["10.0.0.1:1"], access=Access("x"), tls=secured))
    serve.check(serve.Options(bind=["10.0.0.1:1"], access=Access("x"), plain=True))


def test_a_client_with_tls_is_shown_until_it_has_gone(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    found: list[Server] = []
    options: dict[str, Any] = {"bind": ["127.0.0.1:0"], "tls": (certificate, key, None)}
    with (
        served(tmp_path / "s", found.append, **options) as shown,
        socket.create_connection(("127.0.0.1", int(shown["port"]))) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as one,
    ):
        one.sendall(b"PING\r\n")
        assert one.recv(100) == b"+PONG\r\n"

        async def drop() -> str:
            [client] = found[0].clients.values()
            accepted = client.transport.get_extra_info("socket")
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 300
            for _ in range(2):
                client.close()
                client.flush()
            line = client_line(client)
            client.transport.abort()
            return line

        ending = asyncio.run_coroutine_threadsafe(drop(), found[0].loop)
        assert "cmd=ping" in ending.result(PATIENCE_S)
        wait_until(lambda: not found[0].clients)


@pytest.mark.parametrize("says_so", [True, False])
def test_what_a_client_with_tls_sent_before_its_end_runs(tmp_path: Path, says_so: bool) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    options: dict[str, Any] = {"bind": ["127.0.0.1:0"], "tls": (certificate, key, None)}
    with (
        served(tmp_path / "s", unix=tmp_path / "sock", **options) as shown,
        Peer(tmp_path / "sock") as peer,
    ):
        plain = socket.create_connection(("127.0.0.1", int(shown["port"])))
        with context.wrap_socket(plain, server_hostname="localhost") as one:
            one.sendall(b"PING\r\n")
            assert one.recv(100) == b"+PONG\r\n"  # nothing is unread: a close would be a reset
            one.sendall(encode_command("CLIENT", "REPLY", "OFF"))
            one.sendall(encode_command("XADD", "k", "*", "f", "v") * 3000)
            if says_so:
                one.unwrap()
        wait_until(lambda: peer.ask("XLEN", "k") == 3000)
        wait_until(lambda: b"connected_clients:1\r\n" in peer.ask("INFO", "clients"))


def test_connections_without_a_handshake_count_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take all descriptors, and the store could not write. Nobody has a password."""
    pytest.importorskip("starlette")
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 1.0)
    certificate, key = make_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(certificate))
    tls = (certificate, key, None)
    options: dict[str, Any] = {"bind": ["127.0.0.1:0"], "http": "127.0.0.1:0", "tls": tls}
    with served(tmp_path / "s", max_clients=3, **options) as shown, ExitStack() as stack:
        ports = [int(shown[name].rpartition(":")[2]) for name in ("port", "http")]
        silent = [
            [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(5)]
            for port in ports
        ]
        assert silent[0][4].recv(1) == b""  # at once
        assert [one.recv(1) for some in silent for one in some] == [b""] * 10
        plain = stack.enter_context(socket.create_connection(("localhost", ports[0])))
        one = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        one.sendall(b"PING\r\n")
        assert one.recv(100) == b"+PONG\r\n"
        with urllib.request.urlopen(
            f"https://localhost:{ports[1]}/health", context=context, timeout=PATIENCE_S
        ) as answer:
            assert answer.status == 200


@pytest.mark.slow
def test_sigterm_ends_the_server_after_the_replies(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    with start("--json", "serve", str(tmp_path / "s"), "--socket", str(path),
               stdout=subprocess.PIPE) as child:  # fmt: skip
        told = json.loads(line_of(child))
        assert told["addresses"] == [str(path)]
        with Peer(path) as peer:
            assert peer.call("XADD", "k", "1-0", "f", "v") == b"$3\r\n1-0\r\n"
            child.send_signal(signal.SIGTERM)
            assert peer.is_closed()
        assert child.wait(PATIENCE_S) == 0
    assert not path.exists()
    with streamkeep.open(tmp_path / "s") as store:
        assert store.xlen("k") == 1


@pytest.mark.slow
def test_systemd_hands_over_a_socket_and_learns_the_state(tmp_path: Path) -> None:
    path, notify = tmp_path / "sock", tmp_path / "notify"
    with (
        socket.socket(socket.AF_UNIX) as one,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as states,
    ):
        one.bind(str(path))
        one.listen()
        states.bind(str(notify))
        states.settimeout(PATIENCE_S)

        def hand_over() -> None:
            os.dup2(one.fileno(), 3)
            os.set_inheritable(3, True)

        program = (
            "import os, sys; os.environ['LISTEN_PID'] = str(os.getpid());"
            "from streamkeep.__main__ import main; main()"
        )
        environment = {**os.environ, "LISTEN_FDS": "1", "NOTIFY_SOCKET": str(notify)}
        child = subprocess.Popen(
            [sys.executable, "-c", program, "serve", str(tmp_path / "s")],
            env=environment, preexec_fn=hand_over, pass_fds=[3],
        )  # fmt: skip
        try:
            assert states.recv(100) == b"READY=1"
            with Peer(path) as peer:
                assert peer.call("PING") == b"+PONG\r\n"
                peer.send("SHUTDOWN")
            assert states.recv(100) == b"STOPPING=1"
            assert child.wait(PATIENCE_S) == 0
        finally:
            child.kill()
            child.wait()


@pytest.mark.slow
def test_a_server_that_any_user_can_reach_says_so(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("secret\n")
    (tmp_path / "pw").chmod(0o600)  # whatever the umask is: else the first line is about it
    for words, warns in (
        (["--socket", str(tmp_path / "k")], False),
        (["--bind", "127.0.0.1:0", "--password-file", str(tmp_path / "pw")], False),
        (["--bind", "127.0.0.1:0", "--bind", "127.0.0.1:0"], True),
    ):
        with start("serve", str(tmp_path / "s"), *words, stderr=subprocess.PIPE) as child:
            assert child.stderr is not None
            said = line_of(child, child.stderr).decode()
            child.send_signal(signal.SIGTERM)
            assert "serving Redis clients on" in said
            assert said.count("127.0.0.1:") == words.count("--bind")
            assert ("without a password" in child.stderr.read().decode()) == warns


def test_files_with_passwords(tmp_path: Path) -> None:
    path = tmp_path / "pw"
    path.write_text("secret\n")
    for mode, text in ((0o666, "can change it"), (0o644, "can read it"), (0o600, "")):
        path.chmod(mode)
        words = ["--password-file", str(path), "--bind", "no-port"]  # which ends it
        said = run("serve", str(tmp_path / "s"), *words, status=1).stderr
        assert [one in said for one in ("can change it", "can read it")] == [
            "change" in text,
            "read" in text,
        ]


def test_wrong_options_are_refused_before_anything_is_opened(tmp_path: Path) -> None:
    for words, status, text in (
        (("--bind", "0.0.0.0:6379"), 1, "needs a password"),
        (("--tls-cert", "c"), 2, "--tls-cert and --tls-key need each other"),
        (("--tls-ca", "c"), 2, "--tls-ca needs --tls-cert"),
        (("--socket-mode", "660"), 2, "--socket-mode needs --socket"),
        (("--write",), 2, "need --http"),
        (("--password-file", str(tmp_path / "no")), 1, "no: No such file"),
        (("--backup", str(tmp_path)), 3, "a backup cannot be inside its store, or contain it"),
    ):
        assert text in run("serve", str(tmp_path / "s"), *words, status=status).stderr
    assert not (tmp_path / "s").exists()
