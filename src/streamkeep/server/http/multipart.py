"""Forms as multipart/form-data: each field and each file becomes fields of one entry."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from streamkeep.server.http.wire import MAX_PARAMETERS, Pairs, Problem

FORM_DATA: Final = "multipart/form-data"


def form_pairs(content_type: str, body: bytes) -> Pairs:
    """Return the fields of a form, in order; a file is three: its contents, name and type.

    Raises:
        Problem: the body is not such a form.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Problem(400, f"the type {FORM_DATA} needs a boundary")
    pairs: Pairs = []
    headers: dict[bytes, bytes] = {}
    gathered = {"field": b"", "value": b""}  # of the header that comes
    data: list[bytes] = []
    parts = 0
    complete = False

    def gather(kind: str, piece: bytes, start: int, end: int) -> None:
        gathered[kind] += piece[start:end]

    def begin() -> None:
        nonlocal parts
        parts += 1
        if parts > MAX_PARAMETERS:
            raise Problem(400, f"more than {MAX_PARAMETERS} parts")
        headers.clear()
        data.clear()

    def header_end() -> None:
        headers[gathered["field"].lower()] = gathered["value"]
        gathered.update(field=b"", value=b"")

    def end() -> None:
        kind, options = parse_options_header(headers.get(b"content-disposition", b""))
        name = options.get(b"name")
        if kind != b"form-data" or name is None:
            raise Problem(400, f"part {parts} of the form has no name")
        pairs.append((name, b"".join(data)))
        if b"filename" in options:
            pairs.append((name + b".filename", options[b"filename"]))
            pairs.append((name + b".content_type", headers.get(b"content-type", b"")))

    def finish() -> None:
        nonlocal complete
        complete = True

    calls: dict[str, Any] = {
        "on_part_begin": begin,
        "on_header_field": partial(gather, "field"),
        "on_header_value": partial(gather, "value"),
        "on_header_end": header_end,
        "on_part_data": lambda piece, start, stop: data.append(piece[start:stop]),
        "on_part_end": end,
        "on_end": finish,
    }
    try:
        parser = MultipartParser(boundary, calls)  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, f"the body is not {FORM_DATA}: {error}") from None
    if not complete:
        raise Problem(400, f"the body is not {FORM_DATA}: its end is missing")
    return pairs
