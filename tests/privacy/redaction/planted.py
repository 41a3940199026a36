"""Captures and snapshot files in which each free text is a token of its own: a text that is not redacted shows.

The calls are made from the declarations of the test peer: each text and each buffer of each parameter gets a token.
Packets of the binary protocol get one wherever text, or bytes that may be anything, stand.
"""

import json
import struct
import uuid
from collections.abc import Iterable, Iterator

import framework_messages
from messages import building
from pcapgen import containers, frames, rpc, sessions, tunnels
from pcapgen.conversation import CLIENT, SERVER, START_NS, Flow, records, segments
from pcapgen.model import Dialogue
from peer import comqc, idl, ndr
from peer.idl import QueueFormat, Variant
from peer.methods import EPM, METHODS, QM2QM, QMCOMM, QMMGMT, REMOTEREAD
from peer.transfers import layouts
from udfs.properties.property_names import MACHINE_PROPERTY_NAMES, QUEUE_PROPERTY_NAMES

GUID = uuid.UUID("0e1b7d1c-1111-2222-3333-444455556666")
LETTERS, NUMERALS = "zqxw{:04d}", "4E77T{:04d}Z"  # the second kind looks like the numbers and times of JSON
LPWSTR, BLOB, TEXTS, GUIDS, VARIANTS = 31, 65, 0x101F, 0x1048, 0x100C


class Tokens:
    """Makes tokens, each once; ``all`` are those that were made."""

    def __init__(self, form: str) -> None:
        self.form, self.all = form, list[str]()

    def text(self) -> str:
        """Return the next token."""
        self.all.append(self.form.format(len(self.all)))
        return self.all[-1]

    def among(self, texts: Iterable[str]) -> bool:
        """Whether one of some texts in lower case holds a token."""
        stem = self.form.partition("{")[0].lower()
        return any(stem in text for text in texts)

    def octets(self) -> bytes:
        return self.text().encode("utf-16-le")

    def path(self, host: str = "") -> str:
        return rf"{host or self.text()}\private$\{self.text()}"

    def direct(self) -> str:
        """Return the name of a queue behind DIRECT=."""
        return f"OS:{self.path()};{self.text()}"

    def format_names(self) -> list[str]:
        """Return format names, and texts that are nearly some: a token in each place of each kind."""
        text = self.text
        return [
            f"DIRECT={self.direct()}", f"DIRECT=TCP:{self.path()}", f"DIRECT={text()}:{self.path()}",
            f"{text()}:{text()}", f"DIRECT=https://{text()}:{text()}/msmq/{text()}/{text()}?{text()}={text()};{text()}",
            f"{text()}={text()}", f"MULTICAST={text()}:{text()}", f"MULTICAST=234.1.1.1:{text()}",
            f"DL={GUID}@{text()}", f"DL={text()}",
            f"PUBLIC={GUID};{text()}", f"PUBLIC={text()}", rf"PRIVATE={GUID}\{text()}", f"{text()},DIRECT={text()}",
        ]  # fmt: skip

    def hops(self) -> list[str]:
        """Return next hops and addresses of connection histories, and texts that are nearly some."""
        text = self.text
        return [
            f"IP={text()}:1801", f"IP=10.77.0.3:{text()}", f"IPv6={text()}", f"FOREIGN={text()}", f"{text()}:1801",
            f"[{text()}]:1801", text(), rf"\\{text()}", self.path(), f"{text()}.{text()}", f"10.77.0.3%{text()}",
        ]  # fmt: skip


def readings(value: str | bytes) -> Iterator[str]:
    """Yield the texts in lower case that a value can be read as: bytes in all encodings, hex digits as bytes."""
    if isinstance(value, bytes):
        yield value.decode("latin-1").lower()
        for encoding in ("utf-16-le", "utf-16-be"):
            for shift in (0, 1):
                yield value[shift:].decode(encoding, "ignore").lower()
        return
    yield value.lower()
    try:
        yield from readings(bytes.fromhex(value))
    except ValueError:
        return


def captures(tokens: Tokens) -> list[bytes]:
    """Return captures of connections to all interfaces, of sessions and of pings, whose own blocks hold texts too.

    One is whole, a second tap saw less of it, one is of tunnels and cut short, two have halves of connections.
    """
    whole, halves = [*_pings()], ([], [])
    makers = (_reads, _queue_managers_calls, _management, _client_calls, _endpoint_mapper, _session, _stray)
    for number, make in enumerate(makers):
        dialogue = make(tokens)
        sent = [each.shifted(number * 10**9) for each in segments(dialogue.script)]
        port = sessions.PORT if make is _session else Flow.server_port
        flow = Flow(client="10.77.0.2", server="10.77.0.1", client_port=40_000 + number, server_port=port)
        other = Flow(client="10.77.0.4", server="10.77.0.1", client_port=40_000 + number, server_port=port)
        whole += records(flow, sent)
        middle = len(sent) // 2
        halves[0].extend(records(other, sent[:middle]))
        halves[1].extend(records(other, sent[middle:]))
    far = Flow(client="10.77.0.5", server="10.77.0.6")
    link = lambda packet: frames.ethernet(tunnels.vxlan(packet))  # noqa: E731
    tunnelled = records(far, segments(_stray(tokens).script), link)
    files = [_pcapng(tokens, each) for each in (whole, whole[:-4], tunnelled, *halves)]
    return [*files[:2], files[2][:-20], *files[3:]]


def _pcapng(tokens, taken):
    def options(*codes):
        return b"".join(containers.option("<", code, tokens.octets()) for code in codes) + bytes(4)

    interface = struct.pack("<HHI", containers.ETHERNET, 0, 0) + options(1, 2, 3, 11, 12, 15)
    names = containers.host_names("<", ("10.77.0.2", tokens.text().encode()), ("fd77::1", tokens.text().encode()))
    blocks = [containers.section(options=options(1, 2, 3, 4)), containers.block("<", 1, interface), names]
    return containers.assemble(
        [*blocks, *(containers.enhanced(each, options=options(1)) for each in taken)], taken
    ).data


def snapshot_lines(tokens: Tokens) -> list[str]:
    """Return the lines of a snapshot file: objects with texts of all types at all properties, and broken lines."""
    text = tokens.text
    listed = [{"property_id": each, "vt": TEXTS, "value_json": json.dumps(tokens.format_names())} for each in (1, 2)]
    machine, queue = (
        {
            "version": 1, "queue_manager": text(), "server_address": text(), "object_type": kind, "format_name": name,
            "asked_at": "2024-05-01T12:00:00Z", "collected_at": "2024-05-01T12:00:01Z", "hresult": 0, "error": None,
            "collector_version": text(), text(): text(),
            "properties": [
                {"property_id": number, "vt": vt, "value_json": json.dumps(value)}
                for number in (*names, 0x7FFF0000)
                for vt, value in _collected_values(tokens, number)
            ],
        }
        for kind, name, names in (
            ("machine", None, MACHINE_PROPERTY_NAMES), ("queue", tokens.format_names()[0], QUEUE_PROPERTY_NAMES),
        )
    )  # fmt: skip
    fitting = {"properties": [_fitting(tokens, number) for number in QUEUE_PROPERTY_NAMES], "queue_manager": text()}
    others = [queue | {"format_name": name, "properties": []} for name in tokens.format_names()]
    failed = queue | {"error": text(), "hresult": None, "asked_at": "2024-05-01T12:00:07Z"}
    busy = machine | {"properties": listed, "queue_manager": text()}
    return [
        *map(json.dumps, [machine, busy, queue, queue | fitting, failed, *others]),
        text(),
        json.dumps({"version": text()}),
    ]


def _collected_values(tokens, number):
    """Yield values of any type for one property."""
    text = tokens.text
    # Of a property that is there twice the first value counts for the snapshot.
    yield LPWSTR, text()
    yield TEXTS, [text(), None]
    yield BLOB, tokens.octets().hex()
    yield GUIDS, [text()]
    yield VARIANTS, [{"vt": LPWSTR, "value": text()}, {text(): text()}, {"vt": TEXTS, "value": [text()]}]
    yield 19, {text(): text()}


def _fitting(tokens, number):
    """Return a property of a queue whose value has the type that it must have."""
    sources = [
        tokens.format_names(),
        *([[each() for each in [kind] * 14] for kind in (tokens.text, int, int, int, int)]),
    ]
    hops = tokens.hops()
    history = [[2] * len(hops), [1] * len(hops), [0] * len(hops)]
    vt, value = {
        12: (TEXTS, hops), 27: (TEXTS, [tokens.text()]),
        24: (VARIANTS, [{"vt": vt, "value": each} for vt, each in zip(
            (TEXTS, GUIDS, 0x1015, 0x1013, 0x1003, 0x1013), sources, strict=True)]),
        25: (VARIANTS, [
            *({"vt": vt, "value": each} for vt, each in zip((0x1013, 0x1003, 0x1003), history, strict=True)),
            {"vt": TEXTS, "value": tokens.hops()},
        ]),
    }.get(number, (LPWSTR, tokens.text()))  # fmt: skip
    return {"property_id": number, "vt": vt, "value_json": json.dumps(value)}


def _filled(tokens, codec, name=""):
    """Return a value of a parameter with a token as each text and in each buffer."""
    match codec:
        case ndr.Ranged():
            return max(codec.low, 1)
        case ndr.Integer() | ndr.Enum():
            return 1
        case ndr.Octets():
            return tokens.octets()[: codec.size].ljust(codec.size, b"\1")
        case ndr.Guid():
            return GUID
        case ndr.ContextHandle():
            return bytes(4) + GUID.bytes_le
        case idl.QueueFormatCodec():
            return QueueFormat.direct(tokens.direct())
        case ndr.Text():
            return tokens.text()
        case ndr.CountedOctets() | ndr.VaryingOctets():
            return tokens.octets()
        case ndr.Counted():
            return [_filled(tokens, codec.element)]
        case ndr.Pointer():
            return _filled(tokens, codec.target)
        case ndr.Boxed():
            return [_filled(tokens, codec.inner)]
        case ndr.Struct():
            return {each: _filled(tokens, of) for each, of in codec.members}
    return bytes(20)


def _dialogue(tokens, syntax, *, auth=None):
    dialogue = Dialogue()
    context = rpc.Context(0, str(syntax.uuid), version=syntax.version)
    dialogue.bind(context, address=tokens.text().encode() + b"\0", auth=auth)
    return dialogue


def _call(tokens, dialogue, syntax, opnum, *, result=0, asked=None, answered=None):
    """Add a call with tokens in all its texts, but for given parameters."""
    method = METHODS[syntax, opnum]
    ins = {name: _filled(tokens, codec) for name, codec in method.ins} | (asked or {})
    outs = {name: _filled(tokens, codec) for name, codec in method.outs} | (answered or {}) | {"return": result}
    dialogue.call(opnum, method.request(ins, ndr64=False), method.response(outs, ndr64=False))


def _packets(tokens):
    """Yield message packets with tokens in all headers: in the names of queues, in lists of them, in all texts."""
    text, octets = tokens.text, tokens.octets
    direct = lambda: (7, {"name": tokens.direct()})  # noqa: E731
    names = [building.format_names([(3, building.wide(text())) for _ in "ab"]) for _ in range(3)]
    security = (1, (building.sid(21, 1, 2, 3), octets(), octets(), octets(), octets()))
    full = {
        "queues": (direct(), direct(), direct()), "label": text(), "extension": octets(), "body": octets(),
        "filler": octets(), "allocation": 2 * len(octets()), "security": security, "debug": GUID.bytes_le,
        "soap": (text(), text()), "transaction": (12, 1, 1, 0), "transaction_connector": GUID.bytes_le,
        "lists": (*names, octets()), "connector": GUID.bytes_le, "correlation": GUID.bytes_le + bytes(4),
    }  # fmt: skip
    yield building.Packet(**full)
    yield building.Packet(manager=GUID.bytes_le, session=octets())
    yield building.Packet(envelope=text(), compound=(octets(), 4, 2), label=text(), soap=(text(), text()))
    for extension, body, body_type in _applications(tokens):
        yield building.Packet(extension=extension, body=body, body_type=body_type, label=text())
    yield building.Packet(**_component(tokens))
    yield building.Packet(**_component(tokens, f"{text()}\0"))
    for name in tokens.format_names():
        yield building.Packet(queues=((7, {"name": name.removeprefix("DIRECT=")}),) * 3, label=text())


def _applications(tokens):
    """Yield extension, body and body type of messages of all frameworks, with texts in all places; some are cut."""
    text, written = tokens.text, framework_messages
    places = lambda: (  # noqa: E731
        f"{text()}@{text()}", f"msmq://{text()}:{text()}@{text()}:1801/{text()}/{text()}?{text()}=true",
        f"FormatName:DIRECT=OS:{tokens.path()}", text(), f"{text()}://{text()}/{text()}#{text()}", tokens.path(),
    )  # fmt: skip
    nservicebus = written.NSB_HEADERS | written.NSB_FAILURE
    for place in places():
        addresses = {f"NServiceBus.{key}": place for key in ("ReplyToAddress", "FailedQ", "OriginatingEndpoint")}
        headers = dict.fromkeys(nservicebus, text()) | addresses | {text(): text()}
        yield written.nservicebus(headers), f"<{text()}>{text()}</{text()}>".encode(), 0
    yield written.nservicebus(headers)[:-200], json.dumps({text(): text()}).encode(), 0
    yield (
        written.json_extension(dict.fromkeys(written.REBUS_HEADERS | written.REBUS_FAILURE, text())),
        text().encode(),
        0,
    )
    envelope = dict.fromkeys(written.ENVELOPE, text()) | {"messageType": [text(), text()], text(): text()}
    for kind, body in (
        ("json", written.json_envelope(envelope)), ("xml", written.xml_envelope(envelope)),
        ("bson", written.bson(envelope)), ("binary", written.binary_envelope(envelope)),
    ):  # fmt: skip
        yield written.json_extension({"Content-Type": f"application/vnd.masstransit+{kind};{text()}"}), body, 0
    soap = written.text_envelope(f"<{text()}/>").replace(written.ACTION, text()).replace(written.TO, text())
    yield b"", written.datagram(f"{text()}/{text()};{text()}", soap.encode(), f"net.msmq://{text()}/{text()}"), 0
    for member in ("a", text()):
        classes = written.class_record(1, text(), {member: (1, b"", written.string_record(3, text()))})
        yield b"", written.stream_header() + written.library(2, text()) + classes + b"\x0b", 0x300
    yield b"", f'<?xml version="1.0" encoding="{text()}"?><{text()} {text()}="{text()}">'.encode("utf-16-le"), 8


def _component(tokens, target=None):
    """Return body and extension of a message in which a COM+ call is recorded, with texts as values."""
    text = tokens.text
    caller = comqc.security_collection(
        0x0A02,
        *(comqc.security_property(kind, building.sid(21, 1, 2, 3)) for kind in (0x0B01, 0x0B06)),
        *(comqc.security_property(kind, (text() + "\0").encode("utf-16-le")) for kind in (0x0B02, 0x0B07)),
    )  # fmt: skip
    data = comqc.invoke([comqc.string(text()), comqc.value(3, "i", 7)], dispid=1)
    headers = (comqc.chdr(text=target), comqc.part(), comqc.secd(comqc.security_data(caller)), comqc.method(data))
    return {"body": comqc.message(*headers), "extension": comqc.MARKER, "label": text()}


def _reads(tokens):
    dialogue = _dialogue(tokens, REMOTEREAD, auth=rpc.Auth(10, 2, _ntlm(tokens)))
    for opnum in sorted(opnum for syntax, opnum in METHODS if syntax == REMOTEREAD):
        if opnum not in (7, 13):
            _call(tokens, dialogue, REMOTEREAD, opnum, result=0 if opnum else 2103)
    trailing = building.trailing(subqueue=tokens.text(), target=tokens.text(), dead_letter=tokens.path())
    for packet in _packets(tokens):
        packet.manager = building.overlay(1, 4, bytes((10, 77, 0, 9)))  # address of the sender
        raw = building.pad(packet.bytes()) + trailing
        section = {"SectionBufferType": 0, "SectionSizeAlloc": len(raw), "SectionSize": len(raw), "pSectionBuffer": raw}
        answered = {"pdwNumberOfSections": 1, "ppPacketSections": [section]}
        _call(tokens, dialogue, REMOTEREAD, 7, asked={"ulAction": 0}, answered=answered)
    return dialogue


def _queue_managers_calls(tokens):
    dialogue = _dialogue(tokens, QM2QM, auth=rpc.Auth(16, 2, _kerberos(tokens)))
    for opnum in sorted(opnum for syntax, opnum in METHODS if syntax == QM2QM):
        if opnum != 0:
            _call(tokens, dialogue, QM2QM, opnum)
    described = dict(METHODS[QM2QM, 0].ins)["lpRemoteReadDesc"]
    for packet in _packets(tokens):
        raw = packet.bytes()
        values = _filled(tokens, described) | {"lpBuffer": raw, "dwSize": len(raw), "ulAction": 0}
        asked = values | {"lpBuffer": None, "dwSize": 0}
        _call(tokens, dialogue, QM2QM, 0, asked={"lpRemoteReadDesc": asked}, answered={"lpRemoteReadDesc": values})
    return dialogue


def _management(tokens):
    dialogue = _dialogue(tokens, QMMGMT)
    objects = [({"type": 1, "queue": None}, MACHINE_PROPERTY_NAMES)]
    objects += [({"type": 2, "queue": QueueFormat.direct(tokens.direct())}, QUEUE_PROPERTY_NAMES)]
    objects += [({"type": 2, "queue": QueueFormat(idl.DL, {"guid": GUID, "domain": tokens.text()})}, {1: ""})]
    dialogue.call(1, b"zq", b"zq")
    dialogue.fail(dialogue.start(1, b"zq"), 5)
    for what, names in objects:
        _call(tokens, dialogue, QMMGMT, 1, asked={"pObjectFormat": what})
        for wide in (False, True):
            values = {number: _variants(tokens) if wide else Variant(LPWSTR, tokens.text()) for number in names}
            asked = {"pObjectFormat": what, "cp": len(names), "aProp": list(names), "apVar": [Variant(1)] * len(names)}
            _call(tokens, dialogue, QMMGMT, 0, asked=asked, answered={"apVar": list(values.values())})
    return dialogue


def _variants(tokens):
    return Variant(
        VARIANTS, [Variant(LPWSTR, tokens.text()), Variant(BLOB, tokens.octets()), Variant(TEXTS, tokens.hops())]
    )


def _client_calls(tokens):
    dialogue = _dialogue(tokens, QMCOMM)
    for opnum in sorted(opnum for syntax, opnum in METHODS if syntax == QMCOMM):
        _call(tokens, dialogue, QMCOMM, opnum)
    dialogue.call(1, b"zq", b"zq")
    dialogue.fail(dialogue.start(1, b"zq"), 5)
    return dialogue


def _endpoint_mapper(tokens):
    dialogue = _dialogue(tokens, EPM)
    _call(tokens, dialogue, EPM, 3, answered={"towers": (4, [tokens.octets()])})
    return dialogue


def _session(tokens):
    """Return a session of the binary protocol: messages and acknowledgements of both sides, and bytes of no packet."""
    dialogue = Dialogue()
    ask, answer = (
        layouts.EstablishConnection(GUID, GUID, 1000, padding=(tokens.octets() * 64)[:512]).encode() for _ in "ab"
    )
    parameters = layouts.ConnectionParameters(500, 20_000, 64).encode()
    for side, packet in ((CLIENT, ask), (SERVER, answer), (CLIENT, parameters), (SERVER, parameters)):
        dialogue.raw(side, packet)
    for side in (CLIENT, SERVER):
        for packet in (*_packets(tokens), *_reports(tokens), *_order_acks(tokens)):
            if packet.session is not None:
                packet.session = packet.session[: layouts.SESSION_HEADER_BYTES]
            dialogue.raw(side, packet.bytes())
        dialogue.raw(side, sessions.session_ack(tokens.octets()[: layouts.SESSION_HEADER_BYTES]))
        dialogue.raw(side, layouts.internal_packet(7, tokens.octets()))  # of no known type
        dialogue.raw(side, building.Packet(body=tokens.octets(), label=tokens.text(), packet_size=150).bytes())
        dialogue.raw(side, tokens.octets() * 4)
    return dialogue


def _reports(tokens):
    """Yield report messages, whose labels and bodies name queue managers, and administration acknowledgements."""
    text = tokens.text
    for hop in (*tokens.hops(), text()):
        body = building.wide(f"<{text()}>{text()}</{text()}><NEXT HOP> {hop} </NEXT HOP>{text()}")
        yield building.Packet(kind=1, label=f"0e1b:0000004D:03 received by {text()} at {text()}", body=body)
    yield building.Packet(kind=1, label=f"{text()}:0000004D:03 received by {text()}", body=tokens.octets())
    yield building.Packet(kind=1, label=f"4E77:{text()}:03 received by ", body=tokens.octets(), debug=GUID.bytes_le)
    for kind in (0x0002, 0x4000, 0x8003, 0xC123):
        yield building.Packet(kind=kind, label=text(), body=tokens.octets(), manager=GUID.bytes_le)


def _order_acks(tokens):
    """Yield order and final acknowledgements to direct names, whole ones and some with a body that is too short."""
    numbers = struct.pack("<QII", 5, 1, 0)
    message = GUID.bytes_le + struct.pack("<I", 77)
    for kind in (layouts.ORDER_ACK, layouts.ACK_RECEIVE, layouts.NACK_REJECTED, 0xC123):
        for host in (f"OS:{tokens.text()}", f"TCP:{tokens.text()}", f"{tokens.text()}:{tokens.text()}"):
            for body in (numbers + message, numbers + message + tokens.octets(), numbers, tokens.octets()[:16]):
                yield building.Packet(
                    kind=kind, label=layouts.ORDER_LABEL, body=body, extension=tokens.octets(), body_type=0, flags=0,
                    queues=((7, {"name": host + layouts.ORDER_QUEUE}), *((7, {"name": tokens.direct()}) for _ in "ab")),
                    session=tokens.octets(), manager=GUID.bytes_le,
                )  # fmt: skip


def _pings():
    """Yield pings, which have no room for a text: one with its answer, one without, and an answer without a request."""
    for cookie, at, halves in ((1, 0, "both"), (2, 1, "request"), (3, 2, "answer")):
        data = layouts.Ping(cookie, GUID).encode()
        ends = ("10.77.0.2", 50_000), ("10.77.0.1", 3527)
        for late, (source, target) in enumerate((ends, ends[::-1])):
            if halves in ("both", ("request", "answer")[late]):
                udp = struct.pack(">HHHH", source[1], target[1], 8 + len(data), 0) + data
                packet = frames.ipv4(source[0], target[0], udp, protocol=17)
                yield containers.Record(START_NS + at * 10**9 + late * 10**6, frames.ethernet(packet))


def _stray(tokens):
    """Return a connection with a fault, stubs of other layouts, and bytes of no protocol."""
    dialogue = _dialogue(tokens, REMOTEREAD)
    dialogue.fail(dialogue.start(3, b"zq", obj=str(GUID)), 0x1C00001A)
    dialogue.call(3, b"zq", b"zq")
    dialogue.auth = rpc.Auth(10, 6, tokens.octets())
    dialogue.call(3, b"zq", b"zq")
    dialogue.orphan(dialogue.start(7, b"zq"))
    dialogue.raw(0, tokens.octets() * 4)
    return dialogue


def _ntlm(tokens):
    """Return an AUTHENTICATE message ([MS-NLMP] 2.2.1.3) with names of domain, user and workstation."""
    payload, fields = bytearray(), bytearray()
    for value in (b"\1" * 24, b"\1" * 24, tokens.octets(), tokens.octets(), tokens.octets(), b""):
        fields += struct.pack("<HHI", len(value), len(value), 64 + len(payload))
        payload += value
    return b"NTLMSSP\0" + struct.pack("<I", 3) + bytes(fields) + struct.pack("<I", 1) + bytes(payload)


def _kerberos(tokens):
    """Return an AP-REQ (RFC 4120 5.5.1) whose ticket is for a service with a token as name and realm."""

    def der(tag, *parts):
        data = b"".join(parts)
        return bytes([tag]) + (bytes([len(data)]) if len(data) < 128 else b"\x81" + bytes([len(data)])) + data

    text = lambda: der(0x1B, tokens.text().encode())  # noqa: E731
    name = der(0x30, der(0xA0, der(2, b"\2")), der(0xA1, der(0x30, text(), text())))
    ticket = der(0x61, der(0x30, der(0xA0, der(2, b"\5")), der(0xA1, text()), der(0xA2, name)))
    return der(0x6E, der(0x30, der(0xA0, der(2, b"\5")), der(0xA1, der(2, b"\x0e")), der(0xA3, ticket)))
