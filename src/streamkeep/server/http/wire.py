"""Bytes in URLs, bodies and replies: what requests and replies have in common.

Keys, groups, consumers and values are arbitrary bytes. In a URL they are percent-encoded, one
segment each, so that `/` in a name is `%2F`. A name that a browser would resolve (`.`, `..`, the
empty one) is given as a parameter instead: `/streams/?key=..`. In JSON they have the form of
`format/core/json_form.py`: text, or `{"base64": "..."}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from streamkeep.format.core import errors
from streamkeep.format.core.json_form import from_json, json_object
from streamkeep.jobs import QueueError
from streamkeep.server.access import NoPermissionError
from streamkeep.transfer.loading.tables import Number, compact

Pairs = list[tuple[bytes, bytes]]

MAX_PARAMETERS: Final = 100

_STATUS: Final[tuple[tuple[type[errors.StreamkeepError], int], ...]] = (
    (NoPermissionError, 403),
    (errors.NoSuchKeyError, 404),
    (errors.NoSuchGroupError, 404),
    (errors.GroupExistsError, 409),
    (errors.KeyExistsError, 409),
    (errors.IdTooSmallError, 409),
    (errors.StreamFullError, 507),
    (errors.StoreFullError, 507),
    (QueueError, 409),
    (errors.CommandError, 400),
    (errors.ArgumentError, 400),
    (errors.CorruptionError, 500),
    (errors.StoreError, 503),
)


class Problem(Exception):
    """A request that cannot be served: status, what is wrong, and what to do next."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        hint: str = "",
        code: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.hint = hint
        self.code = code
        self.headers = dict(headers or {})


def problem_of(error: errors.StreamkeepError) -> Problem:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    hint = ""
    if isinstance(error, errors.NoSuchKeyError):
        hint = "GET /streams lists the streams"
    elif isinstance(error, errors.NoSuchGroupError):
        hint = "PUT /groups/KEY/GROUP creates the group"
    elif isinstance(error, errors.CorruptionError):
        hint = "run streamkeep fsck"
    text = error.redis_error if isinstance(error, errors.CommandError) else str(error)
    return Problem(status, text, hint=hint, code=type(error).__name__)


def json_reply(
    members: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = json_object(members).encode() + b"\n"
    return Response(body, status, dict(headers or {}), "application/json")


def problem_reply(problem: Problem) -> Response:
    members = {
        "error": problem.code or _NAMES.get(problem.status, "Error"),
        "message": str(problem),
        "next": problem.hint or None,
    }
    return json_reply(members, problem.status, problem.headers)


_NAMES: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    413: "TooLarge",
    415: "UnsupportedMediaType",
    421: "WrongHost",
    431: "HeadTooLarge",
    503: "Unavailable",
}


# --- parameters ---------------------------------------------------------------------------------


class Parameters:
    """The query of a request, as bytes; each parameter must be known to the route.

    A parameter with a typing error must not be ignored: `maxlem=1000` would trim nothing.
    """

    def __init__(self, request: Request, known: Sequence[str] | None) -> None:
        """Take the query; `known` None for a route that passes over all parameters."""
        self._given: dict[str, bytes] = {}
        for name, value in query_pairs(request.scope["query_string"]):
            text = name.decode("utf-8", "replace")
            if text in self._given:
                raise Problem(400, f"the parameter {text!r} is given twice")
            self._given[text] = value
        if known is not None:
            self.check(known)

    def check(self, known: Sequence[str]) -> None:
        """Raise for a parameter that is none of these."""
        for text in self._given:
            if text not in known and text != "key":  # which may name the stream of any route
                names = ", ".join(sorted(known))
                hint = f"the parameters are {names}"
                raise Problem(400, f"unknown parameter {text!r}", hint=hint)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def data(self, name: str) -> bytes | None:
        return self._given.get(name)

    def text(self, name: str, default: str = "") -> str:
        value = self._given.get(name)
        if value is None:
            return default
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Problem(400, f"the parameter {name!r} is not UTF-8: {value!r}") from None

    def flag(self, name: str) -> bool:
        """Return a parameter that is `1`, `true`, or `0`, `false`."""
        text = self.text(name, "0")
        if text in ("1", "true", ""):
            return True
        if text in ("0", "false"):
            return False
        raise Problem(400, f"the parameter {name!r} must be 0 or 1, not {text!r}")

    def number(self, name: str, default: int, low: int, high: int) -> int:
        text = self.text(name)
        if name not in self._given:
            return default
        return checked_number(name, text, low, high)

    def maybe_number(self, name: str, low: int, high: int) -> int | None:
        return self.number(name, 0, low, high) if name in self._given else None


def query_pairs(query: bytes) -> Pairs:
    """Return names and values of a query or form, percent-decoded to bytes."""
    try:
        found = parse_qsl(
            query.decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=MAX_PARAMETERS,
        )
    except ValueError:
        raise Problem(400, f"more than {MAX_PARAMETERS} parameters") from None
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found]


def checked_number(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Problem(400, f"{name!r} must be a number from {low} to {high}, not {value!r}")
    return value


def segment(request: Request, name: str) -> bytes:
    """Return a name from the path, which `guard` leaves percent-encoded."""
    return unquote_to_bytes(request.path_params[name])


# --- bodies -------------------------------------------------------------------------------------


_TYPES: Final = {"boolean": (bool, "true or false"), "string": (str, "a text")}


async def json_body(request: Request, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object that is the body of a request; an empty body is an empty object.

    Args:
        known: the members, with types and meanings; see `routes.Route`.
    """
    body = await request.body()
    if not body.strip():
        return {}
    if media_type(request) != "application/json":
        raise Problem(415, "the body must have Content-Type: application/json")
    value = parse_json(body)
    if not isinstance(value, dict):
        raise Problem(400, "the body must be a JSON object")
    for name, one in value.items():
        if name not in known:
            names = ", ".join(sorted(known))
            raise Problem(400, f"unknown member {name!r}", hint=f"the members are {names}")
        kind, text = _TYPES.get(known[name].partition(":")[0], (object, ""))
        if not isinstance(one, kind):
            raise Problem(400, f"the member {name!r} must be {text}")
    return value


def parse_json(body: bytes, where: str = "the body", *, exact: bool = False) -> Any:
    """Return the value of a body, or of a line of it.

    Args:
        exact: numbers are their text.
    """
    number: dict[str, Any] = {"parse_int": Number, "parse_float": Number} if exact else {}
    try:
        value = json.loads(body, parse_constant=_refuse_constant, **number)
        if b"\\ud" in body.lower():  # half of a pair that no text may have
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        problem = str(error).replace("line 1 column", "column")
        raise Problem(400, f"{where} is not JSON: {problem}") from None
    return value


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number in JSON; send it as a text")


def media_type(request: Request) -> str:
    """Return the type of the body without its parameters, in lower case."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def name_member(body: Mapping[str, Any], name: str) -> bytes:
    """Return a member that is a name, and must be there."""
    if name not in body:
        raise Problem(400, f"the member {name!r} is missing")
    try:
        return from_json(body[name])
    except ValueError as error:
        raise Problem(400, f"the member {name!r}: {error}") from None


def id_members(
    body: Mapping[str, Any], most: int, kind: str = "such as '1718004800000-0'"
) -> list[str]:
    """Return the member `ids`: a list of IDs that is not empty."""
    ids = body.get("ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) for one in ids):
        raise Problem(400, f"the member 'ids' must be a list of IDs {kind}")
    if len(ids) > most:
        raise Problem(413, f"{len(ids)} IDs, at most {most} at once")
    return ids


def field_pairs(value: object, where: str) -> Pairs:
    """Return the pairs of an entry in JSON: an object, or a list of [field, value].

    A value that is neither text nor base64 is stored as its JSON text, which is how it was sent.

    Args:
        value: what `parse_json` returns with `exact`.
    """
    if isinstance(value, Mapping):
        pairs = [(name.encode(), _value(one, f"{where}: {name!r}")) for name, one in value.items()]
    elif isinstance(value, list) and all(isinstance(one, list) and len(one) == 2 for one in value):
        pairs = [(_value(name, where), _value(one, where)) for name, one in value]
    else:
        raise Problem(400, f"{where} must be an object, or a list of [field, value]")
    if not pairs:
        raise Problem(400, f"{where} has no fields")
    return pairs


def _value(value: object, where: str) -> bytes:
    if type(value) is str or (isinstance(value, Mapping) and list(value) == ["base64"]):
        try:
            return from_json(value)
        except ValueError as error:
            raise Problem(400, f"{where}: {error}") from None
    try:
        return compact(value).encode()
    except RecursionError:
        raise Problem(400, f"{where} is nested too deeply") from None
