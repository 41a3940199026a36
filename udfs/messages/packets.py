"""Message packets to Arrow: one row out per packet in, by column of silver.messages."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from udfs import codes
from udfs.comqc.calls import is_comqc
from udfs.messages import headers as h
from udfs.messages import names
from udfs.messages.chain import walk
from udfs.messages.keys import message_keys
from udfs.messages.reading import MALFORMED, Packets, note, values_of
from udfs.messages.sections import packets_of
from udfs.stubs import text
from udfs.stubs.arrays import errors
from udfs.stubs.column import Bools, Column, Ints, Values
from udfs.stubs.spans import cut, first_unit, utf16

DECODER_VERSION: Final = "3"  # 3: a SessionHeader that is not there has no size; 2: an empty name is no queue

_U64: Final = pa.decimal128(20, 0)
_INT32_MOST: Final = 0x7FFF_FFFF
_UTC: Final = pa.timestamp("us", tz="UTC")
_RECORDS: Final = {
    "BaseHeader": h.BASE,
    "UserHeader": h.USER,
    "TransactionHeader": h.TRANSACTION,
    "SecurityHeader": h.SECURITY,
    "MessagePropertiesHeader": h.PROPERTIES,
    "CompoundMessageHeader": h.COMPOUND,
    "SubqueueHeader": h.SUBQUEUE,
}
_NAMED: Final = pa.array([codes.class_name(code) for code in range(0x10000)], pa.string())


class _Packet:
    """What was read of a column of packets, by header: records and which rows have them."""

    def __init__(self, packets: Packets, out: Values) -> None:
        self.packets, self.out, self.rows = packets, out, out.rows
        for name, kind in _RECORDS.items():  # those that no row has
            if name not in out.values:
                out.values[name] = np.zeros(out.rows, kind)
                out.valid[name] = np.zeros(out.rows, np.bool_)
        self.base, self.user = out.values["BaseHeader"], out.values["UserHeader"]
        self.properties = out.values["MessagePropertiesHeader"]
        self.flags = self.user["Flags"]
        self.has_base = self.valid("BaseHeader whole")
        self.has_user = self.valid("UserHeader")

    def valid(self, name: str) -> Bools:
        """Tell the rows in which ``name`` was read."""
        return self.out.valid.get(name, np.zeros(self.rows, np.bool_))

    def at(self, name: str) -> Ints:
        """Return an offset or size that was kept, 0 where there is none."""
        return self.out.values.get(name, np.zeros(self.rows, np.int64))


def _read(packets: Packets, rows: Ints, out: Values, soft: Values) -> None:
    """Read ``rows``; those whose body may take either of two sizes are read the other way when one does not fit."""
    if not len(rows):
        return
    walk(packets, rows, out, soft, np.zeros(len(rows), np.bool_))
    if "MessagePropertiesHeader" not in out.values:
        return
    found = out.values["MessagePropertiesHeader"]
    either = out.valid["MessagePropertiesHeader"] & (found["AllocationBodySize"] > found["MessageSize"])
    failed = np.flatnonzero(either & (out.code != 0))
    if not len(failed):
        return
    again, noted = Values(out.rows), Values(out.rows)
    walk(packets, failed, again, noted, np.ones(len(failed), np.bool_))
    fits = np.zeros(out.rows, np.bool_)
    fits[failed] = again.code[failed] == 0
    out.take_from(again, fits)
    soft.take_from(noted, fits)


def _numbers(values: Column, valid: Bools, to: pa.DataType) -> pa.Array:
    return text.numbers(np.ascontiguousarray(values), valid, to)


def _times(seconds: Column, valid: Bools) -> pa.Array:
    """Return UNIX seconds as times; 0 is null."""
    return _numbers(seconds.astype(np.int64) * 1_000_000, valid & (seconds != 0), pa.int64()).view(_UTC)


def _identifiers(guid: npt.NDArray[np.uint8], number: Column, valid: Bools) -> pa.Array:
    r"""Return message identifiers as ``guid\ordinal``."""
    rows = np.flatnonzero(valid)
    if not len(rows):
        return pa.nulls(len(valid), pa.string())
    every = np.ones(len(rows), np.bool_)
    ordinal = pc.cast(pa.array(number[rows]), pa.string())
    some = pc.binary_join_element_wise(_guids(guid[rows], every), ordinal, "\\")
    if len(rows) == len(valid):
        return some
    index = np.zeros(len(valid), np.int32)  # most messages correlate to nothing: those that do were made
    index[rows] = np.arange(len(rows))
    return some.take(pa.array(index, mask=~valid))


def _guids(guid: npt.NDArray[np.uint8], valid: Bools) -> pa.Array:
    """Return GUIDs as text, made once for each distinct one."""
    encoded = names.fixed(guid).dictionary_encode()
    distinct = np.frombuffer(encoded.dictionary.buffers()[1], np.uint8)[: 16 * len(encoded.dictionary)].reshape(-1, 16)
    index = encoded.indices.to_numpy()
    return text.guid_text(distinct).take(pa.array(index, mask=~valid) if not valid.all() else encoded.indices)


def _identity(p: _Packet, columns: dict[str, pa.Array], *, keys: bool) -> None:
    source = np.ascontiguousarray(p.user["SourceQueueManager"])
    ordinal, sent = p.user["MessageID"], p.user["SentTime"]
    columns["source_queue_manager"] = _guids(source, p.has_user)
    columns["message_ordinal"] = _numbers(ordinal, p.has_user, pa.int64())
    columns["message_id"] = pc.binary_join_element_wise(
        columns["source_queue_manager"], pc.cast(columns["message_ordinal"], pa.string()), "\\"
    )
    columns["sent_at"] = _times(sent, p.has_user)
    if keys:
        columns["message_key"] = message_keys(
            columns["source_queue_manager"], ordinal, sent, p.valid("UserHeader whole")
        )


def _lifetimes(p: _Packet, columns: dict[str, pa.Array]) -> None:
    """Make both times to live relative to when the message was sent; null when infinite."""
    reach, sent = p.base["TimeToReachQueue"].astype(np.int64), p.user["SentTime"].astype(np.int64)
    # RemoteRead adds the time sent; an infinite time, and a sum that wraps, stay infinite. qm2qm does not say what
    # it does: a number that looks like a time after the message was sent is one (doubt D10).
    absolute = p.packets.remote_read | (p.packets.rpc & (reach > sent) & (reach > 1_000_000_000))
    finite = (reach != h.INFINITE) & ~(p.packets.remote_read & (reach < sent))
    left = np.where(absolute, reach - sent, reach)
    columns["time_to_reach_queue_s"] = _numbers(left, p.has_base & p.has_user & finite, pa.int64())
    received = p.user["TimeToBeReceived"]
    columns["time_to_be_received_s"] = _numbers(received, p.has_user & (received != h.INFINITE), pa.int64())


def _delivery(p: _Packet, columns: dict[str, pa.Array]) -> None:
    mode = (p.flags >> 5) & 3
    columns["priority"] = _numbers(p.base["Flags"] & 7, p.has_base, pa.int32())
    columns["delivery"] = pa.array(["express", "recoverable"]).take(
        pa.array(np.minimum(mode, 1).astype(np.int32), mask=~(p.has_user & (mode < 2)))
    )
    journaling = ((p.flags & h.USER_JP != 0) * 2 + (p.flags & h.USER_JN != 0)).astype(np.int32)
    columns["journaling"] = _numbers(journaling, p.has_user, pa.int32())
    columns["is_srmp"] = _numbers((p.flags & h.USER_AH != 0) & p.packets.rpc, p.has_user, pa.bool_())
    transactional = p.flags & h.USER_TH != 0
    columns["transactional"] = _numbers(transactional, p.has_user, pa.bool_())
    found, has = p.out.values["TransactionHeader"], p.valid("TransactionHeader")
    columns["transaction_sequence_id"] = _numbers(found["TxSequenceID"], has, _U64)
    columns["transaction_number"] = _numbers(found["TxSequenceNumber"], has, pa.int64())
    columns["previous_transaction_number"] = _numbers(found["PreviousTxSequenceNumber"], has, pa.int64())
    columns["transaction_index"] = _numbers((found["Flags"] >> 4) & 0xFFFFF, has, pa.int64())
    columns["first_in_transaction"] = _numbers(found["Flags"] & h.TRANSACTION_FM, has, pa.bool_())
    columns["last_in_transaction"] = _numbers(found["Flags"] & h.TRANSACTION_LM, has, pa.bool_())


def _security(p: _Packet, columns: dict[str, pa.Array], soft: Values) -> None:
    found = p.out.values["SecurityHeader"]
    known = p.valid("SecurityHeader") | (p.has_user & (p.flags & h.USER_SH == 0))
    columns["authenticated"] = _numbers(found["Flags"] & h.SECURITY_AU, known, pa.bool_())
    columns["signed"] = _numbers(found["SignatureSize"], known, pa.bool_())
    columns["encrypted"] = _numbers(found["Flags"] & h.SECURITY_EB, known, pa.bool_())
    columns["sender_id"], bad = names.senders(p.packets, p.out)
    if len(bad):
        at = values_of(p.out, "SecurityID at", bad) - p.packets.start[bad]
        note(soft, bad, MALFORMED, "SecurityHeader.SecurityID", at)


def _properties(p: _Packet, columns: dict[str, pa.Array]) -> None:
    found, has = p.properties, p.valid("MessagePropertiesHeader")
    whole = p.valid("MessagePropertiesHeader whole")
    kind = found["MessageClass"]
    columns["class"] = _numbers(kind, has, pa.int32())
    columns["class_name"] = _NAMED.take(pa.array(kind.astype(np.int32), mask=~has))
    columns["acknowledgement_requested"] = _numbers(found["Flags"] & 0x0F, has, pa.int32())
    for name, field in (
        ("body_type", "BodyType"),
        ("app_specific", "ApplicationTag"),
        ("hash_algorithm", "HashAlgorithm"),
        ("encryption_algorithm", "EncryptionAlgorithm"),
    ):
        columns[name] = _numbers(found[field], has, pa.int64())
    correlation = np.ascontiguousarray(found["CorrelationID"])
    words = correlation.view("<u4")
    some = has & (words[:, 0] | words[:, 1] | words[:, 2] | words[:, 3] | words[:, 4] != 0)
    columns["correlation_id"] = _identifiers(correlation[:, :16], words[:, 4], some)
    data = p.packets.data
    size = 2 * found["LabelLength"].astype(np.int64)
    columns["label"] = utf16(data, p.at("label at"), size, p.valid("label at") & (size > 0))
    size = found["ExtensionSize"].astype(np.int64)
    columns["extension"] = cut(data, p.at("extension at"), size, whole & (size > 0))
    marked = is_comqc(columns["extension"])
    columns["is_comqc"] = marked if whole.all() else pc.if_else(pa.array(whole), marked, pa.scalar(None, pa.bool_()))


def _body(p: _Packet, columns: dict[str, pa.Array], *, bodies: bool, hashes: bool) -> None:
    """Size the body, and hash or keep it: of SRMP messages that of the compound message (doubt D34)."""
    srmp = (p.flags & h.USER_AH != 0) & p.packets.rpc
    size = np.where(srmp, p.out.values["CompoundMessageHeader"]["MsgBodySize"], p.properties["MessageSize"])
    has = np.where(srmp, p.valid("CompoundMessageHeader whole"), p.valid("MessagePropertiesHeader whole"))
    declared = np.where(srmp, has, p.valid("MessagePropertiesHeader"))
    seen = p.at("body seen")
    columns["body_bytes"] = _numbers(size, declared, pa.int64())
    columns["body_bytes_seen"] = _numbers(seen, has, pa.int64())
    columns["body_complete"] = _numbers(has & (seen == size), declared, pa.bool_())
    if hashes:
        memory, sha = p.packets.data.data, hashlib.sha256
        at = p.at("body at")
        spans = zip(at.tolist(), (at + seen).tolist(), has.tolist(), strict=True)
        columns["body_sha256"] = pa.array(
            [sha(memory[a:b]).hexdigest() if there else None for a, b, there in spans], pa.string()
        )
    if bodies:
        columns["body"] = cut(p.packets.data, p.at("body at"), seen, has)


def _trailing(p: _Packet, columns: dict[str, pa.Array], soft: Values) -> None:
    found, has = p.out.values["SubqueueHeader"], p.valid("SubqueueHeader")
    at = p.at("@SubqueueHeader")
    for name, field, offset in (("abort_count", "AbortCounter", 8), ("move_count", "MoveCounter", 12)):
        few = found[field] <= _INT32_MOST  # no counter gets further than the column goes
        columns[name] = _numbers(found[field], has & few, pa.int32())
        if not few.all():
            rows = np.flatnonzero(has & ~few)
            note(soft, rows, MALFORMED, f"SubqueueHeader.{field}", at[rows] + offset - p.packets.start[rows])
    moved = found["LastMoveTime"]
    columns["last_moved_raw"] = _numbers(moved, has & (moved != 0), pa.int64())
    at, named = p.at("subqueues at"), p.valid("subqueues at")
    width = np.full(p.rows, h.SUBQUEUE_NAME)
    for name, offset in (("subqueue", 0), ("target_subqueue", h.SUBQUEUE_NAME)):
        columns[name] = utf16(
            p.packets.data, at + offset, width, named & (first_unit(p.packets.data, at + offset, named) != 0)
        )
    there = p.valid("dead letter at")
    path = utf16(p.packets.data, p.at("dead letter at"), p.at("dead letter size"), there)
    texts = path.dictionary_encode()
    normal = pa.array([names.path_queue(each) for each in texts.dictionary.to_pylist()], pa.string())
    columns["dead_letter_queue"] = normal.take(texts.indices)
    columns["sender_address"] = names.sender_addresses(p.packets, p.out)


def _header_sizes(p: _Packet) -> pa.Array:
    """Return each header's bytes by name: from its first byte to the next header's, or to the packet's end."""
    kinds = [name for name in h.HEADERS if p.valid(f"@{name}").any()]
    has, size = np.empty((p.rows, len(kinds)), np.bool_), np.empty((p.rows, len(kinds)), np.int32)
    pattern, every, after = np.zeros(p.rows, np.int32), bool(p.has_base.all()), p.packets.end
    for place in range(len(kinds) - 1, -1, -1):  # from the last header: each ends where the one after it begins
        at, there = p.at(f"@{kinds[place]}"), p.valid(f"@{kinds[place]}")
        there = there if every else there & p.has_base
        has[:, place], size[:, place] = there, after - at
        after = np.where(there, at, after)
        pattern |= there.astype(np.int32) << place
    held = np.flatnonzero(has)
    # Few sets of headers are in use: the names of each are put together once, and copied for each row.
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
    bounds = np.zeros(p.rows + 1, np.int32)
    np.cumsum(np.array([len(one) for one in sets], np.int32)[index[pattern]], out=bounds[1:])
    absent = None if every else np.append(~p.has_base, False)
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
) -> dict[str, pa.Array]:
    """Decode message packets: one row out per packet in, by column of silver.messages.

    ``packets`` is a binary or large_binary array; ``protocol`` says where they come from, one for all or one a row:
    ``RemoteRead`` (overlays and trailing headers of [MS-MQRR]), ``qm2qm``, ``binary_protocol`` (what follows
    PacketSize is not looked at). The ``section_*`` lists are those of silver.remote_read_calls, for RemoteRead's rows,
    whose sections stand one after the other without filler: they tell a body that the reader's limit cut from damage.

    A null packet gives nulls and no error. What could be read before an error is kept: ``errors`` has the error that
    ended the chain, if any, and one that did not; offsets are bytes from the packet's beginning. ``bodies`` keeps
    bodies, ``hashes`` their SHA-256, ``keys`` makes ``message_key``: the two hashes cost more than all the rest.
    """
    rows = len(packets)
    out, soft = Values(rows), Values(rows)
    column, read = packets_of(packets, protocol, section_types, section_bytes, section_allocated_bytes, out)
    _read(column, read, out, soft)
    p = _Packet(column, out)
    columns: dict[str, pa.Array] = {}
    _identity(p, columns, keys=keys)
    _lifetimes(p, columns)
    _delivery(p, columns)
    _security(p, columns, soft)
    _properties(p, columns)
    columns.update(names.queues(column, out))
    _body(p, columns, bodies=bodies, hashes=hashes)
    _trailing(p, columns, soft)
    columns["header_sizes"] = _header_sizes(p)
    columns["errors"] = errors([("", out), ("", soft)], rows)
    version: Any = pa.scalar(DECODER_VERSION, pa.string())
    columns["decoder_version"] = pa.repeat(version, rows)
    return columns
