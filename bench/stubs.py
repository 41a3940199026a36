"""Benchmark of the stub decoder: stubs per second and core, compared with impacket's NDR engine on the same bytes.

The stubs are R_StartReceive requests and responses in NDR and NDR64, with messages of about 400 bytes, R_QMMgmtGetInfo
responses with a state, ten numbers and a list, and two requests without a counterpart in impacket. The measured CPU
time is for decoding all parameters. The column decoder makes Arrow arrays, with text and decimals. impacket decodes one
stub at a time. Run from the project's folder: ``python -m bench.stubs [rows]``.
"""

import struct
import sys
import time
from functools import partial

import pyarrow as pa
from impacket.dcerpc.v5.dtypes import DWORD, LPWSTR, ULONG, ULONGLONG
from impacket.dcerpc.v5.ndr import (
    NDRCALL,
    NDRENUM,
    NDRPOINTER,
    NDRSTRUCT,
    NDRULONG,
    NDRUNION,
    NDRUSHORT,
    NDRUSMALL,
    NDRUniConformantArray,
)

from bench.measure import Measure, format_report
from udfs.stubs.method_registry import CLIENT_METHODS, MANAGEMENT_METHODS, REMOTE_READ_METHODS
from udfs.stubs.stub_decoder import decode_stubs

ROWS = 200_000
ROWS_FOR_IMPACKET = 2_000
MESSAGE = bytes(range(256)) + bytes(144)
START_RECEIVE = REMOTE_READ_METHODS["RemoteRead"][7]


class ContextHandle(NDRSTRUCT):
    structure = (("Data", "20s=b''"),)

    def getAlignment(self):  # noqa: N802  (impacket's name)
        return 4


class Octets(NDRUniConformantArray):
    item = "c"


class OctetsPointer(NDRPOINTER):
    referent = (("Data", Octets),)


class SectionType(NDRENUM):
    class enumItems:  # noqa: N801  (impacket's name)
        pass


class SectionBuffer(NDRSTRUCT):
    structure = (
        ("SectionBufferType", SectionType),
        ("SectionSizeAlloc", DWORD),
        ("SectionSize", DWORD),
        ("pSectionBuffer", OctetsPointer),
    )


class Sections(NDRUniConformantArray):
    item = SectionBuffer


class SectionsPointer(NDRPOINTER):
    referent = (("Data", Sections),)


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


class StartResponse(NDRCALL):
    structure = (
        ("pdwArriveTime", DWORD),
        ("pSequenceId", ULONGLONG),
        ("pdwNumberOfSections", DWORD),
        ("ppPacketSections", SectionsPointer),
        ("ErrorCode", ULONG),
    )


def start_receive_request(number):
    handle = struct.pack("<I16s", 0, struct.pack("<QQ", number % 97 + 1, 42))
    return handle + struct.pack("<IQIIIIII", 0, 0, 0, 0, 30000, number, 1 << 22, 1 << 22)


def start_receive_response(number, *, ndr64):
    size = len(MESSAGE) + number % 7
    head = struct.pack("<IIQI", 1715990000, 0, number + 1, 1)
    if ndr64:
        head += struct.pack("<IQQIIIIQQ", 0, 0x20000, 1, 0, size, size, 0, 0x20004, size)
    else:
        head += struct.pack("<IIHHIIII", 0x20000, 1, 0, 0, size, size, 0x20004, size)
    stub = head + MESSAGE + bytes(number % 7)
    return stub + bytes(-len(stub) % 4) + struct.pack("<I", 0)


def open_remote_queue_request(number):
    """Build an R_QMOpenRemoteQueue request for one of a hundred queues."""
    name = f"OS:srv{number % 10}\\private$\\orders{number % 97}\0"
    head = struct.pack("<IBBHBxxxIIII", 0x20000, 3, 0, 0, 3, 0x20004, len(name), 0, len(name)) + name.encode(
        "utf-16-le"
    )
    return head + bytes(-len(head) % 4) + struct.pack("<III16sI", number, 1, 0, bytes(range(16)), 0x400)


def get_info_response(number):
    """Build an R_QMMgmtGetInfo response with a state, ten numbers and a list of two addresses."""
    heads = [struct.pack("<HxxIHxxI4x", 31, 0, 31, 0x20000)[:16]]
    heads += [struct.pack("<HxxIHxxI", 19, 0, 19, number + place) for place in range(10)]
    heads += [struct.pack("<HxxIHxxII", 0x101F, 0, 0x101F, 2, 0x20004)]
    stub = struct.pack("<I4x", len(heads)) + b"".join(heads)
    stub += struct.pack("<III", 10, 0, 10) + "CONNECTED\0".encode("utf-16-le")
    stub += struct.pack("<III", 2, 0x20008, 0x2000C)
    for address in ("IP=10.0.0.7\0", "IP=10.0.0.8\0"):
        stub += struct.pack("<III", len(address), 0, len(address)) + address.encode("utf-16-le")
    return stub + struct.pack("<I", 0)


def receive_message_request(number):
    """Build an rpc_ACReceiveMessageEx request whose buffer has only the members of a receive."""
    return struct.pack("<IIIIIII", number, 1, 1, 1000, 0, 0, 7) + bytes(72 - 24 + 212 + 12)


class Strings(NDRUniConformantArray):
    item = LPWSTR


class StringsPointer(NDRPOINTER):
    referent = (("Data", Strings),)


class CountedStrings(NDRSTRUCT):
    structure = (("cElems", DWORD), ("pElems", StringsPointer))


class Arm(NDRUNION):
    commonHdr = (("tag", NDRUSHORT),)  # noqa: N815  (impacket's name)
    union = {31: ("pwszVal", LPWSTR), 19: ("ulVal", DWORD), 0x101F: ("calpwstr", CountedStrings)}  # noqa: RUF012

    def getAlignment(self):  # noqa: N802
        return 8


class PropVariant(NDRSTRUCT):
    """PROPVARIANT with alignment 8. impacket would use 4 (defect I1 of the fact sheet, 3.7)."""

    structure = (("vt", NDRUSHORT), ("r1", NDRUSMALL), ("r2", NDRUSMALL), ("r3", NDRULONG), ("arm", Arm))

    def getAlignment(self):  # noqa: N802
        return 8


class Variants(NDRUniConformantArray):
    item = PropVariant


class InfoResponse(NDRCALL):
    structure = (("apVar", Variants), ("ErrorCode", ULONG))


GET_INFO = MANAGEMENT_METHODS["qmmgmt"][0]
# Comparisons with impacket: name, function that builds stubs, method, direction, impacket's class, NDR64, floor, goal.
IMPACKET_COMPARISONS = (
    ("R_StartReceive request, NDR", start_receive_request, START_RECEIVE, "request", StartRequest, False, 20, 100),
    (
        "R_StartReceive response, NDR",
        partial(start_receive_response, ndr64=False),
        START_RECEIVE,
        "response",
        StartResponse,
        False,
        20,
        100,
    ),
    ("R_StartReceive request, NDR64", start_receive_request, START_RECEIVE, "request", StartRequest, True, 20, 100),
    (
        "R_StartReceive response, NDR64",
        partial(start_receive_response, ndr64=True),
        START_RECEIVE,
        "response",
        StartResponse,
        True,
        20,
        100,
    ),
    ("R_QMMgmtGetInfo response of 12", get_info_response, GET_INFO, "response", InfoResponse, False, 10, 50),
)
OTHER_STUBS = (
    ("R_QMOpenRemoteQueue request", CLIENT_METHODS["qmcomm"][2], "request", open_remote_queue_request),
    ("rpc_ACReceiveMessageEx request", CLIENT_METHODS["qmcomm2"][2], "request", receive_message_request),
)


def column_rate(method, direction, stubs, *, ndr64):
    begin = time.process_time()
    for place in range(0, len(stubs), 10_000):  # as in Spark's Arrow batches
        decode_stubs(method, direction, stubs.slice(place, 10_000), ndr64=ndr64)
    return len(stubs) / (time.process_time() - begin)


def impacket_rate(kind, stubs, *, ndr64):
    begin = time.process_time()
    for stub in stubs:
        kind(data=stub, isNDR64=ndr64)
    return len(stubs) / (time.process_time() - begin)


def build_stub_column(make, method, direction, rows, *, ndr64=False):
    """Build a column of stubs and check that all decode without errors."""
    stubs = pa.array([make(number) for number in range(rows)], pa.binary())
    assert not any(decode_stubs(method, direction, stubs, ndr64=ndr64).field("errors").value_lengths().to_numpy())
    return stubs


def measure(rows=ROWS, repeat=3):
    """Measure stubs per second and core, and the speed relative to impacket."""
    out = []
    for name, make, method, direction, kind, ndr64, floor, goal in IMPACKET_COMPARISONS:
        stubs = build_stub_column(make, method, direction, rows, ndr64=ndr64)
        few = [make(number) for number in range(min(rows, ROWS_FOR_IMPACKET))]
        fast = max(column_rate(method, direction, stubs, ndr64=ndr64) for _ in range(repeat))
        slow = max(impacket_rate(kind, few, ndr64=ndr64) for _ in range(repeat))
        out += [Measure(name, fast / 1000, "k/s"), Measure("  against impacket", fast / slow, "x", floor, goal)]
    for name, method, direction, make in OTHER_STUBS:
        stubs = build_stub_column(make, method, direction, rows)
        fast = max(column_rate(method, direction, stubs, ndr64=False) for _ in range(repeat))
        out.append(Measure(name, fast / 1000, "k/s"))
    return out


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
