"""Rules on message packets, on packets built from the specifications and decoded, as either protocol returns them."""

import struct

import pytest

from findings.exchanges import ORDERS as READ
from findings.exchanges import Story, name, qm_start, rr_open, rr_start
from messages.building import SENT, Packet, trailing
from messages.reading import one
from pipeline.findings import evaluate

SESSION = bytes(16)
AES, RC2, RC4 = 0x6610, 0x6602, 0x6801
TRACED, DM = 1 << 8, 1 << 5  # bits of BaseHeader.Flags, UserHeader.Flags
ORDERS, NONE = (7, {"name": "OS:srv1\\private$\\orders"}), (0, {})
LISTS = (*((0, b"") for _ in range(3)), b"")


def findings(packet, protocol, *, queue=READ, **columns):
    """The findings of a read that returned a packet, by rule: what is wrong; ``queue`` None: its opening is unknown."""
    raw = packet if isinstance(packet, bytes) else packet.bytes()
    values, errors = one(raw, protocol)
    decoded = {
        column: values.get(column)
        for column in evaluate.EVALUATED_MESSAGE_COLUMNS
        if column not in ("call_key", "errors")
    }
    decoded["message_errors"] = [dict(zip(("code", "field", "offset"), error, strict=True)) for error in errors]
    start = {"qm2qm": qm_start, "RemoteRead": rr_start}[protocol]
    read = start(**{"packet_bytes": len(raw), "arrived_at": SENT * 1_000_000} | columns | decoded)
    opened = queue is not None
    if protocol == "qm2qm":
        story = Story([read], others=[name(queue=queue)] if opened else [])
    else:
        story = Story([rr_open(queue=queue), read] if opened else [read])
    rows = [(check, violation) for check, violation in story.broken() if check.rule_id.startswith("T")]
    assert all(violation.call["call_key"] == read["call_key"] for _, violation in rows)
    return {check.rule_id: violation for check, violation in rows}


def transaction(number, previous):
    return {"flags": 0, "user": DM, "transaction": (0, 1 << 32, number, previous)}


VIOLATIONS = [
    ("T22", transaction(0, 0)),
    ("T22", transaction(4, 4)),
    ("T22", transaction(4, 5)),
    ("T24", transaction(4, 3) | {"flags": 7}),
    ("T25", transaction(4, 3) | {"user": 0}),
    ("T25", transaction(4, 3) | {"user": 2 << 5}),
    ("T25", {"user": 0x1E}),
    ("T25", {"queues": ((4, {}), NONE, NONE)}),
    ("T25", {"queues": (ORDERS, (1, {}), NONE)}),
    ("T27", {"kind": 0x0002, "receive": 60}),
    ("T27", {"kind": 0x4000, "acknowledge": 1, "queues": (ORDERS, ORDERS, NONE)}),
    ("T27", {"kind": 0x8000, "user": 1 << 8, "correlation": bytes(range(20))}),
    ("T27", {"kind": 0xC004, "user": 1 << 9, "correlation": bytes(range(20))}),
    ("T27", {"kind": 0xC000, "algorithms": (1, 0x8004, RC4), "correlation": bytes(range(20))}),
    ("T30", {"packet_size": 200}),
    ("T31", {"flags": TRACED}),
    ("T32", {"acknowledge": 4}),
    ("T33", {"algorithms": (1, 0x8004, AES)}),
    ("T33", {"algorithms": (3, 0x8004, AES)}),
    ("T33", {"algorithms": (5, 0x8004, RC2)}),
    ("T33", {"algorithms": (4, 0x8004, RC2)}),
]
CONFORMING = [
    {},
    transaction(1, 0),
    transaction(5, 3),
    {"user": 0x1D},
    {"queues": ((3, {}), (2, {}), NONE)},
    {"kind": 0x0002},
    {"kind": 0x0001, "receive": 60, "user": 1 << 8},  # a report is no acknowledgement
    {"kind": 0x00FF, "receive": 60},
    {"session": SESSION},
    {"flags": TRACED, "debug": bytes(16)},
    {"acknowledge": 4, "queues": (ORDERS, ORDERS, NONE)},
    {"acknowledge": 4, "queues": (ORDERS, (6, {}), NONE)},
    {"acknowledge": 4, "lists": LISTS},
    {"acknowledge": 0xF0},  # bits without a meaning
    {"algorithms": (0, 0x8003, 0x1234)},
    {"algorithms": (1, 0x8003, RC2)},
    {"algorithms": (3, 0x8003, RC4)},
    {"algorithms": (5, 0x8003, AES)},
]


@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
@pytest.mark.parametrize(("rule", "values"), VIOLATIONS)
def test_a_packet_that_breaks_a_rule_is_found(rule, values, protocol):
    assert set(findings(Packet(**values), protocol)) == {rule}


@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
@pytest.mark.parametrize("values", CONFORMING)
def test_a_packet_that_keeps_the_rules_is_not(values, protocol):
    assert findings(Packet(**values), protocol) == {}


def test_trailing_headers_are_not_part_of_the_packet_size():
    assert findings(Packet(trailing=trailing(subqueue="poison")), "RemoteRead") == {}


@pytest.mark.parametrize(("offset", "value"), [(0, 0x11), (4, ord("X"))])
@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
def test_version_and_signature(offset, value, protocol):
    raw = bytearray(Packet().bytes())
    raw[offset] = value
    assert set(findings(bytes(raw), protocol)) == {"T30"}


@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
def test_properties_that_are_missing(protocol):
    raw = bytearray(Packet().bytes())
    (flags,) = struct.unpack_from("<I", raw, 60)
    struct.pack_into("<I", raw, 60, flags & ~(1 << 21))
    assert "T25" in findings(bytes(raw), protocol)


@pytest.mark.parametrize(("more", "found"), [(0, set()), (1, {"T30"})])
def test_packets_of_more_than_4_mib(more, found):
    packet = Packet(label=None, body=b"")
    packet.body = bytes(0x400000 - len(packet.bytes()) + more)
    assert set(findings(packet, "qm2qm")) == found


@pytest.mark.parametrize(("late", "found"), [(5, set()), (6, {"T26"}), (29 * 86400, {"T26"}), (31 * 86400, set())])
@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
def test_messages_that_arrive_after_they_expired(late, found, protocol):
    packet = Packet(reach=SENT + 60)
    at = {"arrived_at": (SENT + 60 + late) * 1_000_000}
    assert set(findings(packet, protocol, **at)) == found


@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
def test_messages_come_to_journals_subqueues_and_dead_letter_queues_later(protocol):
    packet, late = Packet(reach=SENT + 60), {"arrived_at": (SENT + 3600) * 1_000_000}
    for queue in (f"{READ};journal", f"{READ};poison", "srv1\\system$;deadletter", None):
        assert findings(packet, protocol, queue=queue, **late) == {}
    assert findings(Packet(reach=SENT + 60, kind=0x8002), protocol, queue="srv1\\private$\\dead", **late).keys() <= {
        "T27"
    }


@pytest.mark.parametrize("protocol", ["qm2qm", "RemoteRead"])
def test_dead_letters_are_no_acknowledgements(protocol):
    """Their class is that of a negative acknowledgement, and all else is of the message."""
    letter = Packet(kind=0x8002, receive=60, user=1 << 8)
    for queue in ("srv1\\system$;deadletter", "srv1\\system$;deadxact", None):
        assert findings(letter, protocol, queue=queue) == {}
    letter.correlation = bytes(range(20))
    for queue in (READ, None):
        assert set(findings(letter, protocol, queue=queue)) == {"T27"}


def test_dead_letters_in_a_queue_that_the_sender_named():
    letter = Packet(kind=0x8002, receive=60, trailing=trailing(dead_letter="srv1\\private$\\dead"))
    assert findings(letter, "RemoteRead", queue="srv1\\private$\\dead") == {}
    letter.trailing = b""
    assert set(findings(letter, "RemoteRead", queue="srv1\\private$\\dead")) == {"T27"}
    assert findings(letter, "qm2qm", queue="srv1\\private$\\dead") == {}  # which cannot name that queue


def test_severities():
    (rule,) = findings(Packet(algorithms=(2, 0x8004, RC2)), "qm2qm").values()
    assert rule.severity == "warning"  # [MS-MQMP] has 2 for the level that is 3 in packets
    (rule,) = findings(Packet(algorithms=(2, 0x8004, AES)), "qm2qm").values()
    assert rule.severity is None
    assert evaluate.ALL_RULES["T32"].severity == evaluate.ALL_RULES["T26"].severity == "warning"
    assert evaluate.ALL_RULES["T22"].severity == "error"
