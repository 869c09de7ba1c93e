"""What Hypothesis draws commands on groups from; see `model.strategies`.

Times lie as close together as IDs do, so that what is idle long enough and what is not yet meet.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from model import group_steps
from model.group_commands import GroupFrom
from model.groups import MOST_DELIVERIES, Group
from model.nodes import Stream
from model.steps import (
    Bound,
    Delete,
    Rename,
    RenameNx,
    Step,
    Trim,
    XAdd,
    XDel,
    XInfoFull,
    XInfoStream,
    XSetId,
    XTrim,
)
from model.strategies import BOOLEANS, COUNTS, Repeated, bounds, ids, mostly, new_ids, some_ids
from model.streams import ModelStore, NewId
from model.values import ZERO, Id, Pairs

KEYS = st.sampled_from([b"a"] * 6 + [b"b"] * 2 + [b"c"])
# 600 bytes do not fit an LMDB key.
LONG = Repeated(b"n" * 600)
GROUPS = st.sampled_from([b"g"] * 6 + [b"h"] * 3 + [b"", LONG, b"none"])
CONSUMERS = st.sampled_from([b"ann"] * 4 + [b"bob"] * 3 + [b"", LONG, "çy".encode()])
PRODUCERS = st.sampled_from([b"p", b"p", b"q", Repeated(b"p" * 1000)])
IIDS = st.sampled_from([b"1", b"2", b"3", Repeated(b"i" * 65536)])
POLICIES = st.sampled_from(["KEEPREF", "DELREF", "ACKED"])
MODES = st.sampled_from(["SILENT", "FAIL", "FATAL"])
SELDOM = mostly(st.just(False), st.just(True))

VALUE = st.sampled_from([b"", b"1", b"-1", b"x", "ü".encode(), Repeated(b"x" * 70)])
PAIRS: SearchStrategy[Pairs] = st.dictionaries(
    st.sampled_from([b"f", b"g"]), VALUE, min_size=1, max_size=2
).map(lambda fields: tuple(fields.items()))

EVERYTHING = (Bound(None, word=b"-"), Bound(None, word=b"+"))
IDLES = st.one_of(st.just(0), st.integers(0, 120))
# Redis's numbers of deliveries are signed; the last is where counting stops.
RETRY_COUNTS: SearchStrategy[int | None] = st.one_of(
    st.none(), st.none(), st.integers(0, 3), st.just(MOST_DELIVERIES)
)


def maybe(strategy: SearchStrategy[int]) -> SearchStrategy[int | None]:
    """Draw a number, or None for an option that is left out."""
    return st.one_of(st.none(), st.none(), strategy)


class Places:
    """Strategies for where a command on a group may go, for a model in its present state."""

    def __init__(
        self,
        model: ModelStore,
        *,
        keys: SearchStrategy[bytes] = KEYS,
        groups: SearchStrategy[bytes] = GROUPS,
    ) -> None:
        self.model = model
        self.keys = keys
        self.groups = groups

    def stream(self, key: bytes) -> Stream | None:
        """Return a stream, None when it is missing."""
        return self.model.streams.get(key)

    def group(self, key: bytes, group: bytes) -> Group | None:
        """Return a group, None when it or its stream is missing."""
        stream = self.stream(key)
        return None if stream is None else stream.groups.get(group)

    def places(self) -> SearchStrategy[tuple[bytes, bytes]]:
        """A key and a group, most often one that exists."""
        known = [(key, name) for key, one in self.model.streams.items() for name in one.groups]
        anywhere = st.tuples(self.keys, self.groups)
        return mostly(st.sampled_from(known), anywhere) if known else anywhere

    def pending_id(self, key: bytes, group: bytes) -> SearchStrategy[Id]:
        """An ID that the group has pending, or another."""
        found = self.group(key, group)
        pending = sorted(found.pending) if found is not None else []
        others = ids(self.stream(key))
        return mostly(st.sampled_from(pending), others) if pending else others

    def pending_ids(
        self, key: bytes, group: bytes, *, least: int = 1
    ) -> SearchStrategy[tuple[Id, ...]]:
        """A few IDs that the group has pending: here and there, or side by side; or others."""
        found = self.group(key, group)
        pending = sorted(found.pending) if found is not None else []
        picked = st.lists(self.pending_id(key, group), min_size=least, max_size=4).map(tuple)
        if len(pending) < 8:
            return picked
        run = st.builds(
            lambda start, count: tuple(pending[start : start + count]),
            st.integers(0, len(pending) - 1),
            st.integers(2, 60),
        )
        return st.one_of(picked, picked, run)

    def last_ids(self, key: bytes) -> SearchStrategy[Id | None]:
        """A position for a group; None for `$`."""
        stream = self.stream(key)
        live = [one for one, _ in stream.entries()] if stream is not None else []
        usual = st.sampled_from([ZERO, *live])
        return mostly(usual, st.one_of(st.none(), ids(stream)))


class GroupSteps(Places):
    """Strategies for each kind of step."""

    def __init__(self, model: ModelStore, now_ms: int) -> None:
        super().__init__(model)
        self.now_ms = now_ms

    def trims(self, key: bytes) -> SearchStrategy[Trim]:
        """Trimming options; `~` only where the engine's nodes are those of the model."""
        stream = self.stream(key)
        length = stream.length if stream is not None else 0
        policy = POLICIES
        by_length = st.builds(
            lambda gone, tilde, policy: Trim(max(0, length - gone), None, tilde, None, policy),
            st.integers(-1, 12),
            BOOLEANS,
            policy,
        )
        by_id = st.builds(
            lambda minid, tilde, policy: Trim(None, minid, tilde, None, policy),
            ids(stream),
            BOOLEANS,
            policy,
        )
        return mostly(by_length, by_id)

    def appends(self) -> SearchStrategy[Step]:
        """XADD: plain, with trimming, and idempotent."""

        def build(key: bytes) -> SearchStrategy[Step]:
            stream = self.stream(key)
            last_ms = stream.last_id[0] if stream is not None else 0
            near: SearchStrategy[NewId] = st.sampled_from([None, None, (last_ms, None)])
            plain = st.builds(XAdd, st.just(key), PAIRS, mostly(near, new_ids(stream)))
            trimmed = st.builds(
                XAdd, st.just(key), PAIRS, near, st.one_of(st.none(), self.trims(key)), SELDOM
            )
            message = st.builds(
                XAdd,
                st.just(key),
                PAIRS,
                st.none(),
                mostly(st.none(), self.trims(key)),
                SELDOM,
                PRODUCERS,
                st.one_of(st.none(), IIDS),
            )
            return st.one_of(plain, plain, trimmed, message)

        return self.keys.flatmap(build)

    def removals(self) -> SearchStrategy[Step]:
        """XDEL, XDELEX, XTRIM: also of what is pending."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = place
            doomed = st.one_of(some_ids(self.stream(key)), self.pending_ids(key, group))
            return st.one_of(
                st.builds(XDel, st.just(key), doomed),
                st.builds(group_steps.XDelEx, st.just(key), doomed, POLICIES),
                st.builds(XTrim, st.just(key), self.trims(key)),
            )

        return self.places().flatmap(build)

    def settings(self) -> SearchStrategy[Step]:
        """XSETID, XCFGSET, XIDMPRECORD."""

        def build(key: bytes) -> SearchStrategy[Step]:
            stream = self.stream(key)
            length = stream.length if stream is not None else 0
            added = maybe(st.integers(-1, length + 3))
            # Not so short that anything is forgotten: that is for the engine to time.
            # And not 0, which never comes to a server: redis-py refuses it.
            durations = maybe(st.sampled_from([100, 200, 86_400, 86_401]))
            sizes = st.sampled_from([1, 2, 100, 10_000, 10_001])
            return st.one_of(
                st.builds(XSetId, st.just(key), ids(stream), added, st.none()),
                st.builds(group_steps.XCfgSet, st.just(key), durations, sizes),
                st.builds(group_steps.XIdmpRecord, st.just(key), PRODUCERS, IIDS, some_id(stream)),
            )

        return self.keys.flatmap(build)

    def keyspace(self) -> SearchStrategy[Step]:
        """DEL and RENAME: groups go where their stream goes, and with it."""
        return st.one_of(
            st.builds(Delete, st.tuples(st.sampled_from([b"b", b"c"]))),
            st.builds(Rename, self.keys, self.keys),
            st.builds(RenameNx, self.keys, self.keys),
        )

    def groups_made(self) -> SearchStrategy[Step]:
        """XGROUP in all its forms."""

        def create(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = place
            read = maybe(st.integers(-2, 9))
            where = st.just(key), st.just(group), self.last_ids(key)
            return st.builds(group_steps.XGroupCreate, *where, BOOLEANS, read)

        def change(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = map(st.just, place)
            read = maybe(st.integers(-2, 9))
            return st.one_of(
                st.builds(group_steps.XGroupSetId, key, group, self.last_ids(place[0]), read),
                st.builds(group_steps.XGroupCreateConsumer, key, group, CONSUMERS),
                st.builds(group_steps.XGroupDelConsumer, key, group, CONSUMERS),
                mostly(
                    st.builds(group_steps.XGroupCreateConsumer, key, group, CONSUMERS),
                    st.builds(group_steps.XGroupDestroy, key, group),
                ),
            )

        new = st.tuples(self.keys, self.groups).flatmap(create)
        return st.one_of(new, self.places().flatmap(change))

    def deliveries(self) -> SearchStrategy[Step]:
        """XREADGROUP of one stream or several, new entries and history, with all options."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            first, group = place

            def position(key: bytes) -> SearchStrategy[tuple[bytes, GroupFrom]]:
                new: SearchStrategy[GroupFrom] = st.just(">")
                history: SearchStrategy[GroupFrom] = self.pending_id(key, group)
                return st.tuples(st.just(key), st.one_of(new, new, st.just(ZERO), history))

            more = st.lists(self.keys.flatmap(position), max_size=2)
            streams = st.tuples(position(first), mostly(st.just([]), more)).map(
                lambda drawn: tuple(dict([drawn[0], *drawn[1]]).items())
            )

            def options(count: int | None) -> SearchStrategy[Step]:
                return st.builds(
                    group_steps.XReadGroup,
                    st.just(group),
                    CONSUMERS,
                    streams,
                    st.just(count),
                    SELDOM,
                    maybe(IDLES),
                    maybe(st.integers(count or 1, 9)),
                    maybe(st.one_of(st.integers(1, 400))),
                )

            return st.one_of(COUNTS, st.none()).flatmap(options)

        return self.places().flatmap(build)

    def acknowledgements(self) -> SearchStrategy[Step]:
        """XACK, XACKDEL, XNACK."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            where = tuple(map(st.just, place))
            some = self.pending_ids(*place)
            force = mostly(st.just(False), st.just(True))
            live = some_ids(self.stream(place[0]))
            return st.one_of(
                st.builds(group_steps.XAck, *where, some),
                st.builds(group_steps.XAckDel, *where, some, POLICIES),
                st.builds(group_steps.XNack, *where, MODES, some, RETRY_COUNTS, force),
                st.builds(group_steps.XNack, *where, MODES, live, RETRY_COUNTS, st.just(True)),
            )

        return self.places().flatmap(build)

    def claims(self) -> SearchStrategy[Step]:
        """XCLAIM with all options."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = place
            retries = st.one_of(RETRY_COUNTS, st.just(-1))
            plain = {
                "force": BOOLEANS,
                "justid": BOOLEANS,
                "retrycount": retries,
                "lastid": mostly(st.none(), ids(self.stream(key))),
            }
            where = (st.just(key), st.just(group), CONSUMERS, IDLES, self.pending_ids(key, group))
            past = st.integers(-20, 200)
            return st.one_of(
                st.builds(group_steps.XClaim, *where, **plain),
                st.builds(group_steps.XClaim, *where, idle=past, **plain),
                st.builds(
                    group_steps.XClaim, *where, time=past.map(lambda ms: self.now_ms - ms), **plain
                ),
            )

        return self.places().flatmap(build)

    def sweeps(self) -> SearchStrategy[Step]:
        """XAUTOCLAIM."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = place
            start = st.one_of(st.just(ZERO), self.pending_id(key, group))
            count = st.one_of(st.none(), st.integers(0, 5))
            where = (st.just(key), st.just(group), CONSUMERS)
            return st.builds(group_steps.XAutoClaim, *where, IDLES, start, count, BOOLEANS)

        return self.places().flatmap(build)

    def pending(self) -> SearchStrategy[Step]:
        """XPENDING in all its forms."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            ends = bounds(self.stream(place[0]))
            where = tuple(map(st.just, place))

            def ranges(pair: tuple[Bound, Bound]) -> SearchStrategy[Step]:
                start, end = map(st.just, pair)
                count = st.sampled_from([1, 2, 5, 1000, 0])
                only = st.one_of(st.none(), CONSUMERS)
                return st.builds(
                    group_steps.XPendingRange, *where, start, end, count, only, maybe(IDLES)
                )

            return st.one_of(
                st.builds(group_steps.XPending, *where),
                st.one_of(st.just(EVERYTHING), st.tuples(ends, ends)).flatmap(ranges),
            )

        return self.places().flatmap(build)

    def observations(self) -> SearchStrategy[Step]:
        """XPENDING, and XINFO in all its forms."""

        def build(place: tuple[bytes, bytes]) -> SearchStrategy[Step]:
            key, group = map(st.just, place)
            return st.one_of(
                st.builds(XInfoStream, key),
                st.builds(XInfoFull, key, st.one_of(st.none(), st.integers(-1, 12))),
                st.builds(group_steps.XInfoGroups, key),
                st.builds(group_steps.XInfoConsumers, key, group),
            )

        return st.one_of(self.pending(), self.places().flatmap(build))

    def anything(self) -> SearchStrategy[Step]:
        """Any of the above, deliveries more often."""
        return st.one_of(
            self.appends(),
            self.deliveries(),
            self.deliveries(),
            self.acknowledgements(),
            self.claims(),
            self.sweeps(),
            self.removals(),
            self.groups_made(),
            self.settings(),
            self.observations(),
        )


def some_id(stream: Stream | None) -> SearchStrategy[Id]:
    """An ID of a live entry, or another."""
    return some_ids(stream).map(lambda several: several[0])
