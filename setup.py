"""Compile the hot modules with mypyc where a C compiler is there; all else is in pyproject.toml.

STREAMKEEP_PURE=1 installs without compiled modules; STREAMKEEP_REQUIRE_EXT=1 makes a failed
compilation an error.
"""

import os
import re
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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
    "src/streamkeep/engine/system/futex.py",
    "src/streamkeep/engine/system/shared_file.py",
    "src/streamkeep/engine/txn/flush.py",
    "src/streamkeep/engine/txn/memtable.py",
    "src/streamkeep/engine/txn/read_txn.py",
    "src/streamkeep/engine/tables/scan.py",
    "src/streamkeep/engine/txn/stream.py",
    "src/streamkeep/engine/txn/overlay.py",
    # Commands, and the nodes and groups that they change.
    "src/streamkeep/engine/blocking/calls.py",
    "src/streamkeep/engine/commands/arguments.py",
    "src/streamkeep/engine/commands/idempotency.py",
    "src/streamkeep/engine/commands/reply_budget.py",
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
    "src/streamkeep/commands/entries.py",
    "src/streamkeep/commands/read.py",
    "src/streamkeep/commands/command_table.py",
    "src/streamkeep/commands/words.py",
    "src/streamkeep/server/resp/encoder.py",
    "src/streamkeep/server/resp/requests.py",
    "src/streamkeep/server/resp/turn.py",
    "src/streamkeep/server/resp/turns.py",
    # Locks, and commits as well: a Ctrl-C cannot come between two steps of compiled code.
    "src/streamkeep/engine/archive/lock.py",
    "src/streamkeep/engine/journal/journal.py",
    "src/streamkeep/engine/journal/syncs.py",
    "src/streamkeep/engine/journal/write_lock.py",
    "src/streamkeep/engine/notify/wait_table.py",
    "src/streamkeep/engine/store/group_commit.py",
    "src/streamkeep/engine/txn/begin.py",
    "src/streamkeep/engine/txn/context.py",
    "src/streamkeep/engine/txn/txn.py",
]
# Loops over bytes: a third of what a range or `xadd_many` takes. All else mostly calls functions of
# Python; -O3 makes it 1 % faster, and compiles twice as long as -O1.
LOOPS = ("format.core.id_codec", "format.node.", "format.rows.nacks", "arrow.")
# No compiled module uses the types of these, though what it imports may import them: mypyc skips
# them, and what only they import. Where it does not know a type, code is slower, not wrong.
UNREAD = [
    *("aio", "arrow.batches", "arrow.frames", "facade", "jobs.periodic", "jobs.worker"),
    *("engine.api.admin_commands", "engine.api.async_store", "engine.api.frame_commands"),
    *("engine.crash_recovery.recover", "engine.feed.*", "engine.remote.*", "engine.whole_store.*"),
    *("metrics.*", "replication.steps", "transfer.*"),
]
PARTS = 8  # C files of each kind: one per module took a seventh longer, to read headers
# Passes of gcc that take a third of its time and gain little here.
SKIPPED = [
    *("-fno-tree-dominator-opts", "-fno-tree-pta", "-fno-forward-propagate", "-fno-if-conversion"),
    *("-fno-if-conversion2", "-fno-tree-loop-optimize", "-fno-ivopts", "-fno-move-loop-invariants"),
]
# Runs once, and is a sixth of the C: imports, constants, classes.
TOP_LEVEL = re.compile(r"^char CPyDef_\w+_____top_level__\(void\)(?= \{)", re.MULTILINE)


def extensions() -> list[Any]:
    """Return the extensions to build; none for a pure install, or where none would be used.

    An sdist need not wait until mypyc has translated everything to C.
    """
    if os.environ.get("STREAMKEEP_PURE") == "1" or NO_BUILD.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    os.makedirs("build", exist_ok=True)
    with open("build/mypyc.ini", "w") as file:
        unread = ",".join(f"streamkeep.{one}" for one in UNREAD)
        file.write(f"[mypy]\nstrict = true\n[mypy-{unread}]\nfollow_imports = skip\n")
    # Types of the libraries play no part in compiling: their stubs need not be installed, and
    # what is installed, or half of it, changes nothing. `make type` reports errors in modules that
    # are only imported.
    flags = [
        "--config-file=build/mypyc.ini",
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
        with open(source) as file:
            once = TOP_LEVEL.findall(file.read())
        with open(part, "a" if part in parts[option] else "w") as file:
            file.writelines(f'__attribute__((optimize("O0"))) {one};\n' for one in once)
            file.write(f'#include "{os.path.abspath(source)}"\n')
        if part not in parts[option]:
            parts[option].append(part)
    return parts


class ParallelBuild(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles the C files of all modules side by side, and few libraries that call them."""

    def build_extensions(self) -> None:
        """Build all extensions: the library of all modules, and what is left of each module."""
        compile_some = self.compiler.compile
        skipped = SKIPPED if self.knows(SKIPPED) else []

        def compile_part(part: str, option: str, options: dict[str, Any]) -> list[str]:
            less = skipped if option == "-O1" else []
            chosen = [*options["extra_postargs"], "-w", option, *less]
            return list(compile_some([part], **{**options, "extra_postargs": chosen}))

        def compile_all(sources: list[str], **options: Any) -> list[str]:
            if len(sources) == 1:
                return list(compile_some(sources, **options))
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = [
                    pool.submit(compile_part, part, option, options)
                    for option, parts in in_parts(sources).items()
                    for part in parts
                ]
                return [path for one in made for path in one.result()]

        self.compiler.compile = compile_all
        self.extensions[1:] = self.in_few(self.extensions[1:])
        super().build_extensions()
        built = [self.get_ext_fullpath(extension.name) for extension in self.extensions]
        if not all(map(os.path.exists, built)):  # none of them works without all others
            for path in filter(os.path.exists, built):
                os.remove(path)

    def knows(self, options: list[str]) -> bool:
        """Return whether the compiler takes options: some refuse what they do not know."""
        trial = [*self.compiler.compiler_so, *options, "-fsyntax-only", "-x", "c", os.devnull]
        try:
            return not subprocess.run(trial, capture_output=True).returncode
        except OSError:  # there is no compiler, as the build will say
            return False

    def in_few(self, extensions: list[Any]) -> list[Any]:
        """Sort the extensions of single modules so that the first ones are also those of others.

        Each has one function, which calls the library of all modules: to compile and to link each
        took six seconds in all. Those of a part have different names: sorted ones are dealt out.
        """
        extensions = sorted(extensions, key=lambda one: str(one.name).rpartition(".")[2])
        self.originals = {}
        for number, first in enumerate(extensions[:PARTS]):
            part = f"build/modules_{number}.c"
            with open(part, "w") as file:
                for one in extensions[number::PARTS]:
                    [source] = one.sources
                    other = f"PyInit___init__{file.tell()}"  # each has one for another compiler
                    file.write(f"#define PyInit___init__ {other}\n")
                    file.write(f'#include "{os.path.abspath(source)}"\n#undef PyInit___init__\n')
                    self.originals[one.name] = first.name
            first.sources = [part]
        return extensions

    def build_extension(self, extension: Any) -> None:
        """Build an extension, or copy the one that it is in."""
        original = self.originals.get(extension.name, extension.name)
        if original == extension.name:
            super().build_extension(extension)
        else:
            path = self.get_ext_fullpath(extension.name)
            self.mkpath(os.path.dirname(path))
            self.copy_file(self.get_ext_fullpath(original), path)


setup(ext_modules=extensions(), cmdclass={"build_ext": ParallelBuild})
