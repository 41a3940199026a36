"""Numbers and acknowledgements against plain loops (reference_numbers.py), on random conversations."""

import copy
from time import process_time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import transfers.reference_numbers as plain
from example_counts import examples
from pipeline.transfers.numbers.flow_control import surely_acknowledged, times_of, window_full_us
from pipeline.transfers.numbers.packet_numbers import NO_NUMBER, SidePackets, number_packets
from pipeline.transfers.numbers.session_acknowledgements import SessionHeaders, acknowledged_by, stored_by
from udfs.columns.absent import NO_TIME, NONE

EXPIRE = 1_000
HEADER = ("ack", "r", "flags", "user", "recoverable", "window")


def header(ack=0, *, r=0, flags=0, user=0, recoverable=0, window=64):
    return {"ack": ack, "r": r, "flags": flags, "user": user, "recoverable": recoverable, "window": window}


def packet(side, at, time, *, size=1, counted=True, dm=False, establishes=False, said=None):
    return {
        "side": side, "at": at, "size": size, "time": time, "counted": counted, "dm": dm, "establishes": establishes,
        "header": said,
    }  # fmt: skip


def columns(packets):
    def ints(get):
        return np.array([get(each) for each in packets], np.int64)

    said = {name: ints(lambda p, name=name: (p["header"] or header())[name]) for name in HEADER}
    return SidePackets(
        ints(lambda p: p["side"]), ints(lambda p: p["at"]), ints(lambda p: p["size"]), ints(lambda p: p["time"]),
        ints(lambda p: p["counted"]) > 0,
        ints(lambda p: NONE if p["counted"] and p["dm"] is None else bool(p["dm"])),
        ints(lambda p: p["establishes"]) > 0, ints(lambda p: p["header"] is not None) > 0, said["ack"], said["r"],
        said["flags"], said["user"], said["recoverable"], said["window"],
    )  # fmt: skip


def numbered(packets):
    found = number_packets(columns(packets), EXPIRE)
    return [
        [None if each == NO_NUMBER else each for each in numbers.tolist()]
        for numbers in (found.session, found.recoverable)
    ]


def test_an_anchor_without_a_time_reaches_back_to_the_beginning_of_its_stretch():
    said = header(user=3)
    packets = [packet(0, at, 5, counted=True) for at in (0, 1)] + [packet(0, 2, NO_TIME, said=said), packet(0, 3, 9)]
    assert numbered(packets)[0] == [1, 2, 3, 4]
    packets[0]["time"], packets[2]["time"] = NO_TIME, EXPIRE + 6
    assert numbered(packets)[0] == [1, None, 3, 4]  # what was sent long before the anchor has another number, perhaps


def headers_of(packets):
    def ints(name):
        return np.array([p["header"][name] for p in packets if p["header"]], np.int64)

    times = np.array([p["time"] for p in packets if p["header"]], np.int64)
    return SessionHeaders(times, ints("ack"), ints("r"), ints("flags"))


def matched(packets, name, others, find):
    """Which header the production code finds for each packet that has a number, as ``acked`` and ``stored`` say it."""
    ours = [each for each in packets if each[name] is not None]
    carriers = [other for other in others if other["header"]]
    found = find(
        np.array([p[name] for p in ours], np.int64), np.array([p["time"] for p in ours], np.int64), headers_of(others)
    )
    return ours, [None if place == NONE else carriers[place] for place in found.tolist()]


# Examples of the contract


def test_the_example_of_the_contract():
    """EC, CP, m, ack, m, m, a hole, m, m with an SH that says 41, m."""
    side = [
        packet(0, 0, 0, counted=False, establishes=True),
        packet(0, 1, 1, counted=False),
        packet(0, 2, 2),
        packet(0, 3, 3, counted=False, said=header(user=1)),
        packet(0, 4, 4),
        packet(0, 5, 5),
        packet(0, 100, 6),
        packet(0, 101, 7, said=header(user=41)),
        packet(0, 102, 8),
    ]
    assert numbered(side)[0] == [None, None, 1, None, 2, 3, 40, 41, 42]


def test_sixteen_bits_go_on_and_are_raised():
    side = [packet(0, at, at) for at in range(6)]
    side[3]["header"] = header(user=65_535)
    assert numbered(side)[0] == [65_532, 65_533, 65_534, 65_535, 65_536, 65_537]
    side[3]["header"] = header(user=2)  # the first two would be 0 and -1
    assert numbered(side)[0] == [65_535, 65_536, 65_537, 65_538, 65_539, 65_540]


def test_an_anchor_reaches_pending_expire_back():
    side = [packet(0, 0, 0), packet(0, 1, 100), packet(0, 2, 100 + EXPIRE, said=header(user=9))]
    assert numbered(side)[0] == [None, 8, 9]


def test_an_anchor_reaches_65535_packets_back():
    side = [packet(0, at, 0) for at in range(65_537)]
    side[-1]["header"] = header(user=65_535)
    session, _ = numbered(side)
    assert (session[0], session[1], session[-1]) == (None, 65_536, 131_071)


def test_a_packet_whose_flags_were_not_seen_ends_what_is_known_of_recoverable_ones():
    side = [
        packet(0, 0, 0, counted=False, establishes=True),
        packet(0, 1, 1, dm=True),
        packet(0, 2, 2, dm=None),
        packet(0, 3, 3, dm=True),
        packet(0, 4, 4, dm=True, said=header(user=4, recoverable=4)),
    ]
    assert numbered(side) == [[None, 1, 2, 3, 4], [None, 1, None, 3, 4]]


def test_sixteen_bits_of_an_acknowledgement_mean_the_latest_packet():
    """Packet 5, and 40,000 packets later an acknowledgement of number 65536 + 5: 5 has been out of reach for long."""
    ours = [packet(0, at, at) | {"n": at + 1} for at in range(80_000)]
    for each in ours:
        each["m"] = None
    late = [packet(1, 0, 79_999, counted=False, said=header(ack=(65_536 + 5) % 65_536))]
    _, found = matched(ours, "n", late, acknowledged_by)
    assert found[4] is None
    assert found[65_536] is late[0]


def test_an_acknowledgement_reaches_32767_numbers_back():
    ours = [packet(0, 0, 0) | {"n": 32_769, "m": None}]
    others = [packet(1, at, at + 1, counted=False, said=header(ack)) for at, ack in enumerate((1, 32_768, 32_769))]
    assert matched(ours, "n", others, acknowledged_by)[1] == [others[2]]
    assert matched(ours, "n", others[:2], acknowledged_by)[1] == [None]
    others = [packet(1, 0, 1, counted=False, said=header((32_769 + 32_767) % 65_536))]
    assert matched(ours, "n", others, acknowledged_by)[1] == [others[0]]


def test_an_acknowledgement_at_the_time_of_a_packet_32768_later_may_mean_that_one():
    ours = [packet(0, 0, 0) | {"n": 1, "m": None}, packet(0, 9, 50) | {"n": 32_769, "m": None}]
    for time, expected in ((49, True), (50, False)):
        others = [packet(1, 0, time, counted=False, said=header(1))]
        found = matched(ours, "n", others, acknowledged_by)[1]
        assert (found[0] is not None) == expected


# Random conversations


@st.composite
def conversations(draw):
    """Two sides whose headers mostly tell the truth; then packets are lost, and beginnings, flags and headers too."""
    base = draw(st.sampled_from([0, 0, 32_760, 65_530, 65_536 * 3 - 4]))
    jitter = draw(st.sampled_from([0, 0, 3, 40]))
    sent, stored = [base, base], [base // 2, base // 2]
    received = [base, base]
    sides, at, now = [[], []], [0, 0], 1_000
    if draw(st.booleans()) and base == 0:
        for side in (0, 1):
            sides[side].append(packet(side, 0, now, counted=False, establishes=True))
            at[side] = 1
    for _ in range(draw(st.integers(1, 40))):
        side = draw(st.integers(0, 1))
        now += draw(st.integers(0, 400))
        kind = draw(st.sampled_from(["message", "message", "ack", "both"]))
        jump = draw(st.sampled_from([0] * 12 + [20_000, 40_000]))  # packets that no capture has
        if jump:
            sent[side] += jump
            at[side] += 7
        counted, dm = kind != "ack", draw(st.booleans())
        if counted:
            sent[side] += 1
            stored[side] += dm
        said = None
        if kind != "message":
            other = 1 - side
            received[side] = draw(st.integers(received[side], max(sent[other], received[side])))
            wrong = draw(st.sampled_from([0] * 9 + [-3, 40_000]))
            r = max(stored[other] - draw(st.integers(0, 5)), 0)
            said = header(
                (received[side] + wrong) % 65_536, r=r % 65_536, flags=draw(st.integers(0, 2**32 - 1)) & 0x8000_00FF,
                user=sent[side] % 65_536, recoverable=stored[side] % 65_536, window=draw(st.sampled_from([1, 2, 64])),
            )  # fmt: skip
        time = now + draw(st.integers(-jitter, jitter))
        sides[side].append(packet(side, at[side], time, counted=counted, dm=dm, said=said))
        at[side] += 1
    for side in (0, 1):
        kept = []
        for each in sides[side]:
            fate = draw(st.sampled_from(["kept"] * 8 + ["lost", "no flags", "no header"]))
            if fate == "no flags":
                each["dm"] = None
            if fate == "no header":
                each["header"] = None
            if fate != "lost":
                kept.append(each)
        sides[side] = kept
    return sides


@settings(max_examples=examples(600), deadline=None)
@given(conversations())
def test_numbers_and_acknowledgements_are_those_of_the_plain_rules(sides):
    every = [*sides[0], *sides[1]]
    assume(every)
    for side in sides:
        plain.number_side(side, EXPIRE)
    assert numbered(every) == [[p["n"] for p in every], [p["m"] for p in every]]
    for side, others in ((sides[0], sides[1]), (sides[1], sides[0])):
        plain.acknowledge_side(side, others)
        for name, result, find in (("n", "acked", acknowledged_by), ("m", "stored", stored_by)):
            ours, found = matched(side, name, others, find)
            assert [id(each) for each in found] == [id(each[result]) for each in ours]


@settings(max_examples=examples(300), deadline=None)
@given(conversations(), st.integers(0, 3_000))
def test_full_windows_and_sure_acknowledgements_are_those_of_the_plain_rules(sides, later):
    every = [*sides[0], *sides[1]]
    assume(every)
    end = min(p["time"] for p in every) + later
    for side in sides:
        plain.number_side(side, EXPIRE)
    for side, others in ((sides[0], sides[1]), (sides[1], sides[0])):
        plain.acknowledge_side(side, others)
        ours, found = matched(side, "n", others, acknowledged_by)
        said = [[(p["time"], p["header"]["window"]) for p in one if p["header"]] for one in sides]
        windows = tuple(tuple(np.array([e[k] for e in one], np.int64) for k in (0, 1)) for one in said)
        times = np.array([p["time"] for p in ours], np.int64)
        carriers = [p for p in others if p["header"]]
        index = np.array([NONE if f is None else next(i for i, c in enumerate(carriers) if c is f) for f in found])
        acked = times_of(index.astype(np.int64), headers_of(others).sent_at)
        assert window_full_us(times, acked, windows, end) == plain.full_us(side, said, end)


def test_a_sure_acknowledgement():
    """No anchor; the other side acknowledges 64 + 1 more than before the second and the third, so these are sure."""
    side = [packet(0, at, 100 + at) for at in range(10)]
    others = [packet(1, at, time, counted=False, said=header(ack)) for at, (time, ack) in enumerate(
        [(100, 65_530), (101, 65_530), (120, 20), (130, 65_530 + 64 + 1 - 65_536)]
    )]  # fmt: skip
    for expected, acks in ((True, others), (False, others[:3])):
        plain.number_side(side, EXPIRE)
        plain.surely(side, acks, 64)
        found = headers_of(acks)
        stretch, times = np.zeros(10, np.int64), np.array([p["time"] for p in side])
        sure = surely_acknowledged(np.ones(10, np.bool_), stretch, times, found.sent_at, found.ack, 64)
        assert sure.tolist() == [p["sure"] for p in side]
        assert sure.tolist() == [False, expected, expected, *[False] * 7]


@settings(max_examples=examples(300), deadline=None)
@given(conversations(), st.integers(0, 200))
def test_sure_acknowledgements_are_those_of_the_plain_rules(sides, extra):
    for side, others in ((sides[0], copy.deepcopy(sides[1])), (sides[1], copy.deepcopy(sides[0]))):
        for each in others:  # headers that acknowledge faster
            if each["header"]:
                each["header"]["ack"] = (each["header"]["ack"] + extra * each["at"]) % 65_536
        times = [p["time"] for p in others if p["header"]]
        assume(times == sorted(times))
        plain.number_side(side, EXPIRE)
        plain.surely(side, others, 64)
        counted = [p for p in side if p["counted"]]
        stretch = number_packets(columns(side), EXPIRE).stretch if side else np.zeros(0, np.int64)
        chosen = np.array([p["counted"] for p in side], np.bool_)
        found = headers_of(others)
        sure = surely_acknowledged(
            np.array([p["n"] is None for p in counted], np.bool_), stretch[chosen],
            np.array([p["time"] for p in counted], np.int64), found.sent_at, found.ack, 64,
        )  # fmt: skip
        assert sure.tolist() == [p["sure"] for p in counted]


@pytest.mark.parametrize("lost", [0, 1_000])
def test_a_session_of_a_million_packets_takes_seconds(lost):
    began, rows = process_time(), 1_000_000
    at = np.arange(rows, dtype=np.int64)
    kept = at[at % lost != lost - 1] if lost else at
    zeros = np.zeros(len(kept), np.int64)
    first = kept == 0
    numbers = number_packets(
        SidePackets(
            zeros, kept, zeros + 1, kept, ~first, zeros + 1, first, (kept % 100 == 50) & ~first, zeros, zeros, zeros,
            kept % 65_536, kept % 65_536, zeros + 64,
        ),
        10**12,
    )  # fmt: skip
    assert (numbers.session % 65_536 == kept % 65_536)[numbers.session != NO_NUMBER].all()
    assert lost or (numbers.session == kept).all()
    headers = at[::10]
    found = SessionHeaders(headers + 20, headers % 65_536, (headers + 1) % 65_536, np.full(len(headers), 0xFFFF_FFFF))
    known = numbers.session != NO_NUMBER
    acked = acknowledged_by(numbers.session[known], kept[known], found)
    stored = stored_by(numbers.recoverable[known], kept[known], found)
    assert (acked != NONE).mean() > 0.9
    assert (stored != NONE).mean() > 0.9
    assert process_time() - began < 30
