"""A SparkSession that works without configuration, and the registration of the data source.

`session` sets the following, unless the caller has set it:

- a usable Java (`java`), and for the workers the Python of this program. Spark's default is the
  `python3` of PATH, which lacks the packages if a virtual environment is not activated.
- a driver on loopback for a local master, independent of the machine's name and network.
- times in UTC, zstd for Parquet, and the warehouse outside of the working directory.
- for executors on other hosts, the environment variables that S3 needs (`storage.places`), as Spark
  itself does for its own client.
- with `fast_start`, a JVM for the driver that starts fast (one compiler, the serial collector).
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark_streamkeep
import streamkeep
from streamkeep.format.core.errors import StreamkeepError
from streamkeep.pipeline.distribution.packing import CORES
from streamkeep.pipeline.spark_session.java import ensure_java
from streamkeep.pipeline.storage.places import S3_ENVIRONMENT
from streamkeep.supported import install_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For JVMs whose log is not read: it has errors only.
QUIET_JVM: Final = (
    f"-Dlog4j2.configurationFile={Path(__file__).with_name('quiet.properties').as_uri()}"
)

_NUMBERS: Final = re.compile(r"\d+|\*")
_FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkMissingError(StreamkeepError):
    """PySpark, or another package of the extra, is not installed."""


def missing(error: ImportError) -> SparkMissingError:
    """Return the error for a package of the extra that cannot be imported."""
    package = (error.name or "a package").partition(".")[0].replace("pyspark", "PySpark")
    why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"fails: {error}"
    return SparkMissingError(f"{package} {why}; next: {install_hint('spark')}")


def session(
    master: str = "local[*]", *, fast_start: bool = False, ship_code: bool = False, **conf: object
) -> SparkSession:
    """Return a SparkSession; make one if there is none: `session(master="local[4]")`.

    A running session is returned unchanged, except that Spark applies the settings of `conf` that
    it allows to change. Spark finds the format `streamkeep` by itself.

    Args:
        master: where to run; `local[*]` uses all cores of this machine.
        fast_start: start the JVM about a seventh faster; long jobs become slower.
        ship_code: send this package to executors that do not have it. They need its dependencies
            and a Python of the same version.
        conf: settings of Spark, as `spark_sql_shuffle_partitions=8`, or with dots through
            `**{"spark.sql.shuffle.partitions": 8}`.

    Raises:
        SparkMissingError: the extra `streamkeep[spark]` is not installed.
        JavaMissingError: there is no usable Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing(error) from error
    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master)
    chosen = settings(master, fast_start, conf)
    if ship_code:
        chosen = with_code(chosen, master)
    os.environ[CORES] = str(cores_of(master, chosen))  # the JVM keeps that of its start
    for name, value in chosen.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def cores_of(master: str, conf: Mapping[str, str]) -> int:
    """Return how many cores the settings of Spark ask for; 0 if they do not say."""
    numbers = _NUMBERS.findall(master.partition("[")[2])
    if master.startswith("local-cluster"):
        return int(numbers[0]) * int(numbers[1])
    if master.startswith("local"):
        count = numbers[0] if numbers else "1"
        return (os.cpu_count() or 1) if count == "*" else int(count)
    each, executors = conf.get("spark.executor.cores"), conf.get("spark.executor.instances")
    product = int(each) * int(executors) if each and executors else 0
    return product or int(conf.get("spark.cores.max") or conf.get("spark.default.parallelism") or 0)


def register(spark: SparkSession) -> None:
    """Register the format `streamkeep` with `spark`, if Spark does not find it by itself.

    Spark looks for packages whose names begin with `pyspark_`. If one of them, of any vendor,
    cannot be imported, Spark uses none of them.
    """
    from streamkeep.pipeline.data_source import StreamkeepSource

    spark.dataSource.register(StreamkeepSource)


def settings(master: str, fast_start: bool, conf: dict[str, object]) -> dict[str, str]:
    """Return the settings of Spark for `session`; those of the caller take precedence."""
    chosen = {
        "spark.app.name": "streamkeep",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "streamkeep-warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.ui.enabled"] = "false"
    else:
        found = {name: os.environ.get(name) for name in S3_ENVIRONMENT}
        chosen |= {f"spark.executorEnv.{name}": text for name, text in found.items() if text}
    given = {  # keyword arguments cannot have dots
        name if "." in name else name.replace("_", "."): (
            str(value).lower() if isinstance(value, bool) else str(value)
        )
        for name, value in conf.items()
    }
    chosen.update(given)
    if fast_start:
        asked = given.get("spark.driver.extraJavaOptions", "")
        chosen["spark.driver.extraJavaOptions"] = f"{_FAST_START} {asked}".strip()
    return chosen


# --- code archive ---------------------------------------------------------------------------------
#
# The package as an archive that Spark sends to executors that do not have it.
#
# Spark unpacks an archive (`spark.archives`) into the working directory of each executor, where
# the Python processes find it first. A zip file on their path (`--py-files`) would not work,
# because compiled modules cannot be loaded from one. The executors must already have the
# dependencies of the package, and a Python of the same version, for which the modules are
# compiled.

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
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if path.name != "__pycache__":
                yield from _files(path)
        elif path.suffix in _KINDS or path.name == "py.typed":
            yield path
