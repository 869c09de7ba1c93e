"""Compile the hot modules with mypyc where a C compiler is there; all else is in pyproject.toml.

STREAMKEEP_PURE=1 installs without compiled modules; STREAMKEEP_REQUIRE_EXT=1 makes a failed
compilation an error.
"""

import os
import runpy
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

# Before anything that an old Python lacks; where Streamkeep can be built at all, it is silent.
SUPPORTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "src/streamkeep/supported.py")
NO_BUILD = {"sdist", "egg_info", "dist_info"}  # these write no wheel: see `extensions`
try:
    runpy.run_path(SUPPORTED)
except ImportError as error:
    if sys.version_info < (3, 11) or not NO_BUILD.intersection(sys.argv):
        sys.exit(str(error))

if not NO_BUILD.intersection(sys.argv):  # an editable install needs the stubs, too
    runpy.run_path(os.path.join(os.path.dirname(SUPPORTED), "../../scripts/stubs.py"))["write"]()

from setuptools import setup  # noqa: E402
from setuptools.command.build_ext import build_ext  # noqa: E402

# Paths below src/streamkeep, also of its links, so that the modules get their import names. All
# others together take less than 3 % from any workload of `benchmarks/`, interpreted; the last group
# is here for another reason. `python -m benchmarks.modules` measures it, decision 23 has figures.
HOT = [
    # Bytes: loops over entries and pending entries. Interpreted, a range takes six times as long.
    "src/streamkeep/format/core/checksum.py",
    "src/streamkeep/format/core/id_codec.py",
    "src/streamkeep/format/core/keys.py",
    "src/streamkeep/format/journal/journal.py",
    "src/streamkeep/format/lmdb_file/lmdb_pages.py",
    "src/streamkeep/format/node/builder.py",
    "src/streamkeep/format/node/check.py",
    "src/streamkeep/format/node/envelope.py",
    "src/streamkeep/format/node/listpack.py",
    "src/streamkeep/format/node/listpack_check.py",
    "src/streamkeep/format/node/node.py",
    "src/streamkeep/format/node/ranges.py",
    "src/streamkeep/format/node/sent.py",
    "src/streamkeep/format/node/tombstones.py",
    "src/streamkeep/format/node/where.py",
    "src/streamkeep/format/redis/lzf.py",
    "src/streamkeep/format/redis/rdb_values.py",
    "src/streamkeep/format/redis/resp.py",
    "src/streamkeep/format/rows/group_records.py",
    "src/streamkeep/format/rows/nacks.py",
    "src/streamkeep/format/rows/records.py",
    "src/streamkeep/arrow/column_buffers.py",
    "src/streamkeep/arrow/columns.py",
    # Commits: each `xadd` runs through them, and recovery through the reader and its trial.
    "src/streamkeep/engine/crash_recovery/trial.py",
    "src/streamkeep/engine/journal/control_file.py",
    "src/streamkeep/engine/journal/reader.py",
    "src/streamkeep/engine/store/command.py",
    "src/streamkeep/engine/system/failpoints.py",
    "src/streamkeep/engine/system/long_wait.py",
    "src/streamkeep/engine/system/shared_file.py",
    "src/streamkeep/engine/txn/flush.py",
    "src/streamkeep/engine/txn/memtable.py",
    "src/streamkeep/engine/txn/read_txn.py",
    "src/streamkeep/engine/txn/scan.py",
    "src/streamkeep/engine/txn/stream.py",
    "src/streamkeep/engine/txn/overlay.py",
    # Commands, and the nodes and groups that they change.
    "src/streamkeep/engine/blocking/calls.py",
    "src/streamkeep/engine/commands/arguments.py",
    "src/streamkeep/engine/commands/idempotency.py",
    "src/streamkeep/engine/commands/reply_budget.py",
    "src/streamkeep/engine/commands/retention.py",
    "src/streamkeep/engine/commands/xack.py",
    "src/streamkeep/engine/commands/xadd.py",
    "src/streamkeep/engine/commands/xclaim.py",
    "src/streamkeep/engine/commands/xdel.py",
    "src/streamkeep/engine/commands/xpending.py",
    "src/streamkeep/engine/commands/xrange.py",
    "src/streamkeep/engine/commands/xread.py",
    "src/streamkeep/engine/commands/xreadgroup.py",
    "src/streamkeep/engine/commands/xtrim.py",
    "src/streamkeep/engine/liveness/marks.py",
    "src/streamkeep/engine/tables/existing.py",
    "src/streamkeep/engine/tables/group.py",
    "src/streamkeep/engine/tables/lag.py",
    "src/streamkeep/engine/tables/node_walk.py",
    "src/streamkeep/engine/tables/pel.py",
    "src/streamkeep/engine/tables/pel_walks.py",
    "src/streamkeep/engine/tables/read_cursor.py",
    # The queue: putting, taking and ending a job.
    "src/streamkeep/jobs/admission.py",
    "src/streamkeep/jobs/ended_entries.py",
    "src/streamkeep/jobs/ending.py",
    "src/streamkeep/jobs/job_calls.py",
    "src/streamkeep/jobs/layout.py",
    "src/streamkeep/jobs/enqueue.py",
    "src/streamkeep/jobs/options.py",
    "src/streamkeep/jobs/state.py",
    "src/streamkeep/jobs/take_call.py",
    "src/streamkeep/jobs/taking.py",
    # The server: what runs for each command of a client.
    "src/streamkeep/server/commands/append.py",
    "src/streamkeep/server/commands/groups.py",
    "src/streamkeep/server/commands/read.py",
    "src/streamkeep/server/commands/command_table.py",
    "src/streamkeep/server/commands/words.py",
    "src/streamkeep/server/resp/encoder.py",
    "src/streamkeep/server/resp/requests.py",
    "src/streamkeep/server/resp/turn.py",
    "src/streamkeep/server/resp/turns.py",
    # Locks, and commits as well: a Ctrl-C cannot come between two steps of compiled code.
    "src/streamkeep/engine/archive/lock.py",
    "src/streamkeep/engine/journal/journal.py",
    "src/streamkeep/engine/journal/syncs.py",
    "src/streamkeep/engine/journal/write_lock.py",
    "src/streamkeep/engine/system/shared_word.py",
    "src/streamkeep/engine/notify/wait_table.py",
    "src/streamkeep/engine/store/group_commit.py",
    "src/streamkeep/engine/txn/begin.py",
    "src/streamkeep/engine/txn/context.py",
    "src/streamkeep/engine/txn/txn.py",
]
# Loops over bytes: a third of what a range or `xadd_many` takes. All else mostly calls functions of
# Python; -O3 makes it 1 % faster, and compiles twice as long as -O1.
LOOPS = ("format.core.id_codec", "format.node.", "format.rows.nacks", "arrow.")
PARTS = 8  # C files of each kind: one per module took a seventh longer, to read headers


def extensions() -> list[Any]:
    """Return the extensions to build; none for a pure install, or where none would be used.

    An sdist need not wait until mypyc has translated everything to C.
    """
    if os.environ.get("STREAMKEEP_PURE") == "1" or NO_BUILD.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    # Types of the libraries play no part in compiling: their stubs need not be installed, and
    # what is installed, or half of it, changes nothing. `make type` reports errors in modules that
    # are only imported.
    flags = [
        "--follow-imports=silent",
        "--no-site-packages",
        "--ignore-missing-imports",
        "--no-warn-unused-ignores",
        "--no-warn-return-any",
        "--allow-subclassing-any",
    ]
    told = f"streamkeep: compiling {len(HOT)} modules, about a minute; STREAMKEEP_PURE=1 skips it"
    tell(told)
    built = mypycify(
        [*flags, *HOT],
        opt_level="1",
        debug_level="0",
        group_name="streamkeep.native",
        multi_file=True,
    )
    for extension in built:  # a missing compiler must not stop an install; CI sets the variable
        extension.include_dirs.append("build/streamkeep")  # of the group's own header
        extension.optional = os.environ.get("STREAMKEEP_REQUIRE_EXT") != "1"
    return built


def tell(text: str) -> None:
    """Print a line on the terminal, where somebody waits: pip hides what a build prints."""
    try:
        with open("/dev/tty", "w") as terminal:
            terminal.write(f"\n{text}\n")
    except OSError:  # there is none, as in CI
        print(text, file=sys.stderr)


def in_parts(sources: list[str]) -> dict[str, list[str]]:
    """Return the C files to compile, which include those of mypyc, by the option for them."""
    loops = tuple(f"__native_streamkeep.{one}".replace(".", "___") for one in LOOPS)
    parts: dict[str, list[str]] = {"-O1": [], "-O3": []}
    for number, source in enumerate(sorted(sources, key=os.path.getsize)):
        name = os.path.basename(source)
        is_module = name.startswith("__native_streamkeep___")
        option = "-O1" if is_module and not name.startswith(loops) else "-O3"
        part = f"build/native_part{option}_{number % PARTS}.c"
        with open(part, "a" if part in parts[option] else "w") as file:
            file.write(f'#include "{os.path.abspath(source)}"\n')
        if part not in parts[option]:
            parts[option].append(part)
    return parts


class ParallelBuild(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles the C files of an extension side by side."""

    def build_extensions(self) -> None:
        """Build all extensions."""
        compile_some = self.compiler.compile

        @cache
        def headers(*flags: str) -> str:
            """Read Python.h once for all modules; compilers other than gcc do not look for it."""
            folder = os.path.join(self.build_temp, "headers")
            os.makedirs(folder, exist_ok=True)
            include = sysconfig.get_paths()["include"]  # from 3.13 on, its files include others
            made = [f"-I{include}", "-x", "c-header", os.path.join(include, "Python.h")]
            made += ["-o", os.path.join(folder, "Python.h.gch")]
            self.compiler.spawn([*self.compiler.compiler_so, *flags, *made])
            return folder

        def compile_part(part: str, option: str, options: dict[str, Any]) -> list[str]:
            chosen = [*options["extra_postargs"], option]
            return list(compile_some([part], **{**options, "extra_postargs": chosen}))

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            if len(sources) == 1:  # a module's own extension: a few lines, which call the group's
                options["include_dirs"].insert(0, headers(*options["extra_postargs"]))
                return list(compile_some(sources, **options))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = [
                    pool.submit(compile_part, part, option, options)
                    for option, parts in in_parts(sources).items()
                    for part in parts
                ]
                return [path for one in made for path in one.result()]

        self.compiler.compile = compile_all
        super().build_extensions()
        built = [self.get_ext_fullpath(extension.name) for extension in self.extensions]
        if not all(map(os.path.exists, built)):  # none of them works without all others
            for path in filter(os.path.exists, built):
                os.remove(path)


setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
