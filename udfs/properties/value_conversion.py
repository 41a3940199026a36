"""Convert property values (PROPVARIANT) to the Python values of their snapshot columns."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from schemas.table import STRINGS, TIMESTAMP, UINT64
from udfs import codes
from udfs.properties import property_names

SEQUENCE_TYPE: Final = QUEUE_SNAPSHOTS.column("eod_last_ack").type
EOD_SOURCE_LIST_TYPE: Final = QUEUE_SNAPSHOTS.column("eod_source_info").type
HISTORY_TYPE: Final = QUEUE_SNAPSHOTS.column("connection_history").type

NUMBER_TYPES: Final = (2, 3, 16, 17, 18, 19, 20, 21)
VT_BLOB: Final = 65
TEXT_VECTOR_TYPES: Final = (0x101F, 0x1048)
_LPWSTR, _STRINGS, _VARIANTS, _CLSIDS = 31, 0x101F, 0x100C, 0x1048
_U32: Final = 1 << 32
# The vectors of EOD_SOURCE_INFO ([MS-MQMQ] 2.3.12.24) and of CONNECTION_HISTORY but its last (2.3.12.25).
_SOURCE_TYPES: Final = [_STRINGS, _CLSIDS, 0x1015, 0x1013, 0x1003, 0x1013]
_HISTORY_TYPES: Final = [0x1013, 0x1003, 0x1003]


class PropertyValue(NamedTuple):
    """A PROPVARIANT: type and value; nested ones as {"vt", "value"}, as in the collector's ``value_json``."""

    vt: int
    value: Any


class UnexpectedValueError(ValueError):
    """A value whose type or shape does not fit its property."""


def _to_text(value: PropertyValue) -> str:
    if value.vt != _LPWSTR or not isinstance(value.value, str):
        raise UnexpectedValueError
    return value.value


def _to_int(value: PropertyValue) -> int:
    if value.vt not in NUMBER_TYPES or type(value.value) is not int or not -(1 << 63) <= value.value < 1 << 63:
        raise UnexpectedValueError
    return value.value


def _to_decimal(value: PropertyValue) -> Decimal:
    if value.vt not in NUMBER_TYPES or type(value.value) is not int or abs(value.value) >> 64:
        raise UnexpectedValueError
    return Decimal(value.value)


def _unix_time(seconds: int) -> datetime | None:
    """Return 32-bit UNIX seconds as a time; 0 is None."""
    return datetime.fromtimestamp(seconds % _U32, UTC) if seconds else None


def _to_time(value: PropertyValue) -> datetime | None:
    return _unix_time(_to_int(value))


def _to_text_list(value: PropertyValue) -> list[str | None]:
    """Return a vector of strings, or of variants that are strings, as a list (doubt D22 of the sheet on packets)."""
    if value.vt == _VARIANTS:
        return [_to_text(item) for item in _nested_values(value)]
    if value.vt != _STRINGS or not isinstance(value.value, list):
        raise UnexpectedValueError
    if any(not isinstance(item, str | None) for item in value.value):
        raise UnexpectedValueError
    return list(value.value)


def _nested_values(value: PropertyValue) -> list[PropertyValue]:
    if value.vt != _VARIANTS or not isinstance(value.value, list):
        raise UnexpectedValueError
    try:
        return [PropertyValue(item["vt"], item["value"]) for item in value.value]
    except (KeyError, TypeError) as error:
        raise UnexpectedValueError from error


def _to_sequence(value: PropertyValue) -> dict[str, Any] | None:
    """Return a SEQUENCE_INFO, [MS-MQMQ] 2.2.5, with unsigned number; None (no such message) if empty or all zero."""
    if value.vt != VT_BLOB or not isinstance(value.value, bytes):
        raise UnexpectedValueError
    if not any(value.value):
        return None
    if len(value.value) != 16:
        raise UnexpectedValueError
    ident, number, previous = struct.unpack("<QII", value.value)
    return {"sequence_id": Decimal(ident), "sequence_number": number, "previous_number": previous}


def _parallel_vectors(items: list[PropertyValue], types: list[int]) -> list[list[Any]]:
    """Return the values of vectors that form the columns of a table: of the given types, all of the same length."""
    if [item.vt for item in items] != types or any(not isinstance(item.value, list) for item in items):
        raise UnexpectedValueError
    if len({len(item.value) for item in items}) > 1:
        raise UnexpectedValueError
    for item in items:
        wanted = str if item.vt in (_STRINGS, _CLSIDS) else int
        if any(type(part) is not wanted for part in item.value):  # not isinstance: True is an int
            raise UnexpectedValueError
    return [item.value for item in items]


def _to_sources(value: PropertyValue) -> list[dict[str, Any]]:
    """Return EOD_SOURCE_INFO: one entry per incoming sequence (doubt D31 of the sheet on packets)."""
    columns = _parallel_vectors(_nested_values(value), _SOURCE_TYPES)
    return [
        {
            "sender_format_name": name,
            "sender_queue_manager": manager.lower(),
            "sequence_id": Decimal(ident % (1 << 64)),
            "last_number": number % _U32,
            "last_access_at": _unix_time(accessed),
            "reject_count": rejected % _U32,
        }
        for name, manager, ident, number, accessed, rejected in zip(*columns, strict=True)
    ]


def _to_history(value: PropertyValue) -> list[dict[str, Any]]:
    """Return CONNECTION_HISTORY, oldest first; addresses are lists of strings or single strings (doubt D23)."""
    items = _nested_values(value)
    if len(items) != 4:
        raise UnexpectedValueError
    columns = _parallel_vectors(items[:3], _HISTORY_TYPES)
    last = items[3]
    addresses = (
        [_to_text_list(item) for item in _nested_values(last)]
        if last.vt == _VARIANTS
        else [[text] for text in _to_text_list(last)]
    )
    if len(addresses) != len(columns[0]):
        raise UnexpectedValueError
    return [
        {
            "status": status % _U32,
            "status_name": codes.code_name(property_names.CONNECTION_STATUS_PROPERTY, status % _U32),
            "changed_at": _unix_time(changed),
            "error": error % _U32,
            "error_name": codes.result_name(error % _U32),
            "addresses": [text for text in texts if text is not None],
        }
        for status, changed, error, texts in zip(*columns, addresses, strict=True)
    ]


class ColumnConversion(NamedTuple):
    """The conversion for a kind of column: its Arrow type, and the function that makes a value."""

    type: pa.DataType
    convert: Callable[[PropertyValue], Any]


_TEXT_COLUMN: Final = ColumnConversion(pa.string(), _to_text)
_COUNT_COLUMN: Final = ColumnConversion(pa.int64(), _to_int)
_LIST_COLUMN: Final = ColumnConversion(STRINGS, _to_text_list)
_SEQUENCE_COLUMN: Final = ColumnConversion(SEQUENCE_TYPE, _to_sequence)
_TIME_COLUMN: Final = ColumnConversion(TIMESTAMP, _to_time)

MACHINE_CONVERSIONS: Final = {
    1: _LIST_COLUMN,
    2: _LIST_COLUMN,
    3: _TEXT_COLUMN,
    4: _TEXT_COLUMN,
    5: _TEXT_COLUMN,
    6: ColumnConversion(UINT64, _to_decimal),
}
QUEUE_CONVERSIONS: Final = {
    **dict.fromkeys((1, 2, 3, 4, 5, 6, 11), _TEXT_COLUMN),
    **dict.fromkeys((7, 8, 9, 10, 15, 19, 20, 22, 23, 26), _COUNT_COLUMN),
    **dict.fromkeys((12, 27), _LIST_COLUMN),
    **dict.fromkeys((13, 16, 17, 18), _SEQUENCE_COLUMN),
    **dict.fromkeys((14, 21), _TIME_COLUMN),
    24: ColumnConversion(EOD_SOURCE_LIST_TYPE, _to_sources),
    25: ColumnConversion(HISTORY_TYPE, _to_history),
}
COLUMN_CONVERSIONS: Final = {"machine": MACHINE_CONVERSIONS, "queue": QUEUE_CONVERSIONS}
