"""Captures of one conversation by two or three taps, each with a clock, losses, beginning, end and files of its own."""

from __future__ import annotations

import random
import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from capture.merge.cutting import cut, layout
from pcapgen import containers as c

MICROSECOND = 1000


class TapCaptures:
    """Random captures of ``records``, of which each tap may lose those with the indexes ``data``.

    ``files`` are the files of each tap; ``runs`` all of them, in any order; ``never_seen`` are the indexes of the
    records that no tap has whole. ``snap_lengths``: some taps store only the beginning of a frame. ``from_client``: the
    records that clients sent; then the first tap is at the clients, and others may be a way apart.
    """

    def __init__(
        self,
        records: Sequence[c.Record],
        data: Collection[int],
        chance: random.Random,
        *,
        snap_lengths: Sequence[int] = (),
        from_client: Collection[int] | None = None,
    ) -> None:
        self.offsets = [0, *(chance.choice([-1, 1]) * chance.randrange(1000, 200_000) * MICROSECOND for _ in range(2))]
        self.offsets = self.offsets[: chance.choice([2, 2, 3])]
        self.never_seen = set(range(len(records)))
        self.files: list[list[bytes]] = []
        count = len(records)
        for offset in self.offsets:
            begin = chance.randrange(count // 4) if chance.random() < 0.3 else 0
            end = count - (chance.randrange(count // 4) if chance.random() < 0.3 else 0)
            lost = {index for index in sorted(data) if chance.random() < chance.choice([0, 0.1])}
            edges = chance.sample(range(begin + 1, end - 1), chance.choice([0, 0, 1, 2]))
            # What a tap lost at the edge of a file does not show that the next file is its own.
            lost -= {edge + step for edge in edges for step in range(-4, 5)}
            snap = chance.choice(snap_lengths) if snap_lengths and chance.random() < 0.3 else 1 << 18
            way = chance.choice([0, 20, 40]) * MICROSECOND if from_client is not None and self.files else 0
            seen = [
                replace(
                    record,
                    time_ns=record.time_ns + offset + (way if index in (from_client or ()) else -way),
                    frame=record.frame[:snap],
                    wire_size=record.original if len(record.frame) > snap else record.wire_size,
                )
                for index, record in enumerate(records)
                if begin <= index < end and index not in lost
            ]
            seen.sort(key=lambda record: record.time_ns)
            whole = {index for index in range(begin, end) if len(records[index].frame) <= snap} - lost
            self.never_seen -= whole
            places = [sum(index not in lost for index in range(begin, edge)) for edge in edges]
            container = c.pcap(seen, magic=c.NANOSECONDS) if chance.random() < 0.5 else c.pcapng(seen, tsresol=9)
            self.files.append(cut(container.data, places))
        order = [file for files in self.files for file in files]
        chance.shuffle(order)
        ends = sorted({*chance.sample(range(1, len(order) + 1), min(2, len(order))), len(order)})
        self.runs = [order[a:b] for a, b in pairwise([0, *ends])]

    @property
    def all_files(self) -> list[bytes]:
        """The files of all taps, one tap after the other."""
        return [file for files in self.files for file in files]


def recorded(capture: bytes) -> tuple[list[c.Record], set[int], set[int]]:
    """Return the records of a pcap of Ethernet frames with IPv4, the indexes of those with TCP payload, and of clients.

    Clients send a SYN without ACK.
    """
    records, data, senders, clients = [], set(), [], set()
    for index, unit in enumerate(layout(capture).units):
        seconds, micros, size, original = struct.unpack_from("<4I", unit.data)
        frame = unit.data[16 : 16 + size]
        records.append(c.Record(seconds * 10**9 + micros * 1000, frame, None if size == original else original))
        header = 14 + (frame[14] & 15) * 4
        if frame[23] == 6 and struct.unpack_from(">H", frame, 16)[0] + 14 > header + (frame[header + 12] >> 4) * 4:
            data.add(index)
        senders.append((frame[26:30], frame[header : header + 2]))
        if frame[23] == 6 and frame[header + 13] & 0x12 == 0x02:
            clients.add(senders[-1])
    return records, data, {index for index, sender in enumerate(senders) if sender in clients}
