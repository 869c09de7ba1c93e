"""What the parts of a stream from outside may not contain."""

from __future__ import annotations

from typing import Any

import pytest

from streamkeep.format.redis import stream_parts as parts
from streamkeep.format.redis.stream_parts import (
    NO_MESSAGES,
    ConsumerPart,
    Counters,
    GroupPart,
    Pending,
    ProducerPart,
)

TOP = (1 << 64) - 1
COUNTERS = Counters(2, (5, 0), (4, 0), (3, 0), 2, 0)
GROUP = GroupPart(b"g", (5, 0), 2, [ConsumerPart(b"c", 7)], [Pending(4, 0, 0, 7, 1)], [])
MESSAGES = NO_MESSAGES._replace(producers=[ProducerPart(b"p", [(b"m", 4, 0)])], maxsize=2)


def test_sound_parts_have_no_problem() -> None:
    assert parts.problem_of_counters(COUNTERS, (5, 0)) == ""
    unknown = COUNTERS._replace(max_deleted_id=None, entries_added=None)
    assert parts.problem_of_counters(unknown, None) == ""
    assert parts.problem_of_group(GROUP) == ""
    assert parts.problem_of_group(GROUP._replace(entries_read=-1)) == ""
    assert parts.problem_of_messages(MESSAGES) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"last_id": (TOP + 1, 0)}, "last_generated_id 18446744073709551616-0 is out of range"),
        ({"last_id": (4, 9)}, "last_generated_id 4-9 is below the entry 5-0"),
        ({"max_deleted_id": (5, 1)}, "max_deleted_id 5-1 is above last_generated_id 5-0"),
        ({"entries_added": 1}, "entries_added is 1, expected at least the length, 2"),
    ],
)
def test_counters_that_contradict_each_other(change: dict[str, Any], problem: str) -> None:
    assert parts.problem_of_counters(COUNTERS._replace(**change), (5, 0)) == problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"last_id": (-1, 0)}, "last_delivered_id -1-0 is out of range"),
        ({"entries_read": -2}, "entries_read is -2, expected -1"),
        ({"consumers": [ConsumerPart(b"c", -1)]}, "consumer b'c' has a time before 1970"),
        ({"pending": [Pending(4, 0, 0, -7, 1)]}, "the delivery time of 4-0 is -7, out of range"),
        ({"pending": [Pending(4, 0, 0, 7, -1)]}, "the delivery count of 4-0 is -1, out of range"),
    ],
)
def test_groups_that_no_server_has(change: dict[str, Any], problem: str) -> None:
    assert parts.problem_of_group(GROUP._replace(**change)).startswith(problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"duration": 0}, "idmp-duration is 0, expected 1"),
        ({"maxsize": 0}, "idmp-maxsize is 0, expected 1"),
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
