"""Every stub vector of the fact sheet, field by field: both decoders, NDR and NDR64, both byte orders."""

import pytest

from stubs.helpers import BY_METHOD, ENCODINGS, VECTORS, column, peer_stub, peer_values, single

BUFFER = bytes.fromhex("030a11181f262d343b424950575e656c737a81888f969da4abb2b9c0c7ced5dce3eaf1f8ff")
READ = "00000000125d7c0baa770e4c9f3100112233aabb"
QUEUE = "00000000701f6e9a1d3c524b8e0a5d1c2b3a4f60"
CLIENT = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
UOW = "a3a2a1a0-a5a4-a7a6-a8a9-aaabacadaeaf"
FOR_EVER = 0xFFFFFFFF
ORDERS = {
    "queue_format_type": 3,
    "queue_format_name": "DIRECT=OS:srv1\\private$\\orders",
    "queue": "srv1\\private$\\orders",
}
DESC = {"queue_handle": 0x1C, "cursor_handle": 0, "queue_descriptor": 0x1C, "request_id": 7}
START = {
    "context_handle": QUEUE, "lookup_id": 0, "cursor_handle": 0, "action": 0, "timeout_ms": 30000, "request_id": 0x51,
    "max_body_bytes": 0x400000, "max_compound_message_bytes": 0x400000,
}  # fmt: skip
TAIL = {
    "access": 1, "share_mode": 0, "client_id": CLIENT, "non_routing_server": True, "version_major": 6,
    "version_minor": 1, "build_number": 7601, "workgroup": False,
}  # fmt: skip
MESSAGE = {"packet_bytes": 37, "packet": BUFFER}

EXPECTED = {
    ("RemoteQMStartReceive", "request", "receive ok"): {
        **DESC, "action": 0, "timeout_ms": FOR_EVER, "arrive_time": 0,
    },
    ("RemoteQMStartReceive", "response", "receive ok"): {
        **DESC, **MESSAGE, "remote_read_handle": READ, "action": 0, "timeout_ms": FOR_EVER, "arrive_time": 0x4F5A6B7C,
        "hresult": 0,
    },
    ("RemoteQMStartReceive", "response", "receive timeout"): {
        **DESC, "action": 0, "timeout_ms": 1000, "arrive_time": 0, "hresult": 0xC00E001B,
    },
    ("RemoteQMStartReceive2", "request", "receive2 ok"): {
        **DESC, "sequence_id": 0, "action": 0, "timeout_ms": FOR_EVER, "arrive_time": 0,
    },
    ("RemoteQMStartReceive2", "response", "receive2 ok"): {
        **DESC, **MESSAGE, "remote_read_handle": READ, "sequence_id": 0x1000000000005, "action": 0,
        "timeout_ms": FOR_EVER, "arrive_time": 2, "hresult": 0,
    },
    ("RemoteQMStartReceiveByLookupId", "request", "lookup ok"): {
        **DESC, "lookup_id": 0x1000000000005, "sequence_id": 0, "action": 0x40000020, "timeout_ms": 0, "arrive_time": 0,
    },
    ("RemoteQMEndReceive", "request", "ack"): {"remote_read_handle": READ, "ack": 2},
    ("RemoteQMEndReceive", "response", "ack"): {"hresult": 0},
    ("RemoteQMOpenQueue", "request", "open"): {
        "client_id": CLIENT, "mqs": 0, "queue_handle": 0x1C, "queue_descriptor": 0x1C, "open_context": 0x1C,
    },
    ("RemoteQMOpenQueue", "response", "open"): {"context_handle": QUEUE, "hresult": 0},
    ("RemoteQMCancelReceive", "request", "cancel"): {"queue_handle": 0x1C, "queue_descriptor": 0x1C, "request_id": 7},
    ("RemoteQmGetVersion", "response", "version"): {"version_major": 6, "version_minor": 1, "build_number": 7601},
    ("R_OpenQueue", "request", "open qf3"): {**ORDERS, **TAIL},
    ("R_OpenQueue", "request", "open qf2"): {
        **TAIL, "queue_format_type": 2, "queue_format_name": f"PRIVATE={CLIENT}\\00000009",
        "queue": f"{CLIENT}\\00000009",
    },
    ("R_OpenQueue", "request", "open qf8"): {
        **TAIL, "queue_format_type": 6, "queue_format_name": "DL=12345678-9abc-def0-1122-334455667788",
        "queue": "dl=12345678-9abc-def0-1122-334455667788",
    },
    ("R_OpenQueue", "request", "open qf9"): {
        **TAIL, "queue_format_type": 7, "queue_format_name": "MULTICAST=232.224.2.1:8001",
        "queue": "multicast=232.224.2.1:8001",
    },
    ("R_OpenQueue", "request", "open qf10"): {
        **TAIL, "queue_format_type": 8, "queue_format_name": "DIRECT=OS:srv1\\orders;sub1",
        "queue": "srv1\\orders;sub1",
    },
    ("R_OpenQueue", "response", "open qf3"): {"context_handle": QUEUE},
    ("R_StartReceive", "request", "two sections"): START,
    ("R_StartReceive", "response", "two sections"): {
        "arrive_time": 0x4F5A6B7C, "sequence_id": 0x1000000000005, "section_types": [1, 2], "section_bytes": [37, 6],
        "section_allocated_bytes": [100, 6], "packet_bytes": 43, "packet": BUFFER + b"trail!", "hresult": 0,
    },
    ("R_StartReceive", "response", "one section"): {
        **MESSAGE, "arrive_time": 0x4F5A6B7C, "sequence_id": 0x1000000000005, "section_types": [0],
        "section_bytes": [37], "section_allocated_bytes": [37], "hresult": 0,
    },
    ("R_StartReceive", "response", "failed"): {"arrive_time": 0, "sequence_id": 0, "hresult": 0xC00E001B},
    ("R_EndReceive", "request", "end"): {"context_handle": QUEUE, "ack": 2, "request_id": 0x51},
    ("R_MoveMessage", "request", "move"): {
        "context_handle": QUEUE, "move_context": 0x4C21A8, "lookup_id": 5, "transaction_id": UOW,
    },
    ("R_OpenQueueForMove", "response", "openmove"): {"move_context": 0x4C21A8, "context_handle": READ},
    ("R_QMEnlistRemoteTransaction", "request", "enlist"): {
        "transaction_id": UOW, "propagation_token_bytes": 37, "queue_format_type": 3,
        "queue_format_name": ORDERS["queue_format_name"],
    },
    ("R_StartTransactionalReceive", "request", "xreceive"): {**START, "transaction_id": UOW},
    ("R_SetUserAcknowledgementClass", "request", "ackclass"): {
        "context_handle": QUEUE, "lookup_id": 5, "acknowledgement_class": 0xC004,
    },
    ("R_EndTransactionalReceive", "request", "endx"): {"context_handle": QUEUE, "ack": 1, "request_id": 0x51},
}  # fmt: skip


def _id(vector):
    return " ".join(vector[name] for name in ("method", "direction", "syntax", "note"))


def _of(vector):
    return BY_METHOD[vector["method"]], vector["direction"], bytes.fromhex(vector["hex"])


def test_every_expectation_has_its_vector():
    assert {(v["method"], v["direction"], v["note"]) for v in VECTORS} == EXPECTED.keys()
    assert len(VECTORS) == 39


@pytest.mark.parametrize("vector", VECTORS, ids=_id)
def test_a_worked_stub_decodes_field_by_field(vector):
    method, direction, stub = _of(vector)
    expected = (EXPECTED[vector["method"], direction, vector["note"]], [])
    ndr64 = vector["syntax"] == "NDR64"
    assert single(method, direction, stub, ndr64=ndr64) == expected
    assert column(method, direction, [stub, None, stub], ndr64=ndr64) == [expected, ({}, []), expected]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("vector", [v for v in VECTORS if v["syntax"] == "NDR20"], ids=_id)
def test_the_same_values_decode_alike_in_every_encoding(vector, encoding):
    method, direction, stub = _of(vector)
    ndr64, order = ENCODINGS[encoding]
    other = peer_stub(method.name, direction, peer_values(method.name, direction, stub), ndr64=ndr64, order=order)
    expected = dict(EXPECTED[vector["method"], direction, vector["note"]])
    assert single(method, direction, other, ndr64=ndr64, big=order == ">") == (expected, [])
    # Both orders in one column: the byte order is a property of the row.
    little = peer_stub(method.name, direction, peer_values(method.name, direction, stub), ndr64=ndr64, order="<")
    both = column(method, direction, [little, other], ndr64=ndr64, big=[False, order == ">"])
    assert both == [(expected, []), (expected, [])]


@pytest.mark.parametrize("vector", VECTORS, ids=_id)
def test_every_prefix_of_a_stub_is_flagged(vector):
    method, direction, stub = _of(vector)
    ndr64 = vector["syntax"] == "NDR64"
    prefixes = [stub[:size] for size in range(len(stub))]
    decoded = column(method, direction, prefixes, ndr64=ndr64)
    for prefix, (values, errors) in zip(prefixes, decoded, strict=True):
        assert [code for code, _, _ in errors] == ["truncated"], (len(prefix), errors)
        assert (values, errors) == single(method, direction, prefix, ndr64=ndr64)


@pytest.mark.parametrize("vector", VECTORS, ids=_id)
def test_trailing_bytes_are_flagged_but_not_padding(vector):
    method, direction, stub = _of(vector)
    ndr64 = vector["syntax"] == "NDR64"
    pad = -len(stub) % 4
    padded, longer, much = column(
        method, direction, [stub + bytes(pad), stub + bytes(pad + 1), stub + bytes(64)], ndr64=ndr64
    )
    assert padded[1] == []
    assert longer[1] == much[1] == [("malformed", "end of stub", len(stub))]
    assert longer[0] == much[0] == padded[0] == EXPECTED[vector["method"], direction, vector["note"]]
