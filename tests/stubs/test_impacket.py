"""The column decoder against impacket's NDR engine, on structures declared independently.

Excluded are the engine's defects (I1 to I7 of the fact sheet): unions, and so queue formats, and big-endian.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from impacket.dcerpc.v5.dtypes import DWORD, ULONG, ULONGLONG
from impacket.dcerpc.v5.ndr import (
    NDRCALL,
    NDRENUM,
    NDRPOINTER,
    NDRPOINTERNULL,
    NDRSTRUCT,
    NDRUniConformantVaryingArray,
)

from bench.stubs import SectionBuffer, StartResponse
from example_counts import examples
from stubs.helpers import BY_METHOD, column


class ContextHandle(NDRSTRUCT):
    align = 4
    structure = (("Data", "20s=b''"),)

    def getAlignment(self):  # noqa: N802  (impacket's name)
        return 4


class VaryingOctets(NDRUniConformantVaryingArray):
    item = "c"


class VaryingPointer(NDRPOINTER):
    referent = (("Data", VaryingOctets),)


class AckNack(NDRENUM):
    class enumItems:  # noqa: N801
        pass


class ReadDesc(NDRSTRUCT):
    structure = (
        ("hRemoteQueue", DWORD),
        ("hCursor", DWORD),
        ("ulAction", DWORD),
        ("ulTimeout", DWORD),
        ("dwSize", DWORD),
        ("dwQueue", DWORD),
        ("dwRequestID", DWORD),
        ("Reserved", DWORD),
        ("dwArriveTime", DWORD),
        ("eAckNack", AckNack),
        ("lpBuffer", VaryingPointer),
    )


class ReadResponse(NDRCALL):
    structure = (("pphContext", ContextHandle), ("pRemoteReadDesc", ReadDesc), ("ErrorCode", ULONG))


class StartRequest(NDRCALL):
    structure = (
        ("phContext", ContextHandle),
        ("LookupId", ULONGLONG),
        ("hCursor", DWORD),
        ("ulAction", DWORD),
        ("ulTimeout", DWORD),
        ("dwRequestId", DWORD),
        ("dwMaxBodySize", DWORD),
        ("dwMaxCompoundMessageSize", DWORD),
    )


U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
HANDLE = st.binary(min_size=20, max_size=20).filter(any)


@pytest.mark.parametrize("ndr64", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(handle=HANDLE, numbers=st.lists(U32, min_size=6, max_size=6), lookup=U64)
def test_start_requests(ndr64, handle, numbers, lookup):
    call = StartRequest(isNDR64=ndr64)
    call["phContext"] = handle
    call["LookupId"] = lookup
    names = ("hCursor", "ulAction", "ulTimeout", "dwRequestId", "dwMaxBodySize", "dwMaxCompoundMessageSize")
    for name, number in zip(names, numbers, strict=True):
        call[name] = number
    columns = ("cursor_handle", "action", "timeout_ms", "request_id", "max_body_bytes", "max_compound_message_bytes")
    expected = {"context_handle": handle.hex(), "lookup_id": lookup, **dict(zip(columns, numbers, strict=True))}
    assert column(BY_METHOD["R_StartReceive"], "request", [call.getData()], ndr64=ndr64) == [(expected, [])]


@pytest.mark.parametrize("ndr64", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(arrived=U32, sequence=U64, result=U32, data=st.data())
def test_start_responses(ndr64, arrived, sequence, result, data):
    section = st.tuples(st.integers(0, 4), U32, st.binary(min_size=1, max_size=40))
    sections = data.draw(st.lists(section, max_size=6))
    call = StartResponse(isNDR64=ndr64)
    call["pdwArriveTime"], call["pSequenceId"], call["ErrorCode"] = arrived, sequence, result
    call["pdwNumberOfSections"] = len(sections)
    expected = {"arrive_time": arrived, "sequence_id": sequence, "hresult": result}
    if sections:
        for kind, allocated, octets in sections:
            item = SectionBuffer(isNDR64=ndr64)
            item["SectionBufferType"], item["SectionSizeAlloc"], item["SectionSize"] = kind, allocated, len(octets)
            item["pSectionBuffer"] = [octets[place : place + 1] for place in range(len(octets))]
            call["ppPacketSections"].append(item)
        expected |= {
            "section_types": [kind for kind, _, _ in sections],
            "section_allocated_bytes": [allocated for _, allocated, _ in sections],
            "section_bytes": [len(octets) for _, _, octets in sections],
            "packet": b"".join(octets for _, _, octets in sections),
            "packet_bytes": sum(len(octets) for _, _, octets in sections),
        }
    else:
        call["ppPacketSections"] = NDRPOINTERNULL(isNDR64=ndr64)
    stub = call.getData()
    assert column(BY_METHOD["R_StartReceive"], "response", [stub], ndr64=ndr64) == [(expected, [])]


@pytest.mark.parametrize("ndr64", [False, True])
@settings(max_examples=examples(60), deadline=None)
@given(handle=HANDLE, numbers=st.lists(U32, min_size=8, max_size=8), packet=st.none() | st.binary(min_size=1))
def test_qm2qm_read_responses(ndr64, handle, numbers, packet):
    call = ReadResponse(isNDR64=ndr64)
    call["pphContext"] = handle
    desc = call["pRemoteReadDesc"]
    names = ("hRemoteQueue", "hCursor", "ulAction", "ulTimeout", "dwQueue", "dwRequestID", "dwArriveTime")
    for name, number in zip(names, numbers, strict=False):
        desc[name] = number
    desc["Reserved"], desc["eAckNack"], desc["dwSize"] = 1, 2, len(packet or b"")
    call["ErrorCode"] = numbers[7]
    columns = ("queue_handle", "cursor_handle", "action", "timeout_ms", "queue_descriptor", "request_id", "arrive_time")
    expected = {**dict(zip(columns, numbers, strict=False)), "remote_read_handle": handle.hex(), "hresult": numbers[7]}
    if packet is None:
        desc["lpBuffer"] = NDRPOINTERNULL(isNDR64=ndr64)
    else:
        desc["lpBuffer"] = [packet[place : place + 1] for place in range(len(packet))]
        expected |= {"packet_bytes": len(packet), "packet": packet}
    assert column(BY_METHOD["RemoteQMStartReceive"], "response", [call.getData()], ndr64=ndr64) == [(expected, [])]
