"""Decode errors: truncated, malformed or unsupported input, each with the field and the byte offset.

A decode error is data. The readers of single values raise these exceptions; their callers catch ``DecodeError`` only.
The readers of columns write the same code, field and offset to the row instead.

Any other exception is an error of this program. It is the error of the capture that was being processed, and
``describe_failure`` gives the text for the capture's row.
"""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path
from typing import Final

_PROJECT: Final = str(Path(__file__).parent.parent)
_MAX_MESSAGE: Final = 300  # characters of an exception's message
_FAILURE: Final = re.compile(r"(\w+ in [^ ]+\.py, line \d+): ")  # how the text of ``describe_failure`` begins
DECODING_SNAPSHOT: Final = "decoding snapshot"
_STEP: Final = re.compile(rf"merging|decoding call|{DECODING_SNAPSHOT}")  # what may come before it, with names

_SHORTAGES: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
)
TRUNCATED: Final = "truncated"
MALFORMED: Final = "malformed"
UNSUPPORTED: Final = "unsupported"


class DecodeError(Exception):
    """Bytes do not fit their declared layout: ``field`` is named as in the specification, ``offset`` is in bytes."""

    code: str = MALFORMED

    def __init__(self, field: str, offset: int) -> None:
        super().__init__(field, offset)  # positional, so that the error can be pickled
        self.field = field
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.code}: {self.field} at byte {self.offset}"


class TruncatedError(DecodeError):
    """The bytes end too early; with more bytes they might be valid."""

    code = TRUNCATED


class MalformedError(DecodeError):
    """The bytes are invalid, whatever follows them."""

    code = MALFORMED


class UnsupportedError(DecodeError):
    """The bytes may be valid, but no decoder exists for them: an unknown opnum or transfer syntax."""

    code = UNSUPPORTED


class ResourceLimitError(Exception):
    """Reading an input took more memory, disk or time than it may."""


def is_resource_failure(error: Exception) -> bool:
    """Whether an exception is for want of memory, disk or time: with fewer inputs at once it may not occur."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    return isinstance(error, (MemoryError, ResourceLimitError))


def describe_failure(error: Exception) -> str:
    """Return in one line what exception was raised, and where: in the code, and in the input if its notes say it."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return " ".join(str(error).split())
    ours = [each for each in frames if each.filename.startswith(_PROJECT) and "site-packages" not in each.filename]
    frame = (ours or frames)[-1]
    place = f"{type(error).__name__} in {frame.filename.removeprefix(_PROJECT).lstrip('/')}, line {frame.lineno}"
    return "; ".join([f"{place}: {' '.join(str(error).split())[:_MAX_MESSAGE]}", *getattr(error, "__notes__", ())])


def remove_failure_values(text: str) -> str:
    """Return the text of an error without values of the input, if it is one of ``describe_failure``."""
    found, step = _FAILURE.search(text), _STEP.match(text)
    if found is None:
        return text
    return found[1] if step is None else f"{step[0]}: {found[1]}"
