"""The parameters of a command: its signature declares them, and its docstring describes them.

    @command()
    def trim(store_path: Store, key: bytes, maxlen: Natural | None = None, exact: bool = False):
        \"""Trim the oldest entries of KEY.

        Args:
            maxlen (N): Keep the newest N entries.
            exact (--exact/--approximate): Trim to the entry.
        \"""

What `Args:` describes is an option, and all else is an argument. In parentheses are names of the
option beside that of the parameter, and what stands for its value, or for the argument, in the help
text. The type of a parameter is an object of click in `Annotated`, or one that `_KINDS` knows. What
several commands have alike has its line in `Annotated`, too; options that are passed on together
are the members of a dataclass.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import click

from streamkeep.tools.base.arguments import Bytes, Flags, PlacePath

_DESCRIBED: Final = re.compile(r" {4}(\w+)(?: \((.+?)\))?:(.*)")
_TOLD: Final = re.compile(r"(?:\((.+?)\): )?(.*)")
_KINDS: Final[dict[object, Any]] = {bytes: Bytes(), Path: PlacePath()}
_NOTHING: Final = inspect.Parameter.empty

Described = dict[str, tuple[str, str]]  # by the parameter: what is in parentheses, and the text


def parameters_of(
    function: Callable[..., Any],
) -> tuple[Callable[..., Any], str, list[click.Parameter]]:
    """Return what click calls with values, its help text, and its parameters."""
    text, described = _read(function)
    found: list[click.Parameter] = []
    together: dict[str, Any] = {}
    hints = get_type_hints(function, include_extras=True)
    for name, one in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            together[name] = hints[name]
            found += _members(hints[name])
        else:
            found += _made(name, hints[name], one.default, described.get(name, ("", "")))

    def call(**given: Any) -> Any:
        for name, kind in together.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        return function(**given)

    return call, text, found


def _read(described: object) -> tuple[str, Described]:
    """Return a docstring without what it says of parameters, and that."""
    text, _, args = inspect.cleandoc(described.__doc__ or "").partition("\nArgs:\n")
    found: Described = {}
    name = ""
    for line in args.splitlines():
        if begun := _DESCRIBED.fullmatch(line):
            name = begun[1]
            found[name] = begun[2] or "", begun[3].strip()
        else:
            found[name] = found[name][0], f"{found[name][1]} {line.strip()}".strip()
    return text.strip(), found


def _members(kind: Any) -> Iterator[click.Parameter]:
    described = _read(kind)[1]
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        yield from _made(one.name, hints[one.name], one.default, described.get(one.name, ("", "")))


def _made(
    name: str, hint: Any, default: Any, described: tuple[str, str]
) -> Iterator[click.Parameter]:
    kind, settings = _kind(hint)
    words, text = settings.pop("told", described)
    if isinstance(kind, Flags):
        yield from kind.options(name)
        return
    if default is not _NOTHING:
        settings["default"] = () if "multiple" in settings or "nargs" in settings else default
    if not text:
        required = default is _NOTHING
        alone = name.removesuffix("_path").upper()
        metavar = words or (alone if required else f"[{alone}]")
        if settings.pop("multiple", False):
            settings.pop("default", None)  # it is (), and click below 8.2 takes no other, nor that
        yield click.Argument([name], type=kind, metavar=metavar, required=required, **settings)
        return
    names = [word for word in words.split() if word.startswith("-")]
    metavar = " ".join(word for word in words.split() if not word.startswith("-"))
    long = f"--{name.strip('_').replace('_', '-')}"
    if kind is bool:
        settings["is_flag"] = True
        if default is not False and not names:
            names.append(f"{long}/--no-{long[2:]}")
    else:
        settings |= {"type": kind, "metavar": metavar or None}
        shown = settings.get("default") not in (None, (), _NOTHING)
        settings["show_default"] = getattr(kind, "text_of", _text)(default) if shown else False
    if not any(word.startswith("--") for word in names):
        names.append(long)
    required = default is _NOTHING
    settings.pop("nargs", None)
    yield click.Option([name.rstrip("_"), *names], required=required, help=text, **settings)


def _text(default: object) -> str:
    return default.decode() if isinstance(default, bytes) else str(default)


def _kind(hint: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type of click for an annotation, and what else follows from it."""
    if get_origin(hint) is Annotated:
        of, *more = get_args(hint)
        kind, settings = _kind(of)
        for one in more:
            if isinstance(one, str) and (told := _TOLD.fullmatch(one)):
                settings["told"] = told[1] or "", told[2]
            else:
                kind = one
        return kind, settings
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(one for one in get_args(hint) if one is not NoneType))
    if get_origin(hint) is tuple:
        of = get_args(hint)
        if of[1:] == (...,):
            return _kind(of[0])[0], {"multiple": True, "nargs": -1}
        return tuple(_kind(one)[0] for one in of), {}
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint)), {}
    return _KINDS.get(hint, hint), {}
