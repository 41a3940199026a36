"""Write extensions and bodies as the frameworks do, from their sources and the specifications; no decoder is used.

The bytes are written the long way: each record by itself, with numbers from the specifications.
"""

import base64
import json
import struct
import uuid
from xml.sax.saxutils import escape

NSB_TIME = "2024-05-01 12:00:00:123456 Z"
NSB_HEADERS = {
    "NServiceBus.MessageId": "0f1c2b1a-9d3e-4c77-8a10-000102030405",
    "NServiceBus.MessageIntent": "Send",
    "NServiceBus.ConversationId": "1f1c2b1a-9d3e-4c77-8a10-000102030405",
    "NServiceBus.CorrelationId": "0f1c2b1a-9d3e-4c77-8a10-000102030405",
    "NServiceBus.RelatedTo": "2f1c2b1a-9d3e-4c77-8a10-000102030405",
    "NServiceBus.OriginatingMachine": "SRV1",
    "NServiceBus.OriginatingEndpoint": "Sales",
    "NServiceBus.ReplyToAddress": "Sales@SRV1",
    "NServiceBus.ContentType": "text/xml",
    "NServiceBus.EnclosedMessageTypes": "Sales.OrderPlaced, Sales, Version=1.0.0.0;Sales.IOrder, Sales",
    "NServiceBus.Version": "7.2.0",
    "NServiceBus.TimeSent": NSB_TIME,
}
NSB_FAILURE = {
    "NServiceBus.FailedQ": "billing@SRV2",
    "NServiceBus.ProcessingEndpoint": "Billing",
    "NServiceBus.FLRetries": "4",
    "NServiceBus.Retries": "3",
    "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
    "NServiceBus.ExceptionInfo.Message": "No answer of <card 4711>",
    "NServiceBus.ExceptionInfo.StackTrace": "at Billing.Charge()",
}
REBUS_HEADERS = {
    "rbs2-msg-id": "3f1c2b1a-9d3e-4c77-8a10-000102030405",
    "rbs2-msg-type": "Sales.OrderPlaced, Sales",
    "rbs2-corr-id": "4f1c2b1a-9d3e-4c77-8a10-000102030405",
    "rbs2-in-reply-to": "5f1c2b1a-9d3e-4c77-8a10-000102030405",
    "rbs2-sender-address": "sales@srv1",
    "rbs2-return-address": "answers@srv1",
    "rbs2-intent": "p2p",
    "rbs2-senttime": "2024-05-01T14:00:00.1234567+02:00",
    "rbs2-content-type": "application/json;charset=utf-8",
}
REBUS_FAILURE = {
    "rbs2-source-queue": "billing@srv2",
    "rbs2-error-details": "System.AggregateException: 5 unhandled exceptions ---> "
    "System.InvalidOperationException: card 4711\r\n   at Billing.Charge()",
}
ENVELOPE = {
    "messageId": "6f1c2b1a-9d3e-4c77-8a10-000102030405",
    "conversationId": "7f1c2b1a-9d3e-4c77-8a10-000102030405",
    "sourceAddress": "msmq://srv1/sales",
    "destinationAddress": "msmq://srv2/billing",
    "responseAddress": "msmq://srv1/answers",
    "retryCount": 2,
    "messageType": ["urn:message:Sales:OrderPlaced", "urn:message:Sales:Order"],
}
BODY_XML = b'<?xml version="1.0"?><OrderPlaced xmlns="http://tempuri.net/Sales"><Id>4711</Id></OrderPlaced>'


def nservicebus(headers, *, bom=False, behind=b"", indent=""):
    """Return an extension; control characters are references, as .NET writes them without checks."""

    def text(value):
        return "".join(f"&#x{ord(each):X};" if ord(each) < 32 else escape(each) for each in value)

    items = "".join(
        f"{indent}<HeaderInfo>{indent}<Key>{text(key)}</Key>{indent}"
        + ("<Value />" if value == "" else f"<Value>{text(value)}</Value>")
        + f"{indent}</HeaderInfo>"
        for key, value in headers.items()
    )
    root = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xsd="http://www.w3.org/2001/XMLSchema"'
    document = f'<?xml version="1.0" encoding="utf-8"?><ArrayOfHeaderInfo {root}>{items}{indent}</ArrayOfHeaderInfo>'
    return b"\xef\xbb\xbf" * bom + document.encode() + behind


def json_extension(headers):
    return json.dumps(headers, ensure_ascii=False).encode()


def utf7(text):
    """Return UTF-7 as .NET writes it: letters, digits and few others stay, the rest is in base64 without padding."""
    plain = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'(),-./:? \t\r\n")
    out, run = [], ""
    for each in f"{text}\0":
        if each in plain or each == "\0":
            if run:
                out.append("+" + base64.b64encode(run.encode("utf-16-be")).decode().rstrip("=") + "-")
                run = ""
            out.append(each.strip("\0"))
        else:
            run += each
    return "".join(out).encode("ascii")


def mass_transit(kind):
    return json_extension({"Content-Type": f"application/vnd.masstransit+{kind}"})


def json_envelope(envelope=ENVELOPE):
    return json.dumps({"headers": {"tenant": "blue"}, "message": {"card": "4711"}, **envelope}).encode()


def xml_envelope(envelope=ENVELOPE):
    parts = ["<message><card>4711</card></message>"]
    for key, value in envelope.items():
        parts += [f"<{key}>{escape(str(each))}</{key}>" for each in (value if isinstance(value, list) else [value])]
    return f"<envelope>{''.join(parts)}</envelope>".encode()


def bson(value):
    """Return a BSON document of texts, numbers, lists and documents."""
    out = b""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        name = str(key).encode() + b"\0"
        if isinstance(each, str):
            raw = each.encode() + b"\0"
            out += b"\2" + name + struct.pack("<i", len(raw)) + raw
        elif isinstance(each, bool):
            out += b"\x08" + name + bytes([each])
        elif isinstance(each, int):
            out += b"\x10" + name + struct.pack("<i", each)
        elif isinstance(each, uuid.UUID):
            out += b"\5" + name + struct.pack("<iB", 16, 4) + each.bytes_le
        elif each is None:
            out += b"\x0a" + name
        else:
            out += (b"\4" if isinstance(each, list) else b"\3") + name + bson(each)
    return struct.pack("<i", len(out) + 5) + out + b"\0"


# --- [MS-NRBF] ---


def prefixed(text):
    """Return a text behind its size in groups of 7 bits."""
    raw = text.encode()
    return packed(len(raw)) + raw


def packed(number):
    out = []
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def int32(number):
    return struct.pack("<i", number)


def stream_header(root=1):
    return b"\0" + int32(root) + int32(-1) + int32(1) + int32(0)


def library(number, name):
    return b"\x0c" + int32(number) + prefixed(name)


def class_record(number, name, members, library_id=2):
    """Return a ClassWithMembersAndTypes; ``members``: by name a type (0 to 7), its further bytes, and the value."""
    head = b"\5" + int32(number) + prefixed(name) + int32(len(members)) + b"".join(map(prefixed, members))
    types = bytes(each[0] for each in members.values()) + b"".join(each[1] for each in members.values())
    return head + types + int32(library_id) + b"".join(each[2] for each in members.values())


def string_record(number, text):
    return b"\6" + int32(number) + prefixed(text)


def order_stream():
    """Return an object of a class with a number, a text, an array of bytes, a null and the same text again."""
    members = {
        "id": (0, b"\x08", int32(4711)),
        "card": (1, b"", string_record(3, "card 4711")),
        "raw": (7, b"\x02", b"\x09" + int32(4)),
        "none": (2, b"", b"\x0a"),
        "again": (1, b"", b"\x09" + int32(3)),
        "letter": (0, b"\x03", "é".encode()),
        "price": (0, b"\x05", prefixed("12.50")),
    }
    array = b"\x0f" + int32(4) + int32(5) + b"\x02" + b"bytes"
    return (
        stream_header()
        + library(2, "Sales, Version=1.0.0.0")
        + class_record(1, "Sales.Order", members)
        + array
        + b"\x0b"
    )


def binary_envelope(envelope=ENVELOPE):
    """Return a stream of a message with headers beside it, as the binary formatter writes them."""
    out, objects = stream_header(), []
    number = 10
    for key, value in envelope.items():
        text = value[0] if isinstance(value, list) else str(value)
        members = {
            "Name": (1, b"", string_record(number + 1, key[0].upper() + key[1:])),
            "Value": (2, b"", string_record(number + 2, text)),
            "MustUnderstand": (0, b"\x01", b"\0"),
            "HeaderNamespace": (1, b"", b"\x0a"),
        }
        objects.append((number, members))
        number += 3
    out += library(2, "mscorlib") + b"\x10" + int32(9) + int32(len(objects))
    out += b"".join(b"\x09" + int32(number) for number, _ in objects)
    for number, members in objects:
        out += class_record(number, "System.Runtime.Remoting.Messaging.Header", members)
    return out + library(3, "Sales") + class_record(1, "Sales.OrderPlaced", {}, 3) + b"\x0b"


# --- [MC-NMF], [MC-NBFX], [MC-NBFS], [MC-NBFSE] ---

VIA = "net.msmq://srv2/private/billing"
SOAP12, ADDRESSING = "http://www.w3.org/2003/05/soap-envelope", "http://www.w3.org/2005/08/addressing"
ACTION, MESSAGE_UUID = "http://tempuri.org/ISales/Place", uuid.UUID("8f1c2b1a-9d3e-4c77-8a10-000102030405")
RELATES = uuid.UUID("9f1c2b1a-9d3e-4c77-8a10-000102030405")
TO = "net.msmq://srv2/private/billing"


def preamble(mode, encoding, via=VIA):
    kind = b"\3" + bytes([encoding]) if isinstance(encoding, int) else b"\4" + prefixed(encoding)
    return b"\0\1\0" + b"\1" + bytes([mode]) + b"\2" + prefixed(via) + kind


def datagram(encoding, envelope, via=VIA):
    return preamble(4, encoding, via) + envelope


def sessiongram(encoding, *envelopes, end=b"\7"):
    return preamble(3, encoding) + b"\x0c" + b"".join(b"\6" + packed(len(each)) + each for each in envelopes) + end


def text_envelope(body="<Place xmlns='http://tempuri.org/'><card>4711</card></Place>"):
    return (
        f"<s:Envelope xmlns:s='{SOAP12}' xmlns:a='{ADDRESSING}'><s:Header><a:Action s:mustUnderstand='1'>{ACTION}"
        f"</a:Action><a:MessageID>urn:uuid:{MESSAGE_UUID}</a:MessageID><a:RelatesTo>urn:uuid:{RELATES}</a:RelatesTo>"
        f"<a:ReplyTo><a:Address>{ADDRESSING}/anonymous</a:Address></a:ReplyTo><t:To xmlns:t='urn:other'>nobody</t:To>"
        f"<a:To>{TO}</a:To></s:Header><s:Body>{body}</s:Body></s:Envelope>"
    )


def binary_soap(action=None, name=None):
    """Return an envelope in binary records; ``action`` and ``name`` are references to texts of the session."""
    chars = lambda text: b"\x99" + bytes([len(text.encode())]) + text.encode()  # noqa: E731
    head = b"\x56\x02" + b"\x0b\1s\4" + b"\x0b\1a\6" + b"\x56\x08"  # s:Envelope, xmlns:s, xmlns:a, s:Header
    head += b"\x44\x0a" + b"\x1e\0\x82" + (chars(ACTION) if action is None else b"\xab" + packed(action))
    head += b"\x44\x1a" + b"\xad" + MESSAGE_UUID.bytes_le  # a:MessageID, UniqueIdText
    head += b"\x44\x12" + b"\xad" + RELATES.bytes_le  # a:RelatesTo
    head += b"\x44\x2c" + b"\x44\x2a" + b"\xab\x14" + b"\1"  # a:ReplyTo, a:Address, the anonymous one
    head += b"\x44\x0c" + chars(TO) + b"\1"  # a:To, end of the header
    root = b"\x40" + prefixed("Place") if name is None else b"\x42" + packed(name)
    return head + b"\x56\x0e" + root + b"\x08" + prefixed("http://tempuri.org/") + b"\1\1\1"


def session_envelope(*texts, action=1, name=3):
    """Return an envelope of a session: the texts that are new in it, and the envelope."""
    table = b"".join(map(prefixed, texts))
    return packed(len(table)) + table + binary_soap(action, name)


# Bodies of one value: VT code, its name, and a body.
VARIANTS = [
    (2, "VT_I2", struct.pack("<h", -2)), (3, "VT_I4", int32(-3)), (4, "VT_R4", struct.pack("<f", 1.5)),
    (5, "VT_R8", struct.pack("<d", 1.5)), (6, "VT_CY", struct.pack("<q", 12500)),
    (7, "VT_DATE", struct.pack("<d", 45413.5)), (8, "VT_BSTR", "größe".encode("utf-16-le")),
    (11, "VT_BOOL", b"\xff\xff"), (14, "VT_DECIMAL", bytes(16)), (16, "VT_I1", b"\xff"), (17, "VT_UI1", b"\xff"),
    (18, "VT_UI2", b"\xff\xff"), (19, "VT_UI4", bytes(4)), (20, "VT_I8", bytes(8)), (21, "VT_UI8", bytes(8)),
    (30, "VT_LPSTR", b"text"), (31, "VT_LPWSTR", "text".encode("utf-16-le")), (64, "VT_FILETIME", bytes(8)),
    (68, "VT_STREAMED_OBJECT", b"\1\2\3"), (69, "VT_STORED_OBJECT", b"\1\2\3"), (72, "VT_CLSID", bytes(16)),
    (0x1011, "VT_VECTOR|VT_UI1", b"\0\1\2"), (0x2011, "VT_ARRAY|VT_UI1", b"\0\1\2"),
]  # fmt: skip
