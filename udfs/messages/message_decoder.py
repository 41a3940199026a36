"""Decode an Arrow column of message packets into the columns of ``silver.messages``."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.messages import MESSAGES
from schemas.table import TIMESTAMP
from udfs import codes
from udfs.application.columns import KeptColumns, MessageParts, application_columns
from udfs.array_types import Bools, Ints, Octets
from udfs.columns.arrays import over_distinct, to_flags
from udfs.comqc.body_decoder import is_comqc_extension
from udfs.messages import header_layouts as layouts
from udfs.messages import name_columns
from udfs.messages.format_name_lists import format_name_list_column
from udfs.messages.header_chain import read_header_chain
from udfs.messages.message_keys import message_key_column
from udfs.messages.name_columns import gather_name_bytes
from udfs.messages.packet_sections import locate_sections
from udfs.messages.record_readers import PacketColumn, record_first_error, values_written
from udfs.messages.report_messages import message_kind_column, report_column
from udfs.stubs import arrow_primitives
from udfs.stubs.byte_spans import decode_utf16, first_utf16_unit, slice_spans
from udfs.stubs.column_cursors import MALFORMED_CODE, AnyArray, DecodedColumns
from udfs.stubs.to_arrow import error_lists

# 9: what the application's headers and bodies say
# 7: message kinds, reports, the destination's queue manager in the binary protocol
# 6: connectors, format name lists, SOAP, report queue, certificate size, AcknowledgementClass; 5: hop count, trace
# flag, type of administration queue, privacy level; 4: a size that decoding does not need ends nothing; 3: a
# SessionHeader may be missing
DECODER_VERSION: Final = "9"

_INT32_MAX: Final = 0x7FFF_FFFF
_DEFAULT_RECORDS: Final = {
    "BaseHeader": layouts.BASE_HEADER,
    "UserHeader": layouts.USER_HEADER,
    "TransactionHeader": layouts.TRANSACTION_HEADER,
    "SecurityHeader": layouts.SECURITY_HEADER,
    "MessagePropertiesHeader": layouts.MESSAGE_PROPERTIES_HEADER,
    "CompoundMessageHeader": layouts.COMPOUND_MESSAGE_HEADER,
    "ExtensionHeader": layouts.EXTENSION_HEADER,
    "SubqueueHeader": layouts.SUBQUEUE_HEADER,
}
_IS_ACKNOWLEDGEMENT_CLASS: Final = np.isin(np.arange(0x10000), list(codes.RECEIVE_ACKNOWLEDGEMENTS))


class _ReadPackets:
    """The header records of a column of packets; headers that no packet has are filled with zeros."""

    def __init__(self, packets: PacketColumn, out: DecodedColumns) -> None:
        self.packets, self.out, self.rows = packets, out, out.rows
        for name, kind in _DEFAULT_RECORDS.items():
            if name not in out.values:
                out.values[name] = np.zeros(out.rows, kind)
                out.valid[name] = np.zeros(out.rows, np.bool_)
        self.base, self.user = out.values["BaseHeader"], out.values["UserHeader"]
        self.properties = out.values["MessagePropertiesHeader"]
        self.flags = self.user["Flags"]
        self.has_base = self.has("BaseHeader whole")
        self.has_user = self.has("UserHeader")

    def has(self, name: str) -> Bools:
        """Return the mask of rows in which ``name`` was read."""
        return self.out.valid.get(name, np.zeros(self.rows, np.bool_))

    def stored(self, name: str) -> Ints:
        """Return a stored offset or size; 0 in rows without one."""
        return self.out.values.get(name, np.zeros(self.rows, np.int64))


def _read_packets(packets: PacketColumn, rows: Ints, out: DecodedColumns, soft: DecodedColumns) -> None:
    """Read the packets of ``rows``; where the body has two possible sizes and one does not fit, try the other."""
    if not len(rows):
        return
    read_header_chain(packets, rows, out, soft, np.zeros(len(rows), np.bool_))
    if "MessagePropertiesHeader" not in out.values:
        return
    found = out.values["MessagePropertiesHeader"]
    either = out.valid["MessagePropertiesHeader"] & (found["AllocationBodySize"] > found["MessageSize"])
    failed = np.flatnonzero(either & (out.error_code != 0))
    if not len(failed):
        return
    again, noted = DecodedColumns(out.rows), DecodedColumns(out.rows)
    read_header_chain(packets, failed, again, noted, np.ones(len(failed), np.bool_))
    fits = np.zeros(out.rows, np.bool_)
    fits[failed] = again.error_code[failed] == 0
    out.replace_rows_from(again, fits)
    soft.replace_rows_from(noted, fits)


def _number_column(values: AnyArray, valid: Bools, to: pa.DataType) -> pa.Array:
    return arrow_primitives.number_array(np.ascontiguousarray(values), valid, to)


def _unix_time_column(seconds: AnyArray, valid: Bools) -> pa.Array:
    """Return UNIX seconds as timestamps; 0 becomes null."""
    return _number_column(seconds.astype(np.int64) * 1_000_000, valid & (seconds != 0), pa.int64()).view(TIMESTAMP)


def _message_id_column(guid: Octets, number: AnyArray, valid: Bools) -> pa.Array:
    r"""Return message identifiers as ``guid\ordinal``."""
    rows = np.flatnonzero(valid)
    if not len(rows):
        return pa.nulls(len(valid), pa.string())
    every = np.ones(len(rows), np.bool_)
    ordinal = pc.cast(pa.array(number[rows]), pa.string())
    some = pc.binary_join_element_wise(_guid_column(guid[rows], every), ordinal, "\\")
    if len(rows) == len(valid):
        return some
    index = np.zeros(len(valid), np.int32)  # few messages have a correlation id: only those were made
    index[rows] = np.arange(len(rows))
    return some.take(pa.array(index, mask=~valid))


def _guid_column(guid: Octets, valid: Bools) -> pa.Array:
    """Return GUIDs as text; each distinct one is converted once."""
    if not valid.any():
        return pa.nulls(len(valid), pa.string())
    encoded = name_columns.fixed_size_binary(guid).dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], np.uint8)[: 16 * len(encoded.dictionary)].reshape(-1, 16)
    index = encoded.indices.to_numpy()
    return arrow_primitives.guid_strings(distinct).take(
        pa.array(index, mask=~valid) if not valid.all() else encoded.indices
    )


def _guid_column_at(decoded: _ReadPackets, name: str, valid: Bools) -> pa.Array:
    """Return the GUIDs at the stored offsets ``name`` as text, null where not ``valid``."""
    valid = valid & decoded.has(name)
    if not valid.any():
        return pa.nulls(decoded.rows, pa.string())
    return _guid_column(gather_name_bytes(decoded.packets.data, np.where(valid, decoded.stored(name), 0), 16), valid)


def _add_field_columns(decoded: _ReadPackets, columns: dict[str, pa.Array]) -> None:
    """Add the columns that are numbers of a header; what a SecurityHeader says is zero where a message has none."""
    unsecured = decoded.has_user & (decoded.flags & layouts.USER_FLAG_SH == 0)
    valid = {"BaseHeader": decoded.has_base, "SecurityHeader": decoded.has("SecurityHeader") | unsecured}
    for column, header, field, mask in layouts.FIELD_COLUMNS:
        values = decoded.out.values[header][field]
        if mask is not None:
            values = (values & mask) >> (mask & -mask).bit_length() - 1
        has = valid[header] if header in valid else decoded.has(header)
        columns[column] = _number_column(values, has, MESSAGES.column(column).type)


def _add_identity(decoded: _ReadPackets, columns: dict[str, pa.Array], *, keys: bool) -> None:
    source = np.ascontiguousarray(decoded.user["SourceQueueManager"])
    ordinal, sent = decoded.user["MessageID"], decoded.user["SentTime"]
    columns["source_queue_manager"] = _guid_column(source, decoded.has_user)
    columns["message_id"] = pc.binary_join_element_wise(
        columns["source_queue_manager"], pc.cast(columns["message_ordinal"], pa.string()), "\\"
    )
    columns["sent_at"] = _unix_time_column(sent, decoded.has_user)
    overlaid = decoded.packets.is_from_remote_read & ((decoded.flags >> 10) & 7 == layouts.DIRECT_NAME_TYPE)
    manager, named = decoded.user["QueueManagerAddress"], decoded.has_user & ~overlaid
    if named.any():
        named &= manager.any(axis=1)
    columns["queue_manager_address"] = _guid_column(np.ascontiguousarray(manager), named)
    if decoded.packets.over_rpc.all():
        columns["destination_queue_manager"] = pa.nulls(decoded.rows, pa.string())
    else:
        columns["destination_queue_manager"] = _guid_column(
            np.ascontiguousarray(manager), named & ~decoded.packets.over_rpc
        )
    columns["connector_type"] = _guid_column_at(decoded, "ConnectorType at", decoded.flags & layouts.USER_FLAG_CQ != 0)
    if keys:
        columns["message_key"] = message_key_column(
            columns["source_queue_manager"], ordinal, sent, decoded.has("UserHeader whole")
        )


def _add_lifetimes(decoded: _ReadPackets, columns: dict[str, pa.Array]) -> None:
    """Add both lifetimes in seconds, relative to the time sent; null if infinite."""
    reach, sent = decoded.base["TimeToReachQueue"].astype(np.int64), decoded.user["SentTime"].astype(np.int64)
    # RemoteRead sends SentTime + TimeToReachQueue; infinite, or a sum that wrapped, means infinite. For qm2qm it is not
    # specified: a number that is a plausible time after SentTime is taken as absolute (doubt D10).
    absolute = decoded.packets.is_from_remote_read | (
        decoded.packets.over_rpc & (reach > sent) & (reach > 1_000_000_000)
    )
    finite = (reach != layouts.INFINITE_TIMEOUT) & ~(decoded.packets.is_from_remote_read & (reach < sent))
    left = np.where(absolute, reach - sent, reach)
    columns["time_to_reach_queue_s"] = _number_column(left, decoded.has_base & decoded.has_user & finite, pa.int64())
    received = decoded.user["TimeToBeReceived"]
    columns["time_to_be_received_s"] = _number_column(
        received, decoded.has_user & (received != layouts.INFINITE_TIMEOUT), pa.int64()
    )


def _add_delivery(decoded: _ReadPackets, columns: dict[str, pa.Array]) -> None:
    mode = (decoded.flags >> 5) & 3
    columns["delivery"] = pa.array(["express", "recoverable"]).take(
        pa.array(np.minimum(mode, 1).astype(np.int32), mask=~(decoded.has_user & (mode < 2)))
    )
    columns["is_srmp"] = _number_column(
        (decoded.flags & layouts.USER_FLAG_AH != 0) & decoded.packets.over_rpc, decoded.has_user, pa.bool_()
    )
    connector = decoded.out.values["TransactionHeader"]["Flags"] & layouts.TRANSACTION_FLAG_CG != 0
    columns["connector_queue_manager"] = _guid_column_at(decoded, "ConnectorQMGuid at", connector)


def _add_security(decoded: _ReadPackets, columns: dict[str, pa.Array], soft: DecodedColumns) -> None:
    columns["sender_id"], bad = name_columns.sender_id_column(decoded.packets, decoded.out)
    if len(bad):
        at = values_written(decoded.out, "SecurityID at", bad) - decoded.packets.start[bad]
        record_first_error(soft, bad, MALFORMED_CODE, "SecurityHeader.SecurityID", at)


def _add_properties(decoded: _ReadPackets, columns: dict[str, pa.Array]) -> None:
    found, has = decoded.properties, decoded.has("MessagePropertiesHeader")
    whole = decoded.has("MessagePropertiesHeader whole")
    kind = found["MessageClass"]
    classes, place = np.unique(kind, return_inverse=True)
    names = pa.array(map(codes.message_class_name, classes.tolist()), pa.string())
    columns["class_name"] = names.take(pa.array(place, mask=~has))
    columns["message_kind"] = message_kind_column(kind.astype(np.int64), has)
    correlation = np.ascontiguousarray(found["CorrelationID"])
    words = correlation.view("<u4")
    some = has & (words[:, 0] | words[:, 1] | words[:, 2] | words[:, 3] | words[:, 4] != 0)
    columns["correlation_id"] = _message_id_column(correlation[:, :16], words[:, 4], some)
    data = decoded.packets.data
    size = 2 * found["LabelLength"].astype(np.int64)
    columns["label"] = decode_utf16(data, decoded.stored("label at"), size, decoded.has("label at") & (size > 0))
    size = found["ExtensionSize"].astype(np.int64)
    columns["extension"] = slice_spans(data, decoded.stored("extension at"), size, whole & (size > 0))
    marked = is_comqc_extension(columns["extension"])
    columns["is_comqc"] = marked if whole.all() else pc.if_else(pa.array(whole), marked, pa.scalar(None, pa.bool_()))


def _body_sizes(decoded: _ReadPackets) -> tuple[Bools, Ints, Bools]:
    """Return for each message whether it came over HTTP, its declared body size, and whether the body's place is known.

    For SRMP messages these are of the compound message (doubt D34).
    """
    srmp = (decoded.flags & layouts.USER_FLAG_AH != 0) & decoded.packets.over_rpc
    size = np.where(srmp, decoded.out.values["CompoundMessageHeader"]["MsgBodySize"], decoded.properties["MessageSize"])
    has = np.where(srmp, decoded.has("CompoundMessageHeader whole"), decoded.has("MessagePropertiesHeader whole"))
    return srmp, size, has


def _add_body(decoded: _ReadPackets, columns: dict[str, pa.Array], *, bodies: bool, hashes: bool) -> None:
    """Add body sizes, hash and body."""
    srmp, size, has = _body_sizes(decoded)
    declared = np.where(srmp, has, decoded.has("MessagePropertiesHeader"))
    seen = decoded.stored("body seen")
    columns["body_bytes"] = _number_column(size, declared, pa.int64())
    columns["body_bytes_seen"] = _number_column(seen, has, pa.int64())
    columns["body_complete"] = _number_column(has & (seen == size), declared, pa.bool_())
    if hashes:
        memory, sha = decoded.packets.data.data, hashlib.sha256
        at = decoded.stored("body at")
        spans = zip(at.tolist(), (at + seen).tolist(), has.tolist(), strict=True)
        columns["body_sha256"] = pa.array(
            [sha(memory[a:b]).hexdigest() if there else None for a, b, there in spans], pa.string()
        )
    if bodies:
        columns["body"] = slice_spans(decoded.packets.data, decoded.stored("body at"), seen, has)


def _add_application(decoded: _ReadPackets, columns: dict[str, pa.Array], kept: KeptColumns) -> None:
    """Add what the application's headers and body say.

    Bodies that are encrypted are not read, nor those of reports, which queue managers write; COM+ calls have a decoder
    of their own.
    """
    _, size, has = _body_sizes(decoded)
    encrypted = decoded.out.values["SecurityHeader"]["Flags"] & layouts.SECURITY_FLAG_EB != 0
    is_report = decoded.properties["MessageClass"] == codes.MQMSG_CLASS_REPORT
    is_comqc = to_flags(columns["is_comqc"])
    extension = columns["extension"]
    if is_comqc.any():
        extension = pc.if_else(pa.array(is_comqc), pa.scalar(None, extension.type), extension)
    columns |= application_columns(
        MessageParts(
            extension, decoded.packets.data, decoded.stored("body at"), decoded.stored("body seen"),
            size.astype(np.int64), has & ~encrypted & ~is_report & ~is_comqc,
            decoded.properties["BodyType"].astype(np.int64),
            *(columns[name] for name in ("label", "response_queue", "app_specific", "correlation_id")),
        ),
        kept,
    )  # fmt: skip


def _add_report(decoded: _ReadPackets, columns: dict[str, pa.Array]) -> None:
    """Add what report messages say of the messages that they trace."""
    known = decoded.has("MessagePropertiesHeader")
    classes = np.where(known, decoded.properties["MessageClass"].astype(np.int64), -1)
    reports = (classes == codes.MQMSG_CLASS_REPORT) & decoded.has("MessagePropertiesHeader whole")
    bodies = slice_spans(decoded.packets.data, decoded.stored("body at"), decoded.stored("body seen"), reports)
    columns["report"] = report_column(classes, columns["label"], bodies)


def _add_optional_headers(decoded: _ReadPackets, columns: dict[str, pa.Array], soft: DecodedColumns) -> None:
    """Add what DebugHeader, SoapHeader and MultiQueueFormatHeader say."""
    at = decoded.stored("report queue at")
    queues = _guid_column_at(decoded, "report queue at", at >= 0)
    columns["report_queue"] = pc.binary_join_element_wise("public=", queues, "")
    at, size, has = (
        decoded.stored("soap header at"),
        decoded.stored("soap header size"),
        decoded.has("soap header at"),
    )
    columns["soap_header"] = decode_utf16(decoded.packets.data, at, size, has & (size > 0))
    columns["soap_body_bytes"] = _number_column(
        decoded.stored("soap body size"), decoded.has("soap body size"), pa.int64()
    )
    for name, (part, _) in zip(("destination", "admin", "response"), layouts.FORMAT_NAME_LIST_IDS, strict=True):
        columns[f"{name}_list"], bad = format_name_list_column(decoded.packets, decoded.out, part)
        start = values_written(decoded.out, f"{part} list at", bad) - decoded.packets.start[bad]
        record_first_error(soft, bad, MALFORMED_CODE, f"MultiQueueFormatHeader.{part}.FormatNameList", start)


def _add_trailing_headers(decoded: _ReadPackets, columns: dict[str, pa.Array], soft: DecodedColumns) -> None:
    found, has = decoded.out.values["SubqueueHeader"], decoded.has("SubqueueHeader")
    at = decoded.stored("@SubqueueHeader")
    for (name, _, field, _), offset in zip(layouts.SUBQUEUE_COUNTERS, (8, 12), strict=True):
        fits = found[field] <= _INT32_MAX  # the column is a signed 32-bit one
        columns[name] = _number_column(found[field], has & fits, pa.int32())
        if not fits.all():
            rows = np.flatnonzero(has & ~fits)
            record_first_error(
                soft, rows, MALFORMED_CODE, f"SubqueueHeader.{field}", at[rows] + offset - decoded.packets.start[rows]
            )
    # Where the 16 bits of the class begin is in doubt (D11): at bit 1, unless those from bit 16 are such a class.
    high = found["Bits"] >> 16
    kind = np.where(_IS_ACKNOWLEDGEMENT_CLASS[high], high, (found["Bits"] >> 1) & 0xFFFF)
    columns["subqueue_acknowledgement_class"] = _number_column(kind, has, pa.int32())
    moved = found["LastMoveTime"]
    columns["last_moved_raw"] = _number_column(moved, has & (moved != 0), pa.int64())
    at, named = decoded.stored("subqueues at"), decoded.has("subqueues at")
    width = np.full(decoded.rows, layouts.SUBQUEUE_NAME_BYTES)
    for name, offset in (("subqueue", 0), ("target_subqueue", layouts.SUBQUEUE_NAME_BYTES)):
        columns[name] = decode_utf16(
            decoded.packets.data,
            at + offset,
            width,
            named & (first_utf16_unit(decoded.packets.data, at + offset, named) != 0),
        )
    there = decoded.has("dead letter at")
    path = decode_utf16(
        decoded.packets.data, decoded.stored("dead letter at"), decoded.stored("dead letter size"), there
    )
    columns["dead_letter_queue"] = over_distinct(path, name_columns.path_queue_name, pa.string())
    invalid = decoded.out.values["ExtensionHeader"]["Flags"] & layouts.EXTENSION_FLAG_DI
    columns["dead_letter_queue_invalid"] = _number_column(invalid, there, pa.bool_())
    columns["sender_address"] = name_columns.sender_address_column(decoded.packets, decoded.out)


def _header_size_maps(decoded: _ReadPackets) -> pa.Array:
    """Return maps of header name to size in bytes, up to the start of the next header or the end of the packet."""
    kinds = [name for name in layouts.MESSAGE_HEADER_NAMES if decoded.has(f"@{name}").any()]
    has, size = np.empty((decoded.rows, len(kinds)), np.bool_), np.empty((decoded.rows, len(kinds)), np.int32)
    pattern, every, after = np.zeros(decoded.rows, np.int32), bool(decoded.has_base.all()), decoded.packets.end
    for place in range(len(kinds) - 1, -1, -1):  # from the last header on: each ends where the next one begins
        at, there = decoded.stored(f"@{kinds[place]}"), decoded.has(f"@{kinds[place]}")
        there = there if every else there & decoded.has_base
        has[:, place], size[:, place] = there, after - at
        after = np.where(there, at, after)
        pattern |= there.astype(np.int32) << place
    held = np.flatnonzero(has)
    # Only a few combinations of headers occur: join the names of each once, then copy by row.
    used = np.flatnonzero(np.bincount(pattern, minlength=1))
    index = np.zeros(1 << len(kinds), np.int32)
    index[used] = np.arange(len(used))
    sets = [[place for place in range(len(kinds)) if one >> place & 1] for one in used.tolist()]
    names_of = pa.array(["".join(kinds[place] for place in one) for one in sets], pa.string())
    joined = names_of.take(pa.array(index[pattern]))
    offsets = np.zeros(len(held) + 1, np.int32)
    lengths = np.array([len(name) for name in kinds], np.int32)
    if len(held):
        np.cumsum(lengths[held % len(kinds)], out=offsets[1:])
    keys = pa.Array.from_buffers(pa.string(), len(held), [None, pa.py_buffer(offsets), joined.buffers()[2]])
    bounds = np.zeros(decoded.rows + 1, np.int32)
    np.cumsum(np.array([len(one) for one in sets], np.int32)[index[pattern]], out=bounds[1:])
    absent = None if every else np.append(~decoded.has_base, False)
    return pa.MapArray.from_arrays(pa.array(bounds, mask=absent), keys, pa.array(size.reshape(-1)[held]))


def decode_messages(
    packets: pa.Array,
    protocol: str | pa.Array,
    *,
    section_types: pa.Array | None = None,
    section_bytes: pa.Array | None = None,
    section_allocated_bytes: pa.Array | None = None,
    bodies: bool = False,
    hashes: bool = True,
    keys: bool = True,
    application: KeptColumns | None = None,
) -> dict[str, pa.Array]:
    """Decode a column of message packets: one row per packet, by column of ``silver.messages``.

    ``packets`` is a binary or large_binary array. ``protocol``, one for all or an array, is the protocol that carried
    them: ``RemoteRead`` (overlays and trailing headers of [MS-MQRR]), ``qm2qm`` or ``binary_protocol`` (bytes behind
    PacketSize are ignored). The ``section_*`` lists are those of ``silver.remote_read_calls``, used for RemoteRead,
    whose sections are joined without padding: they distinguish a body truncated by the reader's size limit from damage.

    A null packet gives nulls and no error. Values decoded before an error are kept. ``errors`` has at most the error
    that ended the header chain, one of the sections' sizes, and one other that ended nothing; offsets are bytes from
    the start of the packet. ``bodies`` adds the body, ``hashes`` its SHA-256, ``keys`` the ``message_key``: the two
    hashes cost more than everything else. ``application`` adds what the application's headers and body say
    (``APPLICATION_COLUMNS``), as much as it keeps.
    """
    rows = len(packets)
    out, sections, soft = (DecodedColumns(rows) for _ in range(3))
    column, read = locate_sections(
        packets, protocol, section_types, section_bytes, section_allocated_bytes, out, sections
    )
    _read_packets(column, read, out, soft)
    decoded = _ReadPackets(column, out)
    columns: dict[str, pa.Array] = {}
    _add_field_columns(decoded, columns)
    _add_identity(decoded, columns, keys=keys)
    _add_lifetimes(decoded, columns)
    _add_delivery(decoded, columns)
    _add_security(decoded, columns, soft)
    _add_properties(decoded, columns)
    columns.update(name_columns.queue_name_columns(column, out))
    _add_body(decoded, columns, bodies=bodies, hashes=hashes)
    _add_report(decoded, columns)
    if application is not None:
        _add_application(decoded, columns, application)
    _add_optional_headers(decoded, columns, soft)
    _add_trailing_headers(decoded, columns, soft)
    columns["header_sizes"] = _header_size_maps(decoded)
    columns["errors"] = error_lists([("", out), ("", sections), ("", soft)], rows)
    version: Any = pa.scalar(DECODER_VERSION, pa.string())
    columns["decoder_version"] = pa.repeat(version, rows)
    return columns
