"""completion: names of commands, stores, streams and groups by the Tab key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import click
from click.shell_completion import get_completion_class

from streamkeep.engine.system.files import replacing
from streamkeep.tools.base import common, output
from streamkeep.tools.base.arguments import COMPLETE_VARIABLE
from streamkeep.tools.base.command import group_command

SHELLS: Final = ("bash", "zsh", "fish")
_PLACES: Final = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/streamkeep"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_streamkeep"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/streamkeep.fish"),
}


@group_command()
def completion() -> None:
    """Complete commands, options, stores, streams and groups by Tab.

    Example:
      streamkeep completion install bash
    """


@completion.command("install")
def install(shell: Annotated[str, click.Choice(SHELLS)] | None = None) -> None:
    """Install completion for your shell, in a file of its own.

    Without an argument, the shell is that of $SHELL. The file goes where the shell looks for
    completions of this user; a file of that name is replaced.

    Example:
      streamkeep completion install bash

    Args:
        shell ([bash|zsh|fish]):
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        known = ", ".join(SHELLS)
        raise click.UsageError(f"the shell is not known: $SHELL is {shell!r}; name one of {known}")
    kind = get_completion_class(shell)
    assert kind is not None  # click has all of them
    root = click.get_current_context().find_root().command
    # `source` of bash first runs a bash to see its version; the script itself needs none.
    made = kind(root, {}, "streamkeep", COMPLETE_VARIABLE)
    variable, folder, name = _PLACES[shell]
    base = os.environ.get(variable)
    path = (Path(base) if base else Path.home() / folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((made.source_template % made.source_vars()).encode())
    if common.as_json():
        output.summary(shell=shell, file=str(path))
        return
    output.line(str(path))
    if shell == "zsh":
        output.note(f"next: in ~/.zshrc, before compinit: fpath+=({path.parent})")
    else:
        output.note("next: start a new shell")
