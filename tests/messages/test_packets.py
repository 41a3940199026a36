"""Values of packets, field by field, against expectations written by hand from message-packets.md section 1."""

import hashlib
import struct

import pytest

from messages.building import (
    ELSEWHERE,
    NEVER,
    SENT,
    SOURCE,
    TARGET,
    Packet,
    format_names,
    overlay,
    sid,
    trailing,
    wide,
)
from messages.reading import one
from udfs.keys import key

BINARY, QM2QM, REMOTE_READ = "binary_protocol", "qm2qm", "RemoteRead"


def said(packet, protocol=BINARY, sections=None):
    values, errors = one(packet.bytes() if isinstance(packet, Packet) else packet, protocol, sections)
    assert errors == []
    return values


def test_identity():
    values = said(Packet(number=4_000_000_000))
    assert values["source_queue_manager"] == str(SOURCE)
    assert values["message_id"] == f"{SOURCE}\\4000000000"
    assert values["sent_at"] == SENT * 1_000_000
    assert values["message_key"] == key(str(SOURCE), 4_000_000_000, SENT * 1_000_000)


@pytest.mark.parametrize("sent", [0, 1, 999_999_999, 1_000_000_000, 2**32 - 1])
@pytest.mark.parametrize("number", [0, 9, 10, 99_999, 2**32 - 1])
def test_the_key_is_that_of_any_clock_and_ordinal(sent, number):
    moment = sent * 1_000_000 or None
    values = said(Packet(sent=sent, number=number))
    assert values["message_key"] == key(str(SOURCE), number, moment)
    assert values.get("sent_at") == moment


@pytest.mark.parametrize(
    ("protocol", "reach", "sent", "expected"),
    [
        (BINARY, 60, SENT, 60),
        (BINARY, NEVER, SENT, None),
        (REMOTE_READ, SENT + 60, SENT, 60),
        (REMOTE_READ, NEVER, SENT, None),
        (REMOTE_READ, 59, SENT, None),  # the sum wrapped
        (QM2QM, SENT + 60, SENT, 60),
        (QM2QM, 60, SENT, 60),
        (QM2QM, 60, 10, 60),  # later than sent, but no time of this century
        (QM2QM, NEVER, SENT, None),
    ],
)
def test_time_to_reach_the_queue_is_relative_whatever_the_wire_carries(protocol, reach, sent, expected):
    assert said(Packet(reach=reach, sent=sent), protocol).get("time_to_reach_queue_s") == expected


SECOND = {"guid": ELSEWHERE, "number": 0xAB}
QUEUES = [
    # types of destination, administration and response, and the names they make
    ((7, 2, 1), ("h\\q", f"{SOURCE}\\000000ab", f"{SOURCE}\\000000ab")),
    ((7, 2, 4), ("h\\q", f"{SOURCE}\\000000ab", f"{SOURCE}\\000000ab")),
    ((3, 3, 4), (f"{TARGET}\\000000ab", f"{TARGET}\\000000ab", f"{TARGET}\\000000ab")),
    ((5, 6, 4), (f"public={ELSEWHERE}", f"{ELSEWHERE}\\000000ab", f"{ELSEWHERE}\\000000ab")),
    ((7, 5, 5), ("h\\q", f"public={ELSEWHERE}", f"public={ELSEWHERE}")),
    ((7, 0, 6), ("h\\q", None, f"{ELSEWHERE}\\000000ab")),
    ((0, 7, 7), (None, "h\\q", "h\\q")),
    ((7, 0, 4), ("h\\q", None, None)),  # on the host of an administration queue that there is not
    ((7, 7, 1), ("h\\q", "h\\q", "h\\q")),
    ((7, 7, 2), ("h\\q", "h\\q", f"{SOURCE}\\000000ab")),
]


@pytest.mark.parametrize(("kinds", "expected"), QUEUES)
def test_queues_by_type(kinds, expected):
    queues = tuple((kind, {"name": "OS:H\\q"} if kind == 7 else SECOND) for kind in kinds)
    values = said(Packet(queues=queues, manager=TARGET.bytes_le))
    assert tuple(values.get(name) for name in ("destination_queue", "admin_queue", "response_queue")) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DIRECT=OS:host\\Q", "host\\q"),
        ("TCP:10.0.0.1\\PRIVATE$\\Q", "10.0.0.1\\private$\\q"),
        ("HTTP://Host/msmq/Q", "direct=http://host/msmq/q"),
        ("OS:host\\q;Sub", "host\\q;sub"),
        ("OS:hôst\\q漢😀", "hôst\\q漢😀"),
        ("", None),
    ],
)
def test_direct_names_with_and_without_their_prefix(name, expected):
    assert said(Packet(queues=((7, {"name": name}), (0, {}), (0, {})))).get("destination_queue") == expected


def test_what_remote_read_writes_over_a_guid_names_no_queue():
    queues = ((7, {"name": "OS:h\\q"}), (3, SECOND), (4, SECOND))
    values = said(Packet(queues=queues, manager=overlay(1, 4, bytes([10, 1, 2, 3]))), REMOTE_READ)
    assert values["sender_address"] == "10.1.2.3"
    assert not {"admin_queue", "response_queue"} & values.keys()


IPV6 = bytes.fromhex("fe80000000000000 0000000000000001")


@pytest.mark.parametrize(
    ("manager", "extended", "expected"),
    [
        (overlay(1, 4, bytes([10, 0, 0, 9])), None, "10.0.0.9"),
        (overlay(1, 4, bytes([10, 0, 0, 9])), (16, 6, 3, IPV6), "fe80::1"),
        (overlay(6, 16, IPV6), (16, 6, 3, IPV6), "fe80::1"),
        (overlay(6, 16, IPV6), (0, 0, 0, b""), None),  # half an address
        (overlay(0, 0, b""), (4, 1, 0, bytes([10, 0, 0, 8])), "10.0.0.8"),
        (bytes(16), None, None),
    ],
)
def test_sender_address(manager, extended, expected):
    packet = Packet(manager=manager, trailing=trailing(address=extended))
    assert said(packet, REMOTE_READ).get("sender_address") == expected


def test_transactions():
    flags = 1 << 1 | 1 << 2 | 0xABCDE << 4
    values = said(Packet(transaction=(flags, 2**64 - 2, 5, 4), transaction_connector=bytes(16), user=1 << 5))
    assert values["transactional"] is True
    assert values["delivery"] == "recoverable"
    assert values["transaction_sequence_id"] == 2**64 - 2
    assert (values["transaction_number"], values["previous_transaction_number"]) == (5, 4)
    assert values["transaction_index"] == 0xABCDE
    assert values["final_acknowledgement_requested"] is True
    assert (values["first_in_transaction"], values["last_in_transaction"]) == (True, False)
    assert values["header_sizes"]["TransactionHeader"] == 36


def test_flags_and_levels_that_rules_ask_for():
    columns = ("hop_count", "traced", "admin_queue_type", "privacy_level")
    queues = ((7, {}), (6, {}), (0, {}))
    packet = Packet(user=0x1E, flags=1 << 8, queues=queues, algorithms=(5, 0x800E, 0x6610))
    assert [said(packet)[name] for name in columns] == [30, True, 6, 5]
    assert [said(Packet())[name] for name in columns] == [0, False, 0, 0]


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (1, sid(21, 1, 2, 3, 1001), "S-1-5-21-1-2-3-1001"),
        (1, struct.pack("<BB", 1, 0) + bytes([1, 0, 0, 0, 0, 0]), "S-1-0x010000000000"),
        (2, SOURCE.bytes_le, str(SOURCE)),
        (0, b"", None),
    ],
)
def test_senders(kind, raw, expected):
    values = said(Packet(security=(kind | 1 << 4 | 1 << 5, (raw, b"k" * 5, b"s" * 3, b"c" * 7, b"p" * 6))))
    assert values.get("sender_id") == expected
    assert (values["authenticated"], values["signed"], values["encrypted"]) == (True, True, True)


def test_a_sender_that_is_none_is_said_and_the_rest_is_read():
    values, errors = one(Packet(security=(1, (b"\1\2abc", b"", b"", b"", b""))).bytes())
    assert errors == [("malformed", "SecurityHeader.SecurityID", 16 + 48 + 52 + 16)]
    assert values["label"] == "label"


def test_properties():
    packet = Packet(
        label="Ängström 漢 😀", extension=b"ext", body=b"", acknowledge=0xFE, kind=0xC004, user=3 << 8,
        correlation=ELSEWHERE.bytes_le + b"\1\0\0\0", receive=7,
    )  # fmt: skip
    values = said(packet)
    assert values["label"] == "Ängström 漢 😀"
    assert values["extension"] == b"ext"
    assert (values["class"], values["class_name"]) == (0xC004, "MQMSG_CLASS_NACK_RECEIVE_REJECTED")
    assert values["acknowledgement_requested"] == 14  # bits 4 to 7 are not used
    assert values["correlation_id"] == f"{ELSEWHERE}\\1"
    assert (values["journaling"], values["time_to_be_received_s"]) == (3, 7)
    assert (values["body_bytes"], values["body_bytes_seen"], values["body"]) == (0, 0, b"")
    assert values["body_sha256"] == hashlib.sha256(b"").hexdigest()
    assert values["body_complete"] is True


MARKER = bytes.fromhex("fbbc6416 5117 d211 b58e 00e0290e6c31")  # {1664bcfb-1751-11d2-b58e-00e0290e6c31}


@pytest.mark.parametrize(("extension", "expected"), [(b"", False), (MARKER, True), (MARKER[::-1], False)])
def test_the_marker_of_queued_components(extension, expected):
    assert said(Packet(extension=extension))["is_comqc"] is expected


@pytest.mark.parametrize(("label", "expected"), [(None, None), ("", ""), ("a\0b", "a"), ("\ud800x", "\ufffdx")])
def test_labels(label, expected):
    assert said(Packet(label=label)).get("label") == expected


def test_an_unknown_class_is_shown_by_its_number():
    assert said(Packet(kind=0xE1))["class_name"] == "0x00E1"


@pytest.mark.parametrize(
    ("allocation", "filler", "encrypted"),
    [(None, b"", False), (40, b"f" * 35, True), (40, b"", True), (40, b"f" * 35, False), (2, b"", True)],
)
def test_a_body_takes_what_its_header_or_the_next_one_shows(allocation, filler, encrypted):
    """The size of a body whose allocation is larger is not specified (doubt D6); the DebugHeader shows it."""
    security = (encrypted << 5, (b"", b"key!", b"", b"", b""))
    values = said(Packet(security=security, allocation=allocation, filler=filler, debug=bytes(16)), QM2QM)
    assert (values["body"], values["body_bytes"]) == (b"hello", 5)


def test_every_header_of_a_stream():
    names = (1, b"\3\0" + wide("OS:a\\b"))
    packet = Packet(
        transaction=(0, 1, 1, 0), security=(1, (sid(1), b"", b"", b"", b"")), debug=bytes(16), soap=("<h/>", "<b/>"),
        lists=(names, (0, b""), names, b"sig"), session=bytes(16), connector=bytes(16),
    )  # fmt: skip
    sizes = said(packet)["header_sizes"]
    assert sizes == {name: len(data) for name, data in packet.order}
    assert len(sizes) == 9


@pytest.mark.parametrize("unaligned", [False, True])
def test_soap_with_and_without_padding_between_its_halves(unaligned):
    values = said(Packet(soap=("abcd", "ef"), soap_unaligned=unaligned), QM2QM)
    assert (values["soap_header"], values["soap_body_bytes"]) == ("abcd", 6)


@pytest.mark.parametrize("alignment", [4, 1])
def test_multiple_element_format_names(alignment):
    """GUIDs are aligned to 4 bytes, or not (doubt D9): the elements fill their list in one way only."""
    text = "DIRECT=OS:A\u0100\\q"  # UTF-16 41 00 00 01: two zero bytes that end no text
    every = [(3, wide(text)), (1, TARGET.bytes_le), (2, SOURCE.bytes_le + b"\x0b\0\0\0"), (6, ELSEWHERE.bytes_le)]
    nothing, reply = format_names([]), format_names([(3, wide("HTTP://h/msmq/Q"))])
    values = said(Packet(lists=(format_names(every, alignment), nothing, reply, b"sig")))
    expected = ["a\u0101\\q", f"public={TARGET}", f"{SOURCE}\\0000000b", f"dl={ELSEWHERE}"]
    assert values["destination_list"] == expected
    assert (values["admin_list"], values["response_list"]) == ([], ["direct=http://h/msmq/q"])


@pytest.mark.parametrize("elements", [(1, b"\4\0" + bytes(16)), (2, b"\3\0q\0r\0\0\0"), (1, b"\3\0\0\0" + bytes(4))])
def test_a_list_of_other_elements_than_it_counts_ends_nothing(elements):
    packet = Packet(lists=(format_names([]), elements, format_names([]), b""), trailing=trailing(subqueue="s"))
    values, errors = one(packet.bytes(), REMOTE_READ)
    assert [name for _, name, _ in errors] == ["MultiQueueFormatHeader.Administration.FormatNameList"]
    assert (values["destination_list"], values.get("admin_list"), values["subqueue"]) == ([], None, "s")


def test_connectors_report_queue_and_certificate():
    columns = ("connector_type", "connector_queue_manager", "queue_manager_address", "report_queue")
    packet = Packet(
        connector=TARGET.bytes_le, transaction=(0, 1, 1, 0), transaction_connector=ELSEWHERE.bytes_le,
        manager=SOURCE.bytes_le, debug=TARGET.bytes_le, security=(1, (sid(1), b"", b"", b"c" * 9, b"")),
    )  # fmt: skip
    values = said(packet)
    assert [values[name] for name in columns] == [str(TARGET), str(ELSEWHERE), str(SOURCE), f"public={TARGET}"]
    assert values["sender_certificate_bytes"] == 9
    assert "queue_manager_address" not in said(packet, REMOTE_READ)  # an IP address is there
    plain = said(Packet())
    assert not {*columns, "destination_list", "soap_header"} & plain.keys()
    assert plain["sender_certificate_bytes"] == 0


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (0, 0),
        (0xC004 << 1, 0xC004),
        (0xC001 << 16, 0xC001),
        (0x8000 << 1, 0x8000),
        (0x1234 << 1, 0x1234),
    ],  # in the high half: doubt D11
)
def test_the_acknowledgement_class_that_a_reader_set(bits, expected):
    tail = bytearray(trailing(subqueue="s"))
    struct.pack_into("<I", tail, 12 + 4, bits)
    assert said(Packet(trailing=bytes(tail)), REMOTE_READ)["subqueue_acknowledgement_class"] == expected


@pytest.mark.parametrize("invalid", [False, True])
def test_a_dead_letter_queue_may_be_invalid(invalid):
    tail = trailing(dead_letter="h\\d", flags=0x12 | invalid << 3)
    assert said(Packet(trailing=tail), REMOTE_READ)["dead_letter_queue_invalid"] is invalid
    assert "dead_letter_queue_invalid" not in said(Packet(trailing=trailing(flags=0x1A)), REMOTE_READ)


@pytest.mark.parametrize("in_bytes", [False, True])
def test_srmp(in_bytes):
    packet = Packet(
        body=b"", envelope="<se:Envelope/>", envelope_bytes=in_bytes, compound=(b"POST /\r\nthe body", 8, 8),
        trailing=trailing(),
    )  # fmt: skip
    values = said(packet, REMOTE_READ)
    assert values["is_srmp"] is True
    assert (values["body"], values["body_bytes"], values["body_complete"]) == (b"the body", 8, True)


def test_trailing_headers():
    packet = Packet(
        trailing=trailing(subqueue="Sub", target="Tgt", aborts=2, moves=3, moved=99, dead_letter="Srv\\Private$\\Dead")
    )
    values = said(packet, REMOTE_READ)
    assert (values["subqueue"], values["target_subqueue"]) == ("Sub", "Tgt")
    assert (values["abort_count"], values["move_count"], values["last_moved_raw"]) == (2, 3, 99)
    assert values["dead_letter_queue"] == "srv\\private$\\dead"
    sizes = values["header_sizes"]
    assert (sizes["ExtensionHeader"], sizes["SubqueueHeader"], sizes["ExtendedAddressHeader"]) == (12, 148, 28)
    assert sum(sizes.values()) == len(packet.bytes())


def test_trailing_headers_come_with_a_subqueue_of_none():
    values = said(Packet(trailing=trailing(aborts=0)), REMOTE_READ)
    assert (values["abort_count"], values["move_count"]) == (0, 0)
    assert not {"subqueue", "target_subqueue", "last_moved_raw", "dead_letter_queue"} & values.keys()


def test_a_session_flag_of_a_stored_packet_may_stand_without_the_header():
    for tail, protocol in ((trailing(), REMOTE_READ), (b"", REMOTE_READ), (b"", QM2QM)):
        assert "SessionHeader" not in said(Packet(flags=3 | 16, trailing=tail), protocol)["header_sizes"]


@pytest.mark.parametrize("counted", ["the message", "its trailing headers too", "all"])
def test_a_packet_size_leaves_out_the_session_header(counted):
    """[MS-MQMQ] 2.2.19.1; whether it counts the trailing headers of RemoteRead is not specified (doubt D35)."""
    tail, message = trailing(subqueue="s"), len(Packet().bytes())
    size = message + {"the message": 0, "its trailing headers too": len(tail), "all": len(tail) + 16}[counted]
    values = said(Packet(session=b"\x40" * 16, packet_size=size, trailing=tail), REMOTE_READ)
    assert (values["header_sizes"]["SessionHeader"], values["subqueue"]) == (16, "s")


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("ExtensionHeader.HeaderSize", {"extension": 16}),
        ("ExtensionHeader.RemainingHeadersSize", {"rest": -4}),
        ("SubqueueHeader.HeaderSize", {"sub": 152}),
        ("ExtendedAddressHeader.HeaderSize", {"address": 32}),
    ],
)
def test_a_wrong_size_of_a_header_of_fixed_layout_ends_nothing(field, change):
    tail = bytearray(trailing(subqueue="Sub", aborts=2, dead_letter="s\\d", address=(4, 1, 0, bytes([10, 0, 0, 8]))))
    expected = said(Packet(trailing=bytes(tail)), REMOTE_READ)
    at = {"extension": 0, "rest": 4, "sub": 12, "address": len(tail) - 28}
    for place, size in change.items():
        was = struct.unpack_from("<I", tail, at[place])[0]
        struct.pack_into("<I", tail, at[place], was + size if size < 0 else size)
    values, errors = one(Packet(trailing=bytes(tail)).bytes(), REMOTE_READ)
    assert values == expected
    assert [(code, name) for code, name, _ in errors] == [("malformed", field)]


def test_bytes_that_are_no_extension_header_are_not_read_as_one():
    tail = bytearray(trailing())
    struct.pack_into("<II", tail, 0, 16, 999)
    values, errors = one(Packet(trailing=bytes(tail)).bytes(), REMOTE_READ)
    assert [name for _, name, _ in errors] == ["ExtensionHeader.HeaderSize"]
    assert "abort_count" not in values


def test_a_body_that_is_larger_than_its_compound_message_ends_with_it():
    packet = Packet(body=b"", envelope="<e/>", compound=(b"POST /\r\nthe body", 99, 8), trailing=trailing(subqueue="s"))
    values, errors = one(packet.bytes(), REMOTE_READ)
    assert [name for _, name, _ in errors] == ["CompoundMessageHeader.MsgBodySize"]
    assert (values["body"], values["body_complete"], values["subqueue"]) == (b"the body", False, "s")


def test_an_element_count_that_cannot_be_ends_nothing():
    names = (1, b"\3\0" + wide("OS:a\\b"))
    packet = Packet(lists=((1 << 30, names[1]), names, names, b"sig"), trailing=trailing(subqueue="s"))
    values, errors = one(packet.bytes(), REMOTE_READ)
    assert [name for _, name, _ in errors] == ["MultiQueueFormatHeader.Destination.ElementCount"]
    assert values["subqueue"] == "s"


def test_of_a_session_header_that_is_cut_off_there_is_none():
    """A SessionHeader without any byte left is not listed: the header before it ends with the packet."""
    whole = said(Packet())["header_sizes"]
    for bytes_left in (0, 1, 15):
        values, errors = one(Packet(flags=3 | 16).bytes() + bytes(bytes_left))
        assert errors == [("truncated", "SessionHeader", sum(whole.values()))]
        assert values["header_sizes"] == whole | ({"SessionHeader": bytes_left} if bytes_left else {})
