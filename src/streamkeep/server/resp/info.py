"""What exporters and people read: INFO, CLIENT LIST, waits for the disk.

The time of a command is that of its work in the turn. The commit, which it shares with the other
commands of the turn, is not part of it; waits for the disk are a histogram. All of it is kept in
memory only.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from streamkeep.commands.keys import count_keys
from streamkeep.engine.journal.reader import JOURNAL_FOLDER
from streamkeep.engine.journal.slots import FOLLOWING, is_held
from streamkeep.engine.store.durability import following_of, standby_of
from streamkeep.format.quoting import shown
from streamkeep.metrics.prometheus import Labels, Metric, Value
from streamkeep.replication.address import parse_address
from streamkeep.server.resp.turn import REDIS_VERSION

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection
    from streamkeep.server.resp.server import Server
    from streamkeep.server.resp.turn import Turn
    from streamkeep.server.resp.turns import Turns

# --- waits for the disk ---------------------------------------------------------------------------

SYNC_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class SyncTimes:
    """A histogram of the waits for the disk: how many took at most each number of seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SYNC_BOUNDS_S) + 1)
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        self.counts[bisect_left(SYNC_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def at_most_us(self, share: float) -> int:
        """Return a time in microseconds that this share of the waits did not exceed."""
        left = share * self.count
        for bound, count in zip(SYNC_BOUNDS_S, self.counts, strict=False):
            left -= count
            if left <= 0:
                return round(bound * 1e6)
        return round(SYNC_BOUNDS_S[-1] * 1e6)


# --- counters, and the text of INFO ---------------------------------------------------------------

_SECTIONS: Final = (
    "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "errorstats",
    "commandstats", "cluster", "keyspace",
)  # fmt: skip
_MOST_CODES: Final = 128
_ALL: Final = {"all", "default", "everything"}


class Statistics:
    """Counters since the server began, or since CONFIG RESETSTAT."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.syncs = SyncTimes()
        self.changes_at_save = 0
        self.began = time.time()
        self.last_save = self.began
        self.saving = False
        self.save_failed = False
        self.reset()

    def reset(self) -> None:
        self.connections = 0
        self.refused = 0
        self.refused_logins = 0
        turns = self.turns
        turns.commands = turns.bytes_in = turns.bytes_out = 0
        for calls in turns.calls.values():
            calls.reset()
        self.per_second = 0
        self.errors: dict[str, int] = {}  # error replies by their first word
        self._sampled = time.monotonic(), 0

    def note_error(self, reply: bytes) -> None:
        code = reply[1:].split(b" ", 1)[0].decode("ascii", "replace").strip()[:32]
        if code in self.errors or len(self.errors) < _MOST_CODES:
            self.errors[code] = self.errors.get(code, 0) + 1

    def sample(self) -> None:
        """Measure how many commands per second there are; about once a second."""
        then, commands = self._sampled
        now, done = time.monotonic(), int(self.turns.commands)
        self.per_second = round(max(done - commands, 0) / max(now - then, 0.001))
        self._sampled = now, done

    def saved(self, changes: int) -> None:
        """Note a backup, and the number of changes that it begins with."""
        self.last_save = time.time()
        self.changes_at_save = changes
        self.save_failed = False


def is_replica(client: Connection) -> bool:
    return client.replica is not None and client.replica.attached


def client_line(client: Connection) -> str:
    now = time.time()
    socket = client.transport.get_extra_info("socket")
    flags = "b" if client.blocked is not None else "x" if client.queued is not None else "N"
    flags = "S" if is_replica(client) else flags
    queued = -1 if client.queued is None else len(client.queued)
    parts: dict[str, object] = {
        "id": client.id,
        "addr": client.address,
        "laddr": client.local_address,
        "fd": -1 if socket is None else socket.fileno(),
        "name": client.name.decode(),
        "age": int(now - client.made),
        "idle": int(now - client.active),
        "flags": flags,
        **dict(_zeros("db sub psub ssub")),
        "multi": queued,
        "watch": len(client.watched),
        "qbuf": client.parser.pending(),
        **dict(_zeros("qbuf-free argv-mem multi-mem rbs rbp")),
        "obl": int(client.out_size),
        "oll": len(client.out),
        "omem": int(client.unsent),
        "tot-mem": int(client.held),
        "events": "r",
        "cmd": client.last_command,
        "user": client.user.name.decode(),
        "redir": -1,
        "resp": 3 if client.resp3 else 2,
        "lib-name": client.library.decode(),
        "lib-ver": client.library_version.decode(),
    }
    return " ".join(f"{name}={value}" for name, value in parts.items()) + "\n"


def _zeros(names: str) -> list[tuple[str, object]]:
    return [(name, 0) for name in names.split()]


def text(server: Server, sections: list[str], turn: Turn) -> str:
    wanted = set(sections)
    if not wanted or wanted & _ALL:
        wanted |= set(_SECTIONS) - (set() if wanted & {"all", "everything"} else {"commandstats"})
    parts = []
    for name in _SECTIONS:
        if name in wanted:
            lines = "".join(f"{key}:{value}\r\n" for key, value in _lines(name, server, turn))
            heading = "CPU" if name == "cpu" else name.capitalize()
            parts.append(f"# {heading}\r\n{lines}")
    return "\r\n".join(parts)


def _lines(name: str, server: Server, turn: Turn) -> list[tuple[str, object]]:
    uptime = int(time.time() - server.statistics.began)
    statistics, environment = server.statistics, server.environment
    usage = resource.getrusage(resource.RUSAGE_SELF)
    if name == "server":
        return [
            ("redis_version", REDIS_VERSION),
            ("redis_mode", "standalone"),
            ("server_name", "streamkeep"),
            ("os", f"{platform.system()} {platform.release()} {platform.machine()}"),
            ("arch_bits", 64 if sys.maxsize > 1 << 32 else 32),
            ("process_id", os.getpid()),
            ("run_id", environment.uuid.hex.ljust(40, "0")),
            ("tcp_port", server.settings.shown.get("port", "0")),
            ("server_time_usec", time.time_ns() // 1000),
            ("uptime_in_seconds", uptime),
            ("uptime_in_days", uptime // 86400),
            ("hz", 10),
            ("configured_hz", 10),
            ("executable", sys.executable),
            ("config_file", ""),
        ]
    if name == "clients":
        return [
            ("connected_clients", len(server.clients)),
            ("cluster_connections", 0),
            ("maxclients", server.settings.max_clients),
            ("blocked_clients", server.blocked.blocked),
        ]
    if name == "memory":
        memory = usage.ru_maxrss * 1024
        return [
            ("used_memory", memory),
            ("used_memory_rss", memory),
            ("used_memory_peak", memory),
            ("used_memory_dataset", environment.context.size()),
            ("mem_clients_normal", int(server.turns.held)),
            ("maxmemory", 0),
            ("maxmemory_policy", "noeviction"),
            ("mem_fragmentation_ratio", "1.00"),
        ]
    if name == "persistence":
        return [
            *_zeros("loading async_loading"),
            ("rdb_changes_since_last_save", server.turns.changes - statistics.changes_at_save),
            ("rdb_bgsave_in_progress", int(statistics.saving)),
            ("rdb_last_save_time", int(statistics.last_save)),
            ("rdb_last_bgsave_status", "err" if statistics.save_failed else "ok"),
            ("aof_enabled", 1),
            ("aof_rewrite_in_progress", 0),
            ("aof_last_write_status", "ok"),
            ("aof_current_size", environment.context.size()),
            ("streamkeep_syncs", statistics.syncs.count),
            ("streamkeep_sync_usec_p50", statistics.syncs.at_most_us(0.5)),
            ("streamkeep_sync_usec_p99", statistics.syncs.at_most_us(0.99)),
        ]
    if name == "stats":
        return [
            ("total_connections_received", statistics.connections),
            ("total_commands_processed", int(server.turns.commands + turn.commands)),
            ("instantaneous_ops_per_sec", statistics.per_second),
            ("total_net_input_bytes", int(server.turns.bytes_in)),
            ("total_net_output_bytes", int(server.turns.bytes_out)),
            ("rejected_connections", statistics.refused),
            ("expired_keys", server.expiry.expired),
            ("evicted_keys", 0),
            ("evicted_clients", server.memory.evicted),
            ("sync_full", server.primary.full_syncs),
            ("sync_partial_ok", server.primary.partial_syncs),
            ("sync_partial_err", server.primary.refused_partial_syncs),
            *_zeros("keyspace_hits keyspace_misses pubsub_channels pubsub_patterns"),
            ("acl_access_denied_auth", statistics.refused_logins),
            ("unexpected_error_replies", 0),
            ("total_error_replies", sum(statistics.errors.values())),
            *_zeros("total_reads_processed total_writes_processed"),
        ]
    if name == "replication":
        primary, now = server.primary, time.time()
        followed = followed_by(server, turn)
        role: list[tuple[str, object]] = [("role", "master")]
        if followed is not None:
            up = followed.state == "connected"
            # It may have words of that server, which are to be no lines of INFO.
            data = followed.problem.encode("utf-8", "surrogateescape")
            problem = shown(data) if data else ""
            role = [
                ("role", "slave"),
                ("master_host", followed.host),
                ("master_port", followed.port),
                ("master_link_status", "up" if up else "down"),
                ("master_last_io_seconds_ago", int(now - followed.time_ms / 1000) if up else -1),
                ("master_sync_in_progress", int(followed.state == "sync")),
                ("slave_read_repl_offset", followed.offset),
                ("slave_repl_offset", followed.offset),
                ("slave_priority", 0),  # no Sentinel promotes what has only the streams
                ("slave_read_only", int(server.settings.refuses_writes)),
                *([("streamkeep_link_problem", problem)] if problem else []),
            ]
        return [
            *role,
            ("connected_slaves", len(primary.replicas)),
            *(
                (
                    f"slave{place}",
                    f"ip={one.host},port={one.port},state={one.state},offset={one.acked},"
                    f"lag={int(now - one.client.active)}",
                )
                for place, one in enumerate(primary.replicas)
            ),
            ("master_failover_state", "no-failover"),
            ("master_replid", primary.id),
            ("master_replid2", "0" * 40),
            ("master_repl_offset", primary.end),
            ("second_repl_offset", -1),
            ("repl_backlog_active", int(primary.before is not None)),
            ("repl_backlog_size", primary.backlog_bytes),
            ("repl_backlog_first_byte_offset", primary.start + 1 if primary.before else 0),
            ("repl_backlog_histlen", primary.end - primary.start),
        ]
    if name == "cpu":
        return [
            ("used_cpu_sys", f"{usage.ru_stime:.6f}"),
            ("used_cpu_user", f"{usage.ru_utime:.6f}"),
        ]
    if name == "errorstats":
        return [
            (f"errorstat_{code}", f"count={n}") for code, n in sorted(statistics.errors.items())
        ]
    if name == "commandstats":
        return [
            (
                f"cmdstat_{one}",
                f"calls={calls.count},usec={int(calls.nanos) // 1000},"
                f"usec_per_call={int(calls.nanos) / 1000 / max(int(calls.count), 1):.2f},"
                f"rejected_calls={calls.rejected},failed_calls={calls.failed}",
            )
            for one, calls in sorted(server.turns.calls.items())
            if calls.count or calls.rejected
        ]
    if name == "cluster":
        return [("cluster_enabled", 0)]
    if name == "keyspace":
        count = count_keys(turn.read_txn())
        expires = f"expires={len(server.expiry.by_name)},avg_ttl=0,subexpiry=0"
        return [("db0", f"keys={count},{expires}")] if count else []
    return []


class Followed(NamedTuple):
    """What the store of a replica follows, and how far it is.

    Attributes:
        host, port: of the Redis server; of a socket or a copy, its URI, and 0.
        state: "connected", or what ROLE says in place of that.
        offset: in the commands of the server; of a standby, the newest commit.
        time_ms: Unix time at which what it has newest was made.
        problem: why there is no connection, if that is known.
    """

    host: str
    port: int
    state: str
    offset: int
    time_ms: int
    problem: str = ""


def followed_by(server: Server, turn: Turn) -> Followed | None:
    """Return what a replica follows; None for a server that is none."""
    follower = server.upstream.follower
    if follower is None and not server.settings.readonly:
        return None
    folder = server.environment.folder.folder(JOURNAL_FOLDER)
    txn = turn.read_txn()
    standby = standby_of(txn)
    if standby is not None:
        state = "connected" if is_held(folder, standby.source) else "connect"
        return Followed(standby.source, 0, state, standby.commit_number, standby.time_ms)
    redis = following_of(txn)
    if redis is None:
        return None
    if follower is None:
        address, problem = parse_address(redis.source), ""
        state = "connected" if is_held(folder, FOLLOWING) else "connect"
    else:
        address, problem, state = follower.address, follower.problem, follower.state
    host, port = (address.shown(), 0) if address.path else (address.host, address.port)
    return Followed(host, port, state, redis.offset, redis.time_ms, problem)


def server_metrics(server: Server) -> list[Metric]:
    """Return the figures of a server: clients, commands, waits for the disk."""
    turns, syncs = server.turns, server.statistics.syncs
    blocked, replicas = server.blocked.blocked, server.primary.replicas
    found = [
        Metric(f"streamkeep_redis_{name}", kind, text, [({}, int(value))])
        for name, kind, text, value in (
            ("clients", "gauge", "Redis clients that are connected.", len(server.clients)),
            ("blocked_clients", "gauge", "Redis clients that wait for entries.", blocked),
            ("commands_total", "counter", "Commands of Redis clients.", turns.commands),
            ("changes_total", "counter", "Commands that wrote.", turns.changes),
            ("replicas", "gauge", "Replicas that are fed.", len(replicas)),
            (
                "replica_lag_bytes",
                "gauge",
                "Bytes that the slowest replica has not executed.",
                max((server.primary.end - one.acked for one in replicas), default=0),
            ),
        )
    ]
    bounds = [*map(repr, SYNC_BOUNDS_S), "+Inf"]
    counts = zip(bounds, accumulate(syncs.counts), strict=True)
    buckets: list[tuple[Labels, Value]] = [({"le": bound}, count) for bound, count in counts]
    total = (syncs.seconds, syncs.count)
    found.append(
        Metric("streamkeep_sync_seconds", "histogram", "Waits for the disk.", buckets, total)
    )
    return found
