"""Read Security Data of COM+ calls: the security ORPC extension of [MS-COM] 2.2.3.2, whoever called and with what.

The first collection is about the whole chain of callers, the others are about one caller each, the direct one first.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import pyarrow as pa

from schemas.comqc import COMQC_CALLS
from udfs.columns.arrays import over_distinct
from udfs.errors import DecodeError, MalformedError, TruncatedError
from udfs.sids import sid_text

SECURITY_STRUCT: Final = pa.struct(
    COMQC_CALLS.schema(only=("caller_sid", "caller_name", "callers", "minimum_authentication_level", "errors"))
)
_CALLER_FIELDS: Final = COMQC_CALLS.column("callers").type.value_type.names
_HEADER: Final = struct.Struct("<4H")  # Maximum Version, Minimum Version, Style, number of collections
_PAIR: Final = struct.Struct("<2H")  # type and number of properties of a collection; type and Size of a property
_CHAIN, _CALLER = 0x0A01, 0x0A02
_SID, _NAME, _NUMBER = "sid", "name", "number"
_PROPERTIES: Final = {
    0x0B01: ("sid", _SID),
    0x0B02: ("name", _NAME),
    0x0B03: ("authentication_service", _NUMBER),
    0x0B04: ("authentication_level", _NUMBER),
    0x0B05: ("impersonation_level", _NUMBER),
    0x0B06: ("application_sid", _SID),
    0x0B07: ("application_name", _NAME),
}
_MINIMUM_LEVEL: Final = 0x0B10


def read_security_data(data: bytes) -> dict[str, Any]:
    """Return the ``SECURITY_STRUCT`` of Security Data; nothing of no bytes.

    ``caller_sid`` and ``caller_name`` are of the direct caller, by authentication: the call is played as that user.
    What was read before an error is kept; ``errors`` has its offset in the data. Properties that are not defined are
    skipped.
    """
    found: dict[str, Any] = {"callers": [], "minimum_authentication_level": None, "errors": []}
    try:
        if data:
            _read_collections(data, found)
    except DecodeError as error:
        found["errors"] = [{"code": error.code, "field": error.field, "offset": error.offset}]
    direct = found["callers"][0] if found["callers"] else {}
    return {**found, "caller_sid": direct.get("sid"), "caller_name": direct.get("name")}


def _read_collections(data: bytes, found: dict[str, Any]) -> None:
    newest, oldest, _, collections = _unpack(_HEADER, data, 0)
    if (newest, oldest) != (1, 1):
        raise MalformedError("Security Data.Version", 0)
    at = _HEADER.size
    for number in range(collections):
        kind, properties = _unpack(_PAIR, data, at)
        if kind != (_CALLER if number else _CHAIN):
            raise MalformedError("Security Data.collectionType", at)
        caller: dict[str, Any] = dict.fromkeys(_CALLER_FIELDS)
        if number:
            found["callers"].append(caller)
        at += _PAIR.size
        for _ in range(properties):
            code, size = _unpack(_PAIR, data, at)
            at += _PAIR.size
            if at + size > len(data):
                raise TruncatedError("Security Data.Property", at)
            value = data[at : at + size]
            if number and code in _PROPERTIES:
                name, form = _PROPERTIES[code]
                caller[name] = _read_value(form, value, at)
            elif not number and code == _MINIMUM_LEVEL:
                found["minimum_authentication_level"] = _read_value(_NUMBER, value, at)
            at += size


def _unpack(form: struct.Struct, data: bytes, at: int) -> tuple[int, ...]:
    if at + form.size > len(data):
        raise TruncatedError("Security Data", at)
    return form.unpack_from(data, at)


def _read_value(form: str, value: bytes, at: int) -> str | int:
    if form == _NAME:
        return value[: len(value) & ~1].decode("utf-16-le", "replace").partition("\0")[0]
    found: str | int | None
    if form == _SID:
        found = sid_text(value[: 8 + 4 * value[1]]) if len(value) > 1 else None
    else:
        found = int.from_bytes(value[:4], "little") if len(value) >= 4 else None
    if found is None:
        raise MalformedError("Security Data.Property", at)
    return found


def security_columns(data: pa.Array) -> pa.StructArray:
    """Return the ``SECURITY_STRUCT`` of a column of Security Data; each distinct one is read once."""
    return over_distinct(data, read_security_data, SECURITY_STRUCT)
