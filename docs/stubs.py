"""Make the stubs of classes and functions that the program derives, from the sources.

Type checkers cannot follow a class whose methods are made while the program runs. So each public
signature is written once, where the method is, and the stubs repeat it:

- asyncio's classes have the same methods as coroutines, and iterators as asynchronous ones;
- the methods of a pipeline return the pipeline;
- `open` has the options of `Store`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
API: Final = "engine/api"
Method = Callable[[ast.FunctionDef], str | None]


class Source(NamedTuple):
    """A class, and the file that has it."""

    file: str
    name: str


COMMANDS: Final = (
    Source(f"{API}/stream_commands.py", "StreamCommands"),
    Source(f"{API}/read_commands.py", "ReadCommands"),
    Source(f"{API}/group_commands.py", "GroupCommands"),
    Source(f"{API}/pending_commands.py", "PendingCommands"),
    Source(f"{API}/key_commands.py", "KeyCommands"),
    Source(f"{API}/row_commands.py", "RowCommands"),
)
ADMIN: Final = Source(f"{API}/admin_commands.py", "AdminCommands")
FOLLOW: Final = Source(f"{API}/follow.py", "FollowCommands")
FRAMES: Final = Source(f"{API}/frame_commands.py", "FrameCommands")
STORE: Final = Source(f"{API}/store.py", "Store")


class Stub(NamedTuple):
    """A stub: its file, the classes it is made from, and how."""

    file: str
    sources: tuple[Source, ...]
    head: str  # all of it but the imports and the methods
    method: Method


# --- the kinds of methods -----------------------------------------------------------------------


def awaited(item: ast.FunctionDef) -> str | None:
    """Return a method as a coroutine, or as an asynchronous iterator."""
    result = ast.unparse(item.returns) if item.returns else "None"
    kind = "async def"
    if result.startswith("Iterator["):
        kind = "def"
        result = "Async" + result.replace("ScanEntry", "AsyncScanEntry")
    overload = "@overload\n    " if item.decorator_list else ""
    text = f"{overload}{kind} {item.name}({ast.unparse(item.args)}) -> {result}: ..."
    return text.replace("AdminCommands", "AsyncMethods")


def queued(item: ast.FunctionDef) -> str | None:
    """Return a method that queues its command; None for those that cannot."""
    if item.decorator_list or ast.unparse(item.returns or item).startswith("Iterator["):
        return None
    return f"def {item.name}({ast.unparse(item.args)}) -> Self: ..."


def opening(result: str, kind: str) -> Method:
    """Return what makes `open` of a constructor: one overload for each type of the results."""

    def render(item: ast.FunctionDef) -> str | None:
        if item.name != "__init__":
            return None
        arguments = ast.unparse(item.args).removeprefix("self, ")
        arguments = re.sub(r", clock: .*", "", arguments)  # for tests only
        option = "decode_responses: bool=False"
        assert option in arguments
        overloads = []
        for given, text in (
            ("decode_responses: Literal[False] = False", "bytes"),
            ("decode_responses: Literal[True]", "str"),
            ("decode_responses: bool", None),
        ):
            found = f"{result}[{text}]" if text else f"{result}[bytes] | {result}[str]"
            overloads.append(
                f"@overload\n{kind} open({arguments.replace(option, given)}) -> {found}: ..."
            )
        return "\n".join(overloads)

    return render


STUBS: Final = (
    Stub(
        f"{API}/async_commands.pyi",
        COMMANDS,
        '''\
from collections.abc import AsyncIterator
from typing import Any, Generic

class AsyncScanEntry(Entry[Text]):
    async def delete(self: Any) -> bool: ...

class AsyncCommands(Generic[Text]):
    """The commands of Redis Streams as coroutines."""

    _decode: bool
    def __aiter__(self) -> AsyncIterator[Text]: ...
    def _set_decode(self, decode: bool) -> None: ...
''',
        awaited,
    ),
    Stub(
        f"{API}/async_methods.pyi",
        (ADMIN, FOLLOW, FRAMES),
        '''\
from collections.abc import AsyncIterator
from typing import Generic

class AsyncMethods(Generic[Text]):
    """The other methods of the store, as coroutines."""

    _store: AdminCommands[Text]
''',
        awaited,
    ),
    Stub(
        f"{API}/pipeline_commands.pyi",
        COMMANDS,
        '''\
from typing import Self

class PipelineCommands:
    """The commands of Redis Streams, each of which returns the pipeline that it was queued in."""

    _decode: bool
    def _set_decode(self, decode: bool) -> None: ...
''',
        queued,
    ),
    Stub(
        "src/streamkeep/facade.pyi",
        (STORE,),
        "from typing import Literal, overload\n",
        opening("Store", "def"),
    ),
    Stub(
        "src/streamkeep/aio.pyi",
        (STORE,),
        """\
from typing import Literal, overload
from streamkeep.engine.api.async_commands import AsyncScanEntry
from streamkeep.engine.api.async_store import AsyncPipeline, AsyncStore
from streamkeep.jobs.async_queue import AsyncQueue as Queue

__all__ = ["AsyncPipeline", "AsyncScanEntry", "AsyncStore", "Queue", "open"]
""",
        opening("AsyncStore", "async def"),
    ),
)


# --- rendering ----------------------------------------------------------------------------------


def render(stub: Stub) -> str:
    """Return the text of a stub."""
    lines = [f'"""Types of {Path(stub.file).stem}.py, made from the sources: `make docs`."""']
    trees = [ast.parse((ROOT / source.file).read_text("utf-8")) for source in stub.sources]
    for source, tree in zip(stub.sources, trees, strict=True):
        lines += imports(source, tree)
    lines.append(stub.head)
    indent = "    " if "\nclass " in stub.head else ""
    for source, tree in zip(stub.sources, trees, strict=True):
        for text in methods(source, tree, stub.method):
            lines += [indent + line.strip() for line in text.splitlines()]
    return tidy(stub.file, "\n".join(lines) + "\n")


def imports(source: Source, tree: ast.Module) -> Iterator[str]:
    """Yield an import of every name that a module has, most of which `tidy` removes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (
            isinstance(node, ast.ImportFrom) and node.module != "__future__"
        ):
            yield ast.unparse(node)
    module = "streamkeep." + source.file.removesuffix(".py").replace("/", ".")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield f"from {module} import {node.name}"
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield f"from {module} import {ast.unparse(target)}"


def methods(source: Source, tree: ast.Module, method: Method) -> Iterator[str]:
    """Yield the public methods of a class; of one with overloads, what `method` makes of each."""
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != source.name:
            continue
        overloaded: set[str] = set()
        for item in node.body:
            if not isinstance(item, ast.FunctionDef):
                continue
            if item.name.startswith("_") and item.name != "__init__":
                continue
            if item.decorator_list:
                overloaded.add(item.name)
            elif item.name in overloaded and method is awaited:
                continue
            text = method(item) if item.name != "__init__" or source is STORE else None
            if text is not None:
                yield text


def tidy(file: str, text: str) -> str:
    """Return a stub sorted and laid out, without the imports that it does not need."""
    ruff = [sys.executable, "-m", "ruff"]
    for arguments in (
        ["check", "--fix", "--exit-zero", "--quiet", "--select", "F401,F811,I"],
        ["format"],
    ):
        command = [*ruff, *arguments, "--stdin-filename", str(ROOT / file), "-"]
        text = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text
