"""The commands of one turn of the event loop: one snapshot, one write transaction, one sync.

Commands run in the order in which the loop takes the clients; those of one client in the order in
which it sent them. Until the first command that writes, all read one snapshot. From then on all run
in the write transaction, and see its changes. Replies are kept until the commit; those of clients
that wrote, until it is on disk.

A command that breaks a rule of Redis changes nothing, so it fails alone. Any other failure undoes
the transaction; then each command that wrote runs again in a transaction of its own, which can grow
the map or use the reserve of a full store, as does each that read what is undone; the new reply
takes the place of the first one.

Compiled by mypyc.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import lmdb
from mypy_extensions import i64, mypyc_attr

from streamkeep.commands.command_table import BY_NAME, READS, WRITES, Spec
from streamkeep.commands.strings import refuse_string
from streamkeep.engine.system.long_wait import StillTaken
from streamkeep.engine.txn.begin import CheckpointNeeded, begin_read, begin_write
from streamkeep.engine.txn.read_txn import ReadTxn
from streamkeep.engine.txn.txn import WriteTxn
from streamkeep.format.core import errors
from streamkeep.format.node.node import RESP
from streamkeep.server.resp.encoder import encode, error_line, error_text

if TYPE_CHECKING:
    from streamkeep.server.resp.connection import Connection
    from streamkeep.server.resp.turns import Calls, ClientState, Turns

_RESP: Final = int(RESP)
_LONG_BYTES: Final[i64] = 1 << 20  # of replies, after which a turn ends
_LONG_NS: Final[i64] = 25_000_000
_SLICE_NS: Final[i64] = 4_000_000  # of one of several clients
_SLOW_NS: Final[i64] = 5_000_000  # of a command, with which many together would be a long turn
_LOCK_S: Final = 0.01  # of waiting for the write lock: each of several busy processes has it 2 ms
_MINUS: Final[i64] = 45
_RESTORE: Final = BY_NAME[b"RESTORE"]
_clock_ns: Final = time.perf_counter_ns

REDIS_VERSION: Final = "8.10.0"  # whose commands the server has

# A handler of a command of the connection returns a reply, or ALREADY where it has queued its own.
Handler = Callable[["Connection", list[bytes], "Turn"], object]
HANDLERS: Final[dict[str, Handler]] = {}  # by names; `server_commands` fills both tables
TABLE: Final[dict[bytes, Spec]] = {}  # every command that the server knows
ALREADY: Final = object()

log: Final = logging.getLogger("streamkeep.server")


@mypyc_attr(allow_interpreted_subclasses=True)
class Step:
    """A command that wrote, or read what is not committed, and where its reply is.

    It may have to run again.
    """

    def __init__(self, client: ClientState, commands: list[tuple[Spec, list[bytes]]]) -> None:
        self.client = client
        self.commands = commands
        self.slot: i64 = -1  # the place of its reply; -1 if it gets none

    def frees(self) -> bool:
        return all([spec.kind != WRITES for spec, _ in self.commands])

    def reads(self) -> bool:
        """Return whether it only reads."""
        return len(self.commands) > 0 and all([spec.kind == READS for spec, _ in self.commands])

    def keys(self) -> list[bytes]:
        keys: list[bytes] = []
        for spec, words in self.commands:
            keys += spec.keys(words)
        return keys

    def run(self, txn: Any) -> bytes:
        spec, words = self.commands[0]
        return run_one(txn, spec, words, self.client.resp3)


def of_streams(txn: Any, run: Callable[[Any], Any]) -> Any:
    """Run a command to which a string is a key of the wrong type, once it looks for the stream."""
    txn.missing = refuse_string
    try:
        return run(txn)
    finally:
        txn.missing = None


def run_one(txn: Any, spec: Spec, words: list[bytes], resp3: bool) -> bytes:
    txn.missing = refuse_string if spec.name.startswith("x") else None
    try:
        if spec.parse is not None:
            waiting = spec.parse(words, _RESP)
            waiting.call.resp3 = resp3
            return encode(waiting.run(txn), resp3)
        assert spec.run is not None
        return encode(spec.run(txn, words, _RESP), resp3)
    except errors.CommandError as error:
        return error_line(error.redis_line)
    finally:
        txn.missing = None


def run_queued(client: Any, txn: Any, spec: Spec, words: list[bytes], turn: Turn) -> bytes:
    """Run a command of EXEC; return its reply, in the protocol that the client speaks then."""
    handler = HANDLERS.get(spec.name)
    began = i64(_clock_ns())
    try:
        if handler is None:
            reply = run_one(txn, spec, words, client.resp3)
        else:
            client.executing = True  # nothing waits in a transaction
            try:
                reply = encode(handler(client, words, turn), client.resp3)
            finally:
                client.executing = False
    except errors.CommandError as error:
        reply = error_line(error.redis_line)
    if is_error(reply):
        client.server.statistics.note_error(reply)
    turn.turns.calls_of(spec.name).note(reply, i64(_clock_ns()) - began)
    return reply


class Turn:
    """One turn; `finish` commits it.

    Attributes:
        clients: those that may have replies to send.
        watcher: looks at changes; None while no client waits for any.
        durable: a caller will wait until the commit is on disk.
        called: the counters of the command that is running; None for none.
        repeatable: the command that has run has only read.
        size: bytes of replies so far.
        began, now: times in nanoseconds: of its begin, and after the newest command.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.environment = turns.environment
        self.context = turns.context
        watcher = turns.watcher
        self.watcher = watcher if watcher is not None and watcher.count else None
        self.durable = turns.durable
        self.called: Calls | None = None
        self.repeatable = False
        self.size: i64 = 0
        self.began: i64 = 0
        self.now: i64 = 0
        self.clients: list[ClientState] = []
        self.reader: ReadTxn | None = None
        self.writer: WriteTxn | None = None
        self.steps: list[Step] = []
        self.commands: i64 = 0
        self.apart = False  # the shared transaction has failed: each command has its own

    def is_long(self) -> bool:
        """Return whether the turn is to end, so that others are served."""
        return self.size >= _LONG_BYTES or self.now - self.began >= _LONG_NS

    def read_txn(self) -> Any:
        if self.writer is not None:
            return self.writer
        if self.reader is None:
            context = self.context
            try:
                reader = begin_read(context)
            except (CheckpointNeeded, lmdb.Error):
                reader = self.environment.begin_read()
            reader.known = self.turns.streams_read
            reader.keep_found()
            reader.hidden = self.turns.hidden
            self.reader = reader
        return self.reader

    def write_txn(self) -> WriteTxn:
        """Return the transaction, which begins with the first command that writes.

        Raises:
            StillTaken: another process or thread has the write lock, or something is to be
                repaired first, for which a thread may have to wait.
        """
        if self.writer is None:
            if self.turns.locked_out:
                raise StillTaken
            self.close_reader()
            try:
                writer = begin_write(self.context, durable=self.durable, most_s=_LOCK_S)
            except (CheckpointNeeded, lmdb.Error):
                wait = self.turns.host.lock_wait
                if wait.failed:
                    wait.failed = False  # only now: later, something else may have to be repaired
                    raise  # each command that runs apart tries it again
                raise StillTaken from None
            self.writer = writer
        return self.writer

    def _apart(self, change: Callable[[WriteTxn], Any], frees: bool, most_s: float) -> Any:
        """Run something in a transaction of its own; raise StillTaken as `write_txn` does."""
        if most_s >= 0 and self.turns.locked_out:
            raise StillTaken
        self.close_reader()  # later commands see its changes

        def run(txn: WriteTxn) -> Any:
            self._keep_lock()
            self.writer = txn  # what the change reads, it reads here
            return change(txn)

        try:
            return self.environment.write(run, frees=frees, most_s=most_s)
        finally:
            self.writer = None

    def _keep_lock(self) -> None:
        """Keep the write lock for the next transaction: the loop must not wait for it."""
        lock = self.context.write_lock
        if lock is not None:
            lock.keep(time.monotonic_ns() + int(_LONG_NS))

    def close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None

    def run(self, client: ClientState, spec: Spec, words: list[bytes]) -> None:
        """Run a command that does not wait, and queue its reply."""
        step = Step(client, [(spec, words)])
        if spec.kind == READS:
            self.run_read(step)
            self.repeatable = True
        else:
            self.run_step(step)

    def run_read(self, step: Step) -> None:
        """Run a command that only reads; it runs again if what it saw is undone."""
        try:
            reply = step.run(self.read_txn())
        except Exception as error:
            reply = failure_line(error)
        if self.writer is None:
            step.client.reply(reply)
        else:
            self.add(step, reply)

    def run_step(self, step: Step) -> None:
        client = step.client
        client.wrote = True
        self.add(step, b"")
        try:
            if self.apart:
                self._run_in_own(step, _LOCK_S)
            else:
                self._run_together(step)
        except StillTaken:
            self.steps.pop()
            raise
        except Exception:
            self.run_apart()

    def add(self, step: Step, reply: bytes) -> None:
        client = step.client
        step.slot = i64(len(client.out))
        client.reply(reply)
        self.steps.append(step)

    def _run_together(self, step: Step) -> None:
        txn = self.write_txn()
        watcher = self.watcher
        if watcher is None:
            _set_reply(step, step.run(txn))
            return
        watcher.before(txn, step.keys())
        _set_reply(step, step.run(txn))
        watcher.after(self, txn)

    def run_apart(self) -> None:
        """Undo the shared transaction, and run each of its commands in one of its own."""
        self.apart = True
        txn = self.writer
        self.writer = None
        if txn is not None:
            try:
                self._keep_lock()
                txn.abort()
            except Exception as error:
                log.error("the transaction of a turn cannot be undone", exc_info=error)
        steps = self.steps
        self.steps = []
        for step in steps:
            self._run_in_own(step, -1.0)

    def _run_in_own(self, step: Step, most_s: float) -> None:
        try:
            if step.reads():
                reply = step.run(self.read_txn())
            else:
                reply = self._apart(step.run, step.frees(), most_s)
        except Exception as error:
            reply = failure_line(error)
        assert isinstance(reply, bytes)
        _set_reply(step, reply)

    def finish(self) -> WriteTxn | None:
        """Commit; return the transaction if there was one, so that the caller can wait for it."""
        self.close_reader()
        txn = self.writer
        if txn is None:
            return None
        environment = self.environment
        try:
            txn.frees = all([step.frees() for step in self.steps])
            txn.commit()
        except Exception as error:
            if not txn.committed:
                self.run_apart()
                return None
            self.writer = None  # whether the commit reaches the disk is unknown
            for step in self.steps:
                _set_reply(step, failure_line(error))
            return None
        self.writer = None
        if not self.context.keeps_up():
            environment.notice()
        return txn


def _set_reply(step: Step, reply: bytes) -> None:
    """Put a reply into the place that was kept for it."""
    client = step.client
    if 0 <= step.slot < len(client.out):
        client.out_size += len(reply) - len(client.out[step.slot])
        client.out[step.slot] = reply


def failure_line(error: Exception) -> bytes:
    """Return the error line for a failure; log one that nobody foresaw."""
    text = str(error)
    if isinstance(error, errors.CommandError):
        return error_line(error.redis_line)
    if isinstance(error, errors.StoreFullError):
        return error_text(f"OOM command not allowed when used memory > 'maxmemory'. {text}")
    if isinstance(error, errors.CorruptionError):
        return error_text(f"ERR the store is damaged: {text}; run `streamkeep fsck`")
    if isinstance(error, errors.StreamkeepError):
        return error_text(f"MISCONF the store cannot serve the command: {text}")
    log.error("a command failed with an internal error", exc_info=error)
    return error_text(f"ERR internal error: {type(error).__name__}: {text}")


def is_error(reply: bytes) -> bool:
    return len(reply) > 0 and i64(reply[0]) == _MINUS


def run_commands(turn: Turn, client: ClientState, most: i64, defers: bool) -> bool:
    """Run the commands that a client has sent, at least one; return whether it has sent more.

    Args:
        defers: others are waiting; a command that has been slow lately waits for another turn, with
            all after it.

    Raises:
        ProtocolError: the client did not send a command.
    """
    parser = client.parser
    turns = turn.turns
    count: i64 = 0
    then = i64(_clock_ns())
    if not turn.began:
        turn.began = turn.now = then
    until: i64 = then + _SLICE_NS if defers else then + _LONG_NS
    while count < most and (count == 0 or (then < until and not turn.is_long())):
        if client.stopped:
            return False
        words = client.again or parser.next()
        if words is None:
            return False
        known = BY_NAME.get(words[0])
        if known is not None and known.container and len(words) > 1:
            known = BY_NAME.get(words[0].upper() + b"|" + words[1].upper(), known)
        calls = turns.calls_of(known.name) if known is not None else None
        if defers and calls is not None and calls.lately > _SLOW_NS:
            turns.defer(client, words)
            return False
        if client.again is not None:
            client.again = None
            client.reserved = 0
            client.recount()
        count += 1
        turn.commands += 1
        replies = len(client.out)
        before = client.out_size
        turn.called = None
        turn.repeatable = False
        try:
            # RESTORE may bring a deadline, of which `Expiry.note` must hear.
            spec = known if (client.plain or client.queues) and known is not _RESTORE else None
            if spec is not None and not spec.container and spec.takes(len(words)):
                client.last_command = spec.name
                if client.queues:
                    client.queue(spec, words)
                    continue
                turn.called = calls
                if spec.parse is not None and b"BLOCK" in [word.upper() for word in words]:
                    client.read(spec, words, turn)
                else:
                    turn.run(client, spec, words)
            else:
                client.command(words, turn)
        except StillTaken:
            del client.out[replies:]
            client.out_size = before
            client.again = words
            client.stopped = client.waits_for_lock = True
            turn.commands -= 1  # it has not run
            turns.host.lock_wait.put_off(client)
            return False
        except Exception as error:  # of this command; the others of the turn go on
            del client.out[replies:]
            client.out_size = before
            client.reply(failure_line(error))
        now = i64(_clock_ns())
        nanos: i64 = now - then
        then = turn.now = now
        size: i64 = client.out_size - before
        turn.size += size
        if size > _LONG_BYTES and turn.repeatable and not turns.has_room(client, int(size)):
            del client.out[replies:]
            client.out_size = before
            client.again = words
            turns.host.memory.wait(client, int(size))
            return False
        called = turn.called
        if called is not None:
            called.count += 1
            called.nanos += nanos
            called.lately += (nanos - called.lately) // 8 if called.count > 1 else nanos
            if len(client.out) > replies and is_error(client.out[replies]):
                called.failed += 1
    return True
