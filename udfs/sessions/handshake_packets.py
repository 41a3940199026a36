"""Columns of handshake packets: EstablishConnection and ConnectionParameters, [MS-MQQB] 2.2.3 and 2.2.2."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.sessions import packet_layouts as layouts
from udfs.sessions.fixed_records import FixedRecords

_ESTABLISH: Final = layouts.ESTABLISH_CONNECTION_HEADER
_PARAMETERS: Final = layouts.CONNECTION_PARAMETERS_HEADER
_INTERNAL_AT: Final = layouts.INTERNAL_PACKET_BYTES - layouts.INTERNAL_HEADER.itemsize


def internal_header_columns(packets: pa.Array) -> dict[str, pa.Array]:
    """Decode the InternalHeader of packets with IN = 1, [MS-MQQB] 2.2.1.

    ``packets`` is binary or large_binary, each value a packet up to its first missing byte. Returns ``packet_type``
    (PT, int32) and ``refused`` (CS, bool); null where not seen.
    """
    found = FixedRecords.read(packets, layouts.INTERNAL_HEADER, _INTERNAL_AT)
    kind = found.records["Flags"] & layouts.PACKET_TYPE_MASK
    whole = FixedRecords(found.records.copy(), found.bytes_seen)
    whole.records["Flags"] = kind
    return {
        "packet_type": whole.numbers("Flags", pa.int32()),
        "refused": found.flags("Flags", layouts.CONNECTION_REFUSED),
    }


def establish_connection_columns(packets: pa.Array) -> dict[str, pa.Array]:
    """Decode EstablishConnection packets, [MS-MQQB] 2.2.3; a row each, null where a field was not seen.

    ``client_guid``, ``server_guid`` (GUID text, zero too), ``server_guid_is_zero`` (bool), ``uptime_ms`` (int64),
    ``release`` (RE, int32), ``pinged`` (SE = 0, bool), ``server_class`` (OS, bool), ``refused`` (CS, bool),
    ``padding_is_5a`` (bool: all 512 bytes of padding are 0x5A; null unless all were seen).
    """
    found = FixedRecords.read(packets, _ESTABLISH, layouts.INTERNAL_PACKET_BYTES)
    server_seen = found.has("ServerGuid")
    zero = ~np.ascontiguousarray(found.records["ServerGuid"]).any(axis=1)
    release = FixedRecords(found.records.copy(), found.bytes_seen)
    release.records["OperatingSystem"] &= layouts.RELEASE_MASK
    padding = pc.binary_slice(packets, layouts.ESTABLISH_PADDING_AT, layouts.ESTABLISH_CONNECTION_BYTES)
    whole = pc.equal(pc.binary_length(padding), len(layouts.ESTABLISH_PADDING))
    return {
        "client_guid": found.guids("ClientGuid", zero=True),
        "server_guid": found.guids("ServerGuid", zero=True),
        "server_guid_is_zero": pa.array(zero, mask=~server_seen),
        "uptime_ms": found.numbers("TimeStamp", pa.int64()),
        "release": release.numbers("OperatingSystem", pa.int32()),
        "pinged": pc.invert(found.flags("OperatingSystem", layouts.NOT_PINGED)),
        "server_class": found.flags("OperatingSystem", layouts.SERVER_CLASS),
        "refused": internal_header_columns(packets)["refused"],
        "padding_is_5a": pc.if_else(whole, pc.equal(padding, layouts.ESTABLISH_PADDING), None),
    }


def connection_parameters_columns(packets: pa.Array) -> dict[str, pa.Array]:
    """Decode ConnectionParameters packets, [MS-MQQB] 2.2.2; a row each, null where a field was not seen.

    ``recoverable_ack_timeout_ms``, ``ack_timeout_ms`` (int64), ``window_size`` (int32, packets), ``refused`` (CS).
    """
    found = FixedRecords.read(packets, _PARAMETERS, layouts.INTERNAL_PACKET_BYTES)
    return {
        "recoverable_ack_timeout_ms": found.numbers("RecoverableAckTimeout", pa.int64()),
        "ack_timeout_ms": found.numbers("AckTimeout", pa.int64()),
        "window_size": found.numbers("WindowSize", pa.int32()),
        "refused": internal_header_columns(packets)["refused"],
    }
