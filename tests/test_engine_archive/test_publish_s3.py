"""Archives in an S3 server that is slow, fails, loses writes, lists old states, or is away."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import failpoint_names
import streamkeep
from archived_streams import shown
from conftest import assert_sound
from inside import segment_files_of
from spark.s3_server import (
    BUCKET,
    DOWN,
    FAILING,
    GOOD,
    LOCKED,
    LOSING,
    SLOW,
    STALE,
    S3Server,
    serving,
)
from streamkeep.engine.api.store import Store
from streamkeep.engine.remote.object_store import open_objects
from streamkeep.format.core.entry import StreamId
from streamkeep.format.core.errors import CorruptionError, UnreachableError
from streamkeep.recovery import check
from test_engine_archive.test_publish import fill, manifest_of, remote_of
from tiers import slow_but

STEPS = [name for name in failpoint_names.NAMES if name.startswith("publish:")]


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)  # first of all, so that a store is checked before it is gone
def server(running: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    running.behave(GOOD)
    yield running
    running.behave(GOOD)


@pytest.fixture
def fleet(server: S3Server, tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/all of it"


def count_there(store: Store, fleet: str) -> int:
    """Return the entries of a publication that has no overlaps, from objects that are all there."""
    remote = remote_of(store, fleet)
    found = 0
    for one in manifest_of(store, fleet).segments:
        segment = remote.open(one.record, sealed=one.sealed)
        assert not list(segment.check())
        found += one.record.entries
    return found


@pytest.mark.parametrize("mode", slow_but([FAILING, GOOD, SLOW, STALE], FAILING))
def test_an_archive_in_s3_is_whole(store: Store, server: S3Server, fleet: str, mode: str) -> None:
    server.behave(mode)
    ids = fill(store, 400)
    store.xtrim("s", maxlen=200)
    store.archive(to=fleet, seal=True)
    assert list((store.path / "archive").rglob("*.seg")) == []
    assert shown(store) == ids
    assert count_there(store, fleet) == 400
    assert store.erase("s", ids[3], ids[350]) == 2
    assert count_there(store, fleet) == 398
    store.xtrim("s", maxlen=0)
    store.archive()
    assert [one.sealed for one in manifest_of(store, fleet).segments] == [False, False]
    assert count_there(store, fleet) == 398
    assert shown(store) == [one for one in ids if one not in (ids[3], ids[350])]
    assert list(check(store.path)) == []
    names = open_objects(fleet).names(store.uuid)
    assert len([name for name in names if name.endswith(".seg")]) == 2 or mode == STALE


def test_a_lost_write_is_noticed_before_anything_is_removed(
    store: Store, server: S3Server, fleet: str
) -> None:
    ids = fill(store, 200)
    store.xtrim("s", maxlen=0)
    store.archive()
    server.behave(LOSING)
    with pytest.raises(CorruptionError):
        store.archive(to=fleet)
    assert shown(store) == ids
    assert list((store.path / "archive").rglob("*.seg"))
    server.behave(GOOD)
    store.archive(to=fleet)
    assert shown(store) == ids
    fill(store, 10)
    server.behave(LOSING)
    with pytest.raises(CorruptionError, match=r"reading it back|not there"):
        store.archive(seal=True)
    server.behave(GOOD)
    assert store.archive(seal=True).published.sealed_entries == 10


@pytest.mark.parametrize(("mode", "advice"), [(DOWN, "repeat the command"), (LOCKED, "AWS_ACCESS")])
def test_a_server_that_does_not_serve_is_named(
    store: Store, server: S3Server, fleet: str, mode: str, advice: str
) -> None:
    ids = fill(store, 200)
    store.xtrim("s", maxlen=0)
    store.archive(to=fleet)
    segment_files_of(store).close()
    fresh = streamkeep.open(store.path, readonly=True)
    server.behave(mode)
    with pytest.raises(UnreachableError, match=advice):
        shown(store_without_cache(store))
    assert [one.code for one in check(store.path)] == ["SK314"]
    with pytest.raises(UnreachableError, match=advice):
        store.archive(seal=True)
    server.behave(GOOD)
    assert shown(fresh) == ids
    fresh.close()


def store_without_cache(store: Store) -> Store:
    """Return a store of which nothing is in memory that was read from the server."""
    files = segment_files_of(store)
    files.close()
    for record in store.archived_segments():
        files.forget(record.path)
    return store


def test_a_missing_bucket_is_an_error_that_changes_nothing(store: Store, server: S3Server) -> None:
    fill(store, 10)
    with pytest.raises(UnreachableError, match="there is no bucket 'nowhere'; next: make it"):
        store.archive(to="s3://nowhere/x", seal=True)
    assert store.remote_archive() is None


_PROGRAM = """
import os, sys, streamkeep
from streamkeep.engine.system import failpoints
with streamkeep.open(sys.argv[1]) as store:
    failpoints.arm(sys.argv[2], lambda: os._exit(9))
    store.archive(seal=True)
"""


@pytest.mark.parametrize(
    ("step", "mode"),
    slow_but(list(product(STEPS, [FAILING, STALE])), ("publish:uploaded", FAILING)),
)
def test_a_publication_that_is_killed_loses_nothing(
    tmp_path: Path, server: S3Server, fleet: str, step: str, mode: str
) -> None:
    path = tmp_path / "store"
    with streamkeep.open(path) as store:
        ids = fill(store, 600)
        store.xtrim("s", maxlen=400)
        store.archive(to=fleet, seal=True)
        store.xtrim("s", maxlen=0)  # so that an archived segment replaces the sealed one
        ids += fill(store, 20)
    server.behave(mode)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(path), step], env=environment, check=False
    )
    assert killed.returncode == 9
    with streamkeep.open(path) as store:
        assert shown(store) == ids
        assert count_there(store, fleet) >= 600
        store.archive(seal=True)
        assert shown(store) == ids
        assert manifest_of(store, fleet).streams[1].complete_to == StreamId.parse(ids[-1])
        server.behave(GOOD)
        store.xtrim("s", maxlen=0)
        store.archive()
        assert count_there(store, fleet) == 620
        names = open_objects(fleet).names(store.uuid)
        assert len([name for name in names if name.endswith(".seg")]) == len(
            manifest_of(store, fleet).segments
        )
    assert_sound(path)
