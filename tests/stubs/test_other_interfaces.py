"""qmmgmt, qmcomm and qmcomm2: vectors of the fact sheet, every method by the peer's codecs, known deviations."""

import struct
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from peer.idl import QueueFormat, Variant
from peer.ndr import CTX, NULL_HANDLE, U32, StubWriter
from stubs import buffers
from stubs.helpers import BY_METHOD, ENCODINGS, OTHER_VECTORS, column, peer_stub, peer_values, single

CLIENT = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
OPEN = "00000000125d7c0baa770e4c9f3100112233aabb"
ORDERS = {
    "queue_format_type": 3,
    "queue_format_name": "DIRECT=OS:srv1\\private$\\orders",
    "queue": "srv1\\private$\\orders",
}
NAME = "srv1\\private$\\orders"
NOTHING = {"vt": 1, "value_decimal": None, "value_text": None, "value_binary": None, "value_texts": None,
           "value_json": None}  # fmt: skip


def variant(vt, **value):
    return NOTHING | {"vt": vt} | value


EXPECTED = {
    ("R_QMMgmtGetInfo", "request", "machine: private queues + DS server"): {
        "object_type": "machine", "property_ids": [2, 3],
    },
    ("R_QMMgmtGetInfo", "response", "machine: private queues + DS server"): {
        "values": [variant(0x101F, value_texts=[NAME, "srv1\\private$\\inv"]), NOTHING], "hresult": 0,
    },
    ("R_QMMgmtGetInfo", "request", "queue: state,count,bytes"): {
        "object_type": "queue", **ORDERS, "property_ids": [11, 7, 8],
    },
    ("R_QMMgmtGetInfo", "response", "queue: state,count,bytes"): {
        "values": [variant(31, value_text="CONNECTED"), variant(19, value_decimal=12), variant(19, value_decimal=4096)],
        "hresult": 0,
    },
    ("R_QMMgmtAction", "request", "pause"): {"object_type": "queue", **ORDERS, "action_text": "PAUSE"},
    ("R_QMMgmtAction", "request", "connect"): {"object_type": "machine", "action_text": "connect"},
    ("R_QMGetRemoteQueueName", "request", "name ok"): {"queue_descriptor": 5},
    ("R_QMGetRemoteQueueName", "response", "name ok"): {"remote_queue_name": NAME, "hresult": 0},
    ("R_QMOpenRemoteQueue", "request", "open direct"): {
        **ORDERS, "access": 1, "share_mode": 0, "client_id": CLIENT, "mqs": 0x400,
    },
    ("R_QMOpenRemoteQueue", "request", "open private"): {
        "queue_format_type": 2, "queue_format_name": f"PRIVATE={CLIENT}\\00000009", "queue": f"{CLIENT}\\00000009",
        "access": 0x20, "share_mode": 1, "client_id": CLIENT, "mqs": 0x300,
    },
    ("R_QMOpenRemoteQueue", "response", "open direct"): {
        "context_handle": OPEN, "open_context": 0x1C, "queue_descriptor": 0x1C, "queue_handle": 0x1C, "hresult": 0,
    },
    ("rpc_QMOpenQueueInternal", "request", "openinternal remote"): {
        **ORDERS, "access": 1, "share_mode": 0, "queue_handle": 0, "queue_descriptor": 0, "client_id": CLIENT,
        "client_name": "CLI1", "open_context": 0,
    },
    ("rpc_QMOpenQueueInternal", "response", "openinternal remote"): {
        "remote_queue_name": NAME, "queue_manager_context": 0, "hresult": 0,
    },
}  # fmt: skip


def agree(method, direction, stub, *, ndr64, big=False):
    """Decode one stub with both decoders and return their common result."""
    (row,) = column(method, direction, [stub], ndr64=ndr64, big=big)
    assert row == single(method, direction, stub, ndr64=ndr64, big=big)
    return row


def _id(vector):
    return " ".join(vector[name] for name in ("method", "direction", "syntax", "note"))


def test_every_expectation_has_its_vector():
    assert {(v["method"], v["direction"], v["note"]) for v in OTHER_VECTORS} == EXPECTED.keys()
    assert len(OTHER_VECTORS) == 17


@pytest.mark.parametrize("vector", OTHER_VECTORS, ids=_id)
def test_a_worked_stub_decodes_field_by_field(vector):
    method, direction = BY_METHOD[vector["method"]], vector["direction"]
    stub, ndr64 = bytes.fromhex(vector["hex"]), vector["syntax"] == "NDR64"
    expected = EXPECTED[vector["method"], direction, vector["note"]], []
    assert agree(method, direction, stub, ndr64=ndr64) == expected
    rows = column(method, direction, [stub, None, stub], ndr64=ndr64)
    assert rows == [expected, ({}, []), expected]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("vector", [v for v in OTHER_VECTORS if v["syntax"] == "NDR20"], ids=_id)
def test_the_same_values_decode_alike_in_every_encoding(vector, encoding):
    name, direction = vector["method"], vector["direction"]
    ndr64, order = ENCODINGS[encoding]
    values = peer_values(name, direction, bytes.fromhex(vector["hex"]))
    stub = peer_stub(name, direction, values, ndr64=ndr64, order=order)
    expected = EXPECTED[name, direction, vector["note"]], []
    assert agree(BY_METHOD[name], direction, stub, ndr64=ndr64, big=order == ">") == expected


@pytest.mark.parametrize("vector", OTHER_VECTORS, ids=_id)
def test_every_prefix_and_every_longer_stub_is_flagged(vector):
    method, direction = BY_METHOD[vector["method"]], vector["direction"]
    stub, ndr64 = bytes.fromhex(vector["hex"]), vector["syntax"] == "NDR64"
    for size in range(len(stub)):
        _, errors = agree(method, direction, stub[:size], ndr64=ndr64)
        # Two octets left where lpwszAction belongs are a lone character (doubt D1), flagged as well.
        assert [code for code, _, _ in errors] in (["truncated"], ["malformed"]), size
        assert errors[0][0] == "truncated" or errors[0][1] == "lpwszAction (one character)"
    longer = agree(method, direction, stub + bytes(64), ndr64=ndr64)
    assert longer[1] == [("malformed", "end of stub", len(stub))]


HANDLE = bytes(4) + UUID(CLIENT).bytes_le
CTX_HEX = HANDLE.hex()
CASES = [
    ("R_QMCloseRemoteQueueContext", "request", (CTX, HANDLE), {"context_handle": CTX_HEX}),
    ("R_QMCloseRemoteQueueContext", "response", (CTX, NULL_HANDLE), {}),
    ("R_QMCreateRemoteCursor", "response", (U32, 7, U32, 0), {"cursor_handle": 7, "hresult": 0}),
    ("rpc_ACCloseHandle", "request", (CTX, HANDLE), {"context_handle": CTX_HEX}),
    ("rpc_ACCloseHandle", "response", (CTX, NULL_HANDLE, U32, 0xC00E0007), {"hresult": 0xC00E0007}),
    ("rpc_ACCloseCursor", "request", (CTX, HANDLE, U32, 11), {"context_handle": CTX_HEX, "cursor_handle": 11}),
    ("rpc_ACCloseCursor", "response", (U32, 0), {"hresult": 0}),
    ("rpc_ACSetCursorProperties", "request", (CTX, HANDLE, U32, 11, U32, 12),
     {"context_handle": CTX_HEX, "cursor_handle": 11, "remote_cursor_handle": 12}),
    ("rpc_ACPurgeQueue", "request", (CTX, HANDLE), {"context_handle": CTX_HEX}),
    ("rpc_ACPurgeQueue", "response", (U32, 0xC00E0025), {"hresult": 0xC00E0025}),
    ("R_QMGetRTQMServerPort", "request", (U32, 2), {"port_type": 2}),
    ("R_QMGetRTQMServerPort", "response", (U32, 2105), {"returned_port": 2105}),
    ("rpc_ACCreateCursorEx", "request", (CTX, HANDLE, U32, 1, U32, 2, U32, 3), {"context_handle": CTX_HEX}),
    ("rpc_ACCreateCursorEx", "response", (U32, 1, U32, 2, U32, 3, U32, 0),
     {"cursor_handle": 1, "queue_handle": 2, "queue_descriptor": 3, "hresult": 0}),
    # The others: the HRESULT stands last, nothing before it is looked into.
    ("R_QMDeleteObject", "request", (U32, 1, U32, 2, U32, 3), {}),
    ("R_QMDeleteObject", "response", (U32, 0xC00E0025), {"hresult": 0xC00E0025}),
    ("R_QMCommitTransaction", "response", (CTX, HANDLE, U32, 0), {"hresult": 0}),
    ("R_QMQueryQMRegistryInternal", "response", (CTX, HANDLE, CTX, HANDLE, U32, 5), {"hresult": 5}),
    ("rpc_ACSendMessageEx", "response", (U32, 0, U32, 0), {"hresult": 0}),
    ("QMSendMessageInternalEx", "request", (CTX, HANDLE), {}),
]  # fmt: skip


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("name", "direction", "parts", "expected"), CASES, ids=lambda value: str(value)[:30])
def test_a_method_decodes(name, direction, parts, expected, encoding):
    ndr64, order = ENCODINGS[encoding]
    writer = StubWriter(ndr64=ndr64, order=order)
    for codec, value in zip(parts[::2], parts[1::2], strict=True):
        codec.write(writer, value)
    stub = bytes(writer.data)
    assert agree(BY_METHOD[name], direction, stub, ndr64=ndr64, big=order == ">") == (expected, [])


@pytest.mark.parametrize(
    ("stub", "error"),
    [(b"", "truncated"), (b"\0\0\0", "truncated"), (bytes(6), "malformed")],
)
def test_a_response_that_is_not_looked_into_still_ends_in_an_hresult(stub, error):
    assert agree(BY_METHOD["R_QMDeleteObject"], "response", stub, ndr64=False)[1][0][0] == error


def _transfer(name, buffer, *, ndr64, order, version=2):
    writer = StubWriter(ndr64=ndr64, order=order)
    if name == "request":
        U32.write(writer, 0x77)
    if version == 2:
        writer.construct(buffers.V2, {"old": buffer, "pbFirstInXact": 1, "pbLastInXact": None, "ppXactID": [bytes(20)]})
    else:
        writer.construct(buffers.V1, buffer)
    U32.write(writer, 0x1C)
    return bytes(writer.data)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_zeroed_buffer_of_a_remote_cursor(encoding):
    """Doubt D6; the sizes are those printed in the fact sheet."""
    ndr64, order = ENCODINGS[encoding]
    method, big = BY_METHOD["R_QMCreateRemoteCursor"], order == ">"
    stub = _transfer("cursor", buffers.empty(), ndr64=ndr64, order=order, version=1)
    assert stub[:-4] == bytes(448 if ndr64 else 228)
    assert agree(method, "request", stub, ndr64=ndr64, big=big) == ({"queue_handle": 0x1C}, [])
    assert peer_stub(method.name, "request", {"ptb1": None, "hQueue": 0x1C}, ndr64=ndr64, order=order) == stub


@pytest.mark.parametrize(("kind", "ndr", "ndr64"), [(0, 16, 32), (1, 72, 128), (2, 20, 32)])
def test_buffers_of_nothing_have_the_sizes_of_the_sheet(kind, ndr, ndr64):
    for syntax, size in ((False, ndr + 212), (True, ndr64 + 416)):
        stub = _transfer("cursor", buffers.empty(kind), ndr64=syntax, order="<", version=1)
        assert len(stub) == size + 4
        row = agree(BY_METHOD["R_QMCreateRemoteCursor"], "request", stub, ndr64=syntax)
        assert row == ({"queue_handle": 0x1C}, [])


FORMATS = [None, QueueFormat(3, "OS:h\\q"), QueueFormat(2, {"lineage": UUID(CLIENT), "uniquifier": 9}), QueueFormat(0)]
OCTETS = st.binary(max_size=9)
BOX = st.none() | st.just([None]) | OCTETS.map(lambda octets: [octets])


@st.composite
def _buffers(draw):
    kind = draw(st.integers(0, 2))
    arm = {}
    if kind == 0:
        arm = {
            "pAdminQueueFormat": draw(st.sampled_from(FORMATS)),
            "pResponseQueueFormat": draw(st.sampled_from(FORMATS)),
        }
    elif kind == 1:
        arm = {"RequestTimeout": 1000, "Action": 0x80000000, "Cursor": 5}
        for name in ("Response", "Admin", "Dest", "Ordering"):
            text = draw(st.none() | st.lists(st.integers(0, 65535), max_size=5))
            arm[f"pp{name}FormatName"] = draw(st.sampled_from([None, [None]])) if text is None else [text]
            arm[f"ul{name}FormatNameLen"] = len(text) if text is not None else draw(st.integers(0, 9))
            arm[f"pul{name}FormatNameLenProp"] = draw(st.none() | st.just(9))
    else:
        arm = {"hCursor": 6}
    octet, word, wide = draw(st.none() | st.just(3)), draw(st.none() | st.just(0x55)), draw(BOX)
    title = draw(st.none() | st.just([None]) | OCTETS.map(lambda octets: [2 * octets]))
    body = draw(st.none() | st.just([None]) | OCTETS.map(lambda octets: [(len(octets) + 3, octets)]))
    sized = {}
    if body and body[0]:
        sized = {"ulBodyBufferSizeInBytes": len(body[0][1]), "ulAllocBodyBufferInBytes": body[0][0]}
    pointees = {
        name: value
        for name, value in {
            "ppTitle": title, "ppSenderID": wide, "ppSenderCert": draw(BOX), "ppSymmKeys": draw(BOX),
            "ppSignature": draw(BOX), "ppMsgExtension": draw(BOX), "ppwcsProvName": draw(st.none() | st.just([[1, 2]])),
        }.items() if value is not None
    }  # fmt: skip
    values = buffers.filled(
        buffers.empty(kind, **arm), 4, ppBody=body, pClass=word, pPriority=octet, pSentTime=word, pUow=draw(
            st.none() | st.just(bytes(range(16)))), ppMessageID=draw(st.none() | st.just([bytes(20)])),
        ppCorrelationID=draw(st.none() | st.just([bytes(20)])), ppSrcQMID=draw(st.sampled_from([None, [UUID(CLIENT)]])),
        pulVersion=word, pTrace=octet, bEncrypted=1, **sized, **pointees,
    )  # fmt: skip
    kept = {0: {}, 1: {"timeout_ms": 1000, "action": 0x80000000, "cursor_handle": 5}, 2: {"cursor_handle": 6}}[kind]
    return values, kept


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(_buffers(), min_size=1, max_size=4), st.sampled_from(sorted(ENCODINGS)))
def test_transfer_buffers_of_every_arm_are_used_up(made, encoding):
    ndr64, order = ENCODINGS[encoding]
    method, big = BY_METHOD["rpc_ACReceiveMessageEx"], order == ">"
    stubs = [_transfer("request", values, ndr64=ndr64, order=order)[:-4] for values, _ in made]
    rows = column(method, "request", stubs, ndr64=ndr64, big=big)
    assert rows == [({"queue_manager_context": 0x77, **kept}, []) for _, kept in made]
    assert [single(method, "request", stub, ndr64=ndr64, big=big) for stub in stubs] == rows
    answers = [_transfer("response", values, ndr64=ndr64, order=order) for values, _ in made]
    assert column(method, "response", answers, ndr64=ndr64, big=big) == [({"hresult": 0x1C}, [])] * len(made)
    for stub in stubs:  # and one octet short or one changed is told alike by both readers
        agree(method, "request", stub[:-1], ndr64=ndr64, big=big)
        for place in range(len(made) % 5, len(stub), 23):
            changed = stub[:place] + bytes([stub[place] ^ 5]) + stub[place + 1 :]
            agree(method, "request", changed, ndr64=ndr64, big=big)


def test_a_lone_character_of_an_action_is_taken_and_flagged():
    """Doubt D1: by the letter, the IDL declares one wchar_t."""
    stub = struct.pack("<HHI", 1, 1, 0) + "C".encode("utf-16-le")
    expected = {"object_type": "machine", "action_text": "C"}, [("malformed", "lpwszAction (one character)", 8)]
    assert agree(BY_METHOD["R_QMMgmtAction"], "request", stub, ndr64=False) == expected
    half = agree(BY_METHOD["R_QMMgmtAction"], "request", stub[:8] + b"\0\xd8", ndr64=False)
    assert half[0]["action_text"] == "\ufffd"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_name_behind_one_pointer_is_taken_and_flagged(encoding):
    """Doubt D32."""
    ndr64, order = ENCODINGS[encoding]
    writer = StubWriter(ndr64=ndr64, order=order)
    for count in (0x20000, 4, 0, 4):
        writer.count(count)
    writer.data += "h\\q\0".encode("utf-16-le" if order == "<" else "utf-16-be")
    writer.integer(0, 4)
    word = 8 if ndr64 else 4
    row = agree(BY_METHOD["R_QMGetRemoteQueueName"], "response", bytes(writer.data), ndr64=ndr64, big=order == ">")
    assert row == (
        {"remote_queue_name": "h\\q", "hresult": 0}, [("malformed", "lplpRemoteQueueName (one pointer)", word)],
    )  # fmt: skip


def test_padding_that_a_peer_leaves_out_behind_a_pointer_is_read_leniently_and_flagged():
    """Doubt D19, for R_QMOpenRemoteQueue."""
    values = {"pQueueFormat": QueueFormat(2, {"lineage": UUID(CLIENT), "uniquifier": 9}), "dwCallingProcessID": 7,
              "dwDesiredAccess": 1, "dwShareMode": 0, "pLicGuid": UUID(CLIENT), "dwMQS": 0}  # fmt: skip
    stub = peer_stub("R_QMOpenRemoteQueue", "request", values, ndr64=True, order="<")
    method = BY_METHOD["R_QMOpenRemoteQueue"]
    full = agree(method, "request", stub, ndr64=True)
    assert full[1] == []
    assert agree(method, "request", stub[:44] + stub[48:], ndr64=True) == (
        full[0], [("malformed", "pQueueFormat (padding)", 44)],
    )  # fmt: skip


def test_objects_of_every_kind_and_none():
    method = BY_METHOD["R_QMMgmtAction"]
    for kind, name in ((1, "machine"), (2, "queue"), (3, "session")):
        values = {"pObjectFormat": {"type": kind, "queue": None}, "lpwszAction": "TIDY"}
        for ndr64, order in ENCODINGS.values():
            stub = peer_stub("R_QMMgmtAction", "request", values, ndr64=ndr64, order=order)
            row = agree(method, "request", stub, ndr64=ndr64, big=order == ">")
            assert row == ({"object_type": name, "action_text": "TIDY"}, [])
    stub = struct.pack("<HHI", 4, 4, 0) + bytes(16)
    assert agree(method, "request", stub, ndr64=False)[1] == [("malformed", "pObjectFormat.type", 0)]
    stub = struct.pack("<HHI", 1, 2, 0) + bytes(16)
    assert agree(method, "request", stub, ndr64=False)[1] == [("malformed", "pObjectFormat.tag", 2)]


def test_more_properties_than_may_be_asked_for_are_read_all_the_same():
    """A violation of range(1, 128), for the rules to find; a server answers with a fault."""
    method = BY_METHOD["R_QMMgmtGetInfo"]
    asked = {"pObjectFormat": {"type": 1, "queue": None}, "cp": 300, "aProp": [6] * 300, "apVar": [Variant(1)] * 300}
    stub = peer_stub(method.name, "request", asked, ndr64=False, order="<")
    assert agree(method, "request", stub, ndr64=False) == ({"object_type": "machine", "property_ids": [6] * 300}, [])
    answer = [Variant(20, 2**64 - 1), Variant(31, "x"), Variant(65, b"y")] * 100
    stub = peer_stub(method.name, "response", {"apVar": answer, "return": 0}, ndr64=True, order="<")
    short = peer_stub(method.name, "response", {"apVar": answer[:3], "return": 0}, ndr64=True, order="<")
    values, errors = agree(method, "response", stub, ndr64=True)
    assert errors == []
    assert values["values"] == agree(method, "response", short, ndr64=True)[0]["values"] * 100
    assert column(method, "response", [short, stub, short], ndr64=True)[1] == (values, [])
    assert agree(method, "response", stub[:-9], ndr64=True)[1] != []
    stub = struct.pack("<I", 0xFFFFFFFF) + bytes(4096)
    assert agree(method, "response", stub, ndr64=False)[1] == [("truncated", "apVar[256].vt", 4104)]
