"""What Hypothesis draws commands from: tiny on purpose, so that IDs and times clash.

Many strategies look at the model's present state, because the interesting arguments are the IDs
that exist, existed, or are next to one that does.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from model import steps
from model.nodes import Stream
from model.streams import ModelStore, NewId, ReadFrom
from model.values import HIGHEST, MAX, ZERO, Id, Pairs, next_id, previous_id

T = TypeVar("T")


class Repeated(bytes):
    """A run of one byte, which prints short: failing examples stay readable."""

    def __repr__(self) -> str:
        return f"{self[:1]!r} * {len(self)}"


BOOLEANS = st.booleans()
COUNTS: SearchStrategy[int | None] = st.one_of(st.none(), st.integers(1, 5))
SMALL = st.integers(0, 4)
# Above 2^63-1 a number does not fit a signed machine word, which is where codecs break.
NUMBERS = st.one_of(SMALL, SMALL, SMALL, st.sampled_from([(1 << 63) - 1, 1 << 63, MAX - 1, MAX]))

# 510 and 511 bytes are the longest and the first not to fit an LMDB key.
KEYS = st.sampled_from(
    [b"a"] * 24
    + [b"b"] * 8
    + [b"", b"\x00\xff", b"a\x00"]
    + [Repeated(b"n" * size) for size in (510, 511, 512, 65536)]
)

FIELD = st.sampled_from(
    [b"f", b"f", b"g", b"h", b"", b"10", b"-1", b"\x00\xff", Repeated(b"n" * 64)]
)
VALUE = st.sampled_from(
    [
        b"",
        b"v",
        b"\x00\xff\n",
        *[b"%d" % number for number in (0, 7, 127, 128, -1, 4095, 4096, -4096, -4097)],
        *[b"%d" % number for number in (32767, -32769, 8388607, 8388608, 2147483647, -2147483649)],
        *[b"%d" % number for number in ((1 << 63) - 1, 1 << 63, -(1 << 63), -(1 << 63) - 1)],
        *[b"007", b"-0", b"+1", b" 1", b"1 ", b"1.5"],  # text that is no canonical number
        # borders of encodings
        *[Repeated(b"x" * size) for size in (62, 63, 64, 125, 126, 127, 300)],
    ]
)
LARGE = st.sampled_from([Repeated(b"y" * size) for size in (4095, 4096, 5000)])
PAIRS: SearchStrategy[Pairs] = st.one_of(
    st.tuples(st.tuples(st.just(b"f"), VALUE)),
    st.tuples(st.tuples(st.just(b"f"), VALUE), st.tuples(st.just(b"g"), VALUE)),
    st.lists(st.tuples(FIELD, VALUE), min_size=1, max_size=4).map(tuple),
    st.tuples(st.tuples(FIELD, st.one_of(VALUE, VALUE, LARGE))),
)


def mostly(usual: SearchStrategy[T], rare: SearchStrategy[T]) -> SearchStrategy[T]:
    """Draw from `usual` seven times of eight."""
    return st.integers(0, 7).flatmap(lambda dice: rare if dice == 7 else usual)


def ids(stream: Stream | None) -> SearchStrategy[Id]:
    """IDs of slots, live or not, their neighbours, the stream's counters, and any others."""
    known = {ZERO, HIGHEST}
    if stream is not None:
        known |= {slot.id for node in stream.nodes for slot in node.slots}
        known |= {stream.last_id, stream.max_deleted_id}
    near = known | {next_id(one) for one in known if one != HIGHEST}
    near |= {previous_id(one) for one in known if one != ZERO}
    return st.one_of(
        st.sampled_from(sorted(known)), st.sampled_from(sorted(near)), st.tuples(NUMBERS, NUMBERS)
    )


def some_ids(stream: Stream | None) -> SearchStrategy[tuple[Id, ...]]:
    """A few IDs: of live entries here and there, side by side, or at the end; or any."""
    live = [one for one, _ in stream.entries()] if stream is not None else []
    anything = st.lists(ids(stream), min_size=1, max_size=4)
    if not live:
        return anything.map(tuple)
    picked = st.lists(st.sampled_from(live), min_size=1, max_size=6)
    side_by_side = st.builds(
        lambda start, count: live[start : start + count],
        st.integers(0, len(live) - 1),
        st.integers(2, 8),
    )
    newest = st.integers(1, 8).map(lambda count: live[-count:])
    return mostly(st.one_of(picked, side_by_side, newest), anything).map(tuple)


def new_ids(stream: Stream | None) -> SearchStrategy[NewId]:
    """IDs for XADD, most of them good."""
    last_ms, last_seq = stream.last_id if stream is not None else ZERO
    seqs: SearchStrategy[int | None] = st.one_of(st.none(), SMALL)
    low, high = max(0, last_ms - 1), min(MAX, last_ms + 2)
    partly = st.tuples(st.integers(low, high), seqs)
    after = st.just((last_ms, min(MAX, last_seq + 1)))
    anything = st.tuples(NUMBERS, st.one_of(st.none(), NUMBERS))
    return mostly(st.one_of(st.none(), partly, after), anything)


def bounds(stream: Stream | None) -> SearchStrategy[steps.Bound]:
    """Ends of ranges in every form."""
    words = st.sampled_from([steps.Bound(None, word=b"-"), steps.Bound(None, word=b"+")])
    whole = st.builds(lambda one, out: steps.Bound(one[0], one[1], out), ids(stream), st.booleans())
    ms_only = st.builds(lambda one, out: steps.Bound(one[0], None, out), ids(stream), st.booleans())
    return st.one_of(words, whole, whole, ms_only)


def trims(
    stream: Stream | None, *, approximate: SearchStrategy[bool], valid: bool = True
) -> SearchStrategy[steps.Trim]:
    """Trimming options; with `valid` none that a client library refuses before it asks."""
    length = stream.length if stream is not None else 0
    maxlen = mostly(st.integers(0, length + 2), st.just((1 << 63) - 1))
    limits = mostly(st.none(), st.integers(0 if valid else -1, max(3, length)))
    if not valid:
        maxlen = mostly(maxlen, st.just(-1))
    return st.one_of(
        st.builds(steps.Trim, maxlen=maxlen, approximate=approximate, limit=limits),
        st.builds(steps.Trim, minid=ids(stream), approximate=approximate, limit=limits),
    )


class Steps:
    """Strategies for each kind of step, for a model in its present state."""

    def __init__(
        self,
        model: ModelStore,
        *,
        keys: SearchStrategy[bytes] = KEYS,
        approximate: SearchStrategy[bool] = BOOLEANS,
        counts: SearchStrategy[int | None] = COUNTS,
        words: tuple[str, ...] = ("$", "+"),
    ) -> None:
        self.model = model
        self.keys = keys
        self.approximate = approximate
        self.counts = counts
        self.words = words

    def _per_stream(self, build: object) -> SearchStrategy[steps.Step]:
        """Draw a key, then what `build(key, stream or None)` gives."""
        assert callable(build)
        return self.keys.flatmap(lambda key: build(key, self.model.streams.get(key)))

    def appends(self) -> SearchStrategy[steps.Step]:
        """XADD in all its forms."""

        def build(key: bytes, stream: Stream | None) -> SearchStrategy[steps.Step]:
            plain = st.builds(steps.XAdd, st.just(key), PAIRS, new_ids(stream))
            trim = st.one_of(st.none(), trims(stream, approximate=self.approximate))
            full = st.builds(steps.XAdd, st.just(key), PAIRS, new_ids(stream), trim, st.booleans())
            return st.one_of(plain, plain, full)

        return self._per_stream(build)

    def removals(self) -> SearchStrategy[steps.Step]:
        """XDEL and XTRIM."""

        def build(key: bytes, stream: Stream | None) -> SearchStrategy[steps.Step]:
            trim = trims(stream, approximate=self.approximate, valid=False)
            return st.one_of(
                st.builds(steps.XDel, st.just(key), some_ids(stream)),
                st.builds(steps.XTrim, st.just(key), trim),
            )

        return self._per_stream(build)

    def reads(self) -> SearchStrategy[steps.Step]:
        """XLEN, XRANGE, XREVRANGE, XREAD and XINFO STREAM."""

        def build(key: bytes, stream: Stream | None) -> SearchStrategy[steps.Step]:
            ends = bounds(stream)
            return st.one_of(
                st.builds(steps.XRange, st.just(key), ends, ends, self.counts, st.booleans()),
                st.builds(steps.XLen, st.just(key)),
                st.builds(steps.XInfoStream, st.just(key)),
                st.builds(steps.XInfoFull, st.just(key), st.one_of(st.none(), st.integers(-2, 12))),
            )

        return st.one_of(self._per_stream(build), self._per_stream(build), self.xreads())

    def xreads(self) -> SearchStrategy[steps.Step]:
        """XREAD of one to three streams, each named once."""

        def one(key: bytes) -> SearchStrategy[tuple[bytes, ReadFrom]]:
            words: SearchStrategy[ReadFrom] = st.sampled_from(self.words)
            positions = st.one_of(ids(self.model.streams.get(key)), words)
            return st.tuples(st.just(key), positions)

        several = st.lists(
            self.keys.flatmap(one), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
        )
        return st.builds(steps.XRead, several.map(tuple), self.counts)

    def settings(self) -> SearchStrategy[steps.Step]:
        """XSETID."""

        def build(key: bytes, stream: Stream | None) -> SearchStrategy[steps.Step]:
            length = stream.length if stream is not None else 0
            added = st.one_of(st.none(), st.integers(-1, length + 3))
            deleted = st.one_of(st.none(), ids(stream))
            return st.builds(steps.XSetId, st.just(key), ids(stream), added, deleted)

        return self._per_stream(build)

    def keyspace(self) -> SearchStrategy[steps.Step]:
        """What takes streams as a whole."""
        several = st.lists(self.keys, min_size=1, max_size=3).map(tuple)
        return st.one_of(
            mostly(st.builds(steps.Keys), st.builds(steps.Delete, several)),
            st.builds(steps.Rename, self.keys, self.keys),
            st.builds(steps.RenameNx, self.keys, self.keys),
            st.builds(steps.Exists, several),
            st.builds(steps.Type, self.keys),
        )

    def anything(self) -> SearchStrategy[steps.Step]:
        """Any of the above, appends more often."""
        return st.one_of(
            self.appends(),
            self.appends(),
            self.removals(),
            self.reads(),
            self.settings(),
            self.keyspace(),
        )
