"""Stubs a second and core: the column reader beside impacket's NDR engine, one row after the other, on the same bytes.

R_StartReceive requests and responses, NDR and NDR64, messages of about 400 bytes. Run from the top folder:
``python -m bench.stubs``. What is compared: bytes to values of all parameters; for the column reader as Arrow arrays,
texts and decimals made. impacket gets one stub at a time, which is how it works.
"""

import struct
import time

import pyarrow as pa
from impacket.dcerpc.v5.dtypes import DWORD, ULONG, ULONGLONG
from impacket.dcerpc.v5.ndr import NDRCALL, NDRENUM, NDRPOINTER, NDRSTRUCT, NDRUniConformantArray

from udfs.stubs.calls import METHODS
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


def column_rate(direction, stubs, *, ndr64):
    begin = time.perf_counter()
    for place in range(0, len(stubs), 10_000):  # Spark's batches have 10 000 rows
        decode(START, direction, stubs.slice(place, 10_000), ndr64=ndr64)
    return len(stubs) / (time.perf_counter() - begin)


def impacket_rate(kind, stubs, *, ndr64):
    begin = time.perf_counter()
    for stub in stubs:
        kind(data=stub, isNDR64=ndr64)
    return len(stubs) / (time.perf_counter() - begin)


def main():
    print(f"{'stubs a second and core':<32} {'column':>12} {'impacket':>12} {'times':>8}")
    for ndr64 in (False, True):
        for direction, kind in (("request", StartRequest), ("response", StartResponse)):
            made = [request(n) if direction == "request" else response(n, ndr64=ndr64) for n in range(ROWS)]
            stubs = pa.array(made, pa.binary())
            check = decode(START, direction, stubs, ndr64=ndr64).field("errors")
            assert not any(check.value_lengths().to_numpy())
            fast = max(column_rate(direction, stubs, ndr64=ndr64) for _ in range(3))
            slow = max(impacket_rate(kind, made[:IMPACKET_ROWS], ndr64=ndr64) for _ in range(2))
            name = f"R_StartReceive {direction} {'NDR64' if ndr64 else 'NDR'}"
            print(f"{name:<32} {fast:>12,.0f} {slow:>12,.0f} {fast / slow:>8.0f}")


if __name__ == "__main__":
    main()
