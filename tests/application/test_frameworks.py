"""Each framework's messages are recognised and read; what only looks like one is not."""

from datetime import UTC, datetime

import pytest

import framework_messages as written
from udfs.application.application_message import NativeFacts, utc_time
from udfs.application.binary_formatter import read_binary_formatter
from udfs.application.message_reader import read_application_message

SENT_AT = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)


def read(extension=b"", body=b"", body_type=0, **options):
    native = NativeFacts(**{name: options.pop(name) for name in [*options] if name != "fits_vt_code"})
    return read_application_message(extension or None, body, body_type, native, **options)


def said(message, *names):
    return {name: getattr(message, name) for name in names}


# NServiceBus


def test_nservicebus_headers_feed_their_columns():
    message = read(written.nservicebus(written.NSB_HEADERS | written.NSB_FAILURE), written.BODY_XML)
    assert (message.framework, message.framework_evidence) == ("NServiceBus", "extension ArrayOfHeaderInfo")
    names = (
        "application_message_id", "conversation_id", "related_to", "originating_endpoint", "processing_endpoint",
        "reply_to", "intent", "failed_queue", "exception_type", "exception_message",
    )  # fmt: skip
    keys = (
        "MessageId", "ConversationId", "RelatedTo", "OriginatingEndpoint", "ProcessingEndpoint", "ReplyToAddress",
        "MessageIntent", "FailedQ", "ExceptionInfo.ExceptionType", "ExceptionInfo.Message",
    )  # fmt: skip
    headers = written.NSB_HEADERS | written.NSB_FAILURE
    assert said(message, *names) == {name: headers[f"NServiceBus.{key}"] for name, key in zip(names, keys, strict=True)}
    assert message.sent_types == ["Sales.OrderPlaced, Sales, Version=1.0.0.0", "Sales.IOrder, Sales"]
    assert (message.immediate_retries, message.delayed_retries) == (4, 3)
    assert message.application_sent_at == SENT_AT
    assert message.application_headers == headers
    assert (message.body_format, message.body_root, message.application_errors) == ("xml", "OrderPlaced", [])


@pytest.mark.parametrize(
    "options",
    [{"bom": True}, {"behind": b"\0" * 20}, {"behind": b"<ArrayOfHeaderInfo>\xff&#x0;"}, {"indent": "\r\n  "}],
    ids=["bom", "nuls", "junk", "indented"],
)
def test_nservicebus_extensions_of_all_writers(options):
    message = read(written.nservicebus(written.NSB_HEADERS, **options))
    assert message.application_headers == written.NSB_HEADERS
    assert message.application_errors == []


def test_characters_that_xml_forbids_are_read():
    text = "Can u see \x19\0\x1f? ü<&>"
    extension = written.nservicebus({"NServiceBus.ExceptionInfo.Message": text, "a": ""})
    assert b"&#x19;" in extension
    message = read(extension)
    assert message.exception_message == text
    assert message.application_headers == {"NServiceBus.ExceptionInfo.Message": text, "a": ""}
    lone = read(extension.replace(b"&#x19;", b"&#xD800;&#xFFFF;&#x110000;"))
    assert lone.exception_message == text.replace("\x19", "\ufffd" * 3)


def test_version_3_says_the_rest_in_the_message_itself():
    extension = written.nservicebus({"NServiceBus.Version": "3.3.8", "WinIdName": "CORP\\sales"})
    guid = "0f1c2b1a-9d3e-4c77-8a10-000102030405"
    native = {"response_queue": "srv1\\private$\\sales", "app_specific": 3, "correlation_id": f"{guid}\\0"}
    message = read(extension, **native)
    assert (message.reply_to, message.intent, message.related_to) == ("sales@srv1", "Subscribe", guid)
    assert read(extension, **native | {"correlation_id": f"{guid}\\77"}).related_to == f"{guid}\\77"
    later = read(written.nservicebus(written.NSB_HEADERS), **native)
    assert (later.reply_to, later.intent) == ("Sales@SRV1", "Send")
    assert later.related_to == written.NSB_HEADERS["NServiceBus.RelatedTo"]
    assert read(extension, app_specific=9, response_queue="public=" + guid).reply_to == f"public={guid}"


def test_a_cut_extension_is_read_as_far_as_it_goes():
    whole = written.nservicebus(written.NSB_HEADERS)
    cut = whole.index(b"NServiceBus.RelatedTo")
    message = read(whole[:cut])
    assert list(message.application_headers) == list(written.NSB_HEADERS)[:4]
    assert message.framework == "NServiceBus"
    ((code, field, offset),) = message.application_errors
    assert (code, field) == ("truncated", "extension")
    assert cut - 5 <= offset <= cut


# Rebus and MassTransit


def test_rebus_headers_feed_their_columns():
    message = read(written.json_extension(written.REBUS_HEADERS | written.REBUS_FAILURE), b'{"card":4711,"to":{"x":1}}')
    assert (message.framework, message.framework_evidence) == ("Rebus", "extension rbs2- keys")
    names = ("application_message_id", "conversation_id", "related_to", "originating_endpoint", "reply_to", "intent")
    keys = ("msg-id", "corr-id", "in-reply-to", "sender-address", "return-address", "intent")
    assert said(message, *names) == {
        name: written.REBUS_HEADERS[f"rbs2-{key}"] for name, key in zip(names, keys, strict=True)
    }
    assert message.sent_types == ["Sales.OrderPlaced, Sales"]
    assert message.failed_queue == "billing@srv2"
    assert (message.exception_type, message.exception_message) == ("System.InvalidOperationException", "card 4711")
    assert message.application_sent_at == SENT_AT
    assert (message.body_format, message.body_root) == ("json", "card,to")


def test_old_rebus_is_read_in_utf_7():
    headers = {"rebus-msg-id": "7", "rebus-return-address": "answers@srv1", "rebus-source-queue": "büro@srv2"}
    extension = written.utf7(written.json_extension(headers).decode())
    assert extension.startswith(b"+AHsAIg-rebus-msg-id")
    message = read(extension)
    assert (message.framework_evidence, message.application_headers) == ("extension rebus- keys", headers)
    assert (message.application_message_id, message.failed_queue) == ("7", "büro@srv2")


@pytest.mark.parametrize(
    ("kind", "body", "form"),
    [
        ("json", written.json_envelope(), "json"),
        ("xml", written.xml_envelope(), "xml"),
        ("bson", written.bson(written.ENVELOPE), "bson"),
        ("binary", written.binary_envelope(), "nrbf"),
    ],
)
def test_mass_transit_envelopes(kind, body, form):
    message = read(written.mass_transit(kind), body)
    assert (message.framework, message.framework_evidence) == ("MassTransit", "extension Content-Type")
    assert message.body_format == form
    names = ("application_message_id", "conversation_id", "originating_endpoint", "processing_endpoint", "reply_to")
    keys = ("messageId", "conversationId", "sourceAddress", "destinationAddress", "responseAddress")
    assert said(message, *names) == {name: written.ENVELOPE[key] for name, key in zip(names, keys, strict=True)}
    types = written.ENVELOPE["messageType"]
    assert message.sent_types == (types[:1] if kind == "binary" else types)
    assert message.delayed_retries == 2
    assert message.application_errors == []
    assert "4711" not in str(message.application_headers)  # the message itself is not read


def test_the_label_says_the_type_where_no_envelope_does():
    label = "urn:message:Sales:OrderPlaced"
    assert read(written.mass_transit("json"), b"", label=label).sent_types == [label]
    assert read(written.mass_transit("json"), b"", label="x" * 250).sent_types is None


@pytest.mark.parametrize(
    "extension",
    [
        written.json_extension({"Content-Type": "application/json"}),
        written.json_extension({"tenant": "blue"}),
        written.json_extension(written.REBUS_HEADERS | {"Content-Type": "application/vnd.masstransit+json"}),
        b"<ArrayOfOther />", b"<x>ArrayOfHeaderInfo</x>", b"{", b"[1]", b"\0\1\2", b"+AHs",
    ],
)  # fmt: skip
def test_what_does_not_decide_is_null(extension):
    message = read(extension)
    assert (message.framework, message.framework_evidence, message.application_headers) == (None, None, None)


# WCF


@pytest.mark.parametrize(
    ("encoding", "envelope", "form"),
    [
        (0, written.text_envelope().encode(), "soap"),
        (3, written.text_envelope().encode(), "soap"),
        (4, written.text_envelope().encode("utf-16"), "soap"),
        (5, written.text_envelope().encode("utf-16-le"), "soap"),
        ("application/soap+xml; charset=utf-8", written.text_envelope().encode(), "soap"),
        (
            6,
            b"--b\r\nContent-Type: application/xop+xml\r\n\r\n" + written.text_envelope().encode() + b"\r\n--b--",
            "mtom",
        ),
        (7, written.binary_soap(), "nbfs"),
        ("application/soap+msbin1", written.binary_soap(), "nbfs"),
        (8, written.session_envelope(written.ACTION, "Place"), "nbfse"),
    ],
    ids=str,
)
@pytest.mark.parametrize("frame", [written.datagram, written.sessiongram])
def test_wcf_envelopes(frame, encoding, envelope, form):
    message = read(b"", frame(encoding, envelope))
    assert (message.framework, message.framework_evidence, message.body_format) == ("WCF", "body MC-NMF", form)
    assert message.sent_types == [written.ACTION]
    assert message.application_message_id == f"urn:uuid:{written.MESSAGE_UUID}"
    assert message.related_to == f"urn:uuid:{written.RELATES}"
    assert (message.processing_endpoint, message.reply_to) == (written.TO, None)
    assert (message.application_headers["Via"], message.application_headers["To"]) == (written.VIA, written.TO)
    assert (message.body_root, message.application_messages, message.application_errors) == ("Place", 1, [])


def test_wcf_is_recognised_whatever_the_body_type_is():
    """WCF writes arrays of bytes."""
    message = read(b"", written.datagram(7, written.binary_soap()), 0x1011, fits_vt_code=True)
    assert (message.framework, message.body_format) == ("WCF", "nbfs")


def test_a_session_has_several_envelopes_and_one_dictionary():
    first, second = written.session_envelope(written.ACTION, "Place"), written.session_envelope()
    message = read(b"", written.sessiongram(8, first, second, second))
    assert (message.application_messages, message.sent_types) == (3, [written.ACTION])
    cut = read(b"", written.sessiongram(8, first, second)[:-5])
    assert (cut.application_messages, cut.sent_types) == (2, [written.ACTION])
    assert [(code, field) for code, field, _ in cut.application_errors] == [
        ("truncated", "body.SizedEnvelopeRecord.Payload")
    ]


def test_the_examples_of_the_specifications():
    """[MC-NBFS] 3 and [MC-NBFSE] 3: the same document without and with texts of the session."""
    plain = bytes.fromhex(
        "5602 0B016106 0B017304 5608 440A 1E0082 9906616374696F6E 01 560E 4009496E76656E746F7279 81 01 01"
    )
    table = bytes.fromhex("11 06616374696F6E 09496E76656E746F7279")
    session = table + bytes.fromhex("5602 0B016106 0B017304 5608 440A 1E0082 AB01 01 560E 4203 81 01 01")
    for encoding, envelope in ((7, plain), (8, session)):
        message = read(b"", written.datagram(encoding, envelope))
        assert (message.sent_types, message.body_root) == (["action"], "Inventory")
        assert message.application_errors == []


@pytest.mark.parametrize("body", [b"\0\1\0\1", b"\0\1\0\1\4\2\3abc\3\7", b"\0\1\0\1\x09\2\4a://\3\7", bytes(40)])
def test_bodies_that_only_begin_so_are_no_wcf(body):
    assert read(b"", body).framework is None


# System.Messaging and others


def test_xml_of_body_type_0_is_system_messaging():
    message = read(b"", written.BODY_XML)
    assert (message.framework, message.framework_evidence) == ("System.Messaging", "body_type 0 and XML")
    assert (message.body_format, message.body_root) == ("xml", "OrderPlaced")
    for body in (b"just text", b'{"a":1}', b"\1\2\3\4", b"<not xml", written.text_envelope().encode()):
        assert read(b"", body).framework is None
    assert read(b"", written.BODY_XML, 17).framework is None


def test_the_binary_formatter_says_class_and_assembly():
    message = read(b"", written.order_stream(), 0x300)
    assert (message.framework, message.body_format) == ("System.Messaging", "nrbf")
    assert message.body_root == "Sales.Order, Sales, Version=1.0.0.0"
    stream = read_binary_formatter(written.order_stream())
    assert stream.error is None
    assert [name for name, _ in stream.records] == [
        "SerializedStreamHeader", "BinaryLibrary", "ClassWithMembersAndTypes", "BinaryObjectString", "MemberReference",
        "ObjectNull", "MemberReference", "ArraySinglePrimitive", "MessageEnd",
    ]  # fmt: skip
    assert read(b"", b"no stream of its kind", 0x300).framework is None


@pytest.mark.parametrize(("code", "name", "body"), written.VARIANTS, ids=[each[1] for each in written.VARIANTS])
def test_every_vt_code(code, name, body):
    message = read(b"", body, code, fits_vt_code=True)
    assert (message.framework, message.framework_evidence) == ("System.Messaging", f"body_type {name}")
    assert (message.body_format, message.application_errors) == (name, [])
    assert "4711" not in str(message)


@pytest.mark.parametrize(
    ("body", "form", "root"),
    [
        (written.BODY_XML, "xml", "OrderPlaced"), (b"\xef\xbb\xbf<a:b xmlns:a='urn:x'/>", "xml", "b"),
        ("<größe/>".encode("utf-16"), "xml", "größe"), ("<a/>".encode("utf-16-le"), "xml", "a"),
        (b'  {"b":1,"a":[{"c":2}]}', "json", "b,a"), (b"[1,2]", "json", "[]"), (b"{}", "json", ""),
        (written.text_envelope().encode(), "soap", "Place"), ("größe\r\n".encode(), "text", None),
        ("größe".encode("utf-16-le"), "text", None), (b"\x1f\x8b\x08\0rest", "gzip", None),
        (b"a\0\1\2", None, None), (b"\x80\x81\x82", None, None), (b"{no json", "text", None),
    ],
)  # fmt: skip
def test_forms_of_other_bodies(body, form, root):
    message = read(b"", body, 0x5555)
    assert (message.body_format, message.body_root or None, message.framework) == (form, root or None, None)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2024-05-01T12:00:00Z", datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("2024-05-01T12:00:00.5", datetime(2024, 5, 1, 12, 0, 0, 500000, tzinfo=UTC)),
        ("2024-05-01T12:00:00.1234567+02:00", datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC)),
        ("0001-01-01T00:00:00+14:00", None), ("yesterday", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_times(text, time):
    assert utc_time(text) == time
