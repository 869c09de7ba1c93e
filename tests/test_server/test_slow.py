"""SLOWLOG and LATENCY: what took long."""

from __future__ import annotations

from resp_peer import Peer, Running
from streamkeep.server.resp.info import SyncTimes


def test_slowlog_has_the_words_times_and_client_of_slow_commands(peer: Peer) -> None:
    peer.call("CLIENT", "SETNAME", "ann")
    peer.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
    peer.call("XADD", "k", "1-0", "f", "v" * 200, *["a", "b"] * 20)
    peer.call("CONFIG", "SET", "slowlog-log-slower-than", -1)
    assert peer.ask("SLOWLOG", "LEN") == 2
    added, first = peer.ask("SLOWLOG", "GET", -1)
    assert first[3][:2] == [b"CONFIG", b"SET"]
    number, when, micros, words, address, name = added
    assert (number, name) == (1, b"ann")
    assert when > 1_700_000_000
    assert micros > 0
    assert address == b":0"
    assert len(words) == 32
    assert words[:5] == [b"XADD", b"k", b"1-0", b"f", b"v" * 128 + b"... (72 more bytes)"]
    assert words[31] == b"... (14 more arguments)"
    assert first[0] == 0
    assert peer.ask("SLOWLOG", "GET", 1) == [added]
    assert peer.call("SLOWLOG", "GET", -2) == (
        b"-ERR count should be greater than or equal to -1\r\n"
    )
    assert peer.call("SLOWLOG", "RESET") == b"+OK\r\n"
    assert peer.call("SLOWLOG", "GET") == b"*0\r\n"


def test_slowlog_keeps_the_newest_entries(peer: Peer) -> None:
    peer.call("CONFIG", "SET", "slowlog-max-len", 2, "slowlog-log-slower-than", 0)
    for number in range(4):
        peer.call("PING", number)
    peer.call("CONFIG", "SET", "slowlog-log-slower-than", -1)
    assert [row[3] for row in peer.ask("SLOWLOG", "GET")] == [[b"PING", b"3"], [b"PING", b"2"]]


def test_latency_keeps_what_delays_clients(running: Running, peer: Peer) -> None:
    assert peer.call("LATENCY", "LATEST") == b"*0\r\n"
    peer.call("CONFIG", "SET", "latency-monitor-threshold", 5)

    def note(server: object) -> None:
        for seconds in (0.004, 0.007, 0.012):
            running.server.slow.note_event("command", seconds)

    running.ask(note)
    [[event, when, latest, longest]] = peer.ask("LATENCY", "LATEST")
    assert (event, latest, longest) == (b"command", 12, 12)
    assert [when, 12] in peer.ask("LATENCY", "HISTORY", "command")
    assert peer.ask("LATENCY", "RESET", "nosuch") == 0
    assert peer.ask("LATENCY", "RESET") == 1
    assert peer.call("LATENCY", "HISTORY", "command") == b"*0\r\n"


def test_shares_of_the_waits_are_bounds_of_the_histogram() -> None:
    times = SyncTimes()
    for _ in range(99):
        times.note(0.0002)
    times.note(9.0)
    assert (times.at_most_us(0.5), times.at_most_us(0.99)) == (250, 250)
    assert times.at_most_us(1.0) == 2_500_000
    assert times.count == 100
