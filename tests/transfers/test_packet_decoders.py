"""Handshakes and acknowledgements: the published frames of [MS-MQQB] section 4, and packets made by hand."""

import struct

import pyarrow as pa

from messages.building import Packet
from messages.single_message import decode_single_message
from published_frames import PUBLISHED
from udfs.messages.message_decoder import decode_messages
from udfs.sessions.acknowledgement_bodies import order_ack_columns
from udfs.sessions.handshake_packets import (
    connection_parameters_columns,
    establish_connection_columns,
    internal_header_columns,
)

FRAME_3, FRAME_4, FRAME_5, FRAME_8 = (PUBLISHED[number] for number in (3, 4, 5, 8))


def rows(columns):
    return [
        dict(zip(columns, row, strict=True)) for row in zip(*(c.to_pylist() for c in columns.values()), strict=True)
    ]


def test_the_published_establish_connection_request():
    (row,) = rows(establish_connection_columns(pa.array([FRAME_3])))
    assert row == {
        "client_guid": "557358d1-9150-9595-4997-b6e611ea26c6",
        "server_guid": "43cd8907-394c-8f11-4445-9078909ea0fc",
        "server_guid_is_zero": False,
        "uptime_ms": 0x1DDECA4E,
        "release": 0x10,
        "pinged": False,  # SE = 1, although frames 1 and 2 are a ping (a doubt of the contract)
        "server_class": True,
        "refused": False,
        "padding_is_5a": True,
    }


def test_an_answer_that_is_cut_has_the_fields_that_were_seen():
    (row,) = rows(establish_connection_columns(pa.array([FRAME_4[:56]])))
    assert row["client_guid"] == "1f742305-be5e-4177-bc77-c4dd7719e474"
    assert row["uptime_ms"] == 0x1DDECA4E
    assert (row["release"], row["pinged"], row["server_class"], row["padding_is_5a"]) == (None,) * 4
    (row,) = rows(establish_connection_columns(pa.array([FRAME_4[:51]])))
    assert (row["server_guid"], row["server_guid_is_zero"], row["uptime_ms"]) == (None,) * 3


def test_the_published_connection_parameters():
    (row,) = rows(connection_parameters_columns(pa.array([FRAME_5])))
    assert row == {"recoverable_ack_timeout_ms": 1496, "ack_timeout_ms": 120_000, "window_size": 64, "refused": False}


def test_the_published_session_ack():
    (row,) = rows(internal_header_columns(pa.array([FRAME_8])))
    assert row == {"packet_type": 1, "refused": False}


def test_a_refusal():
    refused = bytearray(FRAME_3)
    refused[18] |= 0x10
    refused[36:52] = bytes(16)
    (row,) = rows(establish_connection_columns(pa.array([bytes(refused)])))
    assert (row["refused"], row["server_guid_is_zero"]) == (True, True)


def test_the_padding_is_looked_at_to_its_end():
    (row,) = rows(establish_connection_columns(pa.array([FRAME_3[:-1] + b"\0"])))
    assert row["padding_is_5a"] is False
    (row,) = rows(establish_connection_columns(pa.array([FRAME_3[:-1]])))
    assert row["padding_is_5a"] is None


SOURCE = bytes(range(16))
BODY = struct.pack("<QII", 0x4411_05E6_0000_0007, 9, 8) + SOURCE + struct.pack("<I", 2286)


def acknowledgement(kind, body=BODY):
    return Packet(label="QM Ordering Ack", kind=kind, body=body).bytes()


def test_order_and_final_acks():
    order, final = rows(order_ack_columns(pa.array([acknowledgement(0xFF), acknowledgement(0x4000)])))
    numbers = ("transaction_sequence_id", "transaction_number", "previous_transaction_number")
    for row in (order, final):
        assert [int(row[name]) for name in numbers] == [0x4411_05E6_0000_0007, 9, 8]
        assert row["errors"] == []
    assert (order["acknowledged_message_id"], order["acknowledged_ordinal"]) == (None, None)
    assert final["acknowledged_message_id"] == "03020100-0504-0706-0809-0a0b0c0d0e0f\\2286"
    assert final["class_name"] == "MQMSG_CLASS_ACK_RECEIVE"


def test_an_acknowledgement_that_is_cut_in_its_body():
    whole = acknowledgement(0x4000)
    (row,) = rows(order_ack_columns(pa.array([whole[: whole.index(SOURCE)]])))
    assert (int(row["transaction_number"]), row["acknowledged_message_id"]) == (9, None)
    assert [each["code"] for each in row["errors"]] == ["truncated"]
    (row,) = rows(order_ack_columns(pa.array([acknowledgement(0xFF, BODY[:12])])))
    assert [(each["code"], each["field"]) for each in row["errors"]] == [
        ("truncated", "MessagePropertiesHeader.MessageBody")
    ]


REPORT_LABEL = "5F0C:0000002A:03 received by 00000000-0000-0000-0000-000000002222 at 10:11 AM Sun,Mar 01 26"


def test_a_report_says_what_it_traces():
    body = "<MESSAGE ID>0000002A</MESSAGE ID>\r\n<NEXT HOP>10.0.0.7</NEXT HOP>\r\n".encode("utf-16-le")
    packets = [
        Packet(kind=1, label=REPORT_LABEL, body=body),
        Packet(kind=1, label=REPORT_LABEL, body=b""),
        Packet(kind=1, label="another label", body=body),
        Packet(kind=0, label=REPORT_LABEL, body=body),
    ]
    decoded = decode_messages(pa.array([each.bytes() for each in packets]), "binary_protocol")
    said = {"source_prefix": "5f0c", "message_ordinal": 42, "hop_count": 3}
    assert decoded["report"].to_pylist() == [said | {"next_hop": "10.0.0.7"}, said | {"next_hop": None}, None, None]
    assert decoded["message_kind"].to_pylist() == ["report", "report", "report", "application"]
    single = [decode_single_message(each.bytes(), "binary_protocol")[0].get("report") for each in packets]
    assert single == decoded["report"].to_pylist()
