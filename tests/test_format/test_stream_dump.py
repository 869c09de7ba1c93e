"""Payloads of DUMP and RESTORE: every type, damage, and what contradicts itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model.profile import configured
from redis_parts import comparable, stream_parts
from streamkeep.format.core.errors import CorruptionError
from streamkeep.format.node.builder import NodeBuilder
from streamkeep.format.redis import stream_dump
from streamkeep.format.redis import stream_parts as parts
from streamkeep.format.redis.stream_parts import (
    NO_MESSAGES,
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
from test_format.made_dumps import REDIS_8_6, sealed, with_messages
from test_format.made_journal import flipped


def payload(parts: list[Part], server: str = stream_dump.NEWEST) -> bytes:
    nodes = sum(isinstance(part, Node) for part in parts)
    return stream_dump.write_payload(
        parts, nodes, stream_dump.TARGETS[server], stream_dump.Losses()
    )


# --- payloads -----------------------------------------------------------------------------------


def test_a_payload_of_redis_8_6_is_read_and_written_byte_by_byte() -> None:
    parts = list(stream_dump.read_payload(REDIS_8_6, "test"))
    node, counters, group, messages = parts
    assert isinstance(node, Node)
    assert node.ids is not None
    assert (node.ms, node.seq, node.ids.deleted) == (1526919030474, 55, 1)
    assert counters == Counters(
        2, (1526919030500, 0), (1526919030474, 55), (1526919030474, 56), 3, 1
    )
    assert group == GroupPart(
        b"g",
        (1526919030474, 55),
        -1,
        [ConsumerPart(b"c", 1795203238206, 1795203238206)],
        [Pending(1526919030474, 55, 0, 1795203238206, 1)],
        [],
    )
    assert messages == Messages(100, 100, [], 0, 0)
    assert payload(parts, "8.6") == REDIS_8_6


@given(stream_parts())
@configured(200)
def test_the_newest_type_gives_back_what_was_written(parts: list[Part]) -> None:
    back = list(stream_dump.read_payload(payload(parts), "test"))
    assert comparable(back) == comparable(with_messages(parts))


@given(stream_parts(), st.sampled_from(sorted(stream_dump.TARGETS)))
@configured(100)
def test_every_type_keeps_what_it_has_place_for(parts: list[Part], server: str) -> None:
    target = stream_dump.TARGETS[server]
    losses = stream_dump.Losses()
    nodes = sum(isinstance(part, Node) for part in parts)
    data = stream_dump.write_payload(parts, nodes, target, losses)
    assert data[0] == target.kind
    back = list(stream_dump.read_payload(data, "test"))
    for before, after in zip(parts, back, strict=False):
        if isinstance(before, Node):
            assert comparable([before]) == comparable([after])
        elif isinstance(before, Counters):
            kept = before if target.kind > 15 else (*before[:2], None, None, None, *before[5:])
            assert after == kept
        elif isinstance(before, GroupPart):
            assert isinstance(after, GroupPart)
            assert [one[:2] for one in after.pending] == [one[:2] for one in before.pending]
            assert [one[4] for one in after.pending] == [one[4] for one in before.pending]
            assert after.zone == (before.zone if target.kind == 27 else [])
            if before.zone and target.kind < 27:
                assert losses[stream_dump.UNOWNED_LOSS] >= len(before.zone)
                assert after.consumers[-1].name.startswith(b"nobody")
            assert after.entries_read == (None if target.kind == 15 else before.entries_read)


@given(stream_parts(), st.data())
@configured(150)
def test_every_flipped_bit_of_a_payload_is_reported(parts: list[Part], data: st.DataObject) -> None:
    whole = payload(parts)
    for _ in range(20):
        bit = data.draw(st.integers(0, len(whole) * 8 - 1))
        damaged = flipped(whole, bit)
        with pytest.raises(CorruptionError):
            list(stream_dump.read_payload(damaged, "test"))


@given(stream_parts(), st.data())
@configured(300)
def test_a_damaged_payload_under_a_right_checksum_is_refused_or_sound(
    parts: list[Part], data: st.DataObject
) -> None:
    body = bytearray(payload(parts)[:-8])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0x81, 0xC0, 0xC3, 0xF0, 0xFF]))
    with_checksum = sealed(bytes(body[:-2]) + b"\x0f\x00")
    try:
        back = list(stream_dump.read_payload(with_checksum, "test"))
    except CorruptionError:
        return
    again = list(stream_dump.read_payload(payload(back), "test"))  # what was taken can be written
    assert comparable(again) == comparable(with_messages(back))


@given(st.binary(max_size=60), st.sampled_from([15, 19, 21, 26, 27]))
@configured(500)
@example(bytes([0x81]) + b"\xff" * 8, 15)
@example(bytes([1, 0xC3, 1, 0x81]) + b"\xff" * 8, 21)
@example(bytes([1, 16]) + bytes(16) + bytes([0x81]) + b"\x7f" * 8, 21)
@example(bytes([0, 0, 0, 0, 0, 0, 0, 0, 0]) + bytes([0x81]) + b"\xff" * 8, 19)
def test_no_bytes_make_anything_but_a_clear_error(body: bytes, kind: int) -> None:
    with suppress(CorruptionError):
        list(stream_dump.read_payload(sealed(bytes([kind]) + body + b"\x09\x00"), "test"))


@pytest.mark.parametrize("cut", range(0, len(REDIS_8_6) - 11, 7))
def test_a_payload_that_is_cut_off_is_refused(cut: int) -> None:
    with pytest.raises(CorruptionError):
        list(stream_dump.read_payload(sealed(REDIS_8_6[:cut] + b"\x0d\x00"), "test"))
    with pytest.raises(CorruptionError):
        list(stream_dump.read_payload(REDIS_8_6[:cut], "test"))


def test_a_payload_without_a_checksum_is_taken_and_a_newer_one_is_not() -> None:
    assert list(stream_dump.read_payload(REDIS_8_6[:-8] + bytes(8), "test"))
    with pytest.raises(CorruptionError, match="RDB version 16, expected at most 15"):
        list(stream_dump.read_payload(sealed(REDIS_8_6[:-10] + b"\x10\x00"), "test"))
    with pytest.raises(CorruptionError, match="type 0 is not a stream"):
        list(stream_dump.read_payload(sealed(b"\x00\x01a\x0d\x00"), "test"))
    with pytest.raises(CorruptionError, match="bytes after the end"):
        list(stream_dump.read_payload(sealed(REDIS_8_6[:-10] + b"\x00\x0d\x00"), "test"))


GROUP = GroupPart(
    b"g",
    (1, 0),
    1,
    [ConsumerPart(b"a", 5), ConsumerPart(b"b", 5)],
    [Pending(1, 0, 0, 5, 1), Pending(2, 0, NOBODY, 0, 1)],
    [(2, 0)],
)


def entry_node(ms: int, seq: int = 0) -> Node:
    builder = NodeBuilder(ms, seq, [b"f"])
    builder.append(ms, seq, [b"f", b"v"])
    return Node(ms, seq, builder.listpack())


COUNTERS = Counters(1, (1, 0), (1, 0), (0, 0), 1, 0)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([entry_node(1), COUNTERS._replace(length=2)], "the length is 2"),
        ([entry_node(2), COUNTERS], "last_generated_id 1-0 is below the entry 2-0"),
        ([entry_node(1), COUNTERS._replace(entries_added=0)], "entries_added is 0"),
        ([entry_node(1), entry_node(1), COUNTERS], "macro node 1-0 is out of order"),
        ([COUNTERS._replace(length=0, groups=2), *[GROUP] * 2], "group b'g' is repeated"),
        ([COUNTERS._replace(length=0), Messages(0, 100, [], 0, 0)], "idmp-duration is 0"),
    ],
)
def test_what_contradicts_itself_is_refused(parts: list[Part], problem: str) -> None:
    with pytest.raises(CorruptionError, match=problem):
        list(stream_dump.read_payload(payload(parts), "test"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"consumers": [ConsumerPart(b"a", 5)] * 2}, "consumer b'a' is repeated"),
        ({"zone": []}, "the pending entry 2-0 has no consumer"),
        ({"zone": [(2, 0), (1, 0)]}, "two consumers own 1-0"),
        ({"zone": [(2, 0), (3, 0)]}, "a consumer owns 3-0, which is not pending"),
        ({"pending": [Pending(1, 0, 0, -1, 1)], "zone": []}, "the delivery time of 1-0 is -1"),
        ({"pending": [*GROUP.pending][::-1]}, "the pending entry 1-0 is out of order"),
    ],
)
def test_a_group_that_contradicts_itself_is_refused(change: dict[str, Any], problem: str) -> None:
    made: list[Part] = [COUNTERS._replace(length=0, groups=1), GROUP._replace(**change)]
    with pytest.raises(CorruptionError, match=problem):
        list(stream_dump.read_payload(payload(made), "test"))


def test_a_node_without_live_entries_as_redis_7_0_leaves_them_is_passed_over() -> None:
    builder = NodeBuilder(1, 0, [b"f"])
    builder.append(1, 0, [b"f", b"v"])
    data = bytearray(builder.listpack())
    data[6], data[8] = 0, 1  # counts of live entries and of tombstones
    data[data.index(bytes([2, 1, 0, 1, 0, 1]), 10)] |= 1
    dead = Node(1, 0, bytes(data))
    back = list(
        stream_dump.read_payload(
            payload([dead, entry_node(2), COUNTERS._replace(last_id=(2, 0))]), "t"
        )
    )
    assert [part[:2] for part in back if isinstance(part, Node)] == [(2, 0)]


def test_the_types_are_those_of_redis() -> None:
    assert stream_dump.STREAM_TYPES == (15, 19, 21, 26, 27)


# --- what the parts of a stream from outside may not contain --------------------------------------

TOP = (1 << 64) - 1
SOUND_COUNTERS = Counters(2, (5, 0), (4, 0), (3, 0), 2, 0)
MESSAGES = NO_MESSAGES._replace(producers=[ProducerPart(b"p", [(b"m", 4, 0)])], maxsize=2)


def test_sound_parts_have_no_problem() -> None:
    assert parts.problem_of_counters(SOUND_COUNTERS, (5, 0)) == ""
    unknown = SOUND_COUNTERS._replace(max_deleted_id=None, entries_added=None)
    assert parts.problem_of_counters(unknown, None) == ""
    assert parts.problem_of_group(GROUP) == ""
    assert parts.problem_of_group(GROUP._replace(entries_read=-1)) == ""
    assert parts.problem_of_messages(MESSAGES) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"last_id": (TOP + 1, 0)}, "last_generated_id 18446744073709551616-0 is out of range"),
        ({"max_deleted_id": (5, 1)}, "max_deleted_id 5-1 is above last_generated_id 5-0"),
    ],
)
def test_counters_that_contradict_each_other(change: dict[str, Any], problem: str) -> None:
    assert parts.problem_of_counters(SOUND_COUNTERS._replace(**change), (5, 0)) == problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"last_id": (-1, 0)}, "last_delivered_id -1-0 is out of range"),
        ({"entries_read": -2}, "entries_read is -2, expected -1"),
        ({"consumers": [ConsumerPart(b"c", -1)]}, "consumer b'c' has a time before 1970"),
        ({"pending": [Pending(1, 0, 0, 7, -1)]}, "the delivery count of 1-0 is -1, out of range"),
    ],
)
def test_groups_that_no_server_has(change: dict[str, Any], problem: str) -> None:
    assert parts.problem_of_group(GROUP._replace(**change)).startswith(problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"duration": 0}, "idmp-duration is 0, expected 1"),
        ({"maxsize": 0}, "idmp-maxsize is 0, expected 1"),
        ({"maxsize": 10001}, "idmp-maxsize is 10001"),
        ({"added": -1}, "iids-added -1 or iids-duplicates 0 is out of range"),
        ({"producers": [*MESSAGES.producers] * 2}, "producer b'p' is repeated"),
        (
            {"producers": [ProducerPart(b"p", [(b"m%d" % n, 1, n) for n in range(3)])]},
            "producer b'p' has 3 messages, expected at most 2",
        ),
        (
            {"producers": [ProducerPart(b"p", [(b"m", 1, 0), (b"m", 2, 0)])]},
            "producer b'p' repeats a message",
        ),
        (
            {"producers": [ProducerPart(b"p", [(b"m", TOP + 1, 0)])]},
            "producer b'p' has a message with an ID out of range",
        ),
    ],
)
def test_messages_that_no_server_has(change: dict[str, Any], problem: str) -> None:
    assert parts.problem_of_messages(MESSAGES._replace(**change)).startswith(problem)
