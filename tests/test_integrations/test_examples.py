"""The examples of the frameworks, from a wheel in an environment with nothing but their extra.

`make test-all` runs them: first what each page prints, then workers that are killed for a minute.
STREAMKEEP_WHEEL names the wheel; by default one is built, interpreted, which every Python can use.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import streamkeep
from conftest import ROOT
from patience import PATIENCE_S, wait_until
from streamkeep import recovery
from test_integrations.crew import Crew

SECONDS: Final = 60
EXAMPLES: Final = ROOT / "examples" / "integrations"
SHELL: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEWEST: Final = "newest"  # of the Pythons of this machine


class Example(NamedTuple):
    """How an example runs.

    Attributes:
        worker: the command of a worker; {name} is different for each.
        at_once: how many tasks it runs at once.
        steps: from this version of the example to an earlier one, which has no task `ship`.
    """

    worker: tuple[str, ...]
    at_once: int
    send: tuple[str, ...]
    older: tuple[str, str] = ("def ship(", "def pack(")


RUNS: Final = {
    "celery": Example(
        ("celery", "-A", "celery_orders", "worker", "-c", "2", "-n", "{name}@here"),
        2,
        ("celery_orders.py",),
        ('name="ship"', 'name="pack"'),
    ),
    "django": Example(
        ("python", "django_orders.py", "streamkeep_worker", "-c", "3"),
        3,
        ("django_orders.py", "ship"),
    ),
    "dramatiq": Example(
        ("dramatiq", "dramatiq_orders", "-p", "1", "-t", "3"), 3, ("dramatiq_orders.py",)
    ),
    "taskiq": Example(
        ("taskiq", "worker", "taskiq_orders:broker", "--workers", "1", "--max-async-tasks", "3"),
        3,
        ("taskiq_orders.py",),
    ),
}


def bare() -> dict[str, str]:
    """Return the environment of this process without what changes a Python."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "STREAMKEEP_PURE": "1"}


def run(*command: str | Path, **options: Any) -> str:
    done = subprocess.run(
        command,
        check=False,
        env=bare(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if "STREAMKEEP_WHEEL" in os.environ:
        return Path(os.environ["STREAMKEEP_WHEEL"])
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    run(
        *("bash", "-c"),
        "git ls-files -z --cached --others --exclude-standard | "
        f"tar --create --null --files-from=- | tar --extract --directory={source}",
        cwd=ROOT,
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    [built] = folder.glob("*.whl")
    return built


Installed = Callable[..., Path]


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return a function that returns the programs of an environment with one extra."""
    made: dict[tuple[str, str], Path] = {}

    def install(extra: str, python: str = sys.executable) -> Path:
        if (extra, python) not in made:
            venv = tmp_path_factory.mktemp(extra) / "venv"
            run(python, "-m", "venv", venv)
            words: list[str | Path] = [
                venv / "bin" / "pip",
                "--disable-pip-version-check",
                "--quiet",
                "install",
            ]
            run(*words, f"streamkeep[{extra}] @ file://{wheel}")
            made[extra, python] = venv / "bin"
        return made[extra, python]

    return install


def chosen(python: str) -> str:
    if python == NEWEST:
        for found in filter(None, map(shutil.which, ("python3.14", "python3.13", "python3.12"))):
            if subprocess.run([found, "-c", ""], check=False).returncode == 0:  # pyenv has a shim
                return found
    return sys.executable


def lines_of(name: str) -> str:
    """Return the first block of commands of a page, without the install."""
    page = (ROOT / "docs" / "integrations" / f"{name}.md").read_text(encoding="utf-8")
    found = SHELL.search(page)
    assert found is not None
    install, _, program = found[1].partition("\n")
    assert install == f"pip install 'streamkeep[{name}]'"
    return program


@pytest.mark.parametrize("name", RUNS)
def test_a_page_prints_one_install_and_twenty_lines(name: str) -> None:
    assert sum(bool(line.strip()) for line in lines_of(name).splitlines()) <= 20


PAGES = [(name, "here") for name in (*RUNS, "asgi")] + [("django", NEWEST)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "python"), PAGES)
def test_the_first_lines_of_a_page_run_in_an_environment_with_the_extra_only(
    name: str, python: str, installed: Installed, tmp_path: Path
) -> None:
    programs = installed(name, chosen(python))
    program = lines_of(name)
    if name == "django" and run(programs / "python", "-m", "django", "--version") < "6":
        program = program.replace("from django.tasks", "from django_tasks")  # as the page says
    with Crew(tmp_path, programs, bare()) as crew:
        printed = crew.printed(crew.call("bash", "-e", "-c", program))
        last = printed.splitlines()[-1]
        if name == "asgi":
            assert last.endswith('"fields":{"text":"hello"}}'), printed
        else:
            page = (ROOT / "docs" / "integrations" / f"{name}.md").read_text(encoding="utf-8")
            assert f"he last line prints `{last}`." in page, printed


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(
    ("name", "python"), [(name, "here") for name in RUNS] + [("django", NEWEST)]
)
def test_orders_are_shipped_once_though_workers_of_two_versions_are_killed_for_a_minute(
    name: str, python: str, installed: Installed, tmp_path: Path
) -> None:
    one = RUNS[name]
    newer, older = copies(name, tmp_path)
    with Crew(newer, installed(name, chosen(python)), bare()) as crew:
        count = 0

        def worker(folder: Path = newer) -> Any:
            nonlocal count
            count += 1
            return crew.start(*(word.format(name=f"w{count}") for word in one.worker), cwd=folder)

        steady = worker()
        long = crew.call("python", *one.send, "1", str(SECONDS))
        wait_until(lambda: orders_of(newer, "attempts"))
        [first] = orders_of(newer, "attempts")
        killed = [worker(), worker(), worker(older)]
        shipped = 1
        ends_at = time.monotonic() + SECONDS
        while time.monotonic() < ends_at:
            sender = crew.call("python", *one.send, "60", "0.05")
            while sender.poll() is None:
                time.sleep(random.uniform(0.3, 3))
                at = random.randrange(len(killed))
                if random.random() < 0.2:
                    killed[at].terminate()
                    time.sleep(random.uniform(0, 1))
                crew.kill(killed[at])
                killed[at] = worker(older if at == 2 else newer)
            assert crew.printed(sender) == "60 orders are shipped\n"
            shipped += 60
        assert crew.printed(long) == "1 orders are shipped\n"
        assert steady.poll() is None
        attempts = orders_of(newer, "attempts")
        parcels = [order for key in keys_of(newer) for order in orders_of(newer, key)]
        assert len(parcels) == len(set(parcels)) == shipped
        assert set(attempts) == set(parcels)
        assert attempts.count(first) == 1  # its worker lives
        assert len(attempts) <= shipped + crew.kills * one.at_once  # what a killed worker had begun
        print(f"{shipped} orders, {crew.kills} kills, {len(attempts) - shipped} tasks ran again")
    streamkeep.open(newer / "orders.store").close()  # recovers what the killed ones have left
    assert [str(finding) for finding in recovery.check(newer / "orders.store")] == []


def copies(name: str, folder: Path) -> tuple[Path, Path]:
    """Copy an example, as it is and without its task, into two folders with one store."""
    newer, older = folder / "newer", folder / "older"
    program = EXAMPLES / f"{name}_orders.py"
    text, (present, absent) = program.read_text(encoding="utf-8"), RUNS[name].older
    assert present in text
    for place in (newer, older):
        place.mkdir()
    shutil.copy(program, newer)
    (older / program.name).write_text(text.replace(present, absent), encoding="utf-8")
    (older / "orders.store").symlink_to(newer / "orders.store")
    return newer, older


def orders_of(folder: Path, key: str) -> list[str]:
    if not (folder / "orders.store" / "data.mdb").exists():
        return []
    with streamkeep.open(folder / "orders.store", decode_responses=True) as store:
        return [entry.fields["order"] for entry in store.scan(key)]


def keys_of(folder: Path) -> list[str]:
    with streamkeep.open(folder / "orders.store", decode_responses=True) as store:
        return store.keys("parcel:*")
