"""Decode a packet with the column decoder and with the single-value decoder, to the same form."""

import datetime as dt

import pyarrow as pa

from messages.single_message import decode_single_message
from udfs.messages.message_decoder import decode_messages

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
LISTS = pa.list_(pa.int64())


def lists(sections, place):
    if all(each is None for each in sections):
        return None
    return pa.array([None if each is None else [one[place] for one in each] for each in sections], LISTS)


def column(packets, protocol="binary_protocol", sections=None, **asked):
    """Decode packets as a column; per packet (values that are not null, errors)."""
    parts = {}
    if sections is not None:
        places = (("section_types", 0), ("section_bytes", 1), ("section_allocated_bytes", 2))
        parts = {name: lists(sections, place) for name, place in places}
    kinds = protocol if isinstance(protocol, str) else pa.array(protocol)
    found = decode_messages(pa.array(packets, pa.binary()), kinds, bodies=True, **parts, **asked)
    return rows_of(found)


def rows_of(found):
    """Return the output of the column decoder in the form of ``column``."""
    table = pa.table(found)
    table.validate(full=True)
    return [plain(row) for row in table.to_pylist()]


def plain(row):
    errors = [(error["code"], error["field"], error["offset"]) for error in row.pop("errors")]
    row.pop("decoder_version")
    if row.get("sent_at") is not None:
        row["sent_at"] = (row["sent_at"] - EPOCH) // dt.timedelta(microseconds=1)
    if row.get("header_sizes") is not None:
        row["header_sizes"] = dict(row["header_sizes"])
    return {name: value for name, value in row.items() if value is not None}, errors


def single(packet, protocol="binary_protocol", sections=None):
    values, errors = decode_single_message(packet, protocol, sections)
    return {name: value for name, value in values.items() if value is not None}, errors


def one(packet, protocol="binary_protocol", sections=None):
    """Decode one packet with both decoders, which must agree."""
    ((values, errors),) = column([packet], protocol, None if sections is None else [sections])
    assert (values, errors) == single(packet, protocol, sections)
    return values, errors
