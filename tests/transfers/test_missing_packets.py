"""What holes of sessions may hold: which packets, of which direction, size and time."""

import numpy as np
import pyarrow as pa
import pytest

from engines import without_spark
from pcapgen import containers
from pcapgen.conversation import CLIENT, SERVER
from pcapgen.exchanges import Damage, recorded, tap
from pipeline.lake.lake import Lake
from pipeline.transfers.hops.missing_packets import MissingPackets, read_holes
from pipeline.transfers.hops.session_spans import TimeSpan
from schemas.bronze import CONNECTIONS
from schemas.sessions import SESSION_PACKETS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS
from transfers.in_memory import transfers_of
from transfers_peer.reading import DATA

SIDES = {CLIENT: "client", SERVER: "server"}
SMALL = Damage(cuts=(100,))


def holes(*rows):
    """Holes, each (sender, receiver, since, until, bytes)."""
    columns = [*zip(*rows, strict=True)]
    numbers = [np.array(each, np.int64) for each in columns[2:]]
    return MissingPackets(pa.array(columns[0]), pa.array(columns[1]), *numbers, np.zeros(len(rows), np.bool_))


@pytest.mark.parametrize(
    ("hop", "size", "since", "until", "expected"),
    [
        (("a", "b"), 100, 0, 99, True),
        (("b", "a"), 100, 0, 99, False),  # the other direction
        (("a", "c"), 100, 0, 99, False),  # another machine
        (("a", "b"), 256, 0, 99, False),  # it is larger
        (("a", "b"), 100, 0, 9, False),  # it was sent before
        (("a", "b"), 100, 21, 99, False),  # or later
        (("a", "b"), 100, 20, 99, True),
        (("a", "b"), 100, 99, 0, False),  # never
        (None, 100, 0, 99, True),
    ],
)
def test_a_hole_may_hold_a_packet_of_its_direction_size_and_time(hop, size, since, until, expected):
    found = holes(("a", "b", 10, 20, 150), ("a", "b", 30, 30, 36))
    ends = None if hop is None else tuple(pa.array([each]) for each in hop)
    numbers = (np.array([each], np.int64) for each in (size, since, until))
    assert found.may_hold(ends, *numbers).tolist() == [expected]


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [(0, 9, [1]), (9, 10, [1, 2]), (20, 20, [1, 2]), (20, 29, [1, 2]), (21, 29, [1]), (21, 30, [1, 3])],
)
def test_holes_are_those_of_sessions_that_exist_within_a_span(tmp_path, since, until, expected):
    """One without times may exist at any time."""
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    fields = [field for field in SESSIONS.schema() if field.name != "event_date"]
    times = ((None, None, 1), (10, 20, 2), (30, 40, 3))
    rows = [
        {"connection_id": str(size), "first_packet_at": first, "last_packet_at": last,
         "client_holes": [{"since": first, "until": last, "size_bytes": size}]}
        for first, last, size in times
    ]  # fmt: skip
    lake.append(SESSIONS, pa.Table.from_pylist(rows, pa.schema(fields)))
    assert sorted(read_holes(lake, TimeSpan(since, until))["size_bytes"].to_pylist()) == expected


def without(made, *places):
    """A capture without some bytes, each (talk, side, first byte): the packet that has it is lost."""
    lost = {made.first(*place).packet_number for place in places}
    return transfers_of([containers.pcap([r for n, r in enumerate(made.records, 1) if n not in lost]).data])


def last_packets(lake, talks):
    """The last packet of each side of each connection that is a message without a SessionHeader: talk, side, row."""
    ports = {talk.flow.client_port: number for number, talk in enumerate(talks)}
    last = {}
    for row in sorted(lake.rows(SESSION_PACKETS).to_pylist(), key=lambda row: row["stream_offset"]):
        last[ports[row["client_port"]], row["sent_by"]] = row
    sides = {name: side for side, name in SIDES.items()}
    for (talk, sent_by), row in last.items():
        if row["kind"] == "user_message" and row["session_header"] is None and row["length_bytes"] > 300:
            yield talk, sides[sent_by], row


@pytest.mark.parametrize("name", ["02-session-acks.pcap", "05-resends.pcap", "07-several-queues.pcap"])
def test_a_hole_inside_the_last_packet_holds_nothing_where_its_end_was_captured(name):
    talks = recorded(DATA / name)
    made = tap(talks, SMALL)
    whole = transfers_of([containers.pcap(made.records).data])
    found = list(last_packets(whole, talks))
    for talk, side, row in found:
        lake = without(made, (talk, side, row["stream_offset"] + 200))
        port = talks[talk].flow.client_port
        (connection,) = [each for each in lake.rows(CONNECTIONS).to_pylist() if each["client_port"] == port]
        assert connection["missing_bytes"] == connection[f"{SIDES[side]}_missing_bytes"] == 100
        (session,) = [each for each in lake.rows(SESSIONS).to_pylist() if each["client_port"] == port]
        assert (session["client_holes"], session["server_holes"]) == (None, None)
        said, happened = (
            {each["transfer_key"]: (each["outcome"], {*each["missing"]} - {"damaged"}) for each in rows}
            for rows in (each.rows(MESSAGE_TRANSFERS).to_pylist() for each in (lake, whole))
        )
        assert said.items() <= happened.items()
    assert found or name.startswith("02")


def test_a_hole_between_packets_has_their_times_and_its_size():
    talks = recorded(DATA / "05-resends.pcap")
    made = tap(talks)
    whole = transfers_of([containers.pcap(made.records).data])
    packets = [row for row in whole.rows(SESSION_PACKETS).to_pylist()
               if row["client_port"] == talks[0].flow.client_port and row["sent_by"] == "client"]  # fmt: skip
    packets.sort(key=lambda row: row["stream_offset"])
    before, lost, behind = packets[1:4]
    lake = without(made, (0, CLIENT, lost["stream_offset"]))
    (session,) = [row for row in lake.rows(SESSIONS).to_pylist() if row["client_port"] == lost["client_port"]]
    assert session["client_holes"] == [
        {"since": before["sent_at"], "until": behind["sent_at"], "size_bytes": lost["length_bytes"]}
    ]
    assert (session["server_holes"], session["missing"]) == (None, ["capture_loss"])
