"""Random streams in parts, as `format/redis/stream_parts.py` has them."""

from __future__ import annotations

from hypothesis import strategies as st

from streamkeep.format.core.id_codec import Id
from streamkeep.format.node.builder import encode_nodes
from streamkeep.format.node.check import validate
from streamkeep.format.node.node import Pairs, peek_counts
from streamkeep.format.node.tombstones import mark
from streamkeep.format.redis.stream_parts import (
    NOBODY,
    ConsumerPart,
    Counters,
    GroupPart,
    Messages,
    Node,
    Part,
    Pending,
    ProducerPart,
)
from streamkeep.format.rows.group_records import NEVER, UNKNOWN

texts = st.one_of(st.binary(max_size=6), st.integers(-(1 << 63), 1 << 64).map(lambda n: b"%d" % n))
names = st.binary(max_size=5)
ids = st.tuples(st.integers(0, 6), st.integers(1, 4))
wide_ids = st.one_of(ids, st.tuples(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 2)))
times = st.integers(0, (1 << 47) - 1)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[Pairs]:
    """Entries with ascending IDs, duplicate fields among them."""
    found = sorted(draw(st.sets(wide_ids.filter(lambda one: one > (0, 0)), max_size=12)))
    fields = draw(st.lists(texts, min_size=1, max_size=3))
    entries: list[Pairs] = []
    for ms, seq in found:
        if draw(st.booleans()):
            pairs = [text for name in fields for text in (name, draw(texts))]
        else:
            pairs = draw(st.lists(texts, min_size=2, max_size=6).filter(lambda a: len(a) % 2 == 0))
        entries.append((ms, seq, pairs))
    return entries


@st.composite
def node_lists(draw: st.DrawFn) -> list[Node]:
    """Nodes of a few entries each, some of them tombstones."""
    nodes: list[Node] = []
    for ms, seq, plain in encode_nodes(draw(entry_lists()), draw(st.sampled_from([40, 120, 4000]))):
        data = plain
        live, _ = peek_counts(data)
        if live > 1 and draw(st.booleans()):
            data = mark(data, ms, seq, [(ms, seq)], 0).data
        nodes.append(Node(ms, seq, data, validate(data, ms, seq)))
    return nodes


@st.composite
def group_parts(draw: st.DrawFn, name: bytes) -> GroupPart:
    """A group with consumers, pending entries, and some that nobody owns."""
    consumers = [
        ConsumerPart(consumer, draw(times), draw(st.one_of(st.just(NEVER), times)))
        for consumer in sorted(draw(st.sets(names, max_size=3)))
    ]
    pending: list[Pending] = []
    zone: list[Id] = []
    for ms, seq in sorted(draw(st.sets(ids, max_size=30))):
        owner = draw(st.integers(NOBODY, len(consumers) - 1))
        time = 0 if owner == NOBODY else draw(times)
        pending.append(Pending(ms, seq, owner, time, draw(st.integers(0, 1 << 62))))
        if owner == NOBODY:
            zone.append((ms, seq))
    read = draw(st.integers(UNKNOWN, 1 << 40))
    zone = draw(st.permutations(zone))
    return GroupPart(name, draw(wide_ids), read, consumers, pending, list(zone))


@st.composite
def message_parts(draw: st.DrawFn) -> Messages:
    producers = []
    for name in sorted(draw(st.sets(st.binary(min_size=1, max_size=5), max_size=3))):
        iids = draw(
            st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=4, unique=True)
        )
        producers.append(ProducerPart(name, [(iid, *draw(wide_ids)) for iid in iids]))
    maxsize = draw(st.integers(4, 10_000))
    counters = st.integers(0, 1 << 50)
    return Messages(
        draw(st.integers(1, 86_400)), maxsize, producers, draw(counters), draw(counters)
    )


@st.composite
def stream_parts(draw: st.DrawFn) -> list[Part]:
    nodes = draw(node_lists())
    live = sum(int(node.ids.live) for node in nodes if node.ids is not None)
    end = max((node.ids.last_slot for node in nodes if node.ids is not None), default=(0, 0))
    last = max(end, draw(wide_ids))
    deleted = min(last, draw(st.one_of(st.just((0, 0)), wide_ids)))
    first = nodes[0].ids.first_live if nodes and nodes[0].ids is not None else (0, 0)
    groups = [draw(group_parts(name)) for name in sorted(draw(st.sets(names, max_size=2)))]
    added = live + draw(st.integers(0, 1 << 50))
    counters = Counters(live, last, first, deleted, added, len(groups))
    parts: list[Part] = [*nodes, counters, *groups]
    if draw(st.booleans()):
        parts.append(draw(message_parts()))
    return parts


def comparable(parts: list[Part]) -> list[object]:
    """Return parts so that equal streams are equal: without what a check has found."""
    return [part[:3] if isinstance(part, Node) else part for part in parts]
