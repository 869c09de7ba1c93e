"""What a store must hold after a fault: what actors noted, and what is found.

An actor makes one transaction after the other, and notes each in a file of its own, a line of JSON:

    ["?", number, time, sync, operations]   it begins
    ["!", number, time, results]            the call has returned
    ["-", number, time]                     it was refused: nothing of it may be there

A transaction without a second line was under way when its process ended: all of it is there or
nothing. Times are those of the machine's monotonic clock, which all processes share.

Each actor has streams of its own, and its own entries, deliveries and acknowledgements in streams
that all share. What these hold after each of its transactions follows from its notes alone: these
are its versions. Each entry has a token that names its actor and its transaction. What is found of
an actor, in all streams together, must be one of its versions, not before the newest one that was
promised; and no transaction may be missing if another is there that began after its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from patience import PATIENCE_S
from segments import entries_of
from streamkeep.engine.archive.adopt import _open_part
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.engine.remote.remote_archive import RemoteArchive
from streamkeep.format.segment.remote import parts_of
from streamkeep.jobs import Queue
from streamkeep.jobs.queue import queue_names

OWN: Final = "own"
COMMON: Final = "common"
ARCHIVED: Final = "archived"  # common streams whose trimmed entries go to the archive
QUEUE: Final = "queue"
PRIVATE: Final = (OWN, QUEUE)  # an actor has them for itself
GROUP: Final = "g"
RETRIES: Final = 2  # of each job
DEAD: Final = -1

Operation = list[Any]  # its name, its key, and what else it needs; see `apply`
Shown = tuple[Any, ...]


def own_key(actor: str, number: int) -> str:
    """Return the name of a stream that only one actor uses."""
    return f"{OWN}:{actor}:{number}"


def kind_of(key: str) -> str:
    return key.split(":")[0]


def token_of(actor: str, number: int, part: int, size: int) -> str:
    """Return the token of an entry: it is the part `part` of the actor's transaction `number`."""
    return f"{actor}.{number}.{part}.{size}"


def contents(token: str) -> dict[str, str]:
    """Return the fields of an entry, which follow from its token."""
    size = int(token.rsplit(".", 1)[1])
    return {"t": token, "p": (token * (size // len(token) + 1))[:size]}


def actor_of(token: str) -> str:
    """Return who added an entry."""
    return token.split(".", 1)[0]


class OpenJob(NamedTuple):
    """A job that has not ended well.

    Attributes:
        key, due_ms: with which it was put, so that its payload has them.
        failed: how many attempts have failed; DEAD for a dead letter.
        id: None if nobody was told.
    """

    key: str | None
    due_ms: int
    failed: int = 0
    id: str | None = None


def put_order(token: str) -> tuple[int, ...]:
    """Return what sorts the jobs of an actor as they were put."""
    return tuple(int(one) for one in token.split(".")[1:3])


@dataclass
class Found:
    """One stream as a store shows it.

    Attributes:
        live, history: the token of each entry, by ID; `history` has the live ones as well.
        last: the ID of the last delivery, as a number; -1 without a group.
        pending: the consumer of each pending ID.
        archived: trimmed entries go to the archive.
        jobs, done: of a queue, which shows nothing else: its jobs by their tokens, and how many
            have ended well.
    """

    live: dict[str, str] = field(default_factory=dict)
    history: dict[str, str] = field(default_factory=dict)
    last: int = -1
    pending: dict[str, str] = field(default_factory=dict)
    archived: bool = False
    jobs: dict[str, OpenJob] = field(default_factory=dict)
    done: int = 0


@dataclass
class Dump:
    """A store as it is found: its streams and queues, and what is wrong in itself."""

    streams: dict[str, Found] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def order(one: str) -> int:
    ms, seq = one.split("-")
    return (int(ms) << 64) + int(seq)


def dump(store: Any, *, jobs: bool = True) -> Dump:
    """Read all of a store that was opened with `decode_responses`, or of a snapshot of it.

    Args:
        jobs: also its queues, which a snapshot does not show.
    """
    result = Dump()
    for key in sorted(store.keys()):
        if kind_of(key) not in (OWN, COMMON, ARCHIVED):
            continue
        one = result.streams[key] = Found(archived=store.retention(key).archive)
        one.live = _entries(key, store.xrange(key), result.problems)
        one.history = _entries(key, store.xrange(key, history=True), result.problems)
        if not one.live.items() <= one.history.items():
            result.problems.append(f"{key}: the history lacks live entries")
        for group in store.xinfo_groups(key):
            one.last = order(group["last-delivered-id"])
            rows = store.xpending_range(key, GROUP, "-", "+", 1 << 30)
            one.pending = {row["message_id"]: row["consumer"] for row in rows}
            if group["pending"] != len(rows):
                result.problems.append(f"{key}: {group['pending']} pending, but {len(rows)} rows")
        if store.xlen(key) != len(one.live):
            result.problems.append(f"{key}: XLEN {store.xlen(key)}, but {len(one.live)} entries")
    for name in queue_names(store) if jobs else ():
        result.streams[f"{QUEUE}:{name}"] = _queue(Queue(store, name), result.problems)
    return result


def _queue(queue: Queue, problems: list[str]) -> Found:
    stats = queue.stats()
    seen: list[tuple[bytes, int, str]] = []  # payload, attempts that failed, ID
    for state in ("waiting", "running", "delayed"):
        jobs = queue.jobs(state, 1 << 30)
        if len(jobs) != getattr(stats, state):
            problems.append(f"{queue}: {len(jobs)} jobs are {state}, but stats say {stats}")
        for one in jobs:
            failed = one.attempts - (state == "running")  # which has not ended
            seen.append((one.fields[b"payload"], failed, one.id))
    letters = queue.dead_letters()
    if len(letters) != stats.failed:
        problems.append(f"{queue}: {len(letters)} dead letters, but stats say {stats}")
    seen += [(one.fields[b"payload"], DEAD, one.job) for one in letters]
    found = Found(done=stats.done)
    for payload, failed, job_id in seen:
        token, key, due_ms = json.loads(payload)
        if token in found.jobs:
            problems.append(f"{queue}: the job {token} is there twice")
        found.jobs[token] = OpenJob(key, due_ms, failed, job_id)
    return found


def work_off(store: Any) -> list[str]:
    """Do all jobs of a store, of dead processes and for later as well; return what is wrong."""
    wrong: list[str] = []
    for name in queue_names(store):
        queue = Queue(store, name, retries=RETRIES, max_deaths=1 << 20)
        found = _queue(queue, wrong)
        left = {token for token, one in found.jobs.items() if one.failed != DEAD}
        for one in queue.jobs("delayed", 1 << 30):
            queue.run_now(one.id)
        deadline = time.monotonic() + PATIENCE_S
        while left and not wrong and time.monotonic() < deadline:
            jobs = queue.get_many(10)
            tokens = [job.payload[0] for job in jobs]
            if not left.issuperset(tokens):
                wrong.append(f"{name}: {tokens} were taken, and {left} are there")
            left.difference_update(tokens)
            queue.done_many(jobs)
        stats = queue.stats()
        if left or stats.waiting or stats.running or stats.delayed:
            wrong.append(f"{name}: {left} never came; {stats}")
    return wrong


def _entries(key: str, entries: list[Any], problems: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    before = -1
    for entry in entries:
        token = entry.fields["t"]
        if entry.fields != contents(token):
            problems.append(f"{key}: entry {entry.id} has not the contents of {token}")
        if order(entry.id) <= before:
            problems.append(f"{key}: entry {entry.id} is out of order")
        before = order(entry.id)
        found[entry.id] = token
    if len(set(found.values())) != len(found):
        problems.append(f"{key}: an entry is there twice")
    return found


def unpublished(store: Any, fleet: Path, found: Dump) -> list[str]:
    """Return what is wrong with the archive of a store under a URI, after all was sealed.

    It has what history shows. Beside that it has what was deleted since it was sealed, but
    nothing that was erased, and there are no other objects.
    """
    remote = RemoteArchive(open_objects(str(fleet)), store.uuid)
    newest = remote.newest()
    assert newest is not None
    manifest, problems = newest[1], []
    named = {one.name for one in manifest.segments}
    for path in (fleet / store.uuid).rglob("*.seg*"):
        if str(path.relative_to(fleet / store.uuid)) not in named:
            problems.append(f"{path} is not named")
    for number, stream in manifest.streams.items():
        shown: dict[str, str] = {}
        for first, last, one in parts_of(manifest.by_stream()[number]):
            part = _open_part(remote, one, first, last)
            for ms, seq, pairs in [] if part is None else entries_of(part):
                shown[f"{ms}-{seq}"] = pairs[1].decode()
        history = found.streams.get(stream.key.decode(), Found()).history
        if not history.items() <= shown.items():
            problems.append(f"{stream.key!r}: it lacks {history.items() - shown.items()}")
        if list(shown) != sorted(shown, key=order):
            problems.append(f"{stream.key!r}: it is out of order there")
        # An erasure that was killed has noted what it has not come to: the store has that, too.
        if erased := {str(one) for one in stream.erased} & shown.keys() - history.keys():
            problems.append(f"{stream.key!r}: it still has {erased}")
    return problems


class View:
    """What one actor has in one stream. IDs are None where nobody was told them.

    Attributes:
        live, old: its entries, and those that were trimmed into the archive: IDs by token.
        fresh: tokens in a stream of its own that were not delivered.
        pending: IDs that were delivered to it and not acknowledged.
        group, archived: whether the stream has a group and an archive.
        jobs, done: the jobs of its queue, and how many have ended well.
    """

    def __init__(self) -> None:
        self.exists = False
        self.live: dict[str, str | None] = {}
        self.old: dict[str, str | None] = {}
        self.fresh: dict[str, None] = {}
        self.pending: dict[str, None] = {}
        self.group = False
        self.archived = False
        self.jobs: dict[str, OpenJob] = {}
        self.done = 0

    def shown(self, key: str) -> Shown:
        if kind_of(key) == QUEUE:
            return tuple(sorted((token, one.failed) for token, one in self.jobs.items())), self.done
        pending = tuple(sorted(self.pending, key=order))
        if kind_of(key) == ARCHIVED:
            return tuple(sorted(self.live)), pending
        if kind_of(key) == COMMON:
            return tuple(self.live), pending
        return (
            self.exists,
            self.archived,
            tuple(self.live),
            tuple(self.old),
            tuple(self.fresh),
            pending,
        )


State = dict[str, View]


def view_of(actor: str, key: str, found: Found | None) -> View:
    """Return what an actor has in a stream, as it is found."""
    view = View()
    if found is None:
        return view
    view.exists = True
    view.jobs, view.done = dict(found.jobs), found.done
    archived = kind_of(key) == ARCHIVED
    shown = found.history if archived else found.live
    view.live = {token: one for one, token in shown.items() if actor_of(token) == actor}
    view.pending = {one: None for one, who in found.pending.items() if who == actor}
    if kind_of(key) == OWN:
        view.live = {token: one for one, token in found.live.items()}
        view.old = {t: one for one, t in found.history.items() if one not in found.live}
        view.fresh = {t: None for one, t in found.live.items() if order(one) > found.last >= 0}
        view.group = found.last >= 0
        view.archived = found.archived
    return view


def apply(view: View, operation: Operation, result: Any = None) -> None:
    """Change what an actor has in a stream as an operation does.

    Args:
        result: what the call returned; None for what nobody was told.
    """
    name, _, *more = operation
    view.exists = True
    if name == "add":
        for token, one in zip(more[0], result or [None] * len(more[0]), strict=True):
            view.live[token] = one
            if view.group:
                view.fresh[token] = None
    elif name in ("delete", "erase"):
        for token in more[0]:
            view.live.pop(token, None)
            view.fresh.pop(token, None)
            view.old.pop(token, None) if name == "erase" else None
    elif name == "trim":
        for token in list(view.live)[: max(0, len(view.live) - more[0])]:
            one = view.live.pop(token)
            view.fresh.pop(token, None)
            if view.archived:
                view.old[token] = one
    elif name == "read":
        for token in list(view.fresh)[: more[0]]:
            del view.fresh[token]
            view.pending[str(view.live[token])] = None
    elif name == "take":  # from a group that all share: only the result says what
        view.pending.update(dict.fromkeys(result or ()))
    elif name == "ack":
        for one in more[0]:
            view.pending.pop(one, None)
    elif name == "group":
        view.group = True
        view.fresh = dict.fromkeys(view.live)
    elif name == "retain":
        view.archived = True
    elif name == "put":
        for token, job_id in zip(more[0], result or [None] * len(more[0]), strict=True):
            view.jobs[token] = OpenJob(more[1], more[2], id=job_id)
    elif name in ("done", "soon", "cancel", "drop"):
        for token in more[0]:
            del view.jobs[token]
        view.done += len(more[0]) if name in ("done", "soon") else 0
    elif name in ("retry", "fail", "requeue"):
        for token in more[0]:
            failed = view.jobs[token].failed + 1 if name == "retry" else 0
            dead = name == "fail" or failed > RETRIES
            view.jobs[token] = view.jobs[token]._replace(failed=DEAD if dead else failed)


class Version(NamedTuple):
    """What one actor has in one stream from its transaction `number` on."""

    number: int
    shown: Shown
    open: bool = False  # more may be pending than it says: nobody was told


@dataclass
class Transaction:
    """One transaction as it was noted."""

    began: float
    sync: str
    operations: list[Operation]
    ended: float | None = None
    refused: bool = False
    results: list[Any] | None = None

    def takes(self) -> bool:
        """Return whether it has taken jobs, which does not wait for the disk."""
        return bool(self.operations[0][0] == "get")

    def found_nothing(self) -> bool:
        """Return whether it has looked for jobs, and made no commit since there was none."""
        return self.takes() and self.results == [[]]

    def erased(self) -> set[str]:
        return {token for name, _, *more in self.operations if name == "erase" for token in more[0]}


def read_notes(path: Path, *, jobs: bool = True) -> dict[int, Transaction]:
    """Return the transactions of an actor by their numbers; the last line may be cut off."""
    found: dict[int, Transaction] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if not line.endswith("\n"):
            break
        kind, number, time, *more = json.loads(line)
        if kind == "?":
            operations = [one if jobs or kind_of(one[1]) != QUEUE else ["", ""] for one in more[1]]
            found[number] = Transaction(time, more[0], operations)
        else:
            found[number].ended = time
            found[number].refused = kind == "-"
            found[number].results = more[0] if more else None
    return found


class Promise(NamedTuple):
    """What must be there.

    Attributes:
        at: when the power was lost; None for no loss.
    """

    at: float | None = None

    def keeps(self, one: Transaction) -> bool:
        """Return whether a transaction must be there."""
        if one.ended is None or one.refused or one.found_nothing():
            return False
        waited = one.sync == "commit" and not one.takes()
        return self.at is None or (one.ended < self.at and waited)

    def whole(self, one: Transaction) -> bool:
        """Return whether an erasure was not cut off: it is many commits."""
        return self.at is None and one.ended is not None


class Moment(Promise):
    """What a snapshot must show that began at the time `at`, while others go on."""

    def keeps(self, one: Transaction) -> bool:
        """Return whether a transaction must be there."""
        assert self.at is not None
        return one.ended is not None and not one.refused and one.ended < self.at

    def whole(self, one: Transaction) -> bool:
        """Return whether an erasure was over."""
        return self.keeps(one)


class Oracle:
    """Compares stores with what actors have noted since the last settlement.

    Attributes:
        base: the store as it was found then.
        numbers: the next transaction of each actor.
        unsure: tokens of archived entries whose erasure was cut off; the next one will finish it.
        transactions, of_jobs: how many have ended, and how many of them used a queue.
    """

    def __init__(self) -> None:
        self.base = Dump()
        self.numbers: dict[str, int] = {}
        self.finished: dict[str, set[str]] = {}  # IDs by key that someone tried to acknowledge
        self.unsure: set[str] = set()
        self.transactions = self.of_jobs = 0

    def state_of(self, actor: str) -> State:
        """Return what an actor has in each stream at the settlement."""
        state = {}
        for key, found in self.base.streams.items():
            if kind_of(key) not in PRIVATE or key.split(":")[1] == actor:
                state[key] = view_of(actor, key, found)
        return state

    def problems(
        self, found: Dump, notes: dict[str, dict[int, Transaction]], to: Promise
    ) -> list[str]:
        """Return what is wrong with a store."""
        wrong = list(found.problems)
        known = set(self.base.streams)
        known |= {one[1] for its in notes.values() for t in its.values() for one in t.operations}
        wrong += [f"{key}: unknown" for key in sorted(found.streams.keys() - known)]
        fitting: dict[str, list[int]] = {}
        for actor, its in notes.items():
            told, last = self._fitting(actor, its, found, to)
            fitting[actor] = told
            if not told:
                wrong.append(last)
        if not wrong:
            wrong += _missing(notes, fitting, to)
            wrong += self._undelivered(found, notes)
        return wrong

    def _fitting(
        self, actor: str, notes: dict[int, Transaction], found: Dump, to: Promise
    ) -> tuple[list[int], str]:
        """Return the transactions after which an actor had what is found; or a text that says why
        there is none."""
        first = self.numbers.get(actor, 0) - 1
        versions, unsure = self._versions(actor, notes, first, to)
        keys = versions.keys() | {
            key
            for key in found.streams
            if kind_of(key) not in PRIVATE or key.split(":")[1] == actor
        }
        numbers = [first, *sorted(notes)]
        fits: dict[str, set[int]] = {}
        for key in keys:
            view = view_of(actor, key, found.streams.get(key))
            its = versions.get(key) or [Version(first, View().shown(key))]
            fits[key] = _fitting_numbers(its, view.shown(key), numbers, unsure)
            if not fits[key]:
                return [], f"{actor}: {key} holds what never was: {_nearest(its, view.shown(key))}"
        both = sorted(set(numbers).intersection(*fits.values()))
        if both:
            return both, ""
        low = min(fits, key=lambda key: max(fits[key]))
        high = max(fits, key=lambda key: min(fits[key]))
        return [], (
            f"{actor}: half a transaction: {low} is as after {_span(fits[low])}, "
            f"{high} as after {_span(fits[high])}"
        )

    def _versions(
        self, actor: str, notes: dict[int, Transaction], first: int, to: Promise
    ) -> tuple[dict[str, list[Version]], set[str]]:
        """Return the versions of each stream, and the tokens that are not compared."""
        state = self.state_of(actor)
        versions = {key: [Version(first, view.shown(key))] for key, view in state.items()}
        unsure = set(self.unsure)
        for number, transaction in sorted(notes.items()):
            if not to.whole(transaction):
                unsure |= transaction.erased()
            if transaction.refused:
                continue
            results = transaction.results or [None] * len(transaction.operations)
            changed: dict[str, bool] = {}
            for operation, result in zip(transaction.operations, results, strict=True):
                name, key = operation[:2]
                if not key:
                    continue
                view = state.setdefault(key, View())
                versions.setdefault(key, [Version(first, View().shown(key))])
                apply(view, operation, result)
                changed[key] = changed.get(key, False) or (name == "take" and result is None)
            for key, is_open in changed.items():
                versions[key].append(Version(number, state[key].shown(key), is_open))
        return versions, unsure

    def _undelivered(self, found: Dump, notes: dict[str, dict[int, Transaction]]) -> list[str]:
        """Return what is wrong with groups that all share: each entry that was passed is pending,
        or someone has tried to acknowledge it."""
        tried = {key: set(ids) for key, ids in self.finished.items()}
        for its in notes.values():
            for transaction in its.values():
                for name, key, *more in transaction.operations:
                    if name == "ack" and kind_of(key) == COMMON:
                        tried.setdefault(key, set()).update(more[0])
        wrong = []
        for key, one in found.streams.items():
            if kind_of(key) == COMMON and one.last >= 0:
                passed = {each for each in one.live if order(each) <= one.last}
                lost = passed - one.pending.keys() - tried.get(key, set())
                if lost:
                    wrong.append(f"{key}: {len(lost)} entries were never delivered: {min(lost)}")
        return wrong

    def without_jobs(self) -> Oracle:
        """Return one that knows nothing of queues, for snapshots."""
        one = copy(self)
        streams = self.base.streams.items()
        one.base = Dump({key: found for key, found in streams if kind_of(key) != QUEUE})
        return one

    def settle(
        self, found: Dump, notes: dict[str, dict[int, Transaction]], to: Promise | None = None
    ) -> None:
        """Go on from a store that was compared, and found to be sound."""
        self.base = found
        to = to or Promise()
        for its in notes.values():
            for one in its.values():
                if not to.whole(one):
                    self.unsure |= one.erased()
        old = {
            token
            for one in found.streams.values()
            for each, token in one.history.items()
            if each not in one.live
        }
        self.unsure &= old
        for actor, its in notes.items():
            ended = [one for one in its.values() if one.ended is not None]
            self.transactions += len(ended)
            self.of_jobs += sum(
                any(kind_of(key) == QUEUE for _, key, *_ in one.operations) for one in ended
            )
            self.numbers[actor] = max([self.numbers.get(actor, 0) - 1, *its]) + 1
            for transaction in its.values():
                for name, key, *more in transaction.operations:
                    if name == "ack" and kind_of(key) == COMMON:
                        self.finished.setdefault(key, set()).update(more[0])
        for key, ids in self.finished.items():
            ids.intersection_update(found.streams[key].live if key in found.streams else ())


def _fitting_numbers(
    versions: list[Version], shown: Shown, numbers: list[int], unsure: set[str]
) -> set[int]:
    """Return the transactions after which a stream was as it is shown."""
    shown = _without(shown, unsure)
    fitting: set[int] = set()
    following: Iterable[int | None] = [*(one.number for one in versions[1:]), None]
    for version, end in zip(versions, following, strict=True):
        mine = _without(version.shown, unsure)
        same = mine == shown
        if version.open and not same:
            same = mine[:-1] == shown[:-1] and set(mine[-1]) <= set(shown[-1])
        if same:
            fitting.update(
                one for one in numbers if one >= version.number and (end is None or one < end)
            )
    return fitting


def _without(shown: Shown, unsure: set[str]) -> Shown:
    if not unsure:
        return shown
    return tuple(
        tuple(one for one in part if one not in unsure) if isinstance(part, tuple) else part
        for part in shown
    )


def _missing(
    notes: dict[str, dict[int, Transaction]], fitting: dict[str, list[int]], to: Promise
) -> list[str]:
    """Return which transactions are missing that were promised, or that others have followed."""
    # What is there for certain, or must be: whatever ended before it began must be there as well.
    latest = float("-inf")
    for actor, its in notes.items():
        for number, one in its.items():
            if to.keeps(one) or (number <= fitting[actor][0] and not one.refused):
                latest = max(latest, one.began)
    wrong = []
    for actor, its in notes.items():
        newest = fitting[actor][-1]
        gone = [
            number
            for number, one in its.items()
            if number > newest
            and not one.refused
            and one.ended is not None
            and (to.keeps(one) or one.ended < latest)
        ]
        if gone:
            one = its[gone[0]]
            wrong.append(
                f"{actor}: {len(gone)} acknowledged transactions are lost, from {gone[0]} on "
                f"(sync={one.sync!r}, {str(one.operations)[:200]})"
            )
    return wrong


def _span(numbers: set[int]) -> str:
    return f"{min(numbers)}" if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _nearest(versions: list[Version], shown: Shown) -> str:
    """Say how what is found differs from the version that is nearest to it."""
    best: tuple[int, str] | None = None
    for version in versions:
        parts = []
        cost = 0
        for part, (mine, its) in enumerate(zip(version.shown, shown, strict=True)):
            if mine == its:
                continue
            if not isinstance(mine, tuple):
                cost += 1
                parts.append(f"part {part}: {its}, not {mine}")
                continue
            more = [one for one in its if one not in mine]
            less = [one for one in mine if one not in its]
            cost += len(more) + len(less) + 1
            parts.append(f"part {part}: lacks {less[:5]}, has {more[:5]} beside")
        if best is None or cost <= best[0]:
            best = cost, f"nearest is transaction {version.number}: {'; '.join(parts)}"
    return best[1] if best else "nothing"
