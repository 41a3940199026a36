"""TCP anomalies, one kind per test, with every expected row."""

from __future__ import annotations

import ipaddress
import itertools
from dataclasses import replace

import pytest

from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames, rpc
from pcapgen.model import Dialogue, ExpectedRows, make_flow, make_stub
from pcapgen.reading import binds, calls, capture_files_row, read_rows, sort_rows
from pcapgen.scenarios import capture_dialogue, remote_read_dialogue
from udfs.tcp import bad_copies
from udfs.tcp.time_limits import TimeLimits

DIALOGUE = remote_read_dialogue()
PARTS = t.segments(DIALOGUE.script)
FIRST_DATA = t.data_indexes(PARTS)[0]
TIMES_AND_PLACES = (
    "call_key", "request_at", "request_done_at", "response_at", "response_done_at", "request_packet",
    "response_packet", "byte_offset", "capture_id", "response_capture_id", "connection_id",
)  # fmt: skip


def check(parts, dialogue=DIALOGUE, **connection):
    """Check that calls, binds and connection are as expected, nothing is quarantined, and all packets are used."""
    file, truth = capture_dialogue(dialogue, parts)
    tables = read_rows(file)
    assert calls(tables) == truth.calls()
    assert binds(tables) == truth.binds()
    assert tables["connections"] == [truth.connection(**connection)]
    assert tables["quarantine"] == []
    row = capture_files_row(tables)
    assert (row["packets"], row["packets_used"], row["status"]) == (len(parts), len(parts), "complete")
    return tables


@pytest.mark.parametrize("isn", [(0xFFFFFFF0, 0xFFFFFF00), (0xFFFFFFFF, 0xFFFFFFFE), (0, 0x7FFFFFFF)])
def test_sequence_numbers_wrap(isn):
    dialogue = remote_read_dialogue(make_flow(isn=isn))
    check(t.segments(dialogue.script), dialogue)


@pytest.mark.parametrize("mss", [1, 7, 16, 100, 536])
def test_segments_of_any_size(mss):
    dialogue = remote_read_dialogue(size=300, cuts=(100,))
    check(t.segments(dialogue.script, mss=mss), dialogue)


def test_pure_acknowledgements_carry_nothing():
    check(t.segments(DIALOGUE.script, mss=700, acks=True))


@pytest.mark.parametrize("distance", [1, 2, 5])
@pytest.mark.parametrize("index", t.data_indexes(PARTS))
def test_a_retransmission_changes_only_counts(index, distance):
    check(t.retransmit(PARTS, index, at=min(index + distance, len(PARTS))))


@pytest.mark.parametrize("index", t.data_indexes(PARTS))
def test_of_conflicting_bytes_the_first_seen_stay(index):
    other = bytes(value ^ 0x5A for value in PARTS[index].payload)
    check(t.retransmit(PARTS, index, at=index + 1, payload=other))


def sent_again(index, distance, *, bad_first=True, bad_second=False):
    """The records of a capture in which one segment is sent twice, differently; bad: with a wrong TCP checksum."""
    at = min(index + distance, len(PARTS))
    found = t.records(DIALOGUE.flow, t.retransmit(PARTS, index, at=at))
    for place, bad in ((index, bad_first), (at, bad_second)):
        if bad:
            frame = found[place].frame
            found[place] = replace(found[place], frame=frame[:-1] + bytes([frame[-1] ^ (place + 1)]))
    return found


RESULTS = (
    "call_id", "outcome", "request_stub", "response_stub", "request_at", "request_done_at", "response_at",
    "response_done_at", "interface_name",
)  # fmt: skip


def results(records, **options):
    tables = read_rows(c.pcap(records), **options)
    assert len({row["call_key"] for row in tables["rpc_calls"]}) == len(tables["rpc_calls"])
    (connection,) = tables["connections"]
    assert (connection["calls"], tables["quarantine"]) == (len(tables["rpc_calls"]), [])
    return [{name: row[name] for name in RESULTS} for row in calls(tables)], connection


@pytest.mark.parametrize("distance", [1, 3])
@pytest.mark.parametrize("index", t.data_indexes(PARTS))
def test_a_segment_that_was_damaged_on_its_way_gives_way_to_its_good_copy(index, distance):
    records = sent_again(index, distance)
    control = [record for place, record in enumerate(records) if place != index]
    found, connection = results(records)
    assert found == results(control)[0]
    assert connection["conflicting_bytes"] == 1
    assert connection["retransmitted_bytes"] == len(PARTS[index].payload)


@pytest.mark.parametrize("bad", [(True, True), (False, True), (False, False)])
def test_the_first_copy_stays_unless_only_its_checksum_is_wrong(bad):
    """Where a machine captures what it sends, all checksums are wrong: they decide nothing then."""
    for index in t.data_indexes(PARTS):
        records = sent_again(index, 1, bad_first=bad[0], bad_second=bad[1])
        control = [record for place, record in enumerate(records) if place != index + 1]
        assert results(records)[0] == results(control)[0]


@pytest.mark.parametrize("index", [i for i in t.data_indexes(PARTS) if PARTS[i].side == t.CLIENT])
def test_the_good_copy_of_a_request_may_be_in_another_block(index):
    records = sent_again(index, 1)
    control = [record for place, record in enumerate(records) if place != index]
    assert results(records, block_bytes=2048)[0] == results(control)[0]


def test_a_call_that_was_returned_before_its_good_copy_came_is_not_returned_twice():
    for index in t.data_indexes(PARTS):
        found, connection = results(sent_again(index, len(PARTS)), block_bytes=2048)
        assert [row["call_id"] for row in found] == [call.call_id for call in DIALOGUE.calls]
        assert connection["calls"] == len(found)


def test_checksums_are_computed_only_where_copies_differ(monkeypatch):
    asked = []
    real = bad_copies.has_right_checksum
    monkeypatch.setattr(bad_copies, "has_right_checksum", lambda *each: asked.append(each) or real(*each))
    same = t.retransmit(PARTS, t.data_indexes(PARTS)[1], at=len(PARTS))
    assert results(t.records(DIALOGUE.flow, same))[0] == results(t.records(DIALOGUE.flow, PARTS))[0]
    assert asked == []
    results(sent_again(t.data_indexes(PARTS)[1], 1))
    assert len(asked) == 3  # the copy that differs, then both


def test_checksums_of_ipv6():
    flow = make_flow(client="fe80::9", server="fe80::1")
    (record,) = t.records(flow, t.segments(remote_read_dialogue(flow).script)[:1])
    ends = [(6, ipaddress.ip_address(each).packed, 0) for each in ("fe80::9", "fe80::1")]
    segment = record.frame[14 + 40 :]
    assert bad_copies.has_right_checksum(*ends, segment)
    assert not bad_copies.has_right_checksum(*ends, segment[:-1] + bytes([segment[-1] ^ 1]))


def test_a_segment_that_overlaps_the_one_before_and_the_one_after():
    parts = t.segments(DIALOGUE.script, mss=500)
    full = [i for i in t.data_indexes(parts) if len(parts[i].payload) == 500]
    first, second = parts[full[0]], parts[full[1]]
    wide = replace(
        second,
        offset=first.offset + 250,
        payload=first.payload[250:] + second.payload[:250],
        time_ns=first.time_ns + 1000,
    )
    check([*parts[: full[1]], wide, *parts[full[1] :]])


def test_a_segment_that_begins_inside_one_that_waits_for_what_is_before():
    parts = t.segments(DIALOGUE.script, mss=500)
    full = [i for i in t.data_indexes(parts) if len(parts[i].payload) == 500]
    first, second, third = (parts[index] for index in full[:3])
    assert [part.offset - first.offset for part in (second, third)] == [500, 1000]
    inside = replace(second, offset=second.offset + 200, payload=second.payload[200:] + third.payload[:250])
    late = [
        replace(part, time_ns=first.time_ns + 1000 * place) for place, part in enumerate((second, inside, first, third))
    ]
    tables = check([*parts[: full[0]], *late, *parts[full[2] + 1 :]])
    assert tables["connections"][0]["retransmitted_bytes"] == 300 + 250


def test_a_conflicting_overlap_counts_the_bytes_that_differ():
    parts = t.segments(DIALOGUE.script, mss=500)
    index = next(i for i in t.data_indexes(parts) if len(parts[i].payload) == 500)
    payload = parts[index].payload
    changed = payload[:100] + bytes(value ^ 1 for value in payload[100:110]) + payload[110:]
    tables = check(t.retransmit(parts, index, at=index + 1, payload=changed))
    assert tables["connections"][0]["conflicting_bytes"] == 10


def _neighbours():
    indexes = t.data_indexes(PARTS)
    return [(a, b) for a, b in itertools.pairwise(indexes) if b == a + 1]


@pytest.mark.parametrize(("early", "late"), _neighbours())
def test_neighbours_in_the_wrong_order(early, late):
    """Bytes of one side wait; across sides a response may be captured before its request."""
    check(t.move_segment(PARTS, early, late))


def test_the_last_segment_of_an_answer_arrives_first():
    parts = t.segments(DIALOGUE.script, mss=400)
    full = [i for i in t.data_indexes(parts) if parts[i].side == t.SERVER and len(parts[i].payload) == 400]
    check(t.move_segment(parts, full[-1], full[0]))


def test_data_captured_before_the_syn():
    parts = t.move_segment(PARTS, FIRST_DATA, 0)
    file, truth = capture_dialogue(DIALOGUE, parts)
    assert [row["outcome"] for row in calls(read_rows(file))] == [row["outcome"] for row in truth.calls()]


def test_a_lost_segment_leaves_a_gap_that_is_never_filled():
    """A segment of the receive's response is missing: that call is damaged, the others are complete."""
    full = [i for i in t.data_indexes(PARTS) if len(PARTS[i].payload) == 1460]
    parts = t.drop_segments(PARTS, full[1])
    file, truth = capture_dialogue(DIALOGUE, parts)
    tables = read_rows(file)
    got = calls(tables)
    assert [row["outcome"] for row in got] == ["ok", "damaged", "ok", "fault", "ok"]
    others = [index for index in range(5) if index != 1]
    DIALOGUE.calls[1].response, kept = None, DIALOGUE.calls[1].response
    try:
        expected = truth.calls()
    finally:
        DIALOGUE.calls[1].response = kept
    assert [got[i] for i in others] == [expected[i] for i in others]
    assert tables["connections"][0]["missing_bytes"] == 1460
    stub = got[1]["response_stub"]
    assert stub is None or bytes(1460) not in stub


def test_loss_in_the_last_answer_keeps_all_others():
    last = t.data_indexes(PARTS)[-1]
    file, _ = capture_dialogue(DIALOGUE, t.drop_segments(PARTS, last))
    tables = read_rows(file)
    assert [row["outcome"] for row in calls(tables)] == ["ok", "ok", "ok", "fault", "no_response"]


def test_a_snaplen_cuts_payloads_and_says_so():
    """Only the long response is truncated; its call is damaged, the rest is complete."""
    whole = t.records(DIALOGUE.flow, PARTS)
    snap = 300
    taken = t.truncate_frames(whole, snap)
    tables = read_rows(c.pcap(taken, snaplen=snap))
    row = capture_files_row(tables)
    cut = [index for index, record in enumerate(whole) if len(record.frame) > snap]
    assert (row["packets_truncated"], row["packets_damaged"], row["packets_used"]) == (len(cut), 0, len(PARTS))
    assert [call["outcome"] for call in calls(tables)] == ["ok", "damaged", "ok", "fault", "ok"]
    assert tables["connections"][0]["missing_bytes"] == sum(len(whole[index].frame) - snap for index in cut)


def test_keep_alives_are_no_conflicts():
    index = t.data_indexes(PARTS)[-1]
    parts = t.keep_alive(PARTS, index)
    file, truth = capture_dialogue(DIALOGUE, parts)
    tables = read_rows(file)
    assert calls(tables) == truth.calls()
    row = tables["connections"][0]
    assert (row["conflicting_bytes"], row["missing_bytes"]) == (0, 0)


@pytest.mark.parametrize("side", [t.CLIENT, t.SERVER])
def test_a_reset_ends_the_connection(side):
    parts = t.reset(t.segments(DIALOGUE.script, closed=False), side)
    check(parts)


def test_a_half_open_connection_is_not_closed():
    check([part for part in PARTS if not (part.flags & frames.FIN and part.side == t.SERVER)])


@pytest.mark.parametrize("end", ["fin", "rst", "none"])
def test_the_same_four_tuple_again_is_another_connection(end):
    parts = t.segments(DIALOGUE.script, closed=end == "fin")
    if end == "rst":
        parts = t.reset(parts, t.CLIENT)
    again = remote_read_dialogue(make_flow(isn=(77_000_000, 3_000_000_000)))
    later = t.segments(again.script, start_ns=parts[-1].time_ns + 5_000_000_000)
    file = c.pcap(t.records(DIALOGUE.flow, parts) + t.records(again.flow, later))
    first = ExpectedRows(DIALOGUE, parts, file, indexes=range(len(parts)))
    second = ExpectedRows(again, later, file, indexes=range(len(parts), len(parts) + len(later)))
    tables = read_rows(file)
    assert calls(tables) == sort_rows(
        first.calls() + second.calls(), "client_address", "client_port", "connection_id", "call_id"
    )
    assert sort_rows(tables["connections"], "first_packet_at") == [first.connection(), second.connection()]


def test_a_capture_that_begins_after_the_handshake():
    parts = t.segments(DIALOGUE.script, opened=False)
    check(parts)


def test_a_capture_that_begins_after_the_bind_infers_the_interface_from_port_and_lengths():
    parts = t.segments(DIALOGUE.script)[5:]
    assert parts[0].payload[2] == rpc.REQUEST
    file, truth = capture_dialogue(DIALOGUE, parts)
    expected = []
    truth.dialogue = replace(DIALOGUE, binds=[])
    for row in truth.calls():
        outcome = "unbound" if row["outcome"] == "ok" else row["outcome"]
        expected.append({**row, "interface_uuid": rpc.REMOTE_READ, "interface_name": "RemoteRead", "outcome": outcome})
    got = calls(read_rows(file))
    assert [{**row, "transfer_syntax": None} for row in got] == [{**row, "transfer_syntax": None} for row in expected]
    assert all(row["bind_seen"] is False for row in got)


def test_mid_stream_on_an_unknown_port_is_not_inferred():
    dialogue = remote_read_dialogue(make_flow(server_port=3000))
    file, _ = capture_dialogue(dialogue, t.segments(dialogue.script)[5:])
    assert read_rows(file)["rpc_calls"] == []


def test_a_capture_that_begins_inside_a_pdu_finds_the_next():
    """A response lacks its first segment: bytes up to the next PDU are quarantined, later calls are complete."""
    parts = [part for part in PARTS if part.payload][2:]
    full = next(i for i, part in enumerate(parts) if len(part.payload) == 1460)
    parts = parts[full + 1 :]
    tables = read_rows(capture_dialogue(DIALOGUE, parts)[0])
    found = [(row["call_id"], row["outcome"]) for row in calls(tables)]
    assert [entry for entry in found if entry[1] not in ("damaged", "no_request")] == [
        (4, "unbound"), (5, "fault"), (6, "unbound"),
    ]  # fmt: skip
    assert sum(row["size_bytes"] for row in tables["quarantine"]) > 0


def test_the_client_alone():
    parts = t.one_side(PARTS, t.CLIENT)
    tables = read_rows(capture_dialogue(DIALOGUE, parts)[0])
    assert [(row["call_id"], row["outcome"], row["request_stub"]) for row in calls(tables)] == [
        (call.call_id, "no_response", call.request.stub) for call in DIALOGUE.calls
    ]
    assert [row["result"] for row in tables["rpc_binds"]] == ["unknown"]
    assert capture_files_row(tables)["packets_used"] == len(parts)


def test_the_server_alone():
    """Responses show neither interface nor method: nothing is invented, and no byte is lost."""
    parts = t.one_side(PARTS, t.SERVER)
    tables = read_rows(capture_dialogue(DIALOGUE, parts)[0], all_pdus=True)
    assert tables["rpc_calls"] == []
    assert [row["ptype"] for row in tables["pdus"]] == [rpc.BIND_ACK, 2, 2, 2, 2, 2, 3, 2]
    assert capture_files_row(tables)["packets"] == len(parts)


def test_data_in_the_syn():
    """TCP fast open: the SYN carries the client's first bytes."""
    parts = list(PARTS)
    first = parts.pop(FIRST_DATA)
    flow = DIALOGUE.flow
    ends = (flow.client, flow.server, flow.client_port, flow.server_port)
    opening = frames.ip(flow.client, flow.server, frames.tcp(*ends, flow.isn[0], 0, frames.SYN, first.payload))
    taken = t.records(flow, parts)
    taken[0] = c.Record(parts[0].time_ns, frames.ethernet(opening))
    got = calls(read_rows(c.pcap(taken)))
    assert [(row["call_id"], row["outcome"], row["bind_seen"]) for row in got] == [
        (call.call_id, "fault" if call.fault else "ok", True) for call in DIALOGUE.calls
    ]


def test_a_segment_later_than_the_window_is_lost():
    """More than two seconds late: the gap was given up; with a longer window it is filled."""
    full = [i for i in t.data_indexes(PARTS) if len(PARTS[i].payload) == 1460]
    late = replace(PARTS[full[1]], time_ns=PARTS[-1].time_ns + 3_000_000_000)
    rest = [
        part.shifted(2_500_000_000) if index > full[1] else part for index, part in enumerate(PARTS) if index != full[1]
    ]
    extra = [part.shifted(5_000_000_000) for part in rest[-1:]]
    parts = sorted(
        [*rest[:-1], replace(late, time_ns=rest[-2].time_ns + 3_000_000_000), *extra], key=lambda p: p.time_ns
    )
    file, _ = capture_dialogue(DIALOGUE, parts)
    assert calls(read_rows(file, limits=TimeLimits(0.5)))[1]["outcome"] == "damaged"
    assert calls(read_rows(file, limits=TimeLimits(30.0)))[1]["outcome"] == "ok"


@pytest.mark.parametrize("cut", [False, True])
def test_a_half_is_complete_when_its_last_segment_came_not_when_its_last_byte_came(cut):
    """A segment in the middle is sent again after the others: until then the half is not complete."""
    parts = t.segments(DIALOGUE.script, mss=500)
    spans = [(call.request, t.CLIENT) for call in DIALOGUE.calls] + [
        (call.response, t.SERVER) for call in DIALOGUE.calls
    ]
    half, side = next(span for span in spans if span[0] and span[0].extents[-1][1] - span[0].extents[0][0] > 1500)
    begin, end = half.extents[0][0], half.extents[-1][1]
    inside = [i for i, p in enumerate(parts) if p.side == side and p.payload and begin <= p.offset < end]
    late = parts[inside[-1]].time_ns + 500_000
    moved = replace(parts[inside[1]], time_ns=late)
    parts = sorted([*(p for i, p in enumerate(parts) if i != inside[1]), moved], key=lambda part: part.time_ns)
    if cut:  # the last byte is never seen: what was seen was seen when the late segment came
        last = next(p for p in reversed(parts) if p.side == side and begin <= p.offset < end and p is not moved)
        parts = [p for p in parts if p is not last]
    name = "request" if side == t.CLIENT else "response"
    file, _ = capture_dialogue(DIALOGUE, parts)
    times = [row[f"{name}_done_at"] for row in calls(read_rows(file))]
    assert late // 1000 in times
    if not cut:
        check(parts)


def test_two_conversations_do_not_mix():
    other = remote_read_dialogue(make_flow(client="10.0.0.10"), size=900)
    flows = [(DIALOGUE, PARTS), (other, t.segments(other.script, start_ns=t.START_NS + 111_000))]
    tagged = sorted(
        ((part.time_ns, number, index) for number, (_, parts) in enumerate(flows) for index, part in enumerate(parts))
    )
    file = c.pcap([t.records(flows[n][0].flow, [flows[n][1][i]])[0] for _, n, i in tagged])
    expected = []
    for number, (dialogue, parts) in enumerate(flows):
        indexes = [at for at, (_, n, _) in enumerate(tagged) if n == number]
        expected += ExpectedRows(dialogue, parts, file, indexes=indexes).calls()
    assert calls(read_rows(file)) == sort_rows(expected, "client_address", "client_port", "connection_id", "call_id")


def test_a_long_lived_connection_is_one_connection():
    dialogue = Dialogue()
    dialogue.bind()
    for _ in range(3):
        dialogue.call(6, make_stub(6, 20), make_stub(6, 4))
    parts = [part.shifted(index * 3_600_000_000_000) for index, part in enumerate(t.segments(dialogue.script))]
    check(parts, dialogue)
