"""An RST ends a connection unless both sides go on, in its file or in another one, in any order of files and runs."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from capture.in_memory import merge_runs, read_captures
from pcapgen import containers, frames
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.conversation import CLIENT, SERVER, Segment
from udfs.capture.capture_reader import read_capture

MS = 1_000_000
FLOW = tcp.Flow(server_port=packets.PORT)
AHEAD = 1460
FACTS = ("closed_at", "closed_by", "client_bytes", "server_bytes", "missing_bytes", "retransmitted_bytes", "packets")


def talk(*, closed=False):
    """A session in which the client sends four messages, each of which is acknowledged."""
    script = tcp.Script()
    for side, data in packets.handshake():
        script.send(side, data)
    for number in range(4):
        script.send(CLIENT, packets.message(bytes([number]) * 200, header=packets.session_header(number)))
        script.send(SERVER, packets.session_ack(packets.session_header(number + 1)))
    return tcp.segments(script, acks=True, closed=closed)


def ends(parts):
    """How far each side has come."""
    return [max(p.offset + len(p.payload) + bool(p.flags & frames.FIN) for p in parts if p.side == s) for s in (0, 1)]


def rst(before, side, *, ahead=0, ack=True, payload=b""):
    reached = ends(before)
    flags = frames.RST | (frames.ACK if ack else 0)
    at = before[-1].time_ns + 1000
    return Segment(at, side, reached[side] + ahead, reached[1 - side] if ack else None, flags, payload)


def goes_on(side, place, **options):
    """The session with an RST somewhere in it."""
    parts = talk()
    return [*parts[:place], rst(parts[:place], side, **options), *parts[place:]]


def reset_at_end(*sides, **options):
    parts = talk()
    return [*parts, *(replace(rst(parts, side, **options), time_ns=parts[-1].time_ns + 1000 * (n + 1))
                      for n, side in enumerate(sides))]  # fmt: skip


def data_on_its_way():
    """The server resets; two messages of the client were on their way, and are answered by RSTs."""
    parts = talk()
    last = rst(parts, SERVER)
    client, server = ends(parts)
    late = packets.message(b"late" * 40, header=packets.session_header(5))
    out = [*parts, last]
    for number in range(2):
        at, offset = last.time_ns + (2 * number + 1) * MS, client + len(late) * number
        out.append(Segment(at, CLIENT, offset, server, frames.ACK, late))
        out.append(replace(last, time_ns=at + 1000, ack_offset=None, flags=frames.RST))
    return out


def challenged():
    """An RST ahead that is answered by a challenge ACK (RFC 5961 3.2); nothing new follows."""
    parts = talk()
    found = [*parts, rst(parts, CLIENT, ahead=AHEAD)]
    client, server = ends(parts)
    return [*found, Segment(found[-1].time_ns + 1000, SERVER, server, client, frames.ACK)]


def of_another_connection(side, sequence):
    """An RST far from where the stream is, as without a connection: sequence number 0, or any."""
    parts = talk()
    first, then = parts[:9], parts[9:]
    away = Segment(first[-1].time_ns + 1000, side, sequence - FLOW.isn[side] - 1, None, frames.RST | frames.ACK)
    return [*first, away, *then]


def ended_after_one_that_did_not():
    parts = goes_on(SERVER, 9, ahead=AHEAD)
    return [*parts, rst(talk(), CLIENT)]


def asked_again():
    """Windows asks three times where an RST answers; the third time the service runs."""
    first, *others = talk()
    refused = Segment(0, SERVER, -FLOW.isn[SERVER] - 1, 0, frames.RST | frames.ACK)
    tries = [replace(each, time_ns=first.time_ns + at * MS) for at, each in
             ((-1000, first), (-999, refused), (-500, first), (-499, refused))]  # fmt: skip
    return [*tries, first, *others]


def fins_follow():
    """Both sides close in order after an RST that nobody believed."""
    parts = talk(closed=True)
    return [*parts[:-3], rst(parts[:-3], SERVER, ahead=AHEAD), *parts[-3:]]


def at_us(parts, index):
    return parts[index].time_ns // 1000


def first_reset(parts):
    return next(index for index, part in enumerate(parts) if part.flags & frames.RST)


def last_reset(parts):
    return max(index for index, part in enumerate(parts) if part.flags & frames.RST)


STORIES = {
    "ahead of the client's stream": (partial(goes_on, CLIENT, 9, ahead=AHEAD), None),
    "ahead of the server's stream": (partial(goes_on, SERVER, 9, ahead=AHEAD), None),
    "ahead, without an acknowledgement": (partial(goes_on, SERVER, 14, ahead=AHEAD, ack=False), None),
    "in sequence, and not believed": (partial(goes_on, CLIENT, 12), None),
    "behind the client's stream": (partial(goes_on, CLIENT, 16, ahead=-100, ack=False), None),
    "with a text, and not believed": (partial(goes_on, CLIENT, 9, ahead=AHEAD, payload=b"text " * 9), None),
    "at the end": (partial(reset_at_end, CLIENT), first_reset),
    "at the end, of both": (partial(reset_at_end, SERVER, CLIENT), first_reset),
    "at the end, with a text": (partial(reset_at_end, CLIENT, payload=b"why it was reset " * 3), first_reset),
    "with data on its way": (data_on_its_way, first_reset),
    "challenged": (challenged, first_reset),
    "sequence number 0": (partial(of_another_connection, CLIENT, 1_000_000_000), None),
    "far away": (partial(of_another_connection, SERVER, 2_000_000_000), None),
    "the second one ends it": (ended_after_one_that_did_not, last_reset),
    "asked again": (asked_again, None),
    "FINs follow": (fins_follow, len),
}  # fmt: skip


def capture(parts):
    return containers.pcap(tcp.records(FLOW, parts), magic=containers.NANOSECONDS).data


def read(parts):
    return read_capture(capture(parts))


def pieces(parts, cuts):
    bounds = [0, *(cut for cut in cuts if 0 < cut < len(parts)), len(parts)]
    return [parts[begin:end] for begin, end in pairwise(bounds)]


def facts(tables):
    found = tables["connections"]
    if "closed_at" in found.column_names:
        place = found.column_names.index("closed_at")
        found = found.set_column(place, "closed_at", pc.cast(found["closed_at"], "int64"))
    strays = sum(row["size_bytes"] for row in tables["quarantine"].to_pylist())
    return [tuple(row[name] for name in FACTS) for row in found.to_pylist()], strays


@pytest.mark.parametrize("name", STORIES)
def test_an_rst_ends_a_connection_unless_both_sides_go_on(name):
    tell, end = STORIES[name]
    parts = tell()
    ((closed_at, closed_by, *_, missing, _, count),), strays = facts(read_captures([[capture(parts)]]))
    if end is None:
        assert (closed_at, closed_by) == (None, None)
    elif end is len:
        assert (closed_at, closed_by) == (at_us(parts, -2), "fin")
    else:
        assert (closed_at, closed_by) == (at_us(parts, end(parts)), "rst")
    assert (missing, count, strays) == (AHEAD if name == "challenged" else 0, len(parts), 0)


@pytest.mark.parametrize("name", STORIES)
def test_the_end_is_the_same_in_several_files_of_any_order(name):
    parts = STORIES[name][0]()
    at = first_reset(parts)
    whole = facts(read_captures([[capture(parts)]]))
    cuts = [(at,), (at + 1,), (at + 3,), (at, at + 1)]
    for cut in cuts:
        files = [read(part) for part in pieces(parts, cut)]
        for runs in ([files], [files[-1:], files[:-1]]):
            assert facts(merge_runs(runs)) == whole, (cut, [len(run) for run in runs])


def test_a_connection_goes_on_long_after_an_rst_that_is_not_in_sequence():
    parts = goes_on(CLIENT, 9, ahead=AHEAD)
    later = [part.shifted(3600 * 1000 * MS) for part in parts[10:]]
    one, two = read(parts[:10]), read(later)
    assert one["pending"]["waits_for"].to_pylist() == [["end"]]
    for runs in ([[one], [two]], [[two], [one]]):
        ((closed_at, closed_by, *_),), _ = facts(merge_runs(runs))
        assert (closed_at, closed_by) == (None, None)


def test_remainders_of_before_have_their_rst_among_the_segments():
    parts = goes_on(SERVER, 9, ahead=AHEAD)
    one, two = read(parts[:11]), read(parts[11:])
    for rest, closed in (([], True), ([two], False)):
        (row,) = one["pending"].to_pylist()
        ((reset,), segments) = row.pop("resets"), row["segments"]
        segments.append({**segments[0], "flags": frames.RST, "time_ns": reset["time_ns"], "acknowledgement": 0,
                         "sequence": segments[0]["sequence"] + ends(parts[:9])[CLIENT] + 1, "size": 0})  # fmt: skip
        before = {**one, "pending": pa.Table.from_pylist([row], one["pending"].schema)}
        ((closed_at, *_),), _ = facts(merge_runs([[before], rest]))
        assert (closed_at is not None) is closed


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_tap_that_ends_early_does_not_end_what_another_one_saw_go_on(side):
    parts = goes_on(side, 9, ahead=AHEAD)
    early = [part.shifted(3 * MS) for part in parts[:12]]  # the RST, and what one side sent then
    for runs in ([[capture(parts), capture(early)]], [[capture(early)], [capture(parts)]]):
        ((closed_at, closed_by, *_),), _ = facts(read_captures(runs))
        assert (closed_at, closed_by) == (None, None)


def test_the_end_that_two_taps_saw_stays():
    parts = reset_at_end(SERVER)
    ahead = [part.shifted(2000 * MS) for part in parts[:-4]]  # its clock is ahead, and it ended before the RST
    for runs in ([[capture(parts), capture(ahead)]], [[capture(ahead)], [capture(parts)]]):
        ((closed_at, closed_by, *_),), _ = facts(read_captures(runs))
        assert (closed_at, closed_by) == (at_us(parts, -1), "rst")


@pytest.mark.parametrize("side", [CLIENT, SERVER])
def test_a_reset_of_a_connection_of_which_one_side_was_captured(side):
    parts = [part for part in reset_at_end(side) if part.side == side]
    files = capture(parts[:-1]), capture(parts[-1:])
    for runs in ([[capture(parts)]], [files], [files[1:], files[:1]]):
        ((closed_at, closed_by, *_),), _ = facts(read_captures(runs))
        assert (closed_at, closed_by) == (at_us(parts, -1), "rst")
