"""What the files of a store that no process has open hold: its state, and the ways to recover it.

LMDB's newest commit, the newest checkpoint, the journal, the control file, the boot and the mount
tell four states apart:

healthy    The newest commit is that of the checkpoint, and the journal holds nothing after it.
           `close` leaves a store in this state, and it may be copied anywhere.
left       Processes died, and nothing else seems to have happened. LMDB has the newest commit.
short      The same, but the journal holds more commits: those since the last flush.
torn       The system may have lost pages that were not on disk, so LMDB's file may hold any
           mixture of pages. Or a recovery was cut off. If that was in this boot, each of LMDB's
           commits is whole, and a way begins with the newest one; but no process may go on from it
           before the recovery has ended.

A *way* to recover a store is a checkpoint, and the records of the journal that can be applied after
it. There are two: from the checkpoint in `steady`; and, unless the store is torn, from LMDB's
newest commit, which is a checkpoint as soon as it is synced. The first is taken if it loses
nothing, in every boot, because it does not rest on the signs of a torn store. They miss one case:
the disk refused pages after all processes had died, the file system stayed mounted, and the kernel
has forgotten the error and the pages. (It reports an unseen error to the next sync, for which
`needs_recovery` and the second way ask, but forgets it with the inode.) So only these can meet that
case: a process that reads a store which was left, until one recovers it; writers that join it
meanwhile; and the second way, which helps where the journal is damaged between the two commits.

A way loses commits if it ends before the newest commit that was made. How many, `made` says as far
as the files show it. `promised` is the newest one that may not be lost without a word: while the
kernel has every page, each that was made; after a power loss, each that was on disk.
"""

from __future__ import annotations

import os
from typing import Final, Literal, NamedTuple

from streamkeep.engine.checkpoint.checkpoint import DATA_FILE, read_meta_pages, read_page
from streamkeep.engine.checkpoint.checkpoint_file import CHECKPOINT_FILE
from streamkeep.engine.crash_recovery.stored_rows import KeyMissing, StoredRows, check_extent
from streamkeep.engine.crash_recovery.trial import try_out
from streamkeep.engine.journal.control_file import CONTROL_FILE, ControlState, read_control_file
from streamkeep.engine.journal.reader import (
    JOURNAL_FOLDER,
    Reader,
    file_name,
    journal_files,
    newest_commit,
)
from streamkeep.engine.system.boot_id import boot_id
from streamkeep.engine.system.safe_files import Folder
from streamkeep.format.core.errors import CorruptionError, RecoveryNeededError
from streamkeep.format.journal.checkpoint import NO_BOOT, CheckpointSlot, root_checksum
from streamkeep.format.journal.position import LogPosition
from streamkeep.format.lmdb_file.meta_page import MetaPage

# The two ways, as a caller names them.
WayName = Literal["checkpoint", "data.mdb"]
FROM_CHECKPOINT: Final = "checkpoint"
FROM_DATA: Final = "data.mdb"
WAYS: Final = (FROM_DATA, FROM_CHECKPOINT)

_CUT_OFF: Final = "a recovery was cut off"
# Also true in another container, or for a copy without the control file. The recovery is then not
# needed, but loses nothing: the journal holds every commit.
_MOVED: Final = "the file system was mounted again, or the files were copied, while it was in use"


class Way(NamedTuple):
    """One way to recover a store.

    Attributes:
        slot: where the replay begins.
        end: the commit that it ends with.
        problem: why the record after it cannot be applied; empty where no record follows.
    """

    slot: CheckpointSlot
    end: int
    problem: str


class State(NamedTuple):
    """The state of a store that no process has open; see the top of this module.

    Attributes:
        healthy: nothing follows the checkpoint; all else is then not set.
        torn: why the system may have lost pages, or that a recovery was cut off; empty if neither.
        checkpoint: the way from the checkpoint; None if its root pages are damaged, or without one.
        data: the way from LMDB's newest commit; None if that is torn.
        sure: the mount shows that the kernel has every page. Otherwise only a caller can choose
            `data` where `checkpoint` loses commits.
        made: the newest commit that is known to have been made.
        promised: the newest commit that may not be lost without a word.
        damage: why `checkpoint` is None.
        gone: the file that the journal goes on with after the checkpoint, and the control file, are
            missing: nothing says whether there were commits in it.
        published: the control file says up to which commit the journal is to be read, in this boot,
            and the files are no copies.
    """

    healthy: bool
    torn: str = ""
    checkpoint: Way | None = None
    data: Way | None = None
    sure: bool = False
    made: int = 0
    promised: int = 0
    damage: CorruptionError | None = None
    gone: str = ""
    published: bool = False

    def shown(self) -> int:
        """Return the newest commit in `data.mdb`, as far as it can be trusted; 0 otherwise."""
        return 0 if self.data is None else self.data.slot.commit_number

    def best(self) -> Way:
        """Return the way that loses least; raise CorruptionError if there is none."""
        ways = [way for way in (self.checkpoint, self.data if self.sure else None) if way]
        if not ways:
            raise self.damage or CorruptionError(
                CHECKPOINT_FILE, "there is no checkpoint; next: run `streamkeep repair`"
            )
        return max(ways, key=lambda way: way.end)

    def lost(self, way: Way) -> int:
        """Return how many commits are known to be lost if a way is taken."""
        return max(0, max(self.made, self.promised) - way.end)

    def loss(self, way: Way) -> str:
        """Return what a way loses that may not be lost, and what else can be done; or ""."""
        first, last = way.end + 1, self.promised
        if first <= last:
            commits = f"commit {last} was" if first == last else f"commits {first} to {last} were"
            why = way.problem or f"the journal cannot be read after commit {way.end}"
            loss = f"{commits} made and would be lost: {why}"
        elif self.gone:
            loss = f"if any commits were made after {way.end}, they would be lost: {self.gone}"
        else:
            return ""
        ways = "`streamkeep repair` saves in a new store what can still be read; or open it with "
        if self.data is not None:
            ways += 'force_recovery="data.mdb", which keeps data.mdb and ends at commit '
            ways += f"{self.data.end}, or with " if self.checkpoint else f"{self.data.end}"
        if self.checkpoint is not None:
            ways += 'force_recovery="checkpoint", which goes back to the checkpoint of commit '
            ways += f"{self.checkpoint.slot.commit_number} and ends at commit {self.checkpoint.end}"
        return f"{loss}; next: {ways}"

    def unreadable(self, *, follows: bool) -> str:
        """Return why a process that only reads cannot show the newest commit; empty if it can.

        Args:
            follows: it applies what the journal has after `data.mdb`, as far as it is published.
        """
        if self.healthy or self.torn:
            return self.torn
        if follows and self.published and self.data is not None and self.sure:
            return self.loss(self.data)
        ends = [way.end for way in (self.checkpoint, self.data) if way is not None]
        ahead = max(ends, default=0) - self.shown()
        if ahead > 0:
            return lacks(ahead)
        return "" if self.data is None else self.loss(self.data)


def lacks(ahead: int) -> str:
    """Return the reason for a recovery that the number of commits in the journal gives."""
    return f"the journal holds {ahead} commit{'s' * (ahead > 1)} that data.mdb lacks"


def examine(store: Folder, slot: CheckpointSlot | None) -> State:
    """Return the state of a store that no process has open.

    Args:
        slot: its newest checkpoint; None if there is none.
    """
    try:
        handle = store.open(DATA_FILE)
    except FileNotFoundError:
        damage = CorruptionError(str(store.path / DATA_FILE), "the file is missing")
        return State(False, "data.mdb is missing", damage=damage)
    try:
        return _examine(store, handle, slot)
    finally:
        os.close(handle)


def is_healthy(store: Folder, slot: CheckpointSlot) -> bool:
    """Return whether the checkpoint covers everything in the store."""
    with store.opened(DATA_FILE) as handle:
        journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
        return _is_healthy(journal, slot, _newest_meta(handle), read_control_file(journal))


def _is_healthy(
    journal: Folder, slot: CheckpointSlot, meta: MetaPage | None, control: ControlState | None
) -> bool:
    if meta is None or meta.data[8:] != slot.meta_page[8:]:
        return False
    # The record after the checkpoint may be damaged. Only the control file shows that then.
    if control is not None and (control.poisoned or control.made > slot.commit_number):
        return False
    if _gone(journal, slot, control):
        return False
    reader = Reader(journal, slot, slot.position())
    try:
        return reader.next() is None and newest_commit(journal, slot) <= slot.commit_number
    finally:
        reader.close()


def _gone(journal: Folder, slot: CheckpointSlot | None, control: ControlState | None) -> str:
    """Return what somebody has removed that alone says whether commits follow the checkpoint."""
    # The names were on disk before the checkpoint was. A file that is left has its end, or a
    # record, there; so do a control file, and one that begins with a later commit.
    if slot is None or control is not None or not slot.journal_file:
        return ""
    if slot.journal_file in journal_files(journal):
        return ""
    return f"journal/{file_name(slot.journal_file)} and journal/{CONTROL_FILE} are missing"


def _newest_meta(handle: int) -> MetaPage | None:
    return next(reversed(read_meta_pages(handle)), None)


def _examine(store: Folder, handle: int, slot: CheckpointSlot | None) -> State:
    journal = store.folder(JOURNAL_FOLDER, missing_ok=True)
    control = read_control_file(journal)
    meta = _newest_meta(handle)
    if slot is not None and _is_healthy(journal, slot, meta, control):
        return State(True)
    made = promised = 0
    if control is not None:
        made = control.made
        promised = made if control.same_mount and not control.poisoned else control.durable
    checkpoint = data = damage = position = None
    if slot is not None:
        try:
            checkpoint = _way(store, handle, journal, slot)
        except CorruptionError as error:
            damage = error
        made = max(made, newest_commit(journal, slot))
    torn = "data.mdb is older than its checkpoint"
    if meta is not None and (slot is None or meta.commit_number >= slot.meta().commit_number):
        try:
            position = _position(handle, meta, slot)
            torn = _why_torn(journal, control, slot, position)
            if not torn:
                data = _way(store, handle, journal, _data_slot(handle, meta, position, slot))
                if slot is not None and slot.boot_id == NO_BOOT != boot_id():
                    torn = _CUT_OFF  # no process may use it so, but each of its commits is whole
        except CorruptionError as error:
            damage = damage or error
            torn = _why_torn(journal, control, slot, None) or f"data.mdb is damaged ({error})"
    if position is not None:
        made = max(made, position.commit_number)
        if control is not None and control.same_mount and not control.poisoned:
            promised = max(promised, position.commit_number)  # an older file, put back, says less
    if data is not None:
        promised = max(promised, data.slot.commit_number, made if slot is None else 0)
    sure = control is None or (control.same_mount and control.knows_mount)
    published = control is not None and control.same_mount and not control.copied
    published = published and len(read_meta_pages(handle)) == 2  # otherwise LMDB opens no file
    if published and control is not None:
        ways = [way for way in (checkpoint, data) if way is not None]
        if checkpoint and data and checkpoint.slot.commit_number > data.slot.commit_number:
            ways = [data]  # of a standby that has begun anew: its checkpoint is of before
        ends = [way.end for way in ways]
        # A killed process leaves one record more at most. Otherwise the number was damaged: a
        # reader would hide commits, and the next writer overwrite them.
        published = max(ends, default=0) <= control.made + 1
    gone = _gone(journal, slot, control)
    return State(False, torn, checkpoint, data, sure, made, promised, damage, gone, published)


def _why_torn(
    journal: Folder,
    control: ControlState | None,
    slot: CheckpointSlot | None,
    position: LogPosition | None,
) -> str:
    """Return the sign that pages may have been lost; "" if there is none.

    Args:
        position: that of LMDB's newest commit; None if it cannot be read.
    """
    if control is not None and control.poisoned:
        return "a sync to the disk had failed"
    if slot is None:  # the boot is not known: nothing says that LMDB's newest commit is not whole
        return ""
    here = boot_id()
    if slot.boot_id == NO_BOOT != here and not (control and control.same_mount):
        return _CUT_OFF
    if here == NO_BOOT or slot.boot_id not in (here, NO_BOOT):
        return "the machine stopped while the store was in use"
    if slot.journal_file and slot.journal_file not in journal_files(journal):
        return ""  # removed by hand: a loss of pages does not remove names
    if control is None or not control.same_mount:
        return _MOVED
    older = position is not None and control.made < position.commit_number
    # A standby publishes after LMDB's commit what no journal has. It may have been killed between.
    if position is not None and older and (position.file_number or control.copied):
        return f"journal/{CONTROL_FILE} is older than commit {position.commit_number} of data.mdb"
    return ""


def _position(handle: int, meta: MetaPage, slot: CheckpointSlot | None) -> LogPosition:
    """Return the log position of LMDB's newest commit; raise CorruptionError."""
    try:
        return StoredRows(handle, meta).position()
    except KeyMissing:
        if slot is not None and meta.data[8:] != slot.meta_page[8:]:
            raise
        return LogPosition(0, 0, 0, meta.commit_number)  # no process has written to the store yet


def _data_slot(
    handle: int, meta: MetaPage, position: LogPosition, slot: CheckpointSlot | None
) -> CheckpointSlot:
    """Return the checkpoint that LMDB's newest commit will be when it is synced.

    Args:
        slot: the newest checkpoint that can be read. It may be of the epoch before: a recovery was
            killed before its own, or that one is damaged.
    """
    try:
        epoch, store_uuid = StoredRows(handle, meta).identity()
    except CorruptionError:
        if slot is None:
            raise
        epoch, store_uuid = slot.epoch, slot.store_uuid
    return CheckpointSlot(
        epoch,
        position.commit_number,
        store_uuid,
        boot_id(),
        *position[:3],
        root_checksum(read_page(handle, meta, meta.main_root)),
        root_checksum(read_page(handle, meta, meta.free_root)),
        meta.data,
    )


def _way(store: Folder, handle: int, journal: Folder, slot: CheckpointSlot) -> Way:
    """Return how far the journal leads from a checkpoint; raise CorruptionError if it is damaged.

    Root pages that are unchanged prove that the pages of its commit are.
    """
    meta = slot.meta()
    check_extent(store, meta)
    for root, expected in (
        (meta.main_root, slot.main_root_checksum),
        (meta.free_root, slot.free_root_checksum),
    ):
        if root_checksum(read_page(handle, meta, root)) != expected:
            raise CorruptionError(
                str(store.path / DATA_FILE),
                f"page {root} is not the root of commit {slot.commit_number}, which recovery "
                "needs; next: run `streamkeep repair`",
            )
    reader = Reader(journal, slot, slot.position())
    try:
        return Way(slot, *try_out(handle, meta, reader))
    finally:
        reader.close()


def choose(state: State, store: Folder, force: WayName | None) -> Way:
    """Return the way that a recovery takes.

    Args:
        force: FROM_CHECKPOINT or FROM_DATA for one way, whatever it loses; None for the best.

    Raises:
        RecoveryNeededError: it would lose commits that were promised, or `data.mdb` may be torn.
        CorruptionError: there is no way.
    """
    if force == FROM_DATA:
        if state.data is None:
            problem = f"data.mdb cannot be kept as it is, because {state.torn}"
            raise RecoveryNeededError(f"{store.path}: {problem}")
        return state.data
    if force == FROM_CHECKPOINT:
        return state._replace(data=None).best()
    way = state.best()
    loss = state.loss(way)
    if loss:
        raise RecoveryNeededError(f"{store.path}: {loss}")
    return way
