"""The package as an archive that Spark sends to executors that do not have it.

Spark unpacks an archive (`spark.archives`) into the working directory of each executor, where the
Python processes find it first. A zip file on their path (`--py-files`) would not work, because
compiled modules cannot be loaded from one. The executors must already have the dependencies of the
package, and a Python of the same version, for which the modules are compiled.
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

_NAME: Final = "streamkeep-code"  # the name of the folder on executors
_KINDS: Final = (".py", ".so", ".pyd", ".properties", ".typed")
_PATH: Final = "spark.executorEnv.PYTHONPATH"


def pack_code(target: Path) -> Path:
    """Write the running package into an archive with the layout of a wheel; return its path."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for package in (streamkeep, pyspark_streamkeep):
            assert package.__file__ is not None
            root = Path(package.__file__).parent
            for path in _files(root):
                archive.write(path, Path(root.name) / path.relative_to(root))
    return target


def with_code(conf: dict[str, str], master: str) -> dict[str, str]:
    """Return settings of Spark that also send the package to executors.

    The archive is removed when this process ends.
    """
    # YARN unpacks archives itself; with `spark.archives`, Spark would unpack them again.
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
    """Yield the files of a package. Its folders may be links, which `rglob` does not follow."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _files(path)
        elif path.suffix in _KINDS or path.name == "py.typed":
            yield path
