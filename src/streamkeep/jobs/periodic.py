"""Periodic tasks: their rules are rows of the queue, and each firing is a row of the schedule.

A firing, the job that it makes and the next firing are one transaction, so each time fires once
however many workers run, and none is lost when a worker dies. Any worker of the queue fires them,
also one whose program has no such task.

What happens at a time at which no worker ran is up to the rule `missed`:

- `skip`: nothing, if it is more than a minute late;
- `once`: one job for all times that were missed;
- `all`: one job for each.

While the queue is draining, nothing is put: those times are missed, too.

While a job of the task waits for a worker that knows it, no other is put; with `all`, while a
thousand do. A task that was renamed leaves its former rule, which would put jobs for ever.
"""

from __future__ import annotations

import base64
import json
import logging
from datetime import UTC, datetime, tzinfo
from typing import Final, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from streamkeep.format.core.errors import ArgumentError
from streamkeep.format.core.values import as_given
from streamkeep.jobs import layout
from streamkeep.jobs.enqueue import put
from streamkeep.jobs.layout import Due, Fields, Names, due_key, parked_prefix, part_of
from streamkeep.jobs.state import Reader, Step

Missed = Literal["skip", "once", "all"]

SCHEDULED: Final = b"scheduled"  # a field: the time of the firing, in Unix milliseconds
MISSED: Final = ("skip", "once", "all")
_LATE_MS: Final = 60_000
_AHEAD_MS: Final = 86_400_000  # by less, the clock may be set back without a time that fires twice
_AT_ONCE: Final = 100  # firings in one transaction
_MOST_PARKED: Final = 1000
_FIELDS: Final = 5

log = logging.getLogger("streamkeep.jobs")


class Rule(NamedTuple):
    """When a periodic task runs, and what is put.

    Attributes:
        name: names the rule; a rule of the same name replaces it.
        zone: the name of a time zone.
        next_ms: the next firing; 0 if it is to be computed.
        last_ms: when a job of it was put for the last time; 0 if none was.
        expires_ms: how long after its put a job may begin; 0 for no limit.
    """

    name: str
    cron: str
    zone: str
    missed: Missed
    priority: int
    fields: Fields
    next_ms: int = 0
    last_ms: int = 0
    expires_ms: int = 0

    @property
    def task(self) -> str:
        """The task that it calls."""
        return self.fields.get(layout.TASK, b"").decode(errors="replace")

    def shown(self) -> dict[str, str | int | None]:
        """Return what a list of rules shows, also as JSON."""
        return {
            **{"name": self.name, "task": self.task, "cron": self.cron, "zone": self.zone},
            **{"missed": self.missed, "last_ms": self.last_ms or None, "next_ms": self.next_ms},
        }

    def pack(self) -> bytes:
        fields = {
            name.decode(): base64.b64encode(one).decode() for name, one in self.fields.items()
        }
        return json.dumps({**self._asdict(), "fields": fields}).encode()

    def after(self, ms: int) -> int:
        """Return the first firing after a time."""
        return next_time(self.cron, self.zone, ms)


def unpack_rule(data: bytes) -> Rule:
    known = {name: one for name, one in json.loads(data).items() if name in Rule._fields}
    fields = {name.encode(): base64.b64decode(one) for name, one in known["fields"].items()}
    return Rule(**{**known, "fields": fields})


def zone_of(name: str) -> tzinfo:
    """Return a time zone; raise ArgumentError if the system does not know it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise ArgumentError(f"there is no time zone {as_given(name)} on this system") from error


def next_time(cron: str, zone: str, after_ms: int) -> int:
    """Return the first time of a cron expression after a time, in Unix milliseconds.

    Times that a change of the clock skips run just after it; repeated ones run once, as in Debian's
    cron.

    Raises:
        ArgumentError: the expression is wrong, or never comes true.
    """
    from cronsim import CronSim, CronSimError  # only programs with periodic tasks need it

    if not isinstance(cron, str) or len(cron.split()) != _FIELDS:
        raise ArgumentError(
            f"a cron expression has {_FIELDS} fields (minute hour day month weekday), "
            f"not {as_given(cron)}"
        )
    after = datetime.fromtimestamp(after_ms / 1000, zone_of(zone))
    try:
        times = (round(one.timestamp() * 1000) for one in CronSim(cron, after))
        # Of a repeated hour it also yields times that were in its first round, before `after`.
        return next(one for one in times if one > after_ms)
    except CronSimError as error:
        raise ArgumentError(f"the cron expression {cron!r} is wrong: {error}") from error
    except StopIteration:
        raise ArgumentError(f"the cron expression {cron!r} never comes true") from None


def _row_key(name: str) -> bytes:
    return layout.PERIODIC + _reference(name)


def _reference(name: str) -> bytes:
    return part_of(name, "the name of a periodic task")


def register(step: Step, rule: Rule) -> None:
    """Store a rule, unless it is stored as it is; its first firing comes after now.

    The next firing of the rule that it replaces remains if it is due, or if the times are the same,
    unless the clock was far ahead when it was computed: the rule might not fire for years.
    """
    stored = load_rule(step.txn, step.names, rule.name)
    next_ms = rule.after(step.now_ms)
    if stored is not None:
        rule = rule._replace(last_ms=stored.last_ms)
        same = (stored.cron, stored.zone) == (rule.cron, rule.zone)
        same = same and stored.next_ms <= rule.after(step.now_ms + _AHEAD_MS)
        if same and stored._replace(next_ms=0) == rule:
            return
        if same or stored.next_ms <= step.now_ms:
            next_ms = stored.next_ms
        step.delete_row(due_key(stored.next_ms, layout.FIRING, _reference(rule.name)))
    arm(step, rule._replace(next_ms=next_ms))


def remove(step: Step, name: str) -> bool:
    """Remove a rule; return whether there was one."""
    stored = load_rule(step.txn, step.names, name)
    if stored is None:
        return False
    step.delete_row(due_key(stored.next_ms, layout.FIRING, _reference(name)))
    return step.txn.row_delete(step.space, _row_key(name))


def load_rule(reader: Reader, names: Names, name: str) -> Rule | None:
    data = reader.row_get(names.space, _row_key(name))
    return None if data is None else unpack_rule(data)


def rules(reader: Reader, names: Names) -> list[Rule]:
    found = reader.row_range(names.space, layout.PERIODIC, layout.PERIODIC + b"\xff" * 120)
    return [unpack_rule(data) for _, data in found]


def arm(step: Step, rule: Rule) -> None:
    step.txn.row_put(step.space, _row_key(rule.name), rule.pack())
    step.schedule(rule.next_ms, layout.FIRING, _reference(rule.name))


def fire(step: Step, row: Due) -> None:
    """Put the job of a periodic task whose time has come, and set its next time."""
    step.delete_row(row.key)
    data = step.txn.row_get(step.space, layout.PERIODIC + row.reference)
    rule = None if data is None else unpack_rule(data)
    # The row may be of a former rule, or of a firing that was put off and that `resume` has made.
    if rule is None or rule.next_ms > row.due_ms or step.settings.draining:  # `resume` arms it
        return
    try:
        following = rule.after(step.now_ms)
    except ArgumentError as error:  # a worker that knows the time zone can put it
        log.warning(
            "the periodic task %r of the queue %r is not put here: %s",
            rule.name,
            step.names.text,
            error,
        )
        step.schedule(step.now_ms + _LATE_MS, layout.FIRING, row.reference)
        return
    most = _MOST_PARKED if rule.missed == "all" else 1
    prefix = parked_prefix(rule.fields.get(layout.TASK, b""))
    last = prefix + b"\xff" * (layout.PLACE_SIZE + 1)
    if step.counters.parked and len(step.rows(prefix, last, most)) >= most:
        log.warning(
            "the periodic task %r of the queue %r is not put again: jobs of it wait for a worker "
            "that has it; next: start one, or remove the rule with Queue.unschedule(%r)",
            rule.name,
            step.names.text,
            rule.name,
        )
        arm(step, rule._replace(next_ms=following))
        return
    if rule.missed == "all":
        following = rule.next_ms
        for _ in range(_AT_ONCE):
            rule = _put(step, rule, following)
            following = rule.after(following)
            if following > step.now_ms:
                break
    else:
        late = step.now_ms - row.due_ms > _LATE_MS
        time_ms = _newest(rule, rule.next_ms, step.now_ms) if late else rule.next_ms
        if rule.missed == "once" or not late or step.now_ms - time_ms <= _LATE_MS:
            rule = _put(step, rule, time_ms)
    arm(step, rule._replace(next_ms=following))


def _newest(rule: Rule, first_ms: int, now_ms: int) -> int:
    """Return the last time of a rule that is not after now; at least one is known."""
    from cronsim import CronSim

    now = datetime.fromtimestamp(now_ms / 1000, zone_of(rule.zone))
    found = round(next(CronSim(rule.cron, now, reverse=True)).timestamp() * 1000)
    found = max(found, first_ms) if found <= now_ms else first_ms
    while (later := rule.after(found)) <= now_ms:  # in a repeated hour, it is a day early
        found = later
    return found


def _put(step: Step, rule: Rule, time_ms: int) -> Rule:
    fields = {**rule.fields, SCHEDULED: str(time_ms).encode()}
    if rule.expires_ms:
        fields[layout.EXPIRES] = b"%d" % (step.now_ms + rule.expires_ms)
    put(step, fields, rule.priority, 0, always=True)
    return rule._replace(last_ms=step.now_ms)
