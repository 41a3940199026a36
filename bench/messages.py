"""Message packets a second and core: the column reader beside the single-value reader, on the same bytes.

Packets of about 400 bytes with mixed headers, most of them with the headers that most messages have. Run from the top
folder: ``python -m bench.messages [packets]``. What is compared: bytes to all columns of ``silver.messages`` that a
packet tells. Hashes are timed apart: a body's, and the one that makes ``message_key``; both are one call of OpenSSL a
packet, whoever makes it.
"""

import random
import struct
import sys
import time
import uuid

import pyarrow as pa

from udfs.messages.packets import decode_messages
from udfs.messages.single import decode_message

ROWS = 200_000
SINGLE_ROWS = 5_000
BATCH = 10_000  # rows of a batch in Spark
SENT = 1_700_000_000
MANAGERS = [uuid.UUID(int=0x1234 << 100 | number).bytes_le for number in range(20)]
SID = struct.pack("<BB6s5I", 1, 5, b"\0\0\0\0\0\5", 21, 1, 2, 3, 1001)


def padded(data):
    return data + bytes(-len(data) % 4)


def direct(text):
    raw = (text + "\0").encode("utf-16-le")
    return padded(struct.pack("<H", len(raw)) + raw)


def packet(number, pick):
    """A packet of RemoteRead: one in two transactional, one in three signed, one in eight with lists of queues."""
    transactional, sender, lists = pick.random() < 0.5, pick.random() < 0.33, pick.random() < 0.125
    admin, response = pick.random() < 0.3, pick.random() < 0.4
    flags = 1 << 5 | 7 << 10 | (7 << 13) * admin | (7 << 16) * response | 1 << 21
    flags |= transactional << 20 | sender << 19 | lists << 23
    user = pick.choice(MANAGERS) + struct.pack("<HHI4s4x", 4, 1, 0, bytes([10, 0, 0, number % 50]))
    user += struct.pack("<IIII", 0xFFFFFFFF, SENT + number // 50, number, flags)
    user += direct(f"OS:srv{number % 7}\\private$\\orders{number % 40}")
    user += direct("OS:client\\private$\\admin") * admin + direct(f"OS:client{number % 30}\\private$\\reply") * response
    if transactional:
        user += struct.pack("<IQII", 12 | (number & 0xFFFFF) << 4, 0x6740000000000001, number + 1, number)
    if sender:
        user += struct.pack("<HHHHII", 1 | 1 << 7, len(SID), 0, 0, 40, 0) + SID + bytes(40)
    label = (f"Order {number:06d}\0").encode("utf-16-le")
    body = bytes(60 + number % 80)
    correlation = bytes(20) if pick.random() < 0.8 else MANAGERS[0] + struct.pack("<I", number)
    head = struct.pack("<BBH", 2, len(label) // 2, 0) + correlation
    head += struct.pack("<8I", 8, number, len(body), len(body), 0, 0x8004, 0x6602, 0)
    rest = user + padded(head + label + body)
    if lists:
        names = struct.pack("<H", 3) + "OS:srv\\q\0".encode("utf-16-le")
        for kind in (0x64, 0xC8, 0x12C):
            rest += padded(struct.pack("<IHHI", 12 + len(names), kind, 0, 1) + names)
        rest += struct.pack("<HHI", 0x15E, 0, 0)
    base = struct.pack("<BBHIII", 0x10, 0, 3 * (not transactional), 0x524F494C, 16 + len(rest), SENT + 10**6)
    if pick.random() < 0.5:
        tail = struct.pack("<5I128x", 148, 0, number % 2, 0, 0) + struct.pack("<IHHI16x", 28, 0, 0, 0)
        rest += struct.pack("<IIB3x", 12, len(tail), 0x12) + tail
    return base + rest


def column_rate(packets, **asked):
    begin = time.perf_counter()
    for place in range(0, len(packets), BATCH):
        decode_messages(packets.slice(place, BATCH), "RemoteRead", **asked)
    return len(packets) / (time.perf_counter() - begin)


def single_rate(packets):
    begin = time.perf_counter()
    for each in packets:
        decode_message(each, "RemoteRead")
    return len(packets) / (time.perf_counter() - begin)


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    pick = random.Random(5)
    made = [packet(number, pick) for number in range(rows)]
    packets = pa.array(made, pa.binary())
    assert not any(decode_messages(packets, "RemoteRead")["errors"].value_lengths().to_numpy())
    print(f"{rows} packets of {sum(map(len, made)) / rows:.0f} bytes; packets a second and core")
    kinds = {
        "without hashes": {"hashes": False, "keys": False},
        "with message_key": {"hashes": False},
        "with message_key and body_sha256": {},
    }
    for name, asked in kinds.items():
        print(f"{name:<36}{max(column_rate(packets, **asked) for _ in range(3)):>12,.0f}")
    print(f"{'single-value reader, all hashes':<36}{single_rate(made[:SINGLE_ROWS]):>12,.0f}")


if __name__ == "__main__":
    main()
