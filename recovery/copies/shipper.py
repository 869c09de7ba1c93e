"""Shipping: a copy of a store elsewhere follows the store, commit by commit.

Each second, the records of the commits since the last time are written to the target as one piece,
after a sync: a power loss of the store takes back nothing that was shipped. The rows that these
pieces changed are written as well, each once, from a snapshot: so a restore need not read a day of
pieces. A slot in the store (`engine/journal/slots.py`) says how far the target is, and holds the
journal from there on.

Nothing is trusted that the journal does not prove. At its start, the shipper reads the last piece
of the target, and goes on after it only if the journal has the record of that commit with the same
checksum. Otherwise it begins a new generation, from a snapshot. It does so only if the newest one
has nothing but what this store has sent (`notes`), or if the store was restored from it: another
one has fallen behind, such as a primary whose standby was promoted, or an older state of a store.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any, Final, NamedTuple

from streamkeep.engine.api.store import Store
from streamkeep.engine.journal.journal import Journal
from streamkeep.engine.journal.slots import Slot
from streamkeep.engine.remote.object_store import check_outside
from streamkeep.engine.system.progress import StepProgress, silent
from streamkeep.engine.whole_store import scrub
from streamkeep.format.copies.head import Generation
from streamkeep.format.core.durations import Duration, above_zero
from streamkeep.format.core.errors import (
    ArgumentError,
    CorruptionError,
    StoreError,
    StoreFullError,
    UnreachableError,
)
from streamkeep.format.core.values import whole
from streamkeep.format.humanize import time_text
from streamkeep.recovery.copies.generations import End, Generations
from streamkeep.recovery.copies.history import Diverged, Gap, History, find_history
from streamkeep.recovery.copies.notes import Notes, is_named, knows, replaces
from streamkeep.recovery.copies.target import Place, Refused, Target
from streamkeep.recovery.copies.writer import Again, Base, DamagedRowError, Writer

HOLD_BYTES: Final = 4 << 30
_LEAST_BASE: Final = 64 << 20  # bytes of rows after a base before a new one is due
_MOST_CONFLICTS: Final = 10
_POLL_S: Final = 0.02
_LEAST_AGE_MS: Final = 3_600_000  # of a base, whatever `keep` is
_TIDY_S: Final = 600.0
_REFUSED_S: Final = 3600.0  # from a base that a damaged row ended to the next: it reads all rows
_PAUSE_S: Final = 1.0  # before the next try; twice as long each time
_LONGEST_PAUSE_S: Final = 30.0

log = logging.getLogger("streamkeep")


class ShipReport(NamedTuple):
    """What a shipper has done so far.

    Attributes:
        target, generation: where the copy is.
        commit_number: the target has all commits up to this one.
        pieces, sent_bytes: of commits, written since the generation was begun or gone on with.
        base_bytes: size of the base that was written, 0 if there was none.
        missing_segments: segments of the archive that the store does not have any more.
    """

    target: str
    generation: str
    commit_number: int
    pieces: int
    sent_bytes: int
    base_bytes: int
    missing_segments: int


class Shipper:
    """Ships one store to one target, in the thread that calls `run`.

    Attributes:
        stop: set it to end `run`, from any thread.
        failure: what the target does not do at present; empty while all is well.
    """

    def __init__(
        self,
        store: Store[Any],
        target: Place,
        *,
        every: Duration = 1,
        keep: Duration | None = None,
        hold_bytes: int = HOLD_BYTES,
        take_over: bool = False,
        renew: bool = False,
        progress: StepProgress | None = None,
    ) -> None:
        """Take the settings; see `shipping.ship`.

        Args:
            every: how often commits are shipped; `Store.ship_now` does not wait for it.
        """
        self.environment = store._environment
        self.context = self.environment.context
        journal = self.context.journal
        if journal is None:
            raise ArgumentError("a store that is open with readonly=True cannot be shipped")
        self.journal: Journal = journal
        self.folder = journal.folder
        self.target = Target(target, self.environment.folder.modes)
        self.every_s = above_zero(every, "every") / 1000
        self.hold_bytes = whole(hold_bytes, "hold_bytes", 1, 1 << 62)
        self.take_over = take_over
        self.renew = renew
        self.progress = progress or silent
        self.stop = threading.Event()
        self.failure = ""
        self._owner = f"{socket.gethostname()}, process {os.getpid()}"
        keep_ms = None if keep is None else above_zero(keep, "keep")
        self.generations = Generations(self.target, self.environment.uuid, keep_ms)
        self.notes = Notes(self.folder, self.target.uri, self.hold_bytes)
        self._writer: Writer | None = None  # of the generation that goes on; None at a gap
        self._base: Base | None = None
        self._base_bytes = 0  # that were written
        self._erased = False  # the copy has what was erased from the store
        self._proved_ms = 0  # when the copy was verified
        self._damaged: tuple[str, ...] = ()  # objects of the generation that goes on
        self._tidied_s = -_TIDY_S
        self._refused_s = -_REFUSED_S

    def report(self) -> ShipReport:
        writer = self._writer
        if writer is None:
            return ShipReport(self.target.uri, "", 0, 0, 0, 0, 0)
        done = (writer.name, writer.commit_number, writer.pieces, writer.sent_bytes)
        return ShipReport(self.target.uri, *done, self._base_bytes, writer.missing)

    # --- the loop ---------------------------------------------------------------------------

    def run(self, *, once: bool = False) -> ShipReport:
        """Ship until `stop` is set, or until the target has what is committed now.

        Raises as `ship` does; without `once`, a target that does not answer is tried again.
        """
        check_outside(self.target.uri, self.environment.path)
        pause = _PAUSE_S
        begun = False
        conflicts = 0
        end = self._newest() if once else 0
        lock = self.notes.hold(
            self.environment.path,
            "end that one, or let it go on: Store.ship_now() waits until it has shipped everything",
        )
        try:
            while not self.stop.is_set():
                try:
                    if not begun:
                        self._start()
                        begun = True
                    shipped = self._step()
                    self.failure, pause = "", _PAUSE_S
                    if once and self._base is None and not self._damaged and shipped >= end:
                        break
                    self._wait()
                except Again as again:
                    begun = False
                    conflicts += 1
                    if once and conflicts > _MOST_CONFLICTS:
                        raise UnreachableError(
                            f"{again}: another process writes there all the time, or the target "
                            "loses what it was given"
                        ) from again
                    self.stop.wait(min(pause, self.every_s))
                except DamagedRowError as error:
                    if once or self._writer is None:
                        raise
                    self._refused_s = time.monotonic()
                    log.warning(
                        "%s; the copy goes on without a new generation; next: `streamkeep fsck`",
                        error,
                    )
                except StoreError as error:
                    if once or type(error) not in (UnreachableError, StoreFullError, StoreError):
                        raise  # it would not help to try again
                    self.failure = str(error)
                    begun = begun and self._writer is None  # what comes back may be older
                    log.warning("%s; shipping goes on in %.0f s", error, pause)
                    self.stop.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
            if not once and (begun or self.failure):  # the machine may be about to end, too
                if not begun:
                    self._start()
                self._send_commits()
                if self.failure and self._writer is None:
                    raise UnreachableError(self.failure)
        except Again:
            pass
        finally:
            self._drop_base()
            lock.close()
        return self.report()

    def _newest(self) -> int:
        with self.environment.begin_read() as txn:
            return txn.newest_commit()

    def _step(self) -> int:
        """Do what is due; return up to which commit the target has everything, -1 at a gap."""
        now_ms = self._send_commits()
        if self._base is None and self._is_base_due(now_ms):
            self._start_base(now_ms)
        elif self._base is not None and not self._base.thread.is_alive():
            self._switch(now_ms)
        elif self._writer is not None and self._writer.rows_are_due():
            self._send_rows(self._writer)
        elif self._base is None and time.monotonic() - self._tidied_s >= _TIDY_S:
            self._tidy(now_ms)
        return -1 if self._writer is None else self._writer.commit_number

    def _send_commits(self) -> int:
        """Send what was committed; return when it had been made."""
        newest = self._newest()
        now_ms = self.context.now_ms()  # afterwards: no commit that is shipped now was made later
        self.environment.sync_to(newest)
        if self._writer is not None:
            try:
                self._send(self._writer, newest, now_ms, self._note_shipped)
            except Gap as gap:
                log.warning("%s: %s: a new generation begins", self.target.uri, gap)
                self._writer = None
        return now_ms

    def _wait(self) -> None:
        """Wait until there is something to do. An idle store makes no request."""
        due = time.monotonic() + self.every_s
        control, writer, base = self.journal.control, self._writer, self._base
        shipped = -1 if writer is None else writer.commit_number
        while not self.stop.wait(_POLL_S):
            if base is not None and not base.thread.is_alive():
                return
            if writer is not None and control.wanted() > shipped:
                return
            if time.monotonic() >= due and (
                control.newest() > shipped
                or self._damaged
                or self._is_erased()
                or (writer is None and base is None)
            ):
                return

    # --- the start --------------------------------------------------------------------------

    def _start(self) -> None:
        """Find out where the target is, and whether the journal goes on from there."""
        self._drop_base()
        self._writer = None
        slot = None
        was_there = True  # a damaged slot is one
        try:
            slot = self.notes.read()
            was_there = slot is not None and slot.generation != ""
        except CorruptionError as error:
            log.warning("%s", error)
        self.notes.slot = self.notes.blank  # the file stays until the next note
        is_there = self.generations.read()
        if not self.take_over:
            self.target.check_there()
            # One that was begun: a kill may have come before the slot said that it is whole.
            if not is_there and (was_there or (slot is not None and not self.target.has_probe())):
                raise self.target.gone()
        self.target.check_writes()
        if not is_there:
            if slot is not None and not self.take_over:  # the head of a killed process may come
                self.notes.slot = self.notes.slot._replace(begun=slot.begun, sending=slot.sending)
            return
        newest = self.generations.named[-1]
        self._erased = self.renew or (slot is not None and slot.erased)
        end = self.generations.end()
        known = slot is not None and knows(slot, newest, end)
        why = end.problem or "the journal of the store does not go on where the copy ends"
        try:
            # The journal of another copy of the folder, or of a store that was replaced, may go on
            # from the same commit: only the slot tells who has shipped there.
            ours = slot is not None and is_named(slot, newest) and not replaces(slot, newest)
            if slot is not None and ours and not end.problem:
                uuid, epoch = self.environment.uuid.bytes, self.context.epoch
                history = find_history(self.folder, uuid, epoch, slot, end.commit, end.chain)
                if history is not None:
                    known = True
                    self._resume(newest, slot, history, end)
                    return
        except Diverged as error:  # a copy of the store's folder was used, and shipped, too
            log.warning("%s: %s", self.target.uri, error)
            known = False
        except CorruptionError as error:
            why = f"{error}"
        if not known and not self.take_over:
            if slot is not None:  # for `streamkeep status`; and it holds no journal any more
                self.notes.write(slot.refused())
            own = "" if slot is None else f", shipped up to commit {slot.shipped}"
            raise Refused(
                f"{self.target.uri}: the copy has commit {end.commit}, of {time_text(end.last_ms)},"
                f" and goes on with {newest.name}, which {newest.owner} began; this store has "
                f"commit {self._newest()}{own}, and does not know it: it is an older copy of the "
                "store, another one has taken its place, or the copy was moved; next: `streamkeep "
                "ship restore` makes a store of the copy, and `streamkeep diff` shows what only "
                "this one has; --take-over lets the copy follow this store"
            )
        if slot is not None and known:
            shipped = slot.shipped if replaces(slot, newest) or end.problem else end.commit
            self.notes.slot = slot._replace(shipped=shipped)
        self.notes.slot = self.notes.slot._replace(generation=newest.name)
        restored = slot is not None and slot.position.commit_number < 0
        log.log(
            logging.INFO if restored else logging.WARNING,
            "%s: a new generation begins: %s",
            self.target.uri,
            why,
        )

    def _resume(self, generation: Generation, slot: Slot, history: History, end: End) -> None:
        """Go on with a generation."""
        writer = Writer(self.target, self.environment, generation.name, history)
        writer.resume(generation, end.piece_checksum, end.last_ms)
        self.notes.slot = slot
        self._writer = writer
        self._note_proof(generation.name)
        self._note_shipped()
        self.generations.end_before(generation)  # a killed process may not have come to that
        self.take_over = False  # or two stores would take over from each other for ever

    def _send(self, writer: Writer, end: int, now_ms: int, sent: Callable[[], None]) -> None:
        """Send what was committed up to `end`; see `Writer.send_commits`.

        A piece that may have arrived is sent again up to the same commit, which the slot names.
        """
        sending = (one.commit_number for one in self.notes.slot.sending)
        for one in sorted({*sending, end}):
            if one > writer.commit_number:
                writer.send_commits(one, now_ms, self.notes.sending, sent)

    def _note_shipped(self) -> None:
        """Write the slot: how far the target is, and from where on the journal is needed."""
        writer, base = self._writer, self._base
        assert writer is not None
        self.generations.check(writer.name)
        held, epoch = writer.history.position, writer.history.epoch
        if base is not None and base.held.commit_number < held.commit_number:
            held, epoch = base.held, base.epoch
        self._erased = self._erased or writer.erased
        before, shipped = self.notes.slot, writer.commit_number
        slot = before._replace(
            generation=writer.name,
            begun=before.begun if writer.name == before.generation else "",
            epoch=epoch,
            position=held,
            shipped=shipped,
            shipped_ms=self.context.now_ms(),
            hold_bytes=self.hold_bytes,
            erased=self._erased,
            proved_ms=self._proved_ms,
            missing=writer.missing,
            sending=tuple(one for one in before.sending if one.commit_number > shipped),
        )
        self.notes.write(slot)
        if base is not None:
            base.shipped.append((shipped, writer.last_ms))

    # --- rows and bases ---------------------------------------------------------------------

    def _send_rows(self, writer: Writer) -> None:
        """Write the rows that were changed; commits up to that of the snapshot come first."""
        with self.environment.begin_read() as txn:
            self.environment.sync_to(txn.newest_commit())
            try:
                self._send(writer, txn.newest_commit(), self.context.now_ms(), self._note_shipped)
                writer.send_rows(txn)
            except Gap:
                return  # the next step finds it, too
            except CorruptionError as error:  # of rows that were written before
                log.warning("%s; a new generation begins", error)
                self._damaged = (error.where,)

    def _is_erased(self) -> bool:
        """Return whether the copy has what was erased, and the erasure is done."""
        return self._erased and not self.environment.read(scrub.is_unfinished)

    def _is_base_due(self, now_ms: int) -> bool:
        writer, generations = self._writer, self.generations.named
        if writer is not None and time.monotonic() - self._refused_s < _REFUSED_S:
            return False  # the store has a damaged row
        if writer is None or not generations or self._damaged or self._is_erased():
            return True
        if writer.stepped:
            return True
        base = generations[-1]
        if now_ms - base.begun_ms > max(self.generations.keep_ms, _LEAST_AGE_MS):
            return True
        return writer.rows_bytes > max(base.base_bytes // 2, _LEAST_BASE)

    def _start_base(self, now_ms: int) -> None:
        """Begin to write a base, in a thread: meanwhile the present generation goes on."""
        held = self.context.position()
        epoch, name = self.context.epoch, self.generations.next_name()
        slot = self.notes.with_begun(name)
        if self._writer is None:  # nothing else holds the journal from here on
            slot = slot._replace(epoch=epoch, position=held, shipped_ms=now_ms)
            slot = slot._replace(hold_bytes=self.hold_bytes, erased=self._erased)
        self.notes.write(slot)
        history = History(self.folder, self.environment.uuid.bytes, epoch, epoch, held)
        txn = self.environment.begin_read()
        try:
            for _ in history.read(txn.newest_commit()):
                pass
        except Gap:  # a checkpoint came between: the next step tries again
            txn.close()
            return
        writer = Writer(self.target, self.environment, name, history, self.progress, self._damaged)
        writer.last_ms = self.context.now_ms()  # when all in the base had been made
        self._base = Base(writer, txn, held, writer.last_ms)

    def _drop_base(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            base.stop.set()
            base.thread.join()

    def _switch(self, now_ms: int) -> None:
        """Go on with the generation whose base is whole, as soon as it has what was shipped."""
        base = self._base
        assert base is not None
        writer = base.writer
        try:
            # No further than what was shipped: the slot must know each commit that the head shows.
            if not base.catch_up(self.notes.sending):
                return  # meanwhile, the present generation goes on
        except Exception as error:
            self._base = None
            with suppress(StoreError):  # or each try leaves one more in a target that is full
                self.target.remove(writer.name, with_end=True)
            if isinstance(error, Gap):
                log.warning("%s: %s: the base is written again", self.target.uri, error)
                raise Again(f"{error}") from None
            raise
        generations = self.generations.named
        # Another shipper may have gone on with the one before while the base was written.
        if not (
            self.take_over
            or not generations
            or knows(self.notes.slot, generations[-1], self.generations.end())
        ):
            raise Again(f"{self.target.uri}: another store has shipped there meanwhile")
        self.notes.sending(writer.history.position)
        generation = Generation(
            writer.name,
            base.epoch,
            base.start.commit_number,
            base.start.chain,
            writer.base_bytes,
            base.begun_ms,
            self._owner,
            self.generations.keep_ms,
            writer.erasures,
        )
        self.generations.begin(generation)
        outdated = [
            one.name for one in generations if self._erased or one.erasures < writer.erasures
        ]
        self._writer, self._base, self._damaged = writer, None, ()
        self._erased = self.renew = self.take_over = False
        self._base_bytes = writer.base_bytes
        self._note_shipped()
        log.info("%s: %s begins at commit %d", self.target.uri, writer.name, writer.commit_number)
        self._tidy(now_ms, outdated)

    def _tidy(self, now_ms: int, outdated: Container[str] = ()) -> None:
        """Remove what nobody may want to go back to, and look at what the last proof has found."""
        self._tidied_s = time.monotonic()
        if self._writer is None:
            return
        self.generations.remove(now_ms, outdated)
        self._writer.drop_merged_rows()
        self._note_proof(self._writer.name)

    def _note_proof(self, generation: str) -> None:
        """Note what the last verification of the generation that goes on has found."""
        verified = self.target.verified(generation)
        self._proved_ms = verified.time_ms
        if verified.damaged and not self._damaged:
            log.warning(
                "%s: `ship verify` found damage in %s, such as %s; a new generation begins",
                self.target.uri,
                generation,
                verified.damaged[0],
            )
        self._damaged = verified.damaged
