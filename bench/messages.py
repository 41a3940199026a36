"""Message packets a second and core: the column reader beside the single-value reader, on the same bytes.

Packets of about 400 bytes with mixed headers, most of them with the headers that most messages have. Run from the top
folder: ``python -m bench.messages [packets]``. What is measured: bytes to all columns of ``silver.messages`` that a
packet tells, in seconds of the processor. Hashes are timed apart: a body's, and the one that makes ``message_key``;
both cost a call of OpenSSL for each packet, whoever makes it.
"""

import random
import struct
import sys
import time
import uuid

import pyarrow as pa

from bench.measure import Measure, report
from udfs.messages.packets import decode_messages
from udfs.messages.single import decode_message

ROWS = 200_000
SINGLE_ROWS = 5_000
AT_LEAST = 8  # runs of each measure
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


class _Always:
    """Chances that all come out one way: packets with no header more than needed, or with every one."""

    def __init__(self, chance):
        self.random, self.choice = (lambda: chance), random.Random(5).choice


MIXES = {"mixed headers": random.Random(5), "few headers": _Always(1.0), "every header": _Always(0.0)}


def column_rate(packets, **asked):
    begin = time.process_time()  # what this core did, whatever else the machine does
    for place in range(0, len(packets), BATCH):
        decode_messages(packets.slice(place, BATCH), "RemoteRead", **asked)
    return len(packets) / (time.process_time() - begin)


def single_rate(packets):
    begin = time.process_time()
    for each in packets:
        decode_message(each, "RemoteRead")
    return len(packets) / (time.process_time() - begin)


def made(rows, pick):
    """So many packets, and their bytes on average."""
    packets = [packet(number, pick) for number in range(rows)]
    column = pa.array(packets, pa.binary())
    assert not any(decode_messages(column, "RemoteRead")["errors"].value_lengths().to_numpy())
    return packets, column, sum(map(len, packets)) / rows


def measure(rows=ROWS, repeat=3):
    """Thousands of packets a second and core: all columns but the body's hash, in three mixes; what hashes cost.

    The best of ``AT_LEAST`` runs or more: one takes half a second, in which a neighbour of this machine can take half.
    """
    out, repeat = [], max(repeat, AT_LEAST)
    for mix, pick in MIXES.items():
        packets, column, size = made(rows, pick)
        rate = max(column_rate(column, hashes=False) for _ in range(repeat))
        asked = (300, 1500) if mix == "mixed headers" else ()  # what is asked for is asked for about 400 bytes
        out.append(Measure(f"packets of {size:.0f} bytes, {mix}", rate / 1000, "k/s", *asked))
        if asked:
            bare = max(column_rate(column, hashes=False, keys=False) for _ in range(repeat))
            hashed = max(column_rate(column) for _ in range(repeat))
            out += [
                Measure("  without message_key", bare / 1000, "k/s"),
                Measure("  with body_sha256 too", hashed / 1000, "k/s"),
                Measure("  the single-value reader", single_rate(packets[:SINGLE_ROWS]) / 1000, "k/s"),
            ]
    return out


if __name__ == "__main__":
    print(report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
