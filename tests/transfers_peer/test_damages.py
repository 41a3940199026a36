"""Damaged captures of exchanges hold exactly the bytes that they say; whole ones, all."""

import hashlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from example_counts import examples
from pcapgen import containers
from pcapgen.conversation import CLIENT, SERVER
from pcapgen.exchanges import Damage, Sighting, covered, damages, over_ipv6, read_frames, recorded, sighting, tap
from transfers_peer.reading import DATA, account_lines, of

TALKS = recorded(DATA / "05-resends.pcap")
RELAXED = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def again(records, tmp_path):
    """Write records to a file and take the connections from it."""
    path = tmp_path / "again.pcap"
    path.write_bytes(containers.pcap(records, magic=containers.NANOSECONDS).data)
    assert [(each.time_ns, each.frame) for each in read_frames(path)] == [
        (each.time_ns, each.frame) for each in records
    ]
    return recorded(path)


def test_an_undamaged_tap_has_the_recording(tmp_path):
    made = again(tap(TALKS).records, tmp_path)
    for one, other in zip(TALKS, made, strict=True):
        assert [one.stream(side) for side in (0, 1)] == [other.stream(side) for side in (0, 1)]
        assert (one.flow, one.reset, one.closed_by) == (other.flow, other.reset, other.closed_by)


@RELAXED
@given(damages(lossy=False))
def test_without_losses_all_bytes_are_seen(damage):
    made = tap(TALKS, damage)
    for number, talk in enumerate(TALKS):
        for side in (CLIENT, SERVER):
            size = len(talk.stream(side))
            assert made.captured(number, side, 0, size) == size
    assert [each.time_ns for each in made.records] == sorted(each.time_ns for each in made.records)


@RELAXED
@given(damages(), st.integers(0, 4), st.sampled_from([CLIENT, SERVER]))
def test_spans_are_those_of_the_packets(damage, number, side):
    """Each byte that a span says is in a packet, at its sequence number, and none besides."""
    made, flow = tap(TALKS, damage), TALKS[number].flow
    found = set()
    port = flow.client_port if side == CLIENT else flow.server_port
    for record in made.records:
        segment = record.frame[34:]
        other = int.from_bytes(segment[2:4], "big")
        ports = (flow.client_port, flow.server_port)
        if int.from_bytes(segment[:2], "big") == port and other == ports[1 - side]:
            begin = int.from_bytes(segment[4:8], "big") - flow.isn[side] - 1 & 0xFFFFFFFF
            payload = segment[(segment[12] >> 4) * 4 :]
            assert TALKS[number].stream(side)[begin : begin + len(payload)] == payload
            found |= set(range(begin, begin + len(payload)))
    assert found == {at for begin, end in made.spans(number, side) for at in range(begin, end)}
    for at in list(found)[:20]:
        piece = made.first(number, side, at)
        record = made.records[piece.packet_number - 1]
        assert record.time_ns == piece.time_ns
        assert record.frame[at - piece.end :][:1] == TALKS[number].stream(side)[at : at + 1]


def test_two_taps_complete_one_another():
    one, other = tap(TALKS, Damage(one_side=CLIENT)), tap(TALKS, Damage(one_side=SERVER, clock_ns=3_000_000))
    size = len(TALKS[0].stream(SERVER))
    assert one.captured(0, SERVER, 0, size) == 0
    assert sighting([one, other], 0, SERVER, 0, size) == Sighting(size, True, size, 1, (1,))
    assert sighting([one], 0, SERVER, 0, 572) == Sighting(0, False, 0, 0, ())
    assert covered([[(0, 4), (2, 8)], [(6, 9), (20, 30)]], 1, 25) == 8 + 5


def test_an_exchange_over_ipv6_has_the_same_segments():
    one, six = tap(TALKS), tap(over_ipv6(TALKS))
    assert one.pieces == six.pieces
    assert {record.frame[12:14] for record in six.records} == {b"\x86\xdd"}


def test_a_packet_with_a_hole_is_cut():
    whole = tap(TALKS, Damage(cuts=(100,)))
    data = [number for number, each in enumerate(whole.records) if len(each.frame) == 154]
    holed = tap(TALKS, Damage(cuts=(100,), lost=(data[2],)))
    assert sighting([holed], 0, CLIENT, 0, 572) == Sighting(472, False, 200, 1, ())
    assert sighting([holed, whole], 0, CLIENT, 0, 572) == Sighting(572, True, 572, 2, (1,))
    piece = holed.first(0, CLIENT, 450)
    assert (piece.begin, piece.end) == (400, 500)
    assert holed.first(0, CLIENT, 250) is None


@pytest.mark.parametrize("name", ["05-resends"])
def test_the_account_names_the_same_packets(name):
    first = of(account_lines(name), "packet")[0]
    data = TALKS[0].stream(CLIENT)[: first["length_bytes"]]
    assert hashlib.sha256(data).hexdigest() == first["sha256"]
