"""Columns of many messages: each row is what the reader of one message says, and what is not kept is null."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as options
from hypothesis import strategies as st

import framework_messages as written
from application import recorded
from comqc.helpers import MARKER
from example_counts import examples
from messages.building import Packet
from schemas.messages import APPLICATION_COLUMNS
from udfs.application.application_message import NativeFacts
from udfs.application.columns import KeptColumns
from udfs.application.message_reader import read_application_message
from udfs.application.variant_bodies import VT_NAMES
from udfs.messages.message_decoder import decode_messages

NAMES = [column.name for column in APPLICATION_COLUMNS]
EXTENSIONS = [b"", *(each for _, each, _, _ in recorded.MESSAGES), MARKER, b"\0\1", b"{}", b'{"rbs2-a":"\\ud800"}']
BODIES = [
    *(each for _, _, each, _ in recorded.MESSAGES), *(body for _, _, body in written.VARIANTS), b"<", b"<a>", b"{",
    b"text", b"\x1f\x8b\x08", "<a/>".encode("utf-16-le"), b"\0\1\0\1", written.bson(written.ENVELOPE),
    written.sessiongram(3, written.text_envelope().encode()), b"\0" * 20, b"\xef\xbb\xbf<a/>", b"a\0", b"\xff\xfe",
]  # fmt: skip
TYPES = [0, 0, 0, 0x300, 1, 9, 0x5555, *VT_NAMES]
PACKETS = st.builds(
    Packet, extension=st.sampled_from(EXTENSIONS), body=st.sampled_from(BODIES), body_type=st.sampled_from(TYPES),
    label=st.sampled_from([None, "label", "urn:message:A"]), tag=st.sampled_from([0, 1, 3, 99]),
    correlation=st.sampled_from([bytes(20), bytes(range(20))]),
    queues=st.sampled_from([((7, {}), (0, {}), (0, {})), ((7, {}), (0, {}), (7, {"name": "OS:srv\\private$\\a"}))]),
)  # fmt: skip


def decoded(packets, kept=None, protocol="binary_protocol"):
    packed = pa.array([packet if packet is None else packet.bytes() for packet in packets], pa.binary())
    found = decode_messages(packed, protocol, bodies=True, application=kept or KeptColumns())
    table = pa.table(found)
    table.validate(full=True)
    return table.to_pylist()


def expected(packet, row):
    """What the reader of one message says, in the form of the row's columns."""
    native = NativeFacts(*(row[name] for name in ("label", "response_queue", "app_specific", "correlation_id")))
    extension = None if packet.extension == MARKER else packet.extension
    body = b"" if packet.extension == MARKER else packet.body
    fits = packet.extension != MARKER and fitting(packet.body_type, packet.body)
    message = read_application_message(extension or None, body, packet.body_type, native, fits_vt_code=fits)
    values = {name: getattr(message, name) for name in NAMES}
    if values["application_headers"] is not None:
        values["application_headers"] = [
            (key, value.encode("utf-8", "replace").decode() if value else value)
            for key, value in values["application_headers"].items()
        ]
    errors = values["application_errors"]
    values["application_errors"] = [
        dict(zip(("code", "field", "offset"), each, strict=True)) for each in errors
    ] or None
    return values


def fitting(code, body):
    sizes = {each: len(value) for each, _, value in written.VARIANTS}
    if code in (30, 68, 69, 0x1011, 0x2011):
        return True
    return len(body) % 2 == 0 if code in (8, 31) else len(body) == (0 if code == 1 else sizes.get(code, -1))


def surrogates_replaced(value):
    return [(key, text and text.replace("\ufffd", "?")) for key, text in value] if value else value


@options(max_examples=examples(300), deadline=None)
@given(st.lists(st.none() | PACKETS, max_size=8))
def test_rows_are_what_the_reader_of_one_message_says(packets):
    """Whatever is around them: the columns decide which rows are read by the first bytes, and nothing is missed."""
    for packet, row in zip(packets, decoded(packets), strict=True):
        found = {name: row[name] for name in NAMES}
        if packet is None:
            assert set(found.values()) == {None}
            continue
        wanted = expected(packet, row)
        for values in (found, wanted):
            values["application_headers"] = surrogates_replaced(values["application_headers"])
        assert found == wanted


def test_a_body_of_vt_null_is_empty_whatever_the_extension_says():
    packets = [Packet(extension=each, body=b"", body_type=1) for each in (b"", b"\0\1", MARKER)]
    assert [row["body_format"] for row in decoded(packets)] == ["VT_NULL", "VT_NULL", None]
    assert [row["framework"] for row in decoded(packets)] == ["System.Messaging", "System.Messaging", None]


@pytest.mark.parametrize("protocol", ["RemoteRead", "qm2qm", "binary_protocol"])
def test_all_protocols(protocol):
    packets = [Packet(extension=each, body=body, body_type=kind) for _, each, body, kind in recorded.MESSAGES]
    found = decoded(packets, protocol=protocol)
    assert [row["framework"] for row in found] == [
        "NServiceBus", "Rebus", "MassTransit", "WCF", *["System.Messaging"] * 3, "NServiceBus", None,
    ]  # fmt: skip


def test_encrypted_bodies_reports_and_components_are_not_read():
    body, extension = written.BODY_XML, written.nservicebus(written.NSB_HEADERS)
    secret, report, component = decoded([
        Packet(extension=extension, body=body, body_type=0, security=(0x20, (b"",) * 5)),
        Packet(body=body, body_type=0, kind=1), Packet(extension=MARKER, body=body, body_type=0),
    ])  # fmt: skip
    assert (secret["encrypted"], secret["framework"], secret["body_format"]) == (True, "NServiceBus", None)
    assert (report["message_kind"], report["framework"], report["body_format"]) == ("report", None, None)
    assert (component["is_comqc"], component["framework"], component["body_format"]) == (True, None, None)


def test_an_empty_value_is_of_its_type():
    (row,) = decoded([Packet(body=b"", body_type=1)])
    assert (row["framework"], row["body_format"]) == ("System.Messaging", "VT_NULL")
    wrong, odd, none = decoded([Packet(body=b"abc", body_type=3), Packet(body=b"abc", body_type=8), Packet(body=b"")])
    for row in (wrong, odd):
        assert (row["framework"], row["body_format"]) == (None, None)
        assert row["application_errors"] == [{"code": "malformed", "field": "body", "offset": 0}]
    assert {none[name] for name in NAMES} == {None}


def test_a_body_that_a_limit_cut_has_its_declared_size():
    """A reader's limit, or the capture, cut it: the type's size is compared with the declared one."""
    packet = Packet(body=written.VARIANTS[3][2], body_type=5)
    whole = packet.bytes()
    cut = decode_messages(pa.array([whole[:-6]]), "binary_protocol", application=KeptColumns())
    assert (cut["body_bytes_seen"][0].as_py() < 8, cut["body_format"][0].as_py()) == (True, "VT_R8")


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        (KeptColumns(), set()),
        (KeptColumns(headers=False), {"application_headers"}),
        (KeptColumns(exception_texts=False), {"exception_message"}),
        (KeptColumns(columns=False), {*NAMES} - {"framework"}),
    ],
)
def test_what_is_not_kept_is_null(kept, missing):
    bridge = "NServiceBus.MessagingBridge.ExceptionInfo.Message"
    extension = written.nservicebus({bridge: "card 4711"} | recorded.FAILED)[:-30]
    packet = Packet(extension=extension, body=written.BODY_XML, body_type=0)
    every, some = decoded([packet])[0], decoded([packet], kept)[0]
    assert {name for name in NAMES if every[name] is not None and some[name] is None} == {
        name for name in missing if every[name] is not None
    }
    assert every["exception_message"]
    assert dict(every["application_headers"])["NServiceBus.ExceptionInfo.Message"]
    held = dict(some["application_headers"] or {})
    assert (bridge in held) == ("NServiceBus.ExceptionInfo.Message" in held)
    assert ("NServiceBus.ExceptionInfo.Message" in held) == (
        kept.exception_texts and "application_headers" not in missing
    )


def test_errors_of_the_application_are_no_errors_of_the_message():
    (row,) = decoded([Packet(extension=written.nservicebus(written.NSB_HEADERS)[:300], body=b"<a>", body_type=0)])
    assert (row["errors"], len(row["application_errors"])) == ([], 2)
