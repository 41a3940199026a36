"""The published frames of [MS-MQQB] section 4 as a session: handshake, an express message, its acknowledgement."""

from __future__ import annotations

import published_frames as published
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen.reading import to_rows
from udfs.capture.capture_reader import read_capture

FLOW = tcp.Flow(server_port=1801)
SIZE_OF_MESSAGE = 0x8B0


def read(*sends, port=1801, cut_short=False):
    script = tcp.Script()
    for side, data in sends:
        script.send(side, data)
    parts = tcp.segments(script, closed=not cut_short)
    flow = tcp.Flow(server_port=port)
    return read_capture(containers.pcap(tcp.records(flow, parts)).data)


HANDSHAKE = (
    (0, published.ESTABLISH_REQUEST),
    (1, published.ESTABLISH_ANSWER),
    (0, published.PARAMETERS_REQUEST),
    (1, published.PARAMETERS_ANSWER),
)


def test_the_published_session():
    whole = published.USER_MESSAGE + b"a" * (SIZE_OF_MESSAGE - len(published.USER_MESSAGE))
    tables = read(*HANDSHAKE, (0, whole), (1, published.SESSION_ACK))
    rows = sorted(to_rows(tables["session_packets"]), key=lambda row: row["sent_at"])
    assert [(row["sent_by"], row["kind"], row["packet_size"], row["flags"], row["message_class"]) for row in rows] == [
        ("client", "establish_connection", 572, 0x0B, None),
        ("server", "establish_connection", 572, 0x0B, None),
        ("client", "connection_parameters", 32, 0x0B, None),
        ("server", "connection_parameters", 32, 0x0B, None),
        ("client", "user_message", SIZE_OF_MESSAGE, 0x03, 0),
        ("server", "session_ack", 36, 0x1B, None),
    ]
    # The text of frame 10 says 1 received, and a window of 64.
    assert rows[-1]["session_header"] == {
        "ack_sequence_number": 1, "recoverable_ack_number": 0, "recoverable_ack_flags": 0, "user_sequence_number": 0,
        "recoverable_sequence_number": 0, "window_size": 64,
    }  # fmt: skip
    assert [row["session_header"] for row in rows[:-1]] == [None] * 5
    assert not tables["quarantine"].num_rows
    (connection,) = to_rows(tables["connections"])
    assert (connection["kind"], connection["client_bytes"], connection["server_bytes"]) == (
        "binary_protocol", 572 + 32 + SIZE_OF_MESSAGE, 572 + 32 + 36,
    )  # fmt: skip


def test_the_message_as_printed_is_incomplete_and_its_headers_are_read():
    # Its SentTime reads LIOR: the four octets alone are no header.
    tables = read(*HANDSHAKE, (0, published.USER_MESSAGE), cut_short=True)
    (row,) = [row for row in to_rows(tables["session_packets"]) if row["kind"] == "user_message"]
    assert (row["complete"], row["seen_bytes"], row["length_bytes"]) == (
        False, len(published.USER_MESSAGE), SIZE_OF_MESSAGE,
    )  # fmt: skip
    assert (row["message_class"], row["packet"], row["sent_done_at"]) == (0, published.USER_MESSAGE, None)


def test_another_port_shows_the_protocol_by_its_first_octets():
    tables = read(*HANDSHAKE, port=4711)
    assert [row["kind"] for row in to_rows(tables["connections"])] == ["binary_protocol"]
    assert tables["session_packets"].num_rows == 4
    assert (
        to_rows(tables["capture_files"])[0]["packets_binary_protocol"] == tables["capture_files"]["packets"][0].as_py()
    )


def test_other_sizes_or_types_on_another_port_are_not_searched():
    changed = bytearray(published.ESTABLISH_REQUEST)
    changed[18] = 3  # PT
    tables = read((0, bytes(changed)), (1, published.PARAMETERS_ANSWER), port=4711)
    assert tables["connections"].num_rows == tables["session_packets"].num_rows == 0
