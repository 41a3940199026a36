"""Stubs a second and core: the column reader beside impacket's NDR engine, one row after the other, on the same bytes.

R_StartReceive requests and responses, NDR and NDR64, messages of about 400 bytes; then, without a counterpart in
impacket, what opens and watches queues. Run from the top folder: ``python -m bench.stubs [rows]``. What is compared:
bytes to values of all parameters; for the column reader as Arrow arrays, texts and decimals made. impacket gets one
stub at a time, which is how it works.
"""

import struct
import sys
import time

import pyarrow as pa
from impacket.dcerpc.v5.dtypes import DWORD, ULONG, ULONGLONG
from impacket.dcerpc.v5.ndr import NDRCALL, NDRENUM, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray

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


OTHERS = (
    ("R_QMOpenRemoteQueue request", CLIENT["qmcomm"][2], "request", open_request),
    ("rpc_ACReceiveMessageEx request", CLIENT["qmcomm2"][2], "request", receive_request),
    ("R_QMMgmtGetInfo response (12)", MANAGEMENT["qmmgmt"][0], "response", info_response),
)


def column_rate(direction, stubs, *, ndr64, method=START):
    begin = time.perf_counter()
    for place in range(0, len(stubs), 10_000):  # Spark's batches have 10 000 rows
        decode(method, direction, stubs.slice(place, 10_000), ndr64=ndr64)
    return len(stubs) / (time.perf_counter() - begin)


def impacket_rate(kind, stubs, *, ndr64):
    begin = time.perf_counter()
    for stub in stubs:
        kind(data=stub, isNDR64=ndr64)
    return len(stubs) / (time.perf_counter() - begin)


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    print(f"{'stubs a second and core':<32} {'column':>12} {'impacket':>12} {'times':>8}")
    for ndr64 in (False, True):
        for direction, kind in (("request", StartRequest), ("response", StartResponse)):
            made = [request(n) if direction == "request" else response(n, ndr64=ndr64) for n in range(rows)]
            stubs = pa.array(made, pa.binary())
            check = decode(START, direction, stubs, ndr64=ndr64).field("errors")
            assert not any(check.value_lengths().to_numpy())
            fast = max(column_rate(direction, stubs, ndr64=ndr64) for _ in range(3))
            slow = max(impacket_rate(kind, made[:IMPACKET_ROWS], ndr64=ndr64) for _ in range(2))
            name = f"R_StartReceive {direction} {'NDR64' if ndr64 else 'NDR'}"
            print(f"{name:<32} {fast:>12,.0f} {slow:>12,.0f} {fast / slow:>8.0f}")
    for name, method, direction, make in OTHERS:
        stubs = pa.array([make(n) for n in range(rows)], pa.binary())
        check = decode(method, direction, stubs).field("errors")
        assert not any(check.value_lengths().to_numpy())
        fast = max(column_rate(direction, stubs, ndr64=False, method=method) for _ in range(3))
        print(f"{name:<32} {fast:>12,.0f}")


if __name__ == "__main__":
    main()
