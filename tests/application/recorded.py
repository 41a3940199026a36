"""A capture in which messages of all frameworks are read by RPC, and are on their way between queue managers."""

import framework_messages as written
from messages.building import Packet, pad
from pcapgen import containers
from pcapgen.conversation import CLIENT, SERVER, Flow, records, segments
from pcapgen.model import Dialogue
from pcapgen.sessions import PORT
from peer.methods import REMOTEREAD
from peer.transfers import layouts
from privacy.redaction import planted

FAILED = written.NSB_HEADERS | written.NSB_FAILURE
# Label, extension, body, body type.
MESSAGES = [
    ("nservicebus", written.nservicebus(FAILED), written.BODY_XML, 0),
    ("rebus", written.json_extension(written.REBUS_HEADERS | written.REBUS_FAILURE), b'{"card":"card 4711"}', 0),
    ("mass transit", written.mass_transit("json"), written.json_envelope(), 0),
    ("wcf", b"", written.datagram(7, written.binary_soap()), 0),
    ("xml", b"", written.BODY_XML, 0),
    ("nrbf", b"", written.order_stream(), 0x300),
    ("variant", b"", "card 4711".encode("utf-16-le"), 8),
    ("cut", written.nservicebus(FAILED)[:600], b"\1\2\3\4", 0),
    ("nothing", b"", b"", 0),
]


def packets():
    return [
        Packet(label=label, extension=extension, body=body, body_type=kind, number=100 + number).bytes()
        for number, (label, extension, body, kind) in enumerate(MESSAGES)
    ]


def capture():
    """Return the bytes of a capture."""
    reads = planted._dialogue(tokens := planted.Tokens("zqxw{:04d}"), REMOTEREAD)
    for raw in map(pad, packets()):
        section = {"SectionBufferType": 0, "SectionSizeAlloc": len(raw), "SectionSize": len(raw), "pSectionBuffer": raw}
        answered = {"pdwNumberOfSections": 1, "ppPacketSections": [section]}
        planted._call(tokens, reads, REMOTEREAD, 7, asked={"ulAction": 0}, answered=answered)
    session = Dialogue()
    hello = layouts.EstablishConnection(planted.GUID, planted.GUID, 1000, padding=bytes(512)).encode()
    parameters = layouts.ConnectionParameters(500, 20_000, 64).encode()
    for side, packet in ((CLIENT, hello), (SERVER, hello), (CLIENT, parameters), (SERVER, parameters)):
        session.raw(side, packet)
    for packet in packets():
        session.raw(CLIENT, pad(packet))
    flows = (
        Flow(client="10.77.0.2", server="10.77.0.1"),
        Flow(client="10.77.0.3", server="10.77.0.1", server_port=PORT),
    )
    taken = [
        record
        for flow, dialogue in zip(flows, (reads, session), strict=True)
        for record in records(flow, segments(dialogue.script))
    ]
    return containers.pcap(taken).data
