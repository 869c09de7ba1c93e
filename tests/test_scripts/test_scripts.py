"""Scripts and benchmarks: line budgets, tags, stubs; and that figures are what tables call them."""

from __future__ import annotations

import ast
import builtins
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import budgets
import check_tag
import installs
import pytest
import stubs

from conftest import ROOT
from streamkeep import supported


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a package of six lines, linked as ours are, and no budgets."""
    for name, text in (("a.py", '"""A."""\n\nx = 1\n'), ("b.js", "1\n2\n"), ("c.css", "1\n")):
        (tmp_path / "engine" / "room").mkdir(parents=True, exist_ok=True)
        (tmp_path / "engine" / "room" / name).write_text(text)
    (tmp_path / "engine" / "made.pyi").write_text("x: int\n")
    (tmp_path / "src" / "streamkeep").mkdir(parents=True)
    (tmp_path / "src" / "streamkeep" / "__init__.py").write_text("x = 1\n")
    (tmp_path / "src" / "streamkeep" / "engine").symlink_to("../../engine")
    return tmp_path


def found(root: Path, **given: int) -> list[str]:
    rows = "\n".join(f"{name} = {lines}" for name, lines in given.items())
    (root / "pyproject.toml").write_text(f"[tool.streamkeep.budgets]\n{rows}\n")
    return list(budgets.problems(root))


def test_a_package_may_fill_its_budget_and_no_more(root: Path) -> None:
    assert found(root, engine=6, src=1) == []
    assert found(root, engine=5, src=1) == [
        "engine: 6 lines, and the budget in pyproject.toml is 5"
    ]


def test_a_package_below_src_counts_for_itself_only(root: Path) -> None:
    (root / "src" / "streamkeep" / "jobs").mkdir()
    (root / "src" / "streamkeep" / "jobs" / "__init__.py").write_text("x = 1\ny = 2\n")
    assert found(root, engine=6, jobs=2, src=1) == []
    assert found(root, engine=6, jobs=1, src=1) == [
        "jobs: 2 lines, and the budget in pyproject.toml is 1"
    ]


def test_pages_have_words(root: Path) -> None:
    (root / "docs" / "guide").mkdir(parents=True)
    (root / "docs" / "guide" / "page.md").write_text("# A page\n\nof seven words.\n")
    (root / "README.md").write_text("two words\n")
    assert found(root, engine=6, src=1, words=8) == []
    assert found(root, engine=6, src=1, words=7) == [
        "words: 8 in the docs, and the budget in pyproject.toml is 7"
    ]


def test_a_package_has_a_budget_and_a_budget_a_package(root: Path) -> None:
    assert found(root, src=1, gone=9) == [
        "engine: has no budget in [tool.streamkeep.budgets] of pyproject.toml",
        "gone: has a budget in pyproject.toml, but no lines",
    ]


# --- `scripts/check_tag.py`: a tag that must not be released is refused, with the reason ----------


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


# --- stubs ----------------------------------------------------------------------------------------

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("stub", stubs.STUBS, ids=lambda stub: stub.file)
def test_a_stub_has_what_its_module_has_and_imports_what_it_names(stub: stubs.Stub) -> None:
    tree = ast.parse(stubs.render(stub))
    module = import_module(stub.file.removeprefix("src/").removesuffix(".pyi").replace("/", "."))
    kinds = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bound = {name for name, _ in stubs.imports(tree)} | {kind.name for kind in kinds}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    assert used - bound - set(dir(builtins)) == set()
    for kind in kinds:
        real = getattr(module, kind.name, None)
        if real is None:  # a class that only type checkers know
            continue
        there = {one.name for one in kind.body if isinstance(one, FUNCTIONS)}
        assert public(real) - there == set()
    if not kinds:
        assert any(isinstance(node, FUNCTIONS) for node in tree.body)


def public(kind: type) -> set[str]:
    """Return the public methods that a class defines, or that were made for it."""
    return {
        name
        for name, value in vars(kind).items()
        if isinstance(value, types.FunctionType) and not name.startswith("_")
    }


# --- benchmarks -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `benchmarks` where this process and its children import it from."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.chdir(ROOT)


def test_the_age_of_a_share_is_that_of_the_last_of_it() -> None:
    load: Any = import_module("benchmarks.load")
    result = load.Result(1.0, 0.0, [(1_000_000, 98), (2_000_000, 1), (50_000_000, 1)])
    assert [result.age_ms(share) for share in (0.5, 0.98, 0.99, 0.999, 1)] == [1, 1, 2, 50, 50]
    assert result.within(2_000_000) == 0.99


@pytest.mark.slow
def test_entries_that_wait_for_consumers_are_as_old_as_they_were_due(tmp_path: Path) -> None:
    load: Any = import_module("benchmarks.load")
    waits = load.Load(
        400, 0.5, producers=2, consumers=2, streams=3, size=10, batch=7, warm=0, late=0.5
    )
    with load.running("store", "none", tmp_path) as where:
        result = load.run_load(where, waits)
        with load.client_of(where) as store:
            assert sum(store.xlen(str(stream)) for stream in range(3)) == 200
            assert all(store.xpending(str(stream), "g")["pending"] == 0 for stream in range(3))
    assert result.counted == 200
    assert result.age_ms(1) >= 490  # rounded down, by 1 % at most


@pytest.mark.parametrize("limit", [150, 3_000, 40_000])
def test_the_highest_rate_is_the_last_that_was_kept(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    rates: Any = import_module("benchmarks.rates")
    load: Any = import_module("benchmarks.load")

    def measure(system: str, sync: str, one: Any) -> Any:
        return load.Result(one.rate, 0.0, [(1_000_000 if one.rate <= limit else 10**9, 1)])

    monkeypatch.setattr(rates, "measure", measure)
    rate, result = rates.highest("store", "commit", load.Load(4_000, 5))
    assert 0.9 * limit <= rate <= limit
    assert result.rate == rate


def test_all_tests_of_redis_have_data_for_their_ranges_at_every_size() -> None:
    rulers: Any = import_module("benchmarks.rulers")
    for line in rulers._TESTS.strip().splitlines():
        whole, part = (rulers._parse(line, part_of) for part_of in (1, 50))
        assert whole.title == part.title
        assert [one.words for one in whole.commands] == [one.words for one in part.commands]
        for test in (whole, part):
            assert hasattr(rulers._Data, test.data[0])
            if test.data[0] in ("streams", "groups") and test.keys > 1:
                assert int(test.data[1]) >= test.keys or test.keys == test.entries


@pytest.mark.parametrize("kind", ["entries", "streams", "groups", "pending"])
def test_each_call_that_grows_can_be_made_at_two_sizes(tmp_path: Path, kind: str) -> None:
    growth: Any = import_module("benchmarks.growth")
    grown = growth._GROWN[kind](tmp_path / "store")
    for size in (20, 40):
        grown.grow(size)
        for call in grown.calls().values():
            call()
    grown.store.close()
