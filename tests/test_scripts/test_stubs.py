"""`scripts/stubs.py`: every public method is in its stub, and every name of a stub is imported."""

from __future__ import annotations

import ast
import builtins
import types
from importlib import import_module

import pytest
import stubs

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
