"""A session cut into any files, read in any order in any number of runs, gives the packets of the whole capture."""

from __future__ import annotations

from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

from capture.in_memory import read_captures
from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, differences, equal
from capture.merge.cutting import cut, layout
from example_counts import examples
from pcapgen import containers
from pcapgen import conversation as tcp
from pcapgen import sessions as packets
from pcapgen.reading import to_rows
from sessions.test_framing import FLOW, PARTS
from udfs.capture.capture_reader import read_capture
from udfs.sessions import packet_framing

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
LEFT_OUT = PLACES | OF_THE_RUN | {"observations"}  # captures with a packet: one more where it was cut


# No packets inside of bodies: a file that begins there believes them, if it does not keep enough.
PLAIN = st.sampled_from([
    packets.connection_parameters(), packets.session_ack(), packets.order_ack(), packets.message(b"x" * 700),
    packets.message(b"y" * 300, header=packets.session_header(3)), packets.message(b"z" * 90), b"garbage " * 9,
])  # fmt: skip


@st.composite
def sessions(draw, content=PARTS):
    """The segments of a session: a handshake, any packets of both sides, some segments lost, maybe begun in between."""
    script = tcp.Script()
    if draw(st.booleans()):
        for side, data in packets.handshake():
            script.send(side, data)
    for side, data in draw(st.lists(st.tuples(st.sampled_from([0, 1]), content), min_size=1, max_size=8)):
        script.send(side, data)
    parts = tcp.segments(
        script,
        cuts=draw(st.lists(st.integers(150, 700), min_size=1, max_size=6)),
        opened=draw(st.booleans()),
        closed=draw(st.booleans()),
        acks=draw(st.booleans()),
    )
    assume(parts)
    lost = draw(st.sets(st.integers(0, len(parts) - 1), max_size=2))
    return tcp.drop_segments(parts, *lost)


@st.composite
def plans(draw, count):
    """Places at which files begin, and runs of these files."""
    places = draw(st.sets(st.integers(1, max(count - 1, 1)), max_size=3)) if count > 1 else set()
    order = draw(st.permutations(range(len(places) + 1)))
    ends = sorted(draw(st.sets(st.integers(1, len(order)), max_size=2)) | {len(order)})
    runs, begin = [], 0
    for end in ends:
        runs.append(order[begin:end])
        begin = end
    return sorted(places), runs


def same_packets(found, expected):
    lines = differences(found, expected, left_out=LEFT_OUT, not_compared=OF_FILES)
    assert not lines, "\n" + "\n".join(lines)


def accounted(tables):
    """Each byte is in a packet or in quarantine."""
    for row in to_rows(tables["connections"]):
        own = [each for each in to_rows(tables["session_packets"]) if each["connection_id"] == row["connection_id"]]
        strays = [each for each in to_rows(tables["quarantine"]) if each["connection_id"] == row["connection_id"]]
        seen = sum(each["seen_bytes"] for each in own) + sum(each["size_bytes"] for each in strays)
        assert seen == row["client_bytes"] + row["server_bytes"]


def cut_anywhere(data, parts):
    assume(len(parts) > 1)
    records = tcp.records(FLOW, parts)
    capture = containers.pcap(records, magic=containers.NANOSECONDS).data
    places, runs = data.draw(plans(len(records)))
    pieces = cut(capture, places)
    assume(len({layout(piece).units[0].data for piece in pieces}) == len(pieces))
    note(f"{places}, {runs}")
    whole = read_capture(capture)
    accounted(whole)
    found = read_captures([[pieces[index] for index in run] for run in runs])
    accounted(found)
    same_packets(found, whole)
    equal(found, read_captures([pieces]))


@settings(max_examples=examples(200), deadline=None, suppress_health_check=SLOW)
@given(st.data())
def test_any_cut_in_any_order(data):
    cut_anywhere(data, data.draw(sessions()))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[*SLOW, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_cut_where_files_keep_little_of_their_beginning(monkeypatch, data):
    monkeypatch.setattr(packet_framing, "START_BYTES", data.draw(st.sampled_from([0, 300])))
    cut_anywhere(data, data.draw(sessions(PLAIN)))
