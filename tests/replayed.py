"""A store as the change feed tells it: a model without code of the feed, and its oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import streamkeep
from streamkeep.engine.api.store import Store
from streamkeep.engine.commands.dump import pending_of
from streamkeep.engine.commands.keys import iter_keys
from streamkeep.engine.tables.group import groups_of

KEYS = ("a", "b", "c", "d")
GROUPS = ("g", "h")

State = dict[bytes, dict[str, Any]]


class Replayed:
    """Streams, groups and pending entries, made of effects alone."""

    def __init__(self, streams: State | None = None) -> None:
        self.streams: State = streams or {}

    def apply(self, effect: Any) -> None:
        """Apply one effect, which must fit to what is there."""
        getattr(self, f"_{effect.kind}")(effect)

    def _stream_created(self, effect: Any) -> None:
        assert effect.key not in self.streams
        self.streams[effect.key] = {"entries": {}, "last": b"0-0", "added": 0, "groups": {}}

    def _stream_deleted(self, effect: Any) -> None:
        del self.streams[effect.key]

    def _stream_renamed(self, effect: Any) -> None:
        assert effect.name not in self.streams
        self.streams[effect.name] = self.streams.pop(effect.key)

    def _added(self, effect: Any) -> None:
        (one,) = effect.ids
        stream = self.streams[effect.key]
        assert one not in stream["entries"]
        stream["entries"][one] = effect.fields
        stream["last"] = max(stream["last"], one, key=_order)
        stream["added"] += 1

    def _id_set(self, effect: Any) -> None:
        (self.streams[effect.key]["last"],) = effect.ids
        self.streams[effect.key]["added"] = effect.number

    def _deleted(self, effect: Any) -> None:
        for one in effect.ids:
            del self.streams[effect.key]["entries"][one]

    def _trimmed(self, effect: Any) -> None:
        (end,) = effect.ids
        entries = self.streams[effect.key]["entries"]
        gone = [one for one in entries if _order(one) <= _order(end)]
        assert len(gone) == effect.number
        for one in gone:
            del entries[one]

    def _group(self, effect: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.streams[effect.key]["groups"][effect.group]
        return found

    def _group_created(self, effect: Any) -> None:
        groups = self.streams[effect.key]["groups"]
        assert effect.group not in groups
        groups[effect.group] = {"consumers": set(), "pending": {}}
        self._group_moved(effect)

    def _group_destroyed(self, effect: Any) -> None:
        del self.streams[effect.key]["groups"][effect.group]

    def _group_moved(self, effect: Any) -> None:
        group = self._group(effect)
        (group["last"],), group["read"] = effect.ids, effect.number

    def _consumer_created(self, effect: Any) -> None:
        assert effect.consumer not in self._group(effect)["consumers"]
        self._group(effect)["consumers"].add(effect.consumer)

    def _consumer_deleted(self, effect: Any) -> None:
        self._group(effect)["consumers"].remove(effect.consumer)

    def _delivered(self, effect: Any) -> None:
        group = self._group(effect)
        assert effect.consumer is None or effect.consumer in group["consumers"]
        for one in effect.ids:
            group["pending"][one] = (effect.consumer, effect.number, effect.time_ms)

    _returned = _delivered

    def _acknowledged(self, effect: Any) -> None:
        for one in effect.ids:
            del self._group(effect)["pending"][one]


def _order(one: bytes) -> tuple[int, int]:
    ms, _, seq = one.partition(b"-")
    return int(ms), int(seq)


def state_of(store: Store[Any]) -> tuple[int, State]:
    """Return the newest commit of a store, and what it holds."""
    found: State = {}
    with store.snapshot() as snapshot:
        txn = snapshot.txn
        for name, number in iter_keys(txn):
            stream = txn.load_numbered(number, name)
            groups: dict[bytes, Any] = {}
            for group in groups_of(txn, stream):
                groups[group.record.name] = {
                    "consumers": {one.name for one in group.consumers()},
                    "last": b"%d-%d" % group.last_id(),
                    "read": group.record.entries_read,
                    "pending": {
                        b"%d-%d" % nack.id(): (
                            group.consumer_name(nack.consumer) if nack.consumer else None,
                            nack.delivery_count,
                            nack.delivery_time,
                        )
                        for nack in pending_of(group)
                    },
                }
            found[name] = {
                "entries": dict(snapshot.xrange(name)),
                "last": b"%d-%d" % stream.record.last_id(),
                "added": stream.record.entries_added,
                "groups": groups,
            }
        return txn.newest_commit(), found


class Mutator:
    """Random commands on a store, alone and several in a transaction."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def change(self, store: Store[Any]) -> None:
        """Make one commit, if the command does anything."""
        with suppress(streamkeep.CommandError):
            if self.chance.random() < 0.3:
                with store.transaction() as txn:
                    for _ in range(self.chance.randrange(1, 6)):
                        with suppress(streamkeep.CommandError):
                            self._command(txn)
            elif self.chance.random() < 0.1:
                self._pipeline(store)
            else:
                self._command(store)

    def _pipeline(self, store: Store[Any]) -> None:
        with store.pipeline() as pipe:
            for n in range(self.chance.randrange(1, 30)):
                pipe.xadd(self.chance.choice(KEYS), {"many": str(n)})
            pipe.execute(raise_on_error=False)

    def _command(self, on: Any) -> None:
        chance = self.chance
        key, group = chance.choice(KEYS), chance.choice(GROUPS)
        consumer = f"c{chance.randrange(3)}"
        ids = [one for one, _ in on.xrange(key)]
        some = chance.sample(ids, min(len(ids), chance.randrange(1, 4)))
        commands: list[tuple[int, Callable[[], object]]] = [
            (30, lambda: on.xadd(key, {"n": str(chance.randrange(99)), "v": "x" * 20})),
            (
                10,
                lambda: on.xadd(
                    key, {f"f{chance.randrange(3)}": "\udcff".encode("utf-8", "replace")}
                ),
            ),
            (4, lambda: on.xadd(key, {"n": "1"}, maxlen=chance.randrange(8), approximate=False)),
            (2, lambda: on.xadd(key, {"n": "1"}, maxlen=8)),
            (8, lambda: some and on.xdel(key, *some)),
            (4, lambda: on.xtrim(key, maxlen=chance.randrange(12), approximate=False)),
            (2, lambda: ids and on.xtrim(key, minid=chance.choice(ids), approximate=False)),
            (2, lambda: on.rename(key, chance.choice(KEYS))),
            (2, lambda: on.delete(key)),
            (1, lambda: on.xsetid(key, "9999999999999-0", entries_added=10_000)),
            (5, lambda: on.xgroup_create(key, group, id=chance.choice(["0", "$"]), mkstream=True)),
            (1, lambda: on.xgroup_destroy(key, group)),
            (1, lambda: on.xgroup_setid(key, group, id="0")),
            (2, lambda: on.xgroup_createconsumer(key, group, consumer)),
            (1, lambda: on.xgroup_delconsumer(key, group, consumer)),
            (20, lambda: on.xreadgroup(group, consumer, {key: ">"}, count=chance.randrange(1, 30))),
            (2, lambda: on.xreadgroup(group, consumer, {key: ">"}, noack=True)),
            (10, lambda: some and on.xack(key, group, *some)),
            (4, lambda: some and on.xclaim(key, group, consumer, 0, some, force=True)),
            (3, lambda: on.xautoclaim(key, group, consumer, 0)),
            (2, lambda: some and on.xnack(key, group, "FAIL", *some)),
            (1, lambda: on.set_retention(key, archive=chance.random() < 0.5)),
        ]
        weights = [weight for weight, _ in commands]
        chance.choices([run for _, run in commands], weights)[0]()
