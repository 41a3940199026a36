"""Benchmark of the message decoder: packets per second and core, by the column decoder and the single-packet decoder.

The packets have about 400 bytes and mixed headers; most have the headers of typical messages. Run from the project's
folder: ``python -m bench.messages [packets]``. The measured CPU time is for decoding packets to all columns of
``silver.messages`` that come from the packet. Hashes of bodies and of ``message_key`` are measured separately, because
each costs a call of OpenSSL per packet in any implementation.
"""

import random
import struct
import sys
import time
import uuid

import pyarrow as pa

from bench.measure import Measure, format_report
from messages.single_message import decode_single_message
from udfs.messages.message_decoder import decode_messages

ROWS = 200_000
SINGLE_ROWS = 5_000
MIN_REPEATS = 8  # minimum number of runs of each measure
BATCH_ROWS = 10_000  # as in Spark's Arrow batches
SENT_AT_S = 1_700_000_000
QUEUE_MANAGER_IDS = [uuid.UUID(int=0x1234 << 100 | number).bytes_le for number in range(20)]
SID = struct.pack("<BB6s5I", 1, 5, b"\0\0\0\0\0\5", 21, 1, 2, 3, 1001)


def pad_to_4_bytes(data):
    """Pad data with zeros to a multiple of 4 bytes."""
    return data + bytes(-len(data) % 4)


def direct_queue_name(text):
    """Return a direct queue name as in the headers: length, UTF-16 text, padding."""
    raw = (text + "\0").encode("utf-16-le")
    return pad_to_4_bytes(struct.pack("<H", len(raw)) + raw)


def build_packet(number, pick):
    """Build a message packet: half are transactional, a third signed, an eighth have lists of queues."""
    transactional, sender, lists = pick.random() < 0.5, pick.random() < 0.33, pick.random() < 0.125
    admin, response = pick.random() < 0.3, pick.random() < 0.4
    flags = 1 << 5 | 7 << 10 | (7 << 13) * admin | (7 << 16) * response | 1 << 21
    flags |= transactional << 20 | sender << 19 | lists << 23
    user = pick.choice(QUEUE_MANAGER_IDS) + struct.pack("<HHI4s4x", 4, 1, 0, bytes([10, 0, 0, number % 50]))
    user += struct.pack("<IIII", 0xFFFFFFFF, SENT_AT_S + number // 50, number, flags)
    user += direct_queue_name(f"OS:srv{number % 7}\\private$\\orders{number % 40}")
    user += (
        direct_queue_name("OS:client\\private$\\admin") * admin
        + direct_queue_name(f"OS:client{number % 30}\\private$\\reply") * response
    )
    if transactional:
        user += struct.pack("<IQII", 12 | (number & 0xFFFFF) << 4, 0x6740000000000001, number + 1, number)
    if sender:
        user += struct.pack("<HHHHII", 1 | 1 << 7, len(SID), 0, 0, 40, 0) + SID + bytes(40)
    label = (f"Order {number:06d}\0").encode("utf-16-le")
    body = bytes(60 + number % 80)
    correlation = bytes(20) if pick.random() < 0.8 else QUEUE_MANAGER_IDS[0] + struct.pack("<I", number)
    head = struct.pack("<BBH", 2, len(label) // 2, 0) + correlation
    head += struct.pack("<8I", 8, number, len(body), len(body), 0, 0x8004, 0x6602, 0)
    rest = user + pad_to_4_bytes(head + label + body)
    if lists:
        names = struct.pack("<H", 3) + "OS:srv\\q\0".encode("utf-16-le")
        for kind in (0x64, 0xC8, 0x12C):
            rest += pad_to_4_bytes(struct.pack("<IHHI", 12 + len(names), kind, 0, 1) + names)
        rest += struct.pack("<HHI", 0x15E, 0, 0)
    base = struct.pack("<BBHIII", 0x10, 0, 3 * (not transactional), 0x524F494C, 16 + len(rest), SENT_AT_S + 10**6)
    if pick.random() < 0.5:
        tail = struct.pack("<5I128x", 148, 0, number % 2, 0, 0) + struct.pack("<IHHI16x", 28, 0, 0, 0)
        rest += struct.pack("<IIB3x", 12, len(tail), 0x12) + tail
    return base + rest


class _ConstantChance:
    """Stand-in for Random with a constant chance, for packets with only the required headers or with all headers."""

    def __init__(self, chance):
        self.random, self.choice = (lambda: chance), random.Random(5).choice


HEADER_MIXES = {
    "mixed headers": random.Random(5),
    "few headers": _ConstantChance(1.0),
    "every header": _ConstantChance(0.0),
}


def column_rate(packets, **options):
    """Return packets per CPU second of the column decoder."""
    begin = time.process_time()  # CPU time of this process, independent of other load
    for place in range(0, len(packets), BATCH_ROWS):
        decode_messages(packets.slice(place, BATCH_ROWS), "RemoteRead", **options)
    return len(packets) / (time.process_time() - begin)


def single_rate(packets):
    """Return packets per CPU second of the single-packet decoder."""
    begin = time.process_time()
    for each in packets:
        decode_single_message(each, "RemoteRead")
    return len(packets) / (time.process_time() - begin)


def build_packets(rows, pick):
    """Build packets; return them as a list and as a column, with their average size in bytes."""
    packets = [build_packet(number, pick) for number in range(rows)]
    column = pa.array(packets, pa.binary())
    assert not any(decode_messages(column, "RemoteRead")["errors"].value_lengths().to_numpy())
    return packets, column, sum(map(len, packets)) / rows


def measure(rows=ROWS, repeat=3):
    """Measure packets per second and core in three header mixes, without the hash of the body, and the cost of hashes.

    Each value is the best of at least MIN_REPEATS runs. A run takes half a second, so other load affects it strongly.
    """
    out, repeat = [], max(repeat, MIN_REPEATS)
    for mix, pick in HEADER_MIXES.items():
        packets, column, size = build_packets(rows, pick)
        rate = max(column_rate(column, hashes=False) for _ in range(repeat))
        bounds = (300, 1500) if mix == "mixed headers" else ()  # floor and goal are for about 400 bytes
        out.append(Measure(f"packets of {size:.0f} bytes, {mix}", rate / 1000, "k/s", *bounds))
        if bounds:
            bare = max(column_rate(column, hashes=False, keys=False) for _ in range(repeat))
            hashed = max(column_rate(column) for _ in range(repeat))
            out += [
                Measure("  without message_key", bare / 1000, "k/s"),
                Measure("  with body_sha256 too", hashed / 1000, "k/s"),
                Measure("  the single-value reader", single_rate(packets[:SINGLE_ROWS]) / 1000, "k/s"),
            ]
    return out


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS)))
