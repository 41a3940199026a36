"""What a property's value means for its column: one conversion per kind of column, of a variant's value to Python."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

from udfs import codes
from udfs.properties import names

U64: Final = pa.decimal128(20, 0)
TIME: Final = pa.timestamp("us", tz="UTC")
SEQUENCE: Final = pa.struct({"sequence_id": U64, "sequence_number": pa.int64(), "previous_number": pa.int64()})
SOURCES: Final = pa.list_(
    pa.struct(
        {
            "sender_format_name": pa.string(),
            "sender_queue_manager": pa.string(),
            "sequence_id": U64,
            "last_number": pa.int64(),
            "last_access_at": TIME,
            "reject_count": pa.int64(),
        }
    )
)
HISTORY: Final = pa.list_(
    pa.struct(
        {
            "status": pa.int64(),
            "status_name": pa.string(),
            "changed_at": TIME,
            "error": pa.int64(),
            "error_name": pa.string(),
            "addresses": pa.list_(pa.string()),
        }
    )
)
TEXTS: Final = pa.list_(pa.string())

NUMBERS: Final = (2, 3, 16, 17, 18, 19, 20, 21)
BLOB: Final = 65
TEXT_VECTORS: Final = (0x101F, 0x1048)
_LPWSTR, _STRINGS, _VARIANTS, _CLSIDS = 31, 0x101F, 0x100C, 0x1048
_U32: Final = 1 << 32
# The vectors of EOD_SOURCE_INFO ([MS-MQMQ] 2.3.12.24) and of CONNECTION_HISTORY but its last (2.3.12.25).
_SOURCE_TYPES: Final = [_STRINGS, _CLSIDS, 0x1015, 0x1013, 0x1003, 0x1013]
_HISTORY_TYPES: Final = [0x1013, 0x1003, 0x1003]


class Value(NamedTuple):
    """A variant's type and value; nested variants as {"vt", "value"}, the form of a collector's ``value_json``."""

    vt: int
    value: Any


class UnfitError(ValueError):
    """A value whose type or shape is not its property's."""


def _text(value: Value) -> str:
    if value.vt != _LPWSTR or not isinstance(value.value, str):
        raise UnfitError
    return value.value


def _number(value: Value) -> int:
    if value.vt not in NUMBERS or type(value.value) is not int or not -(1 << 63) <= value.value < 1 << 63:
        raise UnfitError
    return value.value


def _decimal(value: Value) -> Decimal:
    if value.vt not in NUMBERS or type(value.value) is not int or abs(value.value) >> 64:
        raise UnfitError
    return Decimal(value.value)


def _moment(seconds: int) -> datetime | None:
    """UNIX seconds, 32 bits; 0 is none."""
    return datetime.fromtimestamp(seconds % _U32, UTC) if seconds else None


def _time(value: Value) -> datetime | None:
    return _moment(_number(value))


def _texts(value: Value) -> list[str | None]:
    """A vector of strings, or of variants that are strings (doubt D22 of the sheet on packets)."""
    if value.vt == _VARIANTS:
        return [_text(item) for item in _items(value)]
    if value.vt != _STRINGS or not isinstance(value.value, list):
        raise UnfitError
    if any(not isinstance(item, str | None) for item in value.value):
        raise UnfitError
    return list(value.value)


def _items(value: Value) -> list[Value]:
    if value.vt != _VARIANTS or not isinstance(value.value, list):
        raise UnfitError
    try:
        return [Value(item["vt"], item["value"]) for item in value.value]
    except (KeyError, TypeError) as error:
        raise UnfitError from error


def _sequence(value: Value) -> dict[str, Any] | None:
    """SEQUENCE_INFO, [MS-MQMQ] 2.2.5, its number unsigned; empty or all zero means that there is no such message."""
    if value.vt != BLOB or not isinstance(value.value, bytes):
        raise UnfitError
    if not any(value.value):
        return None
    if len(value.value) != 16:
        raise UnfitError
    ident, number, previous = struct.unpack("<QII", value.value)
    return {"sequence_id": Decimal(ident), "sequence_number": number, "previous_number": previous}


def _columns(items: list[Value], types: list[int]) -> list[list[Any]]:
    """The vectors that stand for columns of a table: of the types given, all of one length."""
    if [item.vt for item in items] != types or any(not isinstance(item.value, list) for item in items):
        raise UnfitError
    if len({len(item.value) for item in items}) > 1:
        raise UnfitError
    for item in items:
        wanted = str if item.vt in (_STRINGS, _CLSIDS) else int
        if any(type(part) is not wanted for part in item.value):  # true is an int to isinstance
            raise UnfitError
    return [item.value for item in items]


def _sources(value: Value) -> list[dict[str, Any]]:
    """EOD_SOURCE_INFO: one entry per incoming sequence (doubt D31 of the sheet on packets)."""
    columns = _columns(_items(value), _SOURCE_TYPES)
    return [
        {
            "sender_format_name": name,
            "sender_queue_manager": manager.lower(),
            "sequence_id": Decimal(ident % (1 << 64)),
            "last_number": number % _U32,
            "last_access_at": _moment(accessed),
            "reject_count": rejected % _U32,
        }
        for name, manager, ident, number, accessed, rejected in zip(*columns, strict=True)
    ]


def _history(value: Value) -> list[dict[str, Any]]:
    """CONNECTION_HISTORY, oldest first; its addresses as lists of strings, or as one string each (doubt D23)."""
    items = _items(value)
    if len(items) != 4:
        raise UnfitError
    columns = _columns(items[:3], _HISTORY_TYPES)
    last = items[3]
    addresses = [_texts(item) for item in _items(last)] if last.vt == _VARIANTS else [[text] for text in _texts(last)]
    if len(addresses) != len(columns[0]):
        raise UnfitError
    return [
        {
            "status": status % _U32,
            "status_name": codes.name_of(names.CONNECTION_STATUS, status % _U32),
            "changed_at": _moment(changed),
            "error": error % _U32,
            "error_name": codes.name_of(codes.HRESULT, error % _U32),
            "addresses": [text for text in texts if text is not None],
        }
        for status, changed, error, texts in zip(*columns, addresses, strict=True)
    ]


class Kind(NamedTuple):
    """A kind of column: its Arrow type, and what makes its value."""

    type: pa.DataType
    read: Callable[[Value], Any]


_TEXT: Final = Kind(pa.string(), _text)
_COUNT: Final = Kind(pa.int64(), _number)
_LIST: Final = Kind(TEXTS, _texts)
_SEQUENCE: Final = Kind(SEQUENCE, _sequence)
_TIME: Final = Kind(TIME, _time)

MACHINE: Final = {1: _LIST, 2: _LIST, 3: _TEXT, 4: _TEXT, 5: _TEXT, 6: Kind(U64, _decimal)}
QUEUE: Final = {
    **dict.fromkeys((1, 2, 3, 4, 5, 6, 11), _TEXT),
    **dict.fromkeys((7, 8, 9, 10, 15, 19, 20, 22, 23, 26), _COUNT),
    **dict.fromkeys((12, 27), _LIST),
    **dict.fromkeys((13, 16, 17, 18), _SEQUENCE),
    **dict.fromkeys((14, 21), _TIME),
    24: Kind(SOURCES, _sources),
    25: Kind(HISTORY, _history),
}
KINDS: Final = {"machine": MACHINE, "queue": QUEUE}
