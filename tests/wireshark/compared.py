"""Rows of tables, and what tshark shows of them, column by column."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from decimal import Decimal

import pyarrow as pa

from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from tools.write_dissector import tables
from udfs.dcerpc.interfaces import MSMQ_INTERFACES

CALL_TABLES = (REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS)
FIELDS = {row["abbr"].removeprefix("msmq.") for row in tables()["fields"]}
# Of these a response's value counts, if it has one; of others the request's (udfs/stubs/call_decoder.py).
MSMQ = {interface.name for interface in MSMQ_INTERFACES}
RESPONSE_FIRST = {"sequence_id", "hresult", "packet_bytes"}
# Columns that are not the field of their name, by table and method (None: all), with the cause.
DIFFERENT = {
    ("client_calls", "R_QMCreateRemoteCursor", "queue_handle"): "not shown: behind a structure with pointers",
    ("management_calls", "R_QMMgmtAction", "action"): "msmq.management_action: an action is a number elsewhere",
    ("messages", None, "lookup_id"): "msmq.sequence_id of the call that read it",
    ("messages", None, "sender_address"): "of the binary protocol it is ip.src",
    ("session_packets", None, "sent_at"): "when the packet was captured; the field is when the message was sent",
    ("order_acks", None, "sent_at"): "likewise",
}
# Values of the table for messages without a SecurityHeader, of which nothing is shown.
WITHOUT_SECURITY = {"authenticated": False, "encrypted": False, "signed": False, "sender_certificate_bytes": 0}


def ends(row):
    return row["client_address"], row["client_port"], row["server_address"], row["server_port"]


def turned(four_tuple):
    return (*four_tuple[2:], *four_tuple[:2])


def typed(text, kind):
    """A text of tshark as a value of a column."""
    if pa.types.is_boolean(kind):
        return text in {"1", "True"}
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return int(text, 0)
    if pa.types.is_timestamp(kind):
        return dt.datetime.strptime(text.partition(".")[0], "%b %d, %Y %H:%M:%S").replace(tzinfo=dt.UTC)
    if pa.types.is_binary(kind):
        return bytes.fromhex(text.replace(":", ""))
    return text or None


def shown_value(tree, column):
    """What a tree shows of a column; None if nothing."""
    texts = tree.values.get(f"msmq.{column.name}")
    if not texts:
        is_unsecured = tree.values.get("msmq.user.flags.sh") == ["0"]
        return WITHOUT_SECURITY.get(column.name) if is_unsecured else None
    if pa.types.is_list(column.type):
        return [typed(text, column.type.value_type) for text in texts]
    assert len(set(texts)) == 1, (column.name, texts)
    if column.name.endswith("_handle") and not pa.types.is_integer(column.type):
        return texts[0].replace(":", "")
    return typed(texts[0], column.type)


def call_value(halves, column):
    """What the halves of a call show of a column."""
    sides = ("response", "request") if column.name in RESPONSE_FIRST else ("request", "response")
    values = (shown_value(halves[side], column) for side in sides if side in halves)
    return next((each for each in values if each is not None), None)


def compare(table, row, method, value_of):
    """Yield the columns that differ from what is shown, but for those of ``DIFFERENT``; what is empty is nothing."""
    for column in table.columns:
        places = {(table.name, each, column.name) for each in (method, None)}
        if column.name not in FIELDS or places & DIFFERENT.keys():
            continue
        shown, wanted = value_of(column), row[column.name]
        wanted = int(wanted) if isinstance(wanted, Decimal) else wanted
        if shown != (None if wanted in ([], b"") else wanted):
            yield table.name, method, column.name, shown, wanted


def halves_of(found):
    """Requests and answers that tshark shows, by connection, call id and direction."""
    halves = defaultdict(dict)
    for tree in found:
        if (direction := tree.one("direction")) is not None:
            is_request = direction == "request"
            key = (*(tree.ends if is_request else turned(tree.ends)), int(tree.one("call_id")))
            side = "request" if is_request else "response"
            assert side not in halves[key]
            halves[key][side] = tree
    return halves
