"""The peer's stubs against impacket's NDR engine, where that engine has no defects (rpc-interfaces.md section 3.7)."""

import uuid

import pytest
from impacket.dcerpc.v5.dtypes import DWORD, GUID, ULONG
from impacket.dcerpc.v5.ndr import (
    NDRCALL,
    NDRENUM,
    NDRHYPER,
    NDRPOINTER,
    NDRSTRUCT,
    NDRUniConformantArray,
    NDRUniConformantVaryingArray,
)

from peer.methods import BY_NAME

CONTEXT = bytes(4) + uuid.uuid4().bytes


class Ack(NDRENUM):
    pass


class Handle(NDRSTRUCT):
    structure = (("data", "20s=b''"),)

    def getAlignment(self):  # noqa: N802 - impacket's name
        return 4


class Varying(NDRUniConformantVaryingArray):
    item = "c"


class VaryingPointer(NDRPOINTER):
    referent = (("Data", Varying),)


class Octets(NDRUniConformantArray):
    item = "c"


class OctetsPointer(NDRPOINTER):
    referent = (("Data", Octets),)


class Descriptor(NDRSTRUCT):
    structure = (
        ("hRemoteQueue", DWORD), ("hCursor", DWORD), ("ulAction", DWORD), ("ulTimeout", DWORD), ("dwSize", DWORD),
        ("dwQueue", DWORD), ("dwRequestID", DWORD), ("Reserved", DWORD), ("dwArriveTime", DWORD),
        ("eAckNack", Ack), ("lpBuffer", VaryingPointer),
    )  # fmt: skip


class StartReceiveResponse(NDRCALL):
    structure = (("pphContext", Handle), ("lpRemoteReadDesc", Descriptor), ("return", ULONG))


class Section(NDRSTRUCT):
    structure = (
        ("SectionBufferType", Ack), ("SectionSizeAlloc", DWORD), ("SectionSize", DWORD),
        ("pSectionBuffer", OctetsPointer),
    )  # fmt: skip


class Sections(NDRUniConformantArray):
    item = Section


class SectionsPointer(NDRPOINTER):
    referent = (("Data", Sections),)


class ReceiveResponse(NDRCALL):
    structure = (
        ("pdwArriveTime", DWORD), ("pSequenceId", NDRHYPER), ("pdwNumberOfSections", DWORD),
        ("ppPacketSections", SectionsPointer), ("return", ULONG),
    )  # fmt: skip


class OpenRequest(NDRCALL):
    structure = (("pLicGuid", GUID), ("dwMQS", DWORD), ("hQueue", DWORD), ("pQueue", DWORD), ("dwpContext", DWORD))


@pytest.mark.parametrize("ndr64", [False, True], ids=["ndr", "ndr64"])
@pytest.mark.parametrize("size", [0, 1, 37, 4096])
def test_start_receive_response(ndr64, size):
    method = BY_NAME["RemoteQMStartReceive"]
    body = bytes(range(256)) * 16
    desc = {
        "hRemoteQueue": 28, "hCursor": 1, "ulAction": 0x80000001, "ulTimeout": 2, "dwSize": size, "dwQueue": 28,
        "dwRequestID": 7, "Reserved": 1, "dwArriveTime": 5, "eAckNack": 0, "lpBuffer": body[:size] if size else None,
    }  # fmt: skip
    stub = method.response({"pphContext": CONTEXT, "lpRemoteReadDesc": desc, "return": 0xC00E001B}, ndr64=ndr64)
    parsed = StartReceiveResponse(stub, isNDR64=ndr64)
    assert parsed["pphContext"]["data"] == CONTEXT
    got = parsed["lpRemoteReadDesc"]
    plain = [name for name, _ in Descriptor.structure if name != "lpBuffer"]
    assert {name: got[name] for name in plain} == {name: desc[name] for name in plain}
    assert b"".join(got["lpBuffer"] or []) == (desc["lpBuffer"] or b"")
    assert parsed["return"] == 0xC00E001B


@pytest.mark.parametrize("ndr64", [False, True], ids=["ndr", "ndr64"])
def test_receive_response_with_two_sections(ndr64):
    method = BY_NAME["R_StartReceive"]
    parts = [(1, 100, bytes(range(37))), (2, 6, b"trail!")]
    sections = [
        {"SectionBufferType": kind, "SectionSizeAlloc": alloc, "SectionSize": len(data), "pSectionBuffer": data}
        for kind, alloc, data in parts
    ]
    values = {
        "pdwArriveTime": 3, "pSequenceId": 5 << 40, "pdwNumberOfSections": 2, "ppPacketSections": sections, "return": 0,
    }  # fmt: skip
    parsed = ReceiveResponse(method.response(values, ndr64=ndr64), isNDR64=ndr64)
    got = [
        (item["SectionBufferType"], item["SectionSizeAlloc"], b"".join(item["pSectionBuffer"]))
        for item in parsed["ppPacketSections"]
    ]
    assert got == parts
    assert (parsed["pdwArriveTime"], parsed["pSequenceId"], parsed["return"]) == (3, 5 << 40, 0)


@pytest.mark.parametrize("ndr64", [False, True], ids=["ndr", "ndr64"])
def test_requests_are_written_alike(ndr64):
    ident = uuid.uuid4()
    ours = BY_NAME["RemoteQMOpenQueue"].request(
        {"pLicGuid": ident, "dwMQS": 1, "hQueue": 28, "pQueue": 29, "dwpContext": 30}, ndr64=ndr64
    )
    theirs = OpenRequest(isNDR64=ndr64)
    theirs["pLicGuid"] = ident.bytes_le
    for name, value in (("dwMQS", 1), ("hQueue", 28), ("pQueue", 29), ("dwpContext", 30)):
        theirs[name] = value
    assert theirs.getData() == ours
