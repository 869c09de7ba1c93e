"""The package as an archive that Spark takes to executors which have none.

Spark unpacks an archive (`spark.archives`) into the working directory of each executor, and the
Python processes there look into it first. A zip file on their path (`--py-files`) would not do:
compiled modules cannot be loaded from one. What the package depends on has to be there already, as
has a Python of the same version: compiled modules are made for one.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyspark_streamkeep
import streamkeep

_NAME: Final = "streamkeep-code"  # of the folder on executors
_KINDS: Final = (".py", ".so", ".pyd", ".properties", ".typed")
_PATH: Final = "spark.executorEnv.PYTHONPATH"


def pack_code(target: Path) -> Path:
    """Write the running package into an archive, as a wheel would hold it; return its path."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in (streamkeep, pyspark_streamkeep):
            assert package.__file__ is not None
            root = Path(package.__file__).parent
            for path in _files(root):
                archive.write(path, Path(root.name) / path.relative_to(root))
    return target


def with_code(conf: dict[str, str], master: str) -> dict[str, str]:
    """Return settings of Spark with what takes the package to executors added.

    The archive lives as long as this process.
    """
    # YARN unpacks archives itself; from `spark.archives` Spark would do so once more.
    name = "spark.yarn.dist.archives" if master.startswith("yarn") else "spark.archives"
    folder = Path(tempfile.mkdtemp(prefix="streamkeep-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archives = [conf.get(name, ""), f"{pack_code(folder / 'streamkeep.zip')}#{_NAME}"]
    paths = [_NAME, conf.get(_PATH, "")]
    return {
        **conf,
        name: ",".join(filter(None, archives)),
        _PATH: os.pathsep.join(filter(None, paths)),
    }


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a package; its folders may be links, which `rglob` does not follow."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _files(path)
        elif path.suffix in _KINDS or path.name == "py.typed":
            yield path
