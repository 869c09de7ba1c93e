"""Show one signature per function in the API pages: the last overload, which is the general one."""

from __future__ import annotations

from typing import Any

import griffe


class LastOverload(griffe.Extension):
    """Replaces a function's signature by that of its last overload; mkdocstrings calls it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change all functions of a package that was loaded, stubs included."""
        seen: set[str] = set()
        stack: list[Any] = [pkg]
        while stack:
            holder = stack.pop()
            if holder.path in seen:
                continue
            seen.add(holder.path)
            for member in holder.members.values():
                if member.is_alias:
                    continue
                if member.is_function and member.overloads:
                    general = member.overloads[-1]
                    for one in (one for other in member.overloads for one in other.parameters):
                        if one.default is not None and general.parameters[one.name].default is None:
                            general.parameters[one.name].default = one.default
                    member.parameters = general.parameters
                    member.returns = general.returns
                    member.overloads = None
                elif member.is_module or member.is_class:
                    stack.append(member)
