"""A lake in S3 of archives in S3, with a server that loses answers, is slow, or is stale."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import streamkeep
from spark.fleets import IDS, LAST, copy, expected, make, problems, published, rows_of
from spark.in_process import LOCAL
from spark.s3_server import BUCKET, DOWN, FAILING, GOOD, LOSING, SLOW, STALE, UNHEARD, S3Server
from streamkeep.engine.system import failpoints
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.jobs.erase import erase
from streamkeep.pipeline.jobs.restore import restore
from streamkeep.pipeline.lake.files import LakeError


def test_three_stores_with_equal_keys_and_ids_are_one_lake(tmp_path: Path, s3: S3Server) -> None:
    fleet, lake = f"s3://{BUCKET}/{tmp_path.name}", str(tmp_path / "lake")
    a = published(tmp_path / "a.store", "a", fleet)
    b = published(tmp_path / "b.store", "b", fleet)
    folder = tmp_path / "folder"
    with make(folder / "c.store", "c") as store:
        c = store.uuid
    assert copy(fleet, lake).entries == 1000
    assert copy(folder, lake).entries == 500
    assert rows_of(lake) == expected((a, "a"), (b, "b"), (c, "c"))
    assert copy(fleet, lake).details["changed"] == 0
    assert copy(folder, lake).entries == 0
    for place in (fleet, str(folder)):
        assert problems(place, lake) == []

    with pytest.raises(LakeError, match="store_id"):
        erase(LOCAL, "orders", IDS[:1], lake=lake)
    done = erase(LOCAL, "orders", [IDS[3], IDS[400]], store=str(tmp_path / "a.store"), lake=lake)
    assert done.details["erased_in_store"] == done.details["erased_in_lake"] == 2
    erased = {(a, "a", IDS[3]), (a, "a", IDS[400])}
    everything = expected((a, "a"), (b, "b"), (c, "c"))
    assert rows_of(lake) == [row for row in everything if row not in erased]
    assert copy(fleet, lake).entries == 0
    for place in (fleet, str(folder)):
        assert problems(place, lake) == []

    restored = str(tmp_path / "r.store")
    with pytest.raises(LakeError, match="3 stores have a stream 'orders'"):
        restore(LOCAL, lake, restored, "orders")
    assert restore(LOCAL, lake, restored, "orders", store_id=a).entries == 498
    with streamkeep.open(restored) as store:
        assert {entry.fields[b"of"] for entry in store.xrange("orders")} == {b"a"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "step"),
    [
        (LOSING, "lake:file-written"),
        (LOSING, "lake:file-named"),
        (LOSING, "fleet:positions"),
        (LOSING, "lake:commit"),
        (LOSING, "lake:committed"),
        (LOSING, "fleet:committed"),
        (DOWN, "lake:file-written"),  # clients repeat a request for half a minute: only two
        (DOWN, "lake:commit"),
    ],
)
def test_a_run_on_s3_that_loses_what_it_wrote(
    tmp_path: Path, s3: S3Server, mode: str, step: str
) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    fleet, lake = f"{place}/fleet", f"{place}/lake"
    a = published(tmp_path / "a.store", "a", fleet)
    copy(fleet, lake)
    b = published(tmp_path / "b.store", "b", fleet)
    with streamkeep.open(tmp_path / "a.store") as store:
        store.xadd("orders", {"of": "a", "n": "last"}, id=LAST)
        store.archive(seal=True)
    failpoints.arm(step, lambda: s3.behave(mode))
    with suppress(StreamkeepError, OSError):
        copy(fleet, lake)
    s3.behave(GOOD)
    copy(fleet, lake)
    last = (a, "a", LAST)
    assert rows_of(lake) == sorted([*expected((a, "a"), (b, "b")), last])
    assert problems(fleet, lake) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", [FAILING, STALE, SLOW, UNHEARD])
def test_a_lake_in_s3_of_archives_in_s3(tmp_path: Path, s3: S3Server, mode: str) -> None:
    place = f"s3://{BUCKET}/{tmp_path.name}"
    fleet, lake = f"{place}/fleet", f"{place}/lake"
    s3.behave(mode)
    a = published(tmp_path / "a.store", "a", fleet)
    s3.behave(GOOD)
    b = published(tmp_path / "b.store", "b", fleet)
    s3.behave(FAILING if mode == FAILING else GOOD)
    assert copy(fleet, lake).entries == 1000
    s3.behave(GOOD)
    assert rows_of(lake) == expected((a, "a"), (b, "b"))
    done: Any = erase(LOCAL, "orders", IDS[:1], store=str(tmp_path / "a.store"), lake=lake)
    assert done.problems == []
    assert problems(fleet, lake) == []
