"""The application's columns of ``silver.messages``, from columns of extensions and bodies.

Which rows have anything to read is found for a whole column; those are read one by one (``message_reader``). Bodies of
one value, of which the body type says all, are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from schemas.messages import APPLICATION_COLUMNS
from udfs.application.application_message import MAX_BYTES, ApplicationMessage, NativeFacts
from udfs.application.body_formats import BINARY_FORMATTER_TYPE
from udfs.application.mass_transit import EXCEPTION_TEXT_HEADERS as MASS_TRANSIT_TEXTS
from udfs.application.message_reader import read_application_message, variant_message
from udfs.application.nservicebus import EXCEPTION_PART, EXCEPTION_TYPE_ENDING
from udfs.application.rebus import EXCEPTION_TEXT_HEADERS as REBUS_TEXTS
from udfs.application.variant_bodies import MARKUP, VT_NULL, fits_vt_code, has_vt_code, may_hold_document
from udfs.application.wcf import PREAMBLE
from udfs.array_types import Bools, Ints, Octets

_NAMES: Final = tuple(each.name for each in fields(ApplicationMessage))
_TYPES: Final = {column.name: column.type for column in APPLICATION_COLUMNS}
_PEEKED: Final = 4  # bytes of a body that tell whether it may be one that is read

_TEXT_BYTES: Final = np.isin(np.arange(256), [9, 10, 13, *range(0x20, 0x7F), *range(0x80, 0x100)])
_TEXT_STARTS: Final = np.isin(np.arange(256), [9, 10, 13, *range(0x20, 0x7F), *range(0xC2, 0xF5), 0xFE, 0xFF])
_MARKUP_STARTS: Final = np.isin(np.arange(256), list(MARKUP))


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """What is kept of what messages say: the columns, all headers, and what exceptions say. Without: ``framework``."""

    columns: bool = True
    headers: bool = True
    exception_texts: bool = True


class MessageParts(NamedTuple):
    """What is read of messages, an element for each: their extensions and where their bodies are.

    ``data`` holds the bodies: ``body_seen`` bytes at ``body_at``, of ``body_bytes``. ``readable`` is False where the
    body is encrypted, or another reader's. The others are columns of ``silver.messages``.
    """

    extension: pa.Array
    data: Octets
    body_at: Ints
    body_seen: Ints
    body_bytes: Ints
    readable: Bools
    body_type: Ints
    label: pa.Array
    response_queue: pa.Array
    app_specific: pa.Array
    correlation_id: pa.Array


def application_columns(parts: MessageParts, kept: KeptColumns) -> dict[str, pa.Array]:
    """Return the columns of ``APPLICATION_COLUMNS``, by name; null for messages without an extension and a body."""
    count = len(parts.extension)
    rows, variants = _rows_to_read(parts)
    messages = _read_rows(parts, rows)
    place = np.full(count, -1, np.int32)
    place[rows] = np.arange(len(rows))
    _add_variants(parts, variants, messages, place)
    if not messages:
        return {name: pa.nulls(count, _TYPES[name]) for name in _NAMES}
    index = pa.array(place, mask=place < 0)
    columns = {name: _column(name, messages, kept) for name in _NAMES}
    return {
        name: pa.nulls(count, _TYPES[name]) if values.null_count == len(values) else values.take(index)
        for name, values in columns.items()
    }


def _rows_to_read(parts: MessageParts) -> tuple[Ints, Ints]:
    """Return the rows that are read one by one, and those of which the VT code of the body says all."""
    has_body = parts.readable & (parts.body_seen > 0)
    is_variant = has_vt_code(parts.body_type) & parts.readable
    read = np.asarray(parts.extension.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    others = np.flatnonzero(has_body & ~is_variant & ~read)
    read[others] = _may_be_read(parts, others)
    variants = np.flatnonzero(has_body & is_variant & ~read)
    read[variants] = _holds_more(parts, variants)
    is_null = (parts.body_type == VT_NULL) & (parts.body_bytes == 0)
    only_variant = is_variant & ~read & (has_body | is_null)
    return np.flatnonzero(read), np.flatnonzero(only_variant)


def _holds_more(parts: MessageParts, rows: Ints) -> Bools:
    """Tell which bodies with a VT code hold a document, or are framed by WCF, which writes bytes."""
    at = parts.body_at[rows]
    first = parts.data[at]
    found: Bools = _MARKUP_STARTS[first] & may_hold_document(parts.body_type[rows])
    framed = np.flatnonzero((first == PREAMBLE[0]) & (parts.body_seen[rows] >= len(PREAMBLE)))
    for step, octet in enumerate(PREAMBLE):
        framed = framed[parts.data[at[framed] + step] == octet]
    found[framed] = True
    return found


def _may_be_read(parts: MessageParts, rows: Ints) -> Bools:
    """Tell which bodies of some rows may be text, XML, JSON, gzip, or framed: few others begin so.

    Of bodies that are shorter than what is looked at the first byte stands for those that they lack.
    """
    at, size = parts.body_at[rows], parts.body_seen[rows]
    first, second, third, fourth = (parts.data[at + np.where(step < size, step, 0)] for step in range(_PEEKED))
    text = _TEXT_STARTS[first] & _TEXT_BYTES[second] & _TEXT_BYTES[third] & _TEXT_BYTES[fourth]
    wide = _TEXT_STARTS[first] & (second == 0) & _TEXT_BYTES[third] & (fourth == 0)
    framed = (first == 0) & (second != 0) & (third == 0) & (fourth <= 1)  # [MC-NMF], [MS-NRBF]
    gzip = (first == 0x1F) & (second == 0x8B)
    found: Bools = text | wide | framed | gzip | (parts.body_type[rows] == BINARY_FORMATTER_TYPE)
    return found


def _read_rows(parts: MessageParts, rows: Ints) -> list[ApplicationMessage]:
    if not len(rows):
        return []
    chosen = pa.array(rows)
    extensions = parts.extension.take(chosen).to_pylist()
    facts = [
        getattr(parts, name).take(chosen).to_pylist()
        for name in ("label", "response_queue", "app_specific", "correlation_id")
    ]
    native = [NativeFacts(*each) for each in zip(*facts, strict=True)]
    size = np.where(parts.readable[rows], np.minimum(parts.body_seen[rows], MAX_BYTES + 1), 0)
    at = parts.body_at[rows]
    kinds = parts.body_type[rows]
    fits = fits_vt_code(kinds, parts.body_bytes[rows]) & parts.readable[rows]
    memory = parts.data.data
    spans = zip(at.tolist(), (at + size).tolist(), strict=True)
    given = zip(extensions, spans, kinds.tolist(), native, fits.tolist(), strict=True)
    return [
        read_application_message(extension, bytes(memory[start:end]), kind, facts, fits_vt_code=fits)
        for extension, (start, end), kind, facts, fits in given
    ]


def _add_variants(
    parts: MessageParts, rows: Ints, messages: list[ApplicationMessage], place: np.ndarray[Any, Any]
) -> None:
    """Add one message for all rows whose bodies have the same VT code."""
    if not len(rows):
        return
    kinds = parts.body_type[rows]
    verdicts, which = np.unique(2 * kinds + fits_vt_code(kinds, parts.body_bytes[rows]), return_inverse=True)
    place[rows] = len(messages) + which
    messages += [variant_message(each >> 1, fits=bool(each & 1)) for each in verdicts.tolist()]


def _column(name: str, messages: Sequence[ApplicationMessage], kept: KeptColumns) -> pa.Array:
    kind = _TYPES[name]
    if name != "framework" and not kept.columns:
        return pa.nulls(len(messages), kind)
    if (name == "application_headers" and not kept.headers) or (
        name == "exception_message" and not kept.exception_texts
    ):
        return pa.nulls(len(messages), kind)
    values = [getattr(each, name) for each in messages]
    if name == "application_headers":
        values = [each and [*each.items()] for each in values]
        if not kept.exception_texts:
            values = [each and [item for item in each if not _is_exception_text(item[0])] for each in values]
    elif name == "application_errors":
        values = [[dict(zip(_ERROR_FIELDS, error, strict=True)) for error in each] or None for each in values]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can write
        return pa.array([_without_surrogates(each) for each in values], kind)


_ERROR_FIELDS: Final = ("code", "field", "offset")


def _is_exception_text(header: str) -> bool:
    """Whether a header says what an exception said."""
    if EXCEPTION_PART in header:
        return not header.endswith(EXCEPTION_TYPE_ENDING)
    return header in REBUS_TEXTS or header in MASS_TRANSIT_TEXTS


def _without_surrogates(value: Any) -> Any:  # noqa: ANN401 - of a column
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list | tuple):
        return type(value)(_without_surrogates(each) for each in value)
    return value
