"""data/transfers is what its accounts say: packet by packet, and by tshark; recorded anew, it is the same exchange."""

import hashlib
import subprocess
from collections import Counter, defaultdict

import pytest

from pcapgen.exchanges import read_frames, recorded
from peer.transfers.record import RECORDINGS, main
from transfers_peer.reading import ACCOUNTS, DATA, account_lines, of

NAMES = [recording.name for recording in RECORDINGS]
CLIENT, SERVER = 0, 1
LARGEST_FRAME = 1514
CLOCKS_NS = 1_000_000_000  # the peer notes the time, then it sends: on a busy machine later
TCP_DELAY_NS = 50_000_000  # of the last acknowledgement


def load(name, accounts=ACCOUNTS, data=DATA):
    lines = account_lines(name, accounts)
    return data / lines[0]["capture"], lines


def ends(session):
    return tuple(session[name] for name in ("client_address", "client_port", "server_address", "server_port"))


def check(name, accounts=ACCOUNTS, data=DATA):
    """Compare each packet of the account with the bytes at its place in the capture; return how many there are."""
    capture, lines = load(name, accounts, data)
    talks = {talk.flow.four_tuple: talk for talk in recorded(capture)}
    sessions = {session["session"]: session for session in of(lines, "session")}
    assert talks.keys() == {ends(session) for session in sessions.values()}
    begins, done = {}, defaultdict(int)
    packets = [packet for packet in of(lines, "packet") if packet["recorded"]]
    for packet in packets:
        talk = talks[ends(sessions[packet["session"]])]
        side = CLIENT if packet["sent_by"] == "client" else SERVER
        key = packet["session"], side
        begin = packet["stream_offset"] - begins.setdefault(key, packet["stream_offset"])
        assert begin == done[key]
        done[key] += packet["length_bytes"]
        assert hashlib.sha256(talk.stream(side)[begin : done[key]]).hexdigest() == packet["sha256"]
        at = 0
        for time_ns, sender, data_sent in talk.sends:
            if sender == side:
                if at <= begin < at + len(data_sent):
                    assert abs(time_ns - packet["sent_at"]) < CLOCKS_NS
                at += len(data_sent)
    for session in sessions.values():
        talk = talks[ends(session)]
        if session["outcome"] != "not_binary_protocol":
            for side in (CLIENT, SERVER):
                assert len(talk.stream(side)) == done[session["session"], side]
        assert (talk.closed_ns is None) == (session["closed_at"] is None)
        assert talk.reset == (session["ended"] == "reset" or session["outcome"] == "not_established")
    frames = read_frames(capture)
    assert max(len(frame.frame) for frame in frames) <= LARGEST_FRAME
    assert [frame.time_ns for frame in frames] == sorted(frame.time_ns for frame in frames)
    assert abs(frames[-1].time_ns - lines[0]["ended_at"]) < TCP_DELAY_NS + CLOCKS_NS
    return len(packets)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_has_the_bytes_of_its_account(name):
    assert check(name) > 10


def test_every_recording_has_its_account():
    assert {path.name.split(".")[0] for path in DATA.iterdir()} == set(NAMES)
    assert {path.name.split(".")[0] for path in ACCOUNTS.iterdir()} == set(NAMES)


@pytest.mark.tool("tshark")
@pytest.mark.parametrize("name", NAMES)
def test_tshark_counts_the_same_bytes(name):
    """Payload of each side, without what TCP sent again, by a dissector that is not ours."""
    capture, lines = load(name)
    fields = ("ip.src", "tcp.srcport", "ip.dst", "tcp.dstport", "tcp.len")
    command = ["tshark", "-r", str(capture), "-Y", "tcp.port==1801 && !tcp.analysis.retransmission", "-T", "fields"]
    command += [part for each in fields for part in ("-e", each)]
    counted = Counter()
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        *four, size = line.split("\t")
        counted[tuple(four)] += int(size)
    said = Counter()
    sessions = {session["session"]: session for session in of(lines, "session")}
    for packet in of(lines, "packet"):
        client, cport, server, sport = map(str, ends(sessions[packet["session"]]))
        way = (client, cport, server, sport) if packet["sent_by"] == "client" else (server, sport, client, cport)
        said[way] += packet["length_bytes"] * packet["recorded"]
    strangers = {ends(each)[:2] for each in sessions.values() if each["outcome"] == "not_binary_protocol"}
    found = {way: size for way, size in counted.items() if size and (way[0], int(way[1])) not in strangers}
    assert found == {way: size for way, size in said.items() if size}


def summary(lines):
    """What does not depend on times and ports."""
    keys = {
        "session": ("outcome", "ended", "by_direct_name", "client_numbered", "server_numbered"),
        "packet": ("session", "sent_by", "kind", "session_number", "recoverable_number"),
        "message": ("message_id", "destination_queue", "outcome", "final_class", "arrival_class", "receive_class"),
        "sequence": ("messages", "resends", "waiting", "destination_queue"),
    }
    return {
        record: Counter(tuple(line.get(name) for name in names) for line in of(lines, record))
        for record, names in keys.items()
    }


@pytest.mark.network_namespace
@pytest.mark.tool("ip", "tcpdump", "editcap")
@pytest.mark.parametrize("name", ["05-resends", "06-two-hops", "09-large-messages"])
def test_recorded_anew_it_is_the_same_exchange(tmp_path, name):
    assert main(["--out", str(tmp_path), "--accounts", str(tmp_path), name]) == 0
    check(name, tmp_path, tmp_path)
    assert summary(load(name, tmp_path, tmp_path)[1]) == summary(load(name)[1])
