"""The snippets of docs/spark.md run as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, assert_sound

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

# In a process of its own: relative paths are those of the folder in which Spark was started.
_RUN = """
import sys
import test_docs_snippets as pages

pages.run_page(pages.SPARK_PAGES[int(sys.argv[1])], {"__name__": "__main__"})
"""


@pytest.mark.parametrize("number", [0, 1], ids=["lake", "spark"])
def test_the_pages_on_spark(number: int, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install '.[spark]'")
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(number)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for path in tmp_path.glob("*.store"):
        assert_sound(path)
