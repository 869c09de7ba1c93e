"""Write the stubs of classes and functions that the program derives, from the sources.

Type checkers cannot follow a class whose methods are made while the program runs. So each public
signature is written once, where the method is, and the stubs repeat it. `setup.py` writes them
with every build, editable ones too, and needs nothing but the standard library for that:

- asyncio's classes have the same methods as coroutines, and iterators as asynchronous ones;
- the methods of a pipeline return the pipeline;
- `open` has the options of `Store`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
API: Final = "src/streamkeep/engine/api"
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
WORK: Final = Source(f"{API}/work.py", "WorkCommands")
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
        (ADMIN, FOLLOW, FRAMES, WORK),
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
    trees = [ast.parse((ROOT / source.file).read_text("utf-8")) for source in stub.sources]
    indent = "    " if "\nclass " in stub.head else ""
    body = stub.head + "".join(
        f"{indent}{line.strip()}\n"
        for source, tree in zip(stub.sources, trees, strict=True)
        for text in methods(source, tree, stub.method)
        for line in text.splitlines()
    )
    needed = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    needed -= {name for name, _ in imports(ast.parse(stub.head))}
    found: dict[str, str] = {}
    for source, tree in zip(stub.sources, trees, strict=True):
        found |= dict(imports(tree))
        found |= dict(defined(source, tree))
    lines = [text for name, text in sorted(found.items()) if name in needed]
    title = f'"""Types of {Path(stub.file).stem}.py, made from the sources by scripts/stubs.py."""'
    return "\n".join([title, *lines, body])


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that a module imports, each with a statement that imports it alone."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                source = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
                yield alias.asname or alias.name, f"{source}import {ast.unparse(alias)}"


def defined(source: Source, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the classes and variables of a module, each with a statement that imports it."""
    module = source.file.removeprefix("src/").removesuffix(".py").replace("/", ".")
    for node in tree.body:
        names = [node.name] if isinstance(node, ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            names = [ast.unparse(target) for target in node.targets]
        yield from ((name, f"from {module} import {name}") for name in names)


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


def write() -> None:
    """Write every stub that differs from what is there."""
    for stub in STUBS:
        path, text = ROOT / stub.file, render(stub)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
