"""Forms as multipart/form-data: each field and each file becomes fields of one entry."""

from __future__ import annotations

from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from streamkeep.server.http.wire import MAX_PARAMETERS, Pairs, Problem

FORM_DATA: Final = "multipart/form-data"


class _Form:
    """The parts of a form, as its parser finds them."""

    def __init__(self) -> None:
        self.pairs: Pairs = []
        self.parts = 0
        self.complete = False
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._value = b""
        self._data: list[bytes] = []

    def begin(self) -> None:
        """A part begins."""
        self.parts += 1
        if self.parts > MAX_PARAMETERS:
            raise Problem(400, f"more than {MAX_PARAMETERS} parts")
        self._headers = {}
        self._data = []

    def header_field(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of the name of a header."""
        self._field += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of the value of a header."""
        self._value += data[start:end]

    def header_end(self) -> None:
        """A header is complete."""
        self._headers[self._field.lower()] = self._value
        self._field = self._value = b""

    def take(self, data: bytes, start: int, end: int) -> None:
        """Take a piece of the contents of a part."""
        self._data.append(data[start:end])

    def end(self) -> None:
        """A part is complete."""
        kind, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise Problem(400, f"part {self.parts} of the form has no name")
        self.pairs.append((name, b"".join(self._data)))
        if b"filename" in options:
            content_type = self._headers.get(b"content-type", b"")
            self.pairs.append((name + b".filename", options[b"filename"]))
            self.pairs.append((name + b".content_type", content_type))

    def finish(self) -> None:
        """The form is complete."""
        self.complete = True


def form_pairs(content_type: str, body: bytes) -> Pairs:
    """Return the fields of a form, in order; a file is three: its contents, name and type.

    Raises:
        Problem: the body is not such a form.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Problem(400, f"the type {FORM_DATA} needs a boundary")
    form = _Form()
    calls: dict[str, Any] = {
        "on_part_begin": form.begin,
        "on_header_field": form.header_field,
        "on_header_value": form.header_value,
        "on_header_end": form.header_end,
        "on_part_data": form.take,
        "on_part_end": form.end,
        "on_end": form.finish,
    }
    try:
        parser = MultipartParser(boundary, calls)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, f"the body is not {FORM_DATA}: {error}") from None
    if not form.complete:
        raise Problem(400, f"the body is not {FORM_DATA}: its end is missing")
    return form.pairs
