r"""Standard output and standard error that let no control character through except newline.

Names of stores, files, streams, consumers come from anywhere. An ESC in one of them could recolour
a terminal, move its cursor over a line, set its title; a bidi override could show a name in another
order. `guard` therefore puts a `Guarded` stream in the place of standard output and standard error,
for results, notes, usage errors, log lines and tracebacks, so that no caller can forget it.
What is not printable is shown as the escape of its bytes in UTF-8, such as `\x1b`.

Exports go around it, through `binary_output`, because they must be exact. A terminal gets them as
text. Our own colours and cursor movements, those of progress bars, go to `unguarded`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final, TypeVar, cast

import click

STDOUT: Final = "standard output"  # as the file name of an error

Result = TypeVar("Result")

_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b"}


def visible(text: str) -> str:
    """Return a text in which all that is not printable is escaped, newlines included."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escaped(char) for char in text])


def _escaped(char: str) -> str:
    # "surrogatepass" is for half a character, as JSON can spell it.
    how = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return _ESCAPES.get(char) or "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", how))


def of_stdout(call: Callable[..., Result], *args: object) -> Result:
    """Return what `call` returns; an error of the system says that it was standard output."""
    try:
        return call(*args)
    except OSError as error:
        error.filename = STDOUT
        raise


def give_up() -> bool:
    """Drop output that cannot be written, or each flush would try again; say if there was any."""
    try:
        unguarded(sys.stdout).flush()
    except OSError:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return True
    return False


class Guarded:
    """A text stream that escapes what is not printable; lines stay lines.

    When nothing reads it any more, such as a help text, the process ends well. It has no `buffer`,
    which would lead around it.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"text is expected, not {type(text).__name__}")
        safe = text if text.isprintable() else "\n".join(map(visible, text.split("\n")))
        self._try(self.inner.write, safe)
        return len(text)

    def flush(self) -> None:
        self._try(self.inner.flush)

    def _try(self, call: Callable[..., object], *args: object) -> None:
        try:
            of_stdout(call, *args)  # standard error raises nothing
        except BrokenPipeError:
            give_up()
            raise click.exceptions.Exit(0) from None

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError("the buffer of a guarded stream: see binary_output")
        return getattr(self.inner, name)


class Lossy:
    """A text stream that drops what cannot be written.

    An exit status must not depend on whether the reader of a message is still there.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._gone = False

    def write(self, text: str) -> int:
        """Write text, unless an error has shown that this is not possible."""
        self._try(lambda: self._inner.write(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or drop it."""
        self._try(self._inner.flush)

    def _try(self, call: Callable[[], object]) -> None:
        if not self._gone:
            try:
                call()
            except OSError:
                self._gone = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def guard() -> None:
    """Guard standard output and standard error; those that are guarded already stay as they are."""
    if not isinstance(sys.stdout, Guarded):
        sys.stdout = Guarded(sys.stdout)
    if not isinstance(sys.stderr, Guarded):
        sys.stderr = Guarded(Lossy(sys.stderr))


def unguarded(stream: Any) -> Any:
    """Return the stream that a guarded one writes to: for bytes, and for text that is safe."""
    return stream.inner if isinstance(stream, Guarded) else stream


class _Bytes:
    """Takes the bytes of an export; a terminal shows them as harmless text."""

    closed = False  # which pyarrow asks

    def __init__(self) -> None:
        exact = None if sys.stdout.isatty() else unguarded(sys.stdout).buffer
        self._exact: BinaryIO | None = exact

    def write(self, data: bytes) -> int:
        if self._exact is not None:
            return of_stdout(self._exact.write, data)
        sys.stdout.write(data.decode("utf-8", "surrogateescape"))
        return len(data)

    def flush(self) -> None:
        of_stdout((self._exact or sys.stdout).flush)


def binary_output() -> BinaryIO:
    """Return standard output for bytes that are to arrive as they are, unless on a terminal."""
    sys.stdout.flush()
    return cast(BinaryIO, _Bytes())
