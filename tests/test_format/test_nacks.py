"""NACK pages: what is added is found, removed and counted, and each damage is named."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.core.keys import LAST_MEMBER
from streamkeep.format.rows import nacks

TOP = (1 << 64) - 1
MAX_TIME = nacks.OWNED - 1

ids = st.tuples(st.integers(0, 3) | st.integers(0, TOP), st.integers(0, 3) | st.integers(0, TOP))
times = st.integers(0, MAX_TIME)
orders = st.integers(0, nacks.ORDERS - 1)


class One(NamedTuple):
    """A NACK as the model knows it."""

    id: tuple[int, int]
    consumer: int
    delivery_time: int
    delivery_count: int
    order_key: bytes

    def encode(self) -> bytes:
        ms, seq = self.id
        return nacks.encode_nack(
            ms, seq, self.consumer, self.delivery_time, self.delivery_count, self.order_key
        )


@st.composite
def pages(draw: st.DrawFn) -> list[One]:
    made = []
    for one in sorted(draw(st.lists(ids, min_size=1, max_size=12, unique=True))):
        consumer = draw(st.sampled_from([0, 1, 2, LAST_MEMBER]))
        time = draw(times) if consumer else 0
        key = nacks.make_order_key(consumer != 0, time, draw(orders))
        made.append(One(one, consumer, time, draw(st.integers(0, nacks.MAX_COUNT)), key))
    return made


def encoded(page: list[One]) -> bytes:
    return b"".join(one.encode() for one in page)


def decoded(data: bytes) -> list[One]:
    found = [nacks.decode_nack(data, index) for index in range(nacks.count_nacks(data))]
    return [
        One(one.id(), one.consumer, one.delivery_time, one.delivery_count, one.order_key)
        for one in found
    ]


@given(pages())
def test_what_is_added_is_read_back_and_valid(page: list[One]) -> None:
    data = encoded(page)
    assert decoded(data) == page
    nacks.examine_page(data, *page[0].id)
    assert nacks.id_at(data, len(page) - 1) == page[-1].id
    assert [nacks.consumer_at(data, at) for at in range(len(page))] == [
        one.consumer for one in page
    ]


@given(pages(), ids)
def test_an_id_is_found_where_it_is(page: list[One], wanted: tuple[int, int]) -> None:
    data, known = encoded(page), [one.id for one in page]
    assert nacks.position_of(data, *wanted) == sum(one < wanted for one in known)
    assert nacks.find(data, *wanted) == (known.index(wanted) if wanted in known else -1)
    for index, one in enumerate(known):
        assert nacks.find(data, *one) == index


@given(pages(), st.lists(ids, max_size=4), st.data())
def test_removed_ids_are_gone_and_their_owners_counted(
    page: list[One], others: list[tuple[int, int]], draw: st.DataObject
) -> None:
    some = draw.draw(st.lists(st.sampled_from([one.id for one in page]), unique=True))
    data, owners = nacks.remove_ids(encoded(page), sorted({*some, *others}))
    gone = [one for one in page if one.id in {*some, *others}]
    assert decoded(data) == [one for one in page if one not in gone]
    assert owners == {
        consumer: sum(one.consumer == consumer for one in gone)
        for consumer in {one.consumer for one in gone}
    }


@given(pages())
def test_owners_are_counted(page: list[One]) -> None:
    data, consumers = encoded(page), [one.consumer for one in page]
    assert nacks.owners_of(data) == set(consumers) - {0}
    assert nacks.owns(data, 2) == (2 in consumers)
    assert nacks.examine_page(data, *page[0].id).owners == {
        one: consumers.count(one) for one in consumers
    }


@given(pages())
def test_the_lowest_order_key_of_a_page_is_that_of_its_first_delivery(page: list[One]) -> None:
    assert nacks.first_order_key(encoded(page)) == min(one.order_key for one in page)


@given(
    st.lists(ids, min_size=1, max_size=8, unique=True).map(sorted),
    st.integers(1, LAST_MEMBER),
    times,
    times,
    st.integers(0, nacks.ORDERS - 9),
)
def test_a_run_is_the_nacks_of_first_deliveries(
    run: list[tuple[int, int]], consumer: int, time: int, order_time: int, order: int
) -> None:
    keys = [nacks.make_order_key(True, order_time, order + at) for at in range(len(run))]
    assert nacks.encode_run(run, consumer, time, order_time, order) == encoded(
        [One(one, consumer, time, 1, key) for one, key in zip(run, keys, strict=True)]
    )


@given(times, orders, times, orders)
def test_unowned_nacks_come_first_and_owned_ones_by_time(
    time: int, order: int, other_time: int, other_order: int
) -> None:
    key = nacks.make_order_key(True, time, order)
    assert nacks.make_order_key(False, 0, other_order) < key
    other = nacks.make_order_key(True, other_time, other_order)
    assert (key < other) == ((time, order) < (other_time, other_order))
    assert nacks.order_time(key) == time


def _page(*changes: One) -> bytes:
    return encoded(list(changes))


_KEY = nacks.make_order_key(True, 5, 1)
GOOD = One((1, 0), 1, 5, 1, _KEY)
DAMAGED = {
    "51 bytes, expected a multiple of 46": GOOD.encode() + b"later",
    "ID 1-0 is out of order": _page(GOOD._replace(id=(2, 0)), GOOD),
    "ID 0-9 is below the page's key": _page(GOOD._replace(id=(0, 9))),
    "only one of order key and owner says": _page(GOOD._replace(consumer=0)),
    "delivery count": _page(GOOD)[:34] + b"\xff" * 8 + _page(GOOD)[42:],
    "is too high": _page(GOOD._replace(delivery_time=nacks.OWNED)),
}


@pytest.mark.parametrize("problem", DAMAGED)
def test_damage_is_named(problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        nacks.examine_page(DAMAGED[problem], 1, 0)


def test_a_page_that_is_empty_or_shorter_than_expected_is_reported() -> None:
    for examine in (nacks.first_order_key, lambda page: nacks.examine_page(page, 0, 0)):
        with pytest.raises(CorruptionError, match="the page is empty"):
            examine(b"")
    for index in (1, -1):
        with pytest.raises(CorruptionError, match=rf"NACK {index} is out of range \(1 NACKs\)"):
            nacks.decode_nack(GOOD.encode(), index)


def test_an_ordering_time_before_the_delivery_is_a_finding() -> None:
    early = GOOD._replace(order_key=nacks.make_order_key(True, 4, 7))
    facts = nacks.examine_page(encoded([GOOD, early._replace(id=(2, 0))]), 1, 0)
    assert [one.id() for one in facts.misplaced] == [(2, 0)]
    assert (facts.last, facts.highest_order) == ((2, 0), 7)


def test_idle_time_is_not_negative_where_the_clock_went_back() -> None:
    nack = nacks.decode_nack(GOOD.encode(), 0)
    assert (nack.idle_ms(7), nack.idle_ms(3)) == (2, 0)
