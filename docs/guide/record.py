"""Record the first session of README.md: `python docs/guide/record.py` writes pictures/kill.svg.

A shell runs the lines as they are printed there, and each line of the picture comes when it came;
only the speed of the typing is made up. The log of the workers is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
README: Final = HERE.parents[1] / "README.md"
KEY_S: Final = 0.03  # to type a character
END_S: Final = 5.0  # how long the last line stays, before it all begins again
LINE: Final = 24  # pixels
STYLE: Final = (
    "text{font:15px ui-monospace,monospace;fill:#d5dee3;white-space:pre}.typed{fill:#7fd6c8}"
    "@media(prefers-reduced-motion:reduce){text{animation:none!important}}"
)

Lines = list[tuple[float, str]]  # each with its second


def record(session: list[str], folder: Path) -> Lines:
    """Run a session; return what it shows, and when."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-m"],  # with %1 for jobs, as at a prompt
        cwd=folder,
        env=os.environ | {"PATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "log").open("w"),
        text=True,
        bufsize=1,
    )
    assert shell.stdin is not None
    assert shell.stdout is not None
    shown: Lines = []
    start_s = time.monotonic()
    for line in session:
        if line.startswith("$ "):
            time.sleep(0.7)  # to look at what came before
            shown.append((time.monotonic() - start_s, line))
            time.sleep(KEY_S * len(line))
            shell.stdin.write(f"{line[2:]}\necho done\n")
            assert shell.stdout.readline() == "done\n", line
        else:
            assert shell.stdout.readline() == f"{line}\n", line
            shown.append((time.monotonic() - start_s, line))
    shell.stdin.write("kill %2\nwait\n")
    shell.stdin.close()
    assert shell.stdout.read() == ""
    return shown


def drawn(lines: Lines) -> str:
    """Return the picture."""
    whole_s = lines[-1][0] + END_S
    rules, texts = [STYLE], []
    for number, (at_s, text) in enumerate(lines):
        at = 100 * at_s / whole_s
        rules.append(
            f"@keyframes l{number}{{0%,{at:.2f}%{{opacity:0}}{at + 0.01:.2f}%{{opacity:1}}}}"
        )
        moves = f"animation:l{number} {whole_s:.2f}s infinite"
        kind = ' class="typed"' if text.startswith("$ ") else ""
        place = f'x="16" y="{LINE * (number + 1) + 6}"'
        texts.append(f'<text {place}{kind} style="{moves}">{escape(text)}</text>')
    size = f'width="800" height="{LINE * (len(lines) + 1)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f"<style>{''.join(rules)}</style>",
        '<rect width="100%" height="100%" rx="8" fill="#152128"/>',
        *texts,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Run the session, and draw it."""
    code = re.findall(r"```(?:python|sh)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tasks.py").write_text(code[0], encoding="utf-8")
        picture = drawn(record(code[1].splitlines(), Path(folder)))
    (HERE / "pictures" / "kill.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
