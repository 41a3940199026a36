"""Captures whose records are given other times or another order, and captures of one direction each."""

import random
import re
import struct

from capture.merge.cutting import layout


def records_of(capture):
    """The records of a pcap capture in microseconds: time in us, and all behind the time."""
    units = [unit.data for unit in layout(capture).units]
    return [(int.from_bytes(u[:4], "little") * 10**6 + int.from_bytes(u[4:8], "little"), u[8:]) for u in units]


def capture_of(like, records):
    """A capture with the header of another one."""
    return like[:24] + b"".join(struct.pack("<II", *divmod(at, 10**6)) + rest for at, rest in records)


def set_back(capture, place, by_us):
    """A capture whose clock was set back before the record at an index."""
    records = records_of(capture)
    return capture_of(capture, [(at - by_us * (index >= place), rest) for index, (at, rest) in enumerate(records)])


def set_forward(capture, place, by_us):
    """A capture whose clock was set forward before the record at an index."""
    return set_back(capture, place, -by_us)


def second_tap(capture, offset_us=1500, drift=0.0, jitter_us=0):
    """A capture of the same packets by a machine whose clock is ahead, drifts, and shows times that are not exact."""
    records, chance, last = records_of(capture), random.Random(1), 0
    out = []
    for at, rest in records:
        last = max(last, at + offset_us + int((at - records[0][0]) * drift) + chance.randint(0, jitter_us))
        out.append((last, rest))
    return capture_of(capture, out)


def without_timestamps(capture):
    """A capture of IPv4 in Ethernet whose TCP headers have no timestamps (RFC 7323)."""
    return capture_of(capture, [(at, _without_timestamp(rest)) for at, rest in records_of(capture)])


def _without_timestamp(rest):
    """A record, without its time, whose TCP timestamp is no operation."""
    begin = 8 + 14 + 4 * (rest[8 + 14] & 15)
    end = begin + 4 * (rest[begin + 12] >> 4)
    options = re.sub(rb"\x01\x01\x08\x0a.{8}", b"\x01" * 12, rest[begin + 20 : end], flags=re.DOTALL)
    return rest[: begin + 20] + options + rest[end:]


def closest(capture, low=0.0, high=1.0):
    """The index in a part of a capture of the record that comes soonest after the one before it."""
    records = records_of(capture)
    places = range(max(1, int(low * len(records))), int(high * len(records)))
    return min(places, key=lambda place: records[place][0] - records[place - 1][0])


def halves_swapped(capture):
    """A capture with the second half of its records first."""
    records = records_of(capture)
    half = len(records) // 2
    return capture_of(capture, records[half:] + records[:half])


def goes_to(rest, server):
    """Whether a record, without its time, is an Ethernet frame to an IPv4 address."""
    return rest[8 + 14 + 16 :][:4] == bytes(map(int, server.split(".")))


def in_queues(capture, server, batch_us):
    """A capture of a card with a queue for each direction, which are emptied in turn."""
    records = records_of(capture)
    key = [(at // batch_us, goes_to(rest, server)) for at, rest in records]
    return capture_of(capture, [records[index] for index in sorted(range(len(records)), key=key.__getitem__)])


def by_direction(capture, server, ahead_us):
    """Two captures: what goes to an address, and the rest, by a clock that is ahead."""
    records = records_of(capture)
    to = [each for each in records if goes_to(each[1], server)]
    others = [(at + ahead_us, rest) for at, rest in records if not goes_to(rest, server)]
    return capture_of(capture, to), capture_of(capture, others)
