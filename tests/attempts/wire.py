"""What clients of the reference queue manager said, as a capture: by pcapgen, stubs by the peer's codec."""

from __future__ import annotations

from uuid import UUID

from attempts.broker import Broker
from attempts.telling import SERVER as ADDRESS
from pcapgen import frames, rpc
from pcapgen.containers import Record, pcap
from pcapgen.conversation import CLIENT, SERVER, Flow, Segment, handshake, records
from peer.idl import QueueFormat
from peer.packets import Message
from stubs.helpers import peer_stub
from stubs.test_methods import TAIL

CONTEXTS = {"RemoteRead": 0, "qm2qm": 1, "qmcomm": 2}
NULL = bytes(20)
SENT_AT = 1_600_000_000
SENDER = UUID("5f0c2b1a-9d3e-4c77-8a10-000102030405")


def capture_of(broker: Broker) -> bytes:
    """A pcap file of everything."""
    return pcap([record for _, record in records_of(broker)]).data


def records_of(broker: Broker) -> list[tuple[str, Record]]:
    """All packets in order of time, each with its connection's name.

    Each connection that ended has an RST, and last of all comes a packet of the application's.
    """
    taken = []
    for port, (name, each) in enumerate(sorted(broker.connections.items()), 50_000):
        flow = Flow(client=f"10.0.1.{each['number'] % 250}", client_port=port, server=ADDRESS)
        taken += [(name, record) for record in records(flow, _segments(broker, name, each))]
    return sorted(taken, key=lambda entry: entry[1].time_ns)


def ports(broker: Broker) -> dict[str, int]:
    """The client's port of each connection."""
    return {name: port for port, name in enumerate(sorted(broker.connections), 50_000)}


def _segments(broker: Broker, name: str, each: dict) -> list[Segment]:
    begin = each["at"] * 1000
    contexts = [rpc.Context(number, uuid) for number, uuid in enumerate((rpc.REMOTE_READ, rpc.QM2QM, rpc.QMCOMM))]
    bound = {"group": each["number"]}
    said = [
        (begin + 400_000, CLIENT, rpc.bind(contexts, 1, group=0)),
        (begin + 500_000, SERVER, rpc.bind_ack(contexts, 1, **bound)),
    ]
    for number, call in enumerate((call for call in broker.calls if call["connection_id"] == name), 2):
        context = CONTEXTS[call["protocol"]]
        (request,) = rpc.fragments(rpc.REQUEST, number, request_of(call), context=context, opnum=call["opnum"])
        said.append((call["requested_at"] * 1000, CLIENT, request))
        if call.get("responded_at") is None:
            continue
        if call["outcome"] == "fault":
            response = rpc.fault(number, call["fault_status"], context=context)
        else:
            (response,) = rpc.fragments(
                rpc.RESPONSE, number, response_of(call, broker.brought.get(call["call_key"])), context=context
            )
        said.append((call["responded_at"] * 1000, SERVER, response))
    out, sent = handshake(begin), [0, 0]
    for at, side, data in sorted(said, key=lambda entry: entry[0]):
        out.append(Segment(at, side, sent[side], sent[1 - side], frames.ACK | frames.PSH, data))
        sent[side] += len(data)
    if each["closed"] is not None:
        out.append(Segment(each["closed"] * 1000, CLIENT, sent[CLIENT], None, frames.RST))
    elif name == "app":
        out.append(Segment(broker.now * 1000, CLIENT, sent[CLIENT], sent[SERVER], frames.ACK))
    return out


def _context(call: dict) -> bytes:
    return bytes.fromhex(call["context_handle"])


def _desc(call: dict, packet: bytes | None = None) -> dict:
    return {
        "hRemoteQueue": call["queue_handle"], "hCursor": 0, "ulAction": call["action"], "ulTimeout": call["timeout_ms"],
        "dwSize": 0 if packet is None else len(packet), "dwQueue": call["queue_handle"],
        "dwRequestID": call["request_id"], "Reserved": 1, "dwArriveTime": SENT_AT, "eAckNack": 0, "lpBuffer": packet,
    }  # fmt: skip


def _receive(call: dict) -> dict:
    unit = UUID(call["transaction_id"]).bytes_le if "transaction_id" in call else bytes(16)
    return {
        "phContext": _context(call), "LookupId": call["lookup_id"], "hCursor": 0, "ulAction": call["action"],
        "ulTimeout": call["timeout_ms"], "dwRequestId": call["request_id"], "dwMaxBodySize": 1000,
        "dwMaxCompoundMessageSize": 1000, "pTransactionId": unit,
    }  # fmt: skip


def request_of(call: dict) -> bytes:
    """The request's stub."""
    queue = {"pQueueFormat": QueueFormat.direct(f"OS:{call['queue']}")} if call.get("queue") else {}
    licence = {"pLicGuid": SENDER, "dwMQS": 1}
    method, values = {
        ("RemoteRead", 2): ("R_OpenQueue", lambda: queue | TAIL),
        ("RemoteRead", 3): ("R_CloseQueue", lambda: {"phContext": _context(call)}),
        ("RemoteRead", 6): ("R_PurgeQueue", lambda: {"phContext": _context(call)}),
        ("RemoteRead", 7): ("R_StartReceive", lambda: _receive(call)),
        ("RemoteRead", 8): ("R_CancelReceive", lambda: {
            "phContext": _context(call), "dwRequestId": call["request_id"]}),
        ("RemoteRead", 9): ("R_EndReceive", lambda: _end(call)),
        ("RemoteRead", 10): ("R_MoveMessage", lambda: {
            "phContextFrom": _context(call), "ullContextTo": call["move_context"], "LookupId": call["lookup_id"],
            "pTransactionId": bytes(16)}),
        ("RemoteRead", 11): ("R_OpenQueueForMove", lambda: queue | TAIL | {"dwAccess": 4}),
        ("RemoteRead", 13): ("R_StartTransactionalReceive", lambda: _receive(call)),
        ("RemoteRead", 14): ("R_SetUserAcknowledgementClass", lambda: {
            "phContext": _context(call), "LookupId": call["lookup_id"], "usClass": call["acknowledgement_class"]}),
        ("RemoteRead", 15): ("R_EndTransactionalReceive", lambda: _end(call)),
        ("qm2qm", 0): ("RemoteQMStartReceive", lambda: {"lpRemoteReadDesc": _desc(call)}),
        ("qm2qm", 1): ("RemoteQMEndReceive", lambda: {
            "pphContext": bytes.fromhex(call["remote_read_handle"]), "dwAck": call["ack"]}),
        ("qm2qm", 2): ("RemoteQMOpenQueue", lambda: licence | {
            "hQueue": call["queue_handle"], "pQueue": call["queue_descriptor"], "dwpContext": call["open_context"]}),
        ("qm2qm", 3): ("RemoteQMCloseQueue", lambda: {"pphContext": _context(call)}),
        ("qm2qm", 5): ("RemoteQMCancelReceive", lambda: {
            "hQueue": call["queue_handle"], "pQueue": call["queue_handle"], "dwRequestID": call["request_id"]}),
        ("qm2qm", 6): ("RemoteQMPurgeQueue", lambda: {"hQueue": call["queue_handle"]}),
        ("qm2qm", 9): ("RemoteQMStartReceive2", lambda: _desc2(call)),
        ("qm2qm", 10): ("RemoteQMStartReceiveByLookupId", lambda: _desc2(call) | {"LookupId": call["lookup_id"]}),
        ("qmcomm", 2): ("R_QMOpenRemoteQueue", lambda: queue | licence | {
            "dwCallingProcessID": 1, "dwDesiredAccess": 1, "dwShareMode": 0}),
    }[call["protocol"], call["opnum"]]  # fmt: skip
    return peer_stub(method, "request", values(), ndr64=False, order="<")


def _end(call: dict) -> dict:
    return {"phContext": _context(call), "dwAck": call["ack"], "dwRequestId": call["request_id"]}


def _desc2(call: dict) -> dict:
    return {"lpRemoteReadDesc2": {"pRemoteReadDesc": _desc(call), "SequentialId": 0}}


def response_of(call: dict, brought: int | None) -> bytes:
    """The response's stub; ``brought`` is the number of the message that comes with it."""
    message = None if brought is None else Message(b"body", label=call.get("label", ""), number=brought, sent=SENT_AT)
    hresult = {"return": call.get("hresult", 0)}
    handle = bytes.fromhex(call["context_handle"]) if "context_handle" in call else NULL
    if call["protocol"] == "RemoteRead":
        method, values = _remote_read_response(call, message, handle)
    elif call["protocol"] == "qmcomm":
        numbers = dict.fromkeys(("pdwContext", "dwpQueue", "phQueue"), call["queue_handle"])
        method, values = "R_QMOpenRemoteQueue", {"pphContext": handle} | numbers
    else:
        method, values = _qm2qm_response(call, message, handle)
    return peer_stub(method, "response", values | hresult, ndr64=False, order="<")


def _remote_read_response(call: dict, message: Message | None, handle: bytes) -> tuple[str, dict]:
    opnum = call["opnum"]
    names = {3: "R_CloseQueue", 6: "R_PurgeQueue", 8: "R_CancelReceive", 9: "R_EndReceive", 10: "R_MoveMessage",
             14: "R_SetUserAcknowledgementClass", 15: "R_EndTransactionalReceive"}  # fmt: skip
    if opnum in names:
        return names[opnum], {"phContext": NULL}
    if opnum == 2:
        return "R_OpenQueue", {"pphContext": handle}
    if opnum == 11:
        return "R_OpenQueueForMove", {"pphContext": handle, "pMoveContext": call["move_context"]}
    sections = [
        {"SectionBufferType": kind, "SectionSizeAlloc": size, "SectionSize": len(data), "pSectionBuffer": data}
        for kind, size, data in ([] if message is None else message.sections(1000))
    ]
    return "R_StartReceive", {
        "pdwArriveTime": SENT_AT, "pSequenceId": call.get("sequence_id", 0), "pdwNumberOfSections": len(sections),
        "ppPacketSections": sections or None,
    }  # fmt: skip


def _qm2qm_response(call: dict, message: Message | None, handle: bytes) -> tuple[str, dict]:
    opnum = call["opnum"]
    names = {1: "RemoteQMEndReceive", 3: "RemoteQMCloseQueue", 5: "RemoteQMCancelReceive", 6: "RemoteQMPurgeQueue"}
    if opnum in names:
        return names[opnum], {"pphContext": NULL}
    if opnum == 2:
        return "RemoteQMOpenQueue", {"phContext": handle}
    desc = _desc(call, None if message is None else message.packet())
    held = bytes.fromhex(call["remote_read_handle"]) if "remote_read_handle" in call else NULL
    if opnum == 0:
        return "RemoteQMStartReceive", {"pphContext": held, "lpRemoteReadDesc": desc}
    both = {"pRemoteReadDesc": desc, "SequentialId": call.get("sequence_id", 0)}
    name = "RemoteQMStartReceive2" if opnum == 9 else "RemoteQMStartReceiveByLookupId"
    return name, {"pphContext": held, "lpRemoteReadDesc2": both}
