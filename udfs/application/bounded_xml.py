"""XML that anybody may have sent, read with expat: no document types, so no entities; bounded in bytes and in depth.

Expat of the standard library, not ``defusedxml``: that package is these handlers around the same parser, and it builds
trees, where only a few elements are wanted here. Expat reads no file and no address by itself, and uses memory in
proportion to the bytes that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn
from xml.parsers import expat

from udfs.application.application_message import cut_to_limit
from udfs.errors import DecodeError, MalformedError, TruncatedError

StartHandler = Callable[[str, Mapping[str, str]], None]
EndHandler = Callable[[str], None]
TextHandler = Callable[[str], None]

_ENDS_TOO_EARLY: Final = frozenset(
    expat.errors.codes[text]
    for text in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    )
)
_REFERENCE: Final = re.compile(rb"&#(?:x([0-9A-Fa-f]{1,8})|([0-9]{1,10}));")
# Characters that no text has stand for those that XML forbids: U+FDD0 to U+FDEF are 32, as the control characters are.
_STAND_INS: Final = 0xFDD0
_STOOD_FOR: Final = {_STAND_INS + code: code for code in range(32)}


class StopParsing(Exception):  # noqa: N818 - it is no error
    """Raised by a handler that wants no more."""


def parse_xml(
    data: bytes, start: StartHandler, end: EndHandler | None = None, text: TextHandler | None = None,
    *, encoding: str | None = None, namespaces: bool = False,
) -> DecodeError | None:  # fmt: skip
    """Give the elements and texts of a document to handlers; return what ended it, None at its end or when stopped.

    Handlers raise StopParsing, or an error that is returned. ``encoding`` replaces the document's own. With
    ``namespaces`` names are ``namespace name``.
    """
    parser = expat.ParserCreate(encoding, " " if namespaces else None)
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text

    def refuse(*_declared: object) -> NoReturn:
        raise MalformedError("DOCTYPE", parser.CurrentByteIndex)

    parser.StartDoctypeDeclHandler = refuse
    data, too_large = cut_to_limit(data)
    try:
        parser.Parse(data, too_large is None)
    except StopParsing:
        return None
    except DecodeError as error:
        return type(error)(error.field, max(parser.CurrentByteIndex, 0))
    except expat.ExpatError as error:
        kind = TruncatedError if error.code in _ENDS_TOO_EARLY else MalformedError
        return kind("", min(max(parser.ErrorByteIndex, 0), len(data)))
    except (LookupError, ValueError):  # of an encoding that it declares
        return MalformedError("encoding", 0)
    return too_large


def allow_forbidden_characters(data: bytes) -> bytes:
    """Return a document with others in the place of references to characters that XML forbids, such as ``&#x1;``.

    ``restore_forbidden_characters`` puts those of control characters back; those of no character become U+FFFD.
    """
    return _REFERENCE.sub(_stand_in, data) if b"&#" in data else data


def restore_forbidden_characters(text: str) -> str:
    """Return a text of such a document as it was sent."""
    return text.translate(_STOOD_FOR)


def _stand_in(reference: re.Match[bytes]) -> bytes:
    code = int(reference[1], 16) if reference[1] else int(reference[2])
    if code < 0x20:
        return reference[0] if code in (9, 10, 13) else chr(_STAND_INS + code).encode()
    allowed = code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return reference[0] if allowed else "\ufffd".encode()
