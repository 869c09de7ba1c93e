"""Fixtures for all tests. Every store that a test opened through them is checked when it ends."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from inspect import iscoroutinefunction
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import settings

import limits
import lock_order
import streamkeep
from addresses import free_ports
from model import profile
from patience import PATIENCE_S
from stores import MODES, open_at
from streamkeep import recovery
from streamkeep.engine.api.store import Store
from streamkeep.engine.api.views import Sync
from streamkeep.engine.blocking import waiters
from streamkeep.engine.system import failpoints, locks
from streamkeep.engine.system.clock import ManualClock
from streamkeep.recovery.fsck.findings import Severity
from tiers import ALL, slow_but

pytest.register_assert_rewrite("test_properties.store_machine")  # it asserts, and is no test
settings.load_profile(profile.ANY_MACHINE)
lock_order.check()  # every thread of every test takes locks in their order

ROOT = Path(__file__).resolve().parent.parent
NOW_MS = 1_718_004_800_000  # 2024-06-10T07:33:20Z


MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES: Final = 4 << 30  # a run of the daily tests holds 0.3 GB of it at most


def pytest_configure(config: pytest.Config) -> None:
    """Put the daily tests' folders into memory, and refuse compiled modules that do not fit.

    The daily tests wait for the disk a fifth of their time; the long ones are there to use it.
    Modules must not be older than their source, nor compiled with STREAMKEEP_PURE=1.
    """
    config.pluginmanager.register(limits.Limits(config))
    if not ALL and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)  # children inherit a default
    package = Path(streamkeep.__file__).parent
    if not any(package.glob("*/**/*.so")):
        os.environ["STREAMKEEP_PURE"] = "1"  # no warning in what processes of the tests print
    for compiled in package.glob("*/**/*.so"):
        if os.environ.get("STREAMKEEP_PURE") == "1":
            pytest.exit(f"{compiled} is compiled, though STREAMKEEP_PURE=1", returncode=2)
        source = compiled.with_name(compiled.name.split(".")[0] + ".py")
        in_place = package.parent == ROOT / "src"  # what a wheel unpacked has arbitrary times
        if in_place and source.stat().st_mtime > compiled.stat().st_mtime:
            pytest.exit(f"{compiled.name} is older than its source; run `make dev`", returncode=2)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect no garbage among what stays until the end: modules, and a million objects of pytest.

    Otherwise each process of the tests looks at them a thousand times, and so does each child
    that a test forks: more than a tenth of a run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests that are marked `both_modes` in each sync mode that a store can be open in.

    Only `both_modes(daily=True)` has both among the daily tests.
    """
    marker = metafunc.definition.get_closest_marker("both_modes")
    if "sync_mode" in metafunc.fixturenames and marker is not None:
        daily = MODES if marker.kwargs.get("daily") else MODES[:1]
        metafunc.parametrize("sync_mode", slow_but(MODES, *daily), indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, in an event loop of its own."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**wanted), PATIENCE_S))
    return True


@pytest.hookimpl(optionalhook=True)  # which pytest-xdist brings
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run all tests that need a session of Spark in one process: to start one takes seconds."""
    if config.getoption("dist") == "no":
        return None
    from scheduling import Scheduling

    return Scheduling(config, log)


@pytest.fixture
def plain_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open stores with plain locks, in this process and in those that the test starts.

    An interrupt inside of a checked lock, which is Python code, may leave it taken forever.
    """
    monkeypatch.setattr(locks, "checked", None)


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:
    """Leave no failpoint armed for the next test."""
    yield
    failpoints.disarm()


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port for a program that the test starts."""
    with free_ports(1) as [port]:
        yield port


@pytest.fixture
def no_collections() -> Iterator[None]:
    """No garbage collection while a test interrupts: what comes in its callbacks is lost."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lost wake-up a failure: no reader looks again after a second."""
    monkeypatch.setattr(waiters, "FALLBACK_S", 3600.0)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still."""
    return ManualClock(NOW_MS)


@pytest.fixture
def sync_mode(request: pytest.FixtureRequest) -> Sync:
    """How stores sync where a test does not say: as users' do, or as `both_modes` has it."""
    mode: Sync = getattr(request, "param", "commit")
    return mode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test makes its store; nothing is there yet."""
    return tmp_path / "store"


@pytest.fixture
def open_store(
    tmp_path: Path, clock: ManualClock, sync_mode: Sync
) -> Iterator[Callable[..., Store]]:
    """A function that opens stores below `tmp_path`; all are closed and checked at the end."""
    opened: list[Store] = []

    def open_one(name: str = "store", **options: Any) -> Store:
        options.setdefault("sync", sync_mode)
        options.setdefault("clock", clock)
        store = open_at(tmp_path / name, **options)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()
    for path in {store.path for store in opened}:
        assert_sound(path)


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    """An empty store."""
    return open_store()


def module_at(path: Path) -> ModuleType:
    """Load a module that is in no package."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_sound(path: Path) -> None:
    """Check a store that no process has open; nothing may be wrong with it.

    Notes say that only the journal has the newest commits, as after a kill.
    """
    found = [one for one in recovery.check(path) if one.severity != Severity.NOTE]
    findings = list(map(str, found))
    assert findings == []
