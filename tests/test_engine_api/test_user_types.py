"""A program of a user passes pyright in strict mode; mypy checks it with all other tests."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import ROOT

PROGRAM = ROOT / "tests" / "user_program.py"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
def test_a_program_of_a_user_passes_pyright(tmp_path: Path) -> None:
    settings = {
        "include": [str(PROGRAM)],
        "typeCheckingMode": "strict",
        "extraPaths": [str(ROOT / "src")],
        "reportMissingTypeStubs": False,
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--project", str(project), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    assert report["generalDiagnostics"] == []
