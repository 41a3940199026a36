"""All methods of both interfaces, both directions, in all encodings, against the test peer's codec."""

from uuid import UUID

import pytest

from peer.idl import QueueFormat
from peer.methods import BY_NAME
from stubs.helpers import BY_METHOD, ENCODINGS, column, peer_stub, single
from udfs.dcerpc.interfaces import QM2QM_INTERFACE, REMOTE_READ_INTERFACE
from udfs.stubs.method_registry import REMOTE_READ_METHODS

HANDLE = bytes.fromhex("01000000a1b2c3d4e5f60718292a2b2c2d2e2f30")
TEXT = HANDLE.hex()
GUID = "00112233-4455-6677-8899-aabbccddeeff"
NULL = bytes(20)

# Method and direction, the peer's arguments, the columns expected. What the vectors cover is not repeated here.
CASES = [
    ("RemoteQMCloseQueue", "request", {"pphContext": HANDLE}, {"context_handle": TEXT}),
    ("RemoteQMCloseQueue", "response", {"pphContext": NULL, "return": 0}, {"hresult": 0}),
    ("RemoteQMCloseCursor", "request", {"hQueue": 3, "hCursor": 4}, {"queue_handle": 3, "cursor_handle": 4}),
    ("RemoteQMCloseCursor", "response", {"return": 0xC00E0007}, {"hresult": 0xC00E0007}),
    ("RemoteQMCancelReceive", "response", {"return": 0xC0000225}, {"hresult": 0xC0000225}),
    ("RemoteQMPurgeQueue", "request", {"hQueue": 0xFFFFFFFE}, {"queue_handle": 0xFFFFFFFE}),
    ("RemoteQMPurgeQueue", "response", {"return": 0}, {"hresult": 0}),
    ("RemoteQMGetQMQMServerPort", "request", {"dwPortType": 1}, {"port_type": 1}),
    ("RemoteQMGetQMQMServerPort", "response", {"return": 2105}, {"returned_port": 2105}),
    ("RemoteQmGetVersion", "request", {}, {}),
    ("R_GetServerPort", "request", {}, {}),
    ("R_GetServerPort", "response", {"return": 2103}, {"returned_port": 2103}),
    ("R_CloseQueue", "request", {"phContext": HANDLE}, {"context_handle": TEXT}),
    ("R_CloseQueue", "response", {"phContext": HANDLE, "return": 0xC00E0007}, {"hresult": 0xC00E0007}),
    ("R_CreateCursor", "request", {"phContext": HANDLE}, {"context_handle": TEXT}),
    ("R_CreateCursor", "response", {"phCursor": 9, "return": 0}, {"cursor_handle": 9, "hresult": 0}),
    ("R_CloseCursor", "request", {"phContext": HANDLE, "hCursor": 9}, {"context_handle": TEXT, "cursor_handle": 9}),
    ("R_CloseCursor", "response", {"return": 0}, {"hresult": 0}),
    ("R_PurgeQueue", "request", {"phContext": NULL}, {}),
    ("R_PurgeQueue", "response", {"return": 0xC0000022}, {"hresult": 0xC0000022}),
    ("R_CancelReceive", "request", {"phContext": HANDLE, "dwRequestId": 7}, {"context_handle": TEXT, "request_id": 7}),
    ("R_CancelReceive", "response", {"return": 0}, {"hresult": 0}),
    ("R_EndReceive", "response", {"return": 0}, {"hresult": 0}),
    ("R_EndTransactionalReceive", "response", {"return": 0}, {"hresult": 0}),
    ("R_MoveMessage", "request",
     {"phContextFrom": HANDLE, "ullContextTo": 2**64 - 1, "LookupId": 2**63, "pTransactionId": bytes(16)},
     {"context_handle": TEXT, "move_context": 2**64 - 1, "lookup_id": 2**63}),
    ("R_MoveMessage", "response", {"return": 0}, {"hresult": 0}),
    ("R_QMEnlistRemoteTransaction", "response", {"return": 0}, {"hresult": 0}),
    ("R_SetUserAcknowledgementClass", "response", {"return": 0xC00E0050}, {"hresult": 0xC00E0050}),
    ("R_StartTransactionalReceive", "response",
     {"pdwArriveTime": 1, "pSequenceId": 2, "pdwNumberOfSections": 0, "ppPacketSections": None, "return": 0xC00E0050},
     {"arrive_time": 1, "sequence_id": 2, "hresult": 0xC00E0050}),
    ("R_StartReceive", "response",
     {"pdwArriveTime": 1, "pSequenceId": 2, "pdwNumberOfSections": 0, "ppPacketSections": [], "return": 0},
     {"arrive_time": 1, "sequence_id": 2, "section_types": [], "section_bytes": [], "section_allocated_bytes": [],
      "packet_bytes": 0, "packet": b"", "hresult": 0}),
]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("name", "direction", "arguments", "expected"), CASES, ids=lambda value: str(value)[:30])
def test_a_method_decodes(name, direction, arguments, expected, encoding):
    ndr64, order = ENCODINGS[encoding]
    stub = peer_stub(name, direction, arguments, ndr64=ndr64, order=order)
    method, big = BY_METHOD[name], order == ">"
    assert single(method, direction, stub, ndr64=ndr64, big=big) == (expected, [])
    assert column(method, direction, [stub], ndr64=ndr64, big=big) == [(expected, [])]


QUEUES = [
    (QueueFormat(0), None, None),
    (QueueFormat(1, UUID(GUID)), f"PUBLIC={GUID}", f"public={GUID}"),
    (QueueFormat(1, UUID(GUID), 0x81), f"PUBLIC={GUID};JOURNAL", f"public={GUID};journal"),
    (QueueFormat(2, {"lineage": UUID(GUID), "uniquifier": 0xAB}, 0x81), f"PRIVATE={GUID}\\000000ab;JOURNAL",
     f"{GUID}\\000000ab;journal"),
    (QueueFormat(3, "OS:Srv1\\PRIVATE$\\Größe"), "DIRECT=OS:Srv1\\PRIVATE$\\Größe", "srv1\\private$\\größe"),
    (QueueFormat(3, "TCP:10.0.0.1\\q", 0x81), "DIRECT=TCP:10.0.0.1\\q;JOURNAL", "10.0.0.1\\q;journal"),
    (QueueFormat(3, "OS:h\\SYSTEM$;DEADXACT", 0x83), "DIRECT=OS:h\\SYSTEM$;DEADXACT", "h\\system$;deadxact"),
    (QueueFormat(3, "HTTP://Host/msmq/Q"), "DIRECT=HTTP://Host/msmq/Q", "direct=http://host/msmq/q"),
    (QueueFormat(3, None), None, None),
    (QueueFormat(3, ""), "DIRECT=", None),
    (QueueFormat(4, UUID(GUID), 0x83), f"MACHINE={GUID};DEADXACT", f"machine={GUID};deadxact"),
    (QueueFormat(4, UUID(GUID), 0x82), f"MACHINE={GUID};DEADLETTER", f"machine={GUID};deadletter"),
    (QueueFormat(5, UUID(GUID), 0x84), f"CONNECTOR={GUID};XACTONLY", f"connector={GUID};xactonly"),
    (QueueFormat(6, {"guid": UUID(GUID), "domain": "Corp"}), f"DL={GUID}@Corp", f"dl={GUID}@corp"),
    (QueueFormat(6, {"guid": UUID(GUID), "domain": None}), f"DL={GUID}", f"dl={GUID}"),
    (QueueFormat(7, {"address": 0x010203E0, "port": 80}), "MULTICAST=224.3.2.1:80", "multicast=224.3.2.1:80"),
    (QueueFormat(7, {"address": 0xE0030201, "port": 80}), "MULTICAST=224.3.2.1:80", "multicast=224.3.2.1:80"),
    (QueueFormat(8, "OS:h\\q;sub", 5), "DIRECT=OS:h\\q;sub", "h\\q;sub"),
]  # fmt: skip
TAIL = {
    "dwAccess": 1, "dwShareMode": 0, "pClientId": UUID(GUID), "fNonRoutingServer": 0, "Major": 255, "Minor": 1,
    "BuildNumber": 65535, "fWorkgroup": 1,
}  # fmt: skip


def _opened(queue_format, name, queue):
    expected = {
        "queue_format_type": queue_format.kind, "queue_format_name": name, "queue": queue, "access": 1, "share_mode": 0,
        "client_id": GUID, "non_routing_server": False, "version_major": 255, "version_minor": 1,
        "build_number": 65535, "workgroup": True,
    }  # fmt: skip
    return {key: value for key, value in expected.items() if value is not None}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("method", ["R_OpenQueue", "R_OpenQueueForMove"])
def test_all_arms_of_a_queue_format_in_one_column(method, encoding):
    ndr64, order = ENCODINGS[encoding]
    stubs = [
        peer_stub(method, "request", {"pQueueFormat": queue_format, **TAIL}, ndr64=ndr64, order=order)
        for queue_format, _, _ in QUEUES
    ]
    expected = [(_opened(*queue), []) for queue in QUEUES]
    assert column(BY_METHOD[method], "request", stubs, ndr64=ndr64, big=order == ">") == expected
    for stub, row in zip(stubs, expected, strict=True):
        assert single(BY_METHOD[method], "request", stub, ndr64=ndr64, big=order == ">") == row


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_queue_format_after_a_token_of_any_size(encoding):
    ndr64, order = ENCODINGS[encoding]
    stubs, expected = [], []
    for size, (queue_format, name, _) in enumerate(QUEUES):
        arguments = {
            "pTransactionId": bytes(15) + b"\x01", "cbPropagationToken": size, "pbPropagationToken": b"x" * size,
            "pQueueFormat": queue_format,
        }  # fmt: skip
        stubs.append(peer_stub("R_QMEnlistRemoteTransaction", "request", arguments, ndr64=ndr64, order=order))
        row = {
            "transaction_id": "00000000-0000-0000-0000-000000000001", "propagation_token_bytes": size,
            "queue_format_type": queue_format.kind, "queue_format_name": name,
        }  # fmt: skip
        expected.append(({key: value for key, value in row.items() if value is not None}, []))
    method = BY_METHOD["R_QMEnlistRemoteTransaction"]
    assert column(method, "request", stubs, ndr64=ndr64, big=order == ">") == expected


def test_the_tables_name_every_method_of_both_interfaces():
    for interface in (QM2QM_INTERFACE, REMOTE_READ_INTERFACE):
        methods = REMOTE_READ_METHODS[interface.name]
        unused = {1} if interface is REMOTE_READ_INTERFACE else set()
        assert methods.keys() == set(range(len(interface.methods))) - unused
        for opnum, method in methods.items():
            assert method.opnum == opnum
            assert method.name == interface.methods[opnum]
            assert method.name in BY_NAME
