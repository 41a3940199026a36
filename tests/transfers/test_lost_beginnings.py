"""Where the packets with which a session began were lost, its first ones are missing, of the server too."""

import datetime as dt
from functools import cache

import pytest

from pcapgen.containers import NANOSECONDS, pcap
from pcapgen.exchanges import read_frames
from schemas.sessions import SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS
from transfers.conclusions import wrong
from transfers.in_memory import transfers_of
from transfers.losses import described
from transfers_peer.reading import DATA

RECORDS = {name: read_frames(DATA / name) for name in ("02-session-acks.pcap", "07-several-queues.pcap")}
# Packets of the last session of "07-several-queues.pcap".
SYN_ACK, LAST_ACK, CLIENT_ESTABLISHES, SERVER_ESTABLISHES = 25, 26, 28, 30


@cache
def whole(name):
    """What a recording concludes."""
    return transfers_of([pcap(RECORDS[name], magic=NANOSECONDS).data])


def without(name, lost):
    """What a recording concludes without some packets, and what of it is wrong."""
    found = described("burst", RECORDS[name], [at not in lost for at in range(len(RECORDS[name]))])
    lake = transfers_of([found.capture])
    return lake, [*wrong(found, lake, whole(name))]


def last_session(lake):
    return max(lake.rows(SESSIONS).to_pylist(), key=lambda row: row["first_packet_at"])


def test_nobody_knows_what_a_server_sent_whose_beginning_was_lost_with_that_of_the_client():
    lake, faults = without("07-several-queues.pcap", range(SYN_ACK, SERVER_ESTABLISHES + 1))
    assert faults == []  # rules T12 and T14 judged the server by what was left of it
    session = last_session(lake)
    (hole,) = session["server_holes"]
    assert (hole["since"], hole["until"]) == (session["first_packet_at"], session["last_packet_at"])


@pytest.mark.parametrize("lost", [(SYN_ACK, LAST_ACK), (SYN_ACK, LAST_ACK, CLIENT_ESTABLISHES), (CLIENT_ESTABLISHES,)])
def test_a_server_lacks_nothing_where_its_first_packet_or_its_acknowledgement_was_captured(lost):
    lake, faults = without("07-several-queues.pcap", lost)
    assert (last_session(lake)["server_holes"], faults) == (None, [])


def test_a_session_of_which_only_packets_without_bytes_were_captured_may_have_sent_what_is_missing():
    name = "02-session-acks.pcap"
    packets = len(RECORDS[name])
    lake, faults = without(name, range(packets - 13, packets - 1))  # all of the last session but its last packet
    assert faults == []  # the message that it sent again was unacknowledged
    session = last_session(lake)
    earlier = dt.timedelta(minutes=10)  # sessions.silent_after
    assert session["client_holes"][0]["since"] == session["first_packet_at"] - earlier
    doubtful = [row for row in lake.rows(MESSAGE_TRANSFERS).to_pylist() if "capture_loss" in row["missing"]]
    assert [(row["outcome"], row["receiver_address"]) for row in doubtful] == [("unacknowledged", "10.77.102.3")]
