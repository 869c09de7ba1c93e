"""`scripts/check_tag.py`: a tag that must not be released is refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import check_tag
import installs
import pytest

from conftest import ROOT
from streamkeep import supported


def tree(folder: Path, version: str, heading: str, released: str) -> Path:
    package = folder / "src" / "streamkeep"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "supported.py").write_text(f"RELEASED = {released}\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
    return folder


def test_a_tag_of_the_version_with_a_date_is_released(tmp_path: Path) -> None:
    root = tree(tmp_path, "0.2.0", "## 0.2 (2027-01-31)", "True")
    assert list(check_tag.problems("v0.2.0", root)) == []


@pytest.mark.parametrize(
    ("tag", "heading", "released", "reason"),
    [
        ("v0.3.0", "## 0.2 (2027-01-31)", "True", "the tag v0.3.0 is not v0.2.0"),
        ("v0.2.0", "## 0.2 (not released)", "True", "no heading with 0.2.0 and the date"),
        ("v0.2.0", "## 0.2 (2027-01-31)", "False", "RELEASED is False"),
    ],
)
def test_another_tag_is_refused(
    tmp_path: Path, tag: str, heading: str, released: str, reason: str
) -> None:
    [told] = check_tag.problems(tag, tree(tmp_path, "0.2.0", heading, released))
    assert reason in told


def test_one_flag_decides_what_hints_and_pages_name(monkeypatch: pytest.MonkeyPatch) -> None:
    hints = {False: "pip install . in a clone of Streamkeep", True: "pip install streamkeep"}
    page = "```\npip install .\npip install '.[s3]' x\n```\n"
    page += "`pip install .` in a clone of Streamkeep, `pip install boto3`"
    texts = {}
    for released, hint in hints.items():
        monkeypatch.setattr(supported, "RELEASED", released)
        texts[released] = installs.with_installs(page)
        assert supported.install_hint() == hint
        assert supported.install_hint("s3") == "pip install 'streamkeep[s3]'"
        assert "\npip install 'streamkeep[s3]' x\n" in texts[released]
        assert "`pip install boto3`" in texts[released]
    assert "\npip install streamkeep\n" in texts[True]
    assert "\npip install .  # in a clone of Streamkeep\n" in texts[False]
    assert "`pip install streamkeep`," in texts[True]
    monkeypatch.setattr(supported, "RELEASED", False)
    assert installs.with_installs(texts[True]) == texts[False]


def test_every_page_is_as_the_flag_says() -> None:
    for page in installs.pages(ROOT):
        text = page.read_text(encoding="utf-8")
        assert installs.with_installs(text) == text, f"{page}: run `make docs`"
