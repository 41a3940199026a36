"""Stubs a second and core: the column reader beside impacket's NDR engine, one row after the other, on the same bytes.

R_StartReceive requests and responses, NDR and NDR64, messages of about 400 bytes; R_QMMgmtGetInfo responses of a state,
ten numbers and a list; then, without a counterpart in impacket, what opens queues. Run from the top folder:
``python -m bench.stubs [rows]``. What is compared: bytes to values of all parameters, in seconds of the processor; for
the column reader as Arrow arrays, texts and decimals made. impacket gets one stub at a time, which is how it works.
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

from bench.measure import Measure, report
from udfs.stubs.calls import CLIENT, MANAGEMENT, METHODS
from udfs.stubs.decode import decode

ROWS = 200_000
IMPACKET_ROWS = 2_000
MESSAGE = bytes(range(256)) + bytes(144)
START = METHODS["RemoteRead"][7]


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


def request(number):
    handle = struct.pack("<I16s", 0, struct.pack("<QQ", number % 97 + 1, 42))
    return handle + struct.pack("<IQIIIIII", 0, 0, 0, 0, 30000, number, 1 << 22, 1 << 22)


def response(number, *, ndr64):
    size = len(MESSAGE) + number % 7
    head = struct.pack("<IIQI", 1715990000, 0, number + 1, 1)
    if ndr64:
        head += struct.pack("<IQQIIIIQQ", 0, 0x20000, 1, 0, size, size, 0, 0x20004, size)
    else:
        head += struct.pack("<IIHHIIII", 0x20000, 1, 0, 0, size, size, 0x20004, size)
    stub = head + MESSAGE + bytes(number % 7)
    return stub + bytes(-len(stub) % 4) + struct.pack("<I", 0)


def open_request(number):
    """R_QMOpenRemoteQueue of one of a hundred queues."""
    name = f"OS:srv{number % 10}\\private$\\orders{number % 97}\0"
    head = struct.pack("<IBBHBxxxIIII", 0x20000, 3, 0, 0, 3, 0x20004, len(name), 0, len(name)) + name.encode(
        "utf-16-le"
    )
    return head + bytes(-len(head) % 4) + struct.pack("<III16sI", number, 1, 0, bytes(range(16)), 0x400)


def info_response(number):
    """R_QMMgmtGetInfo: a state, ten numbers, a list of two addresses."""
    heads = [struct.pack("<HxxIHxxI4x", 31, 0, 31, 0x20000)[:16]]
    heads += [struct.pack("<HxxIHxxI", 19, 0, 19, number + place) for place in range(10)]
    heads += [struct.pack("<HxxIHxxII", 0x101F, 0, 0x101F, 2, 0x20004)]
    stub = struct.pack("<I4x", len(heads)) + b"".join(heads)
    stub += struct.pack("<III", 10, 0, 10) + "CONNECTED\0".encode("utf-16-le")
    stub += struct.pack("<III", 2, 0x20008, 0x2000C)
    for address in ("IP=10.0.0.7\0", "IP=10.0.0.8\0"):
        stub += struct.pack("<III", len(address), 0, len(address)) + address.encode("utf-16-le")
    return stub + struct.pack("<I", 0)


def receive_request(number):
    """rpc_ACReceiveMessageEx with a buffer of nothing but a receive's own members."""
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
    """The engine takes its alignment for 4 (defect I1 of the fact sheet, 3.7)."""

    structure = (("vt", NDRUSHORT), ("r1", NDRUSMALL), ("r2", NDRUSMALL), ("r3", NDRULONG), ("arm", Arm))

    def getAlignment(self):  # noqa: N802
        return 8


class Variants(NDRUniConformantArray):
    item = PropVariant


class InfoResponse(NDRCALL):
    structure = (("apVar", Variants), ("ErrorCode", ULONG))


GET_INFO = MANAGEMENT["qmmgmt"][0]
# Against impacket: name, what makes stubs, method and direction, impacket's class, NDR64, floor and goal.
AGAINST = (
    ("R_StartReceive request, NDR", request, START, "request", StartRequest, False, 20, 100),
    ("R_StartReceive response, NDR", partial(response, ndr64=False), START, "response", StartResponse, False, 20, 100),
    ("R_StartReceive request, NDR64", request, START, "request", StartRequest, True, 20, 100),
    ("R_StartReceive response, NDR64", partial(response, ndr64=True), START, "response", StartResponse, True, 20, 100),
    ("R_QMMgmtGetInfo response of 12", info_response, GET_INFO, "response", InfoResponse, False, 10, 50),
)
OTHERS = (
    ("R_QMOpenRemoteQueue request", CLIENT["qmcomm"][2], "request", open_request),
    ("rpc_ACReceiveMessageEx request", CLIENT["qmcomm2"][2], "request", receive_request),
)


def column_rate(method, direction, stubs, *, ndr64):
    begin = time.process_time()
    for place in range(0, len(stubs), 10_000):  # Spark's batches have 10 000 rows
        decode(method, direction, stubs.slice(place, 10_000), ndr64=ndr64)
    return len(stubs) / (time.process_time() - begin)


def impacket_rate(kind, stubs, *, ndr64):
    begin = time.process_time()
    for stub in stubs:
        kind(data=stub, isNDR64=ndr64)
    return len(stubs) / (time.process_time() - begin)


def column_of(make, method, direction, rows, *, ndr64=False):
    """So many stubs, which all decode."""
    stubs = pa.array([make(number) for number in range(rows)], pa.binary())
    assert not any(decode(method, direction, stubs, ndr64=ndr64).field("errors").value_lengths().to_numpy())
    return stubs


def measure(rows=ROWS, repeat=3):
    """Stubs a second and core, and how many times what impacket reads row by row."""
    out = []
    for name, make, method, direction, kind, ndr64, floor, goal in AGAINST:
        stubs = column_of(make, method, direction, rows, ndr64=ndr64)
        few = [make(number) for number in range(min(rows, IMPACKET_ROWS))]
        fast = max(column_rate(method, direction, stubs, ndr64=ndr64) for _ in range(repeat))
        slow = max(impacket_rate(kind, few, ndr64=ndr64) for _ in range(repeat))
        out += [Measure(name, fast / 1000, "k/s"), Measure("  against impacket", fast / slow, "x", floor, goal)]
    for name, method, direction, make in OTHERS:
        stubs = column_of(make, method, direction, rows)
        fast = max(column_rate(method, direction, stubs, ndr64=False) for _ in range(repeat))
        out.append(Measure(name, fast / 1000, "k/s"))
    return out


if __name__ == "__main__":
    print(report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
