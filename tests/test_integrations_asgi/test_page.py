"""The page docs/integrations/asgi.md: the lines that it prints serve a stream."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from patience import PATIENCE_S

PAGE = ROOT / "docs" / "integrations" / "asgi.md"


@pytest.mark.slow
def test_the_lines_of_the_page_serve_a_stream(tmp_path: Path, free_port: int) -> None:
    pytest.importorskip("uvicorn", reason="the extra `asgi` is not installed")
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    found = re.search(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    install, _, rest = found[1].partition("\n")
    assert install == "pip install 'streamkeep[asgi]'"
    text = rest.replace("8000", str(free_port))
    text = text.replace("uvicorn app:app", f"{sys.executable} -m uvicorn app:app")
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{text}"],
        check=False,
        cwd=tmp_path,
        env={**os.environ, "STREAMKEEP_PURE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
    )
    assert '"fields":{"text":"hello"}' in done.stdout
