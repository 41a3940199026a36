"""JSON that anybody may have sent: what a whole object says, or as much of a broken one as can be read."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from udfs.application.application_message import MAX_HEADERS, Headers, cut_to_limit
from udfs.errors import DecodeError, MalformedError, TruncatedError

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class JsonObject(NamedTuple):
    """The members of an object by name, and what ended it: None, or an error with the offset in bytes."""

    members: dict[str, Any]
    error: DecodeError | None


def read_json_object(data: bytes, encoding: str = "utf-8-sig") -> JsonObject | None:
    """Read an object; of one that is cut or broken, the members before. None for bytes that do not begin an object."""
    data, too_large = cut_to_limit(data)
    text = data.decode(encoding, "replace")
    at = _skip_space(text, 0)
    if text[at : at + 1] != "{":
        return None
    try:
        whole, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        members, stopped = _members_before_error(text, at + 1)
    else:
        members, stopped = whole, end
        if not text[end:].strip(" \t\r\n\0"):
            return JsonObject(members, None)
    offset = min(len(text[:stopped].encode(encoding, "replace")), len(data))
    ended = not text[stopped:].strip() or text[stopped] in '"[{'
    return JsonObject(members, too_large or (TruncatedError if ended else MalformedError)("", offset))


def as_headers(members: dict[str, Any]) -> Headers:
    """Return the members of an object that are texts, numbers and truth values, as texts; no more than a limit."""
    headers: Headers = {}
    for name, value in members.items():
        if len(headers) == MAX_HEADERS:
            break
        if value is None or isinstance(value, str):
            headers[name] = value
        elif isinstance(value, (bool, int, float)):
            headers[name] = json.dumps(value)
    return headers


def _members_before_error(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the members of an object that is broken, and where it is; the value that is broken is None."""
    members: dict[str, Any] = {}
    while True:
        at = _skip_space(text, at)
        try:
            name, after = _DECODER.raw_decode(text, at)
            after = _skip_space(text, after)
            if not isinstance(name, str) or text[after : after + 1] != ":":
                return members, at
            at = _skip_space(text, after + 1)
            members[name] = None
            value, after = _DECODER.raw_decode(text, at)
            if after == len(text) and not isinstance(value, (str, list, dict)):
                return members, at  # more of the number may follow
            members[name] = value
        except (ValueError, RecursionError):
            return members, at
        at = _skip_space(text, after)
        if text[at : at + 1] != ",":
            return members, at
        at += 1


def _skip_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it always matches
