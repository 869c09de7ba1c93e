"""Errors: pickling, and the line of a Redis server."""

from __future__ import annotations

import pickle

from streamkeep.format.core import errors


def test_corruption_errors_survive_pickling() -> None:
    error = errors.MissingSegmentError("segment", "gone", offset=3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.MissingSegmentError
    assert (again.where, again.problem, again.offset) == ("segment", "gone", 3)
    assert str(again) == "segment: gone at byte 3"


def test_errors_know_the_line_of_a_redis_server() -> None:
    assert errors.NoSuchKeyError("no such key").redis_error == "ERR no such key"
    text = "NOGROUP No such consumer group 'g' for key name 'k'"
    assert errors.NoSuchGroupError(text).redis_error == text
