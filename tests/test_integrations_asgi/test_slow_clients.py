"""A thousand clients that never read: the memory of the server stays bounded."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

import streamkeep
from addresses import is_served
from patience import PATIENCE_S, wait_until

CLIENTS = 1000
ENTRIES, SIZE = 2000, 10_000
MOST_PER_CLIENT = 400_000  # a step in memory, one on the way to the socket, and the reply

APP = """
import sys, uvicorn
from streamkeep.integrations.asgi import EventStream

events = EventStream(sys.argv[1], "k", start="0", stall_s=float(sys.argv[3]))
async def app(scope, receive, send):
    if scope["path"] != "/clients":
        await events(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d" % events.clients})


uvicorn.run(app, uds=sys.argv[2], log_level="error", lifespan="off")
"""


def resident(pid: int) -> int:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def handles(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def clients(address: str) -> int:
    """Return how many clients follow."""
    with httpx.Client(transport=httpx.HTTPTransport(uds=address), timeout=PATIENCE_S) as client:
        return int(client.get("http://localhost/clients").text)


@pytest.mark.slow
def test_a_thousand_clients_that_never_read_take_bounded_memory_and_are_counted(
    tmp_path: Path,
) -> None:
    pytest.importorskip("uvicorn", reason="the extra `asgi` is not installed")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * CLIENTS:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with streamkeep.open(tmp_path / "s") as store:
        store.xadd_many("k", [{"v": b"x" * SIZE}] * ENTRIES)
    address = str(tmp_path / "web")
    server = subprocess.Popen(
        [sys.executable, "-c", APP, str(tmp_path / "s"), address, "10"],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: is_served(address))
        with contextlib.ExitStack() as stack:

            def connect() -> socket.socket:
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.connect(address)
                one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return one

            reading = connect()
            reading.recv(1)  # the store is open
            before = resident(server.pid)
            idle = handles(server.pid)
            silent = [connect() for _ in range(CLIENTS)]
            begun, most, received = time.monotonic(), 0, 1
            reading.settimeout(PATIENCE_S)
            while received < ENTRIES * SIZE:  # one that reads gets everything
                received += len(reading.recv(1 << 16))
                most = max(most, resident(server.pid) - before)
            reading.close()
            while time.monotonic() - begun < 15:
                most = max(most, resident(server.pid) - before)
                time.sleep(0.1)
            print(f"{most:,} bytes for {CLIENTS} clients")
            assert most < CLIENTS * MOST_PER_CLIENT
            assert clients(address) == CLIENTS  # they count for the limit until they go
            for one in silent:
                one.close()
            wait_until(lambda: clients(address) == 0 and handles(server.pid) <= idle + 10)
    finally:
        server.kill()
        server.wait()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
