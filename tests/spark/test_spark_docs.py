"""The snippets of docs/guide/spark.md and lake.md run as printed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conftest import ROOT, assert_sound
from spark.drivers import run_driver

pytestmark = pytest.mark.spark

# In a process of its own: relative paths are those of the folder in which Spark was started. The
# first job of a page starts Spark as a user would; those after it share one, for a start takes
# seconds.
_RUN = """
import shlex
import sys
from contextlib import ExitStack, contextmanager

import page_blocks
from test_docs import test_snippets as pages
from cli_runner import run
from patience import PATIENCE_S
from streamkeep.tools.commands import spark_cmd

shell, start = page_blocks.run_shell, spark_cmd.running
jobs, sessions, open_ones = [], [], ExitStack()


@contextmanager
def running(at):
    if not sessions:
        sessions.append(open_ones.enter_context(start(at)))
    yield sessions[0]


def run_shell(command):
    words = shlex.split(command)
    if words[:2] != ["streamkeep", "spark"]:
        return shell(command)
    jobs.append(command)
    if len(jobs) == 1:
        return shell(command)
    done = run(*words[1:])
    return done.stderr + done.stdout


page_blocks.run_shell, spark_cmd.running = run_shell, running
pages.run_page(pages.SPARK_PAGES[int(sys.argv[1])], {"__name__": "__main__"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["lake", "spark"])
def test_the_pages_on_spark(number: int, tmp_path: Path) -> None:
    paths = filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run_driver(_RUN, number, environment=environment, folder=tmp_path)
    for path in tmp_path.glob("*.store"):
        assert_sound(path)
