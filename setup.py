"""Compile the hot modules with mypyc where a C compiler is there; all else is in pyproject.toml.

STREAMKEEP_PURE=1 installs without compiled modules; STREAMKEEP_REQUIRE_EXT=1 makes a failed
compilation an error.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from setuptools import setup

# Paths through the links of src/streamkeep, so that the modules get their import names.
HOT = [
    "src/streamkeep/engine/ack.py",
    "src/streamkeep/engine/allowance.py",
    "src/streamkeep/engine/append.py",
    "src/streamkeep/engine/arguments.py",
    "src/streamkeep/engine/blocking.py",
    "src/streamkeep/engine/board.py",
    "src/streamkeep/engine/claim.py",
    "src/streamkeep/engine/combine.py",
    "src/streamkeep/engine/delete.py",
    "src/streamkeep/engine/doors.py",
    "src/streamkeep/engine/failpoints.py",
    "src/streamkeep/engine/group.py",
    "src/streamkeep/engine/idempotency.py",
    "src/streamkeep/engine/journal.py",
    "src/streamkeep/engine/journal_head.py",
    "src/streamkeep/engine/journal_reader.py",
    "src/streamkeep/engine/lag.py",
    "src/streamkeep/engine/memory.py",
    "src/streamkeep/engine/nodes.py",
    "src/streamkeep/engine/pel.py",
    "src/streamkeep/engine/read.py",
    "src/streamkeep/engine/read_group.py",
    "src/streamkeep/engine/references.py",
    "src/streamkeep/engine/resume.py",
    "src/streamkeep/engine/retention.py",
    "src/streamkeep/engine/scan.py",
    "src/streamkeep/engine/shared.py",
    "src/streamkeep/engine/stream.py",
    "src/streamkeep/engine/trim.py",
    "src/streamkeep/engine/turns.py",
    "src/streamkeep/engine/txn.py",
    "src/streamkeep/format/checksum.py",
    "src/streamkeep/format/column_buffers.py",
    "src/streamkeep/format/columns.py",
    "src/streamkeep/format/envelope.py",
    "src/streamkeep/format/group_records.py",
    "src/streamkeep/format/id_codec.py",
    "src/streamkeep/format/journal.py",
    "src/streamkeep/format/keys.py",
    "src/streamkeep/format/listpack.py",
    "src/streamkeep/format/lmdb_pages.py",
    "src/streamkeep/format/lzf.py",
    "src/streamkeep/format/nacks.py",
    "src/streamkeep/format/node.py",
    "src/streamkeep/format/node_check.py",
    "src/streamkeep/format/node_marks.py",
    "src/streamkeep/format/rdb_values.py",
    "src/streamkeep/format/records.py",
    "src/streamkeep/format/resp.py",
    "src/streamkeep/format/stream_facts.py",
]

# These write no wheel, and need not wait until mypyc has translated everything to C.
NO_BUILD = {"sdist", "egg_info", "dist_info"}


def extensions() -> list[Any]:
    """Return the extensions to build; none for a pure install."""
    if os.environ.get("STREAMKEEP_PURE") == "1" or NO_BUILD.intersection(sys.argv):
        return []
    from mypyc.build import mypycify

    # Types of the libraries play no part in compiling: their stubs need not be installed.
    flags = ["--ignore-missing-imports", "--no-warn-unused-ignores", "--no-warn-return-any"]
    built = mypycify([*flags, *HOT], opt_level="3", group_name="streamkeep.native")
    for extension in built:  # a missing compiler must not stop an install; CI sets the variable
        extension.optional = os.environ.get("STREAMKEEP_REQUIRE_EXT") != "1"
    return built


setup(ext_modules=extensions())
