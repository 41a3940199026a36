"""gold.transfer_sequences of rows of silver: as computed row by row, and the same however runs are cut."""

import datetime as dt
from dataclasses import replace
from random import Random

import pytest

from engines import without_spark
from example_counts import seeds
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.transfers.sequences import sequence_inputs, update_sequences
from pipeline.transfers.sequences.sequence_context import SequenceSettings
from schemas.transfers import TRANSFER_SEQUENCES
from transfers.silver_exchange import (
    GUIDS,
    START_US,
    Connection,
    Exchange,
    Packet,
    S,
    expected_rows,
    moment,
    random_exchange,
)

SETTINGS = SequenceSettings(wait=dt.timedelta(days=2), expire=dt.timedelta(days=1))
ONE, TWO, THREE = GUIDS
SEQUENCE = 7 << 32 | 1


def lake_at(path):
    return Lake(without_spark(), str(path))


@pytest.fixture
def lake(tmp_path):
    return lake_at(tmp_path / "lake")


def load(lake, exchange):
    """Make silver what the exchange is, row by row, as a run would."""
    for table, rows in exchange.rows().items():
        current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
        dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
        lake.replace_changed(table, rows, current, dates=dates)


def update(lake, exchange, settings=SETTINGS):
    load(lake, exchange)
    return update_sequences.update(lake, "run", settings)


def rows(lake):
    found = lake.select(TRANSFER_SEQUENCES, "TRUE").to_pylist()
    return {row["sequence_key"]: {name: value for name, value in row.items() if name != "run_id"} for row in found}


def as_expected(row):
    """A row of the table in the form of the reference."""

    def us(at):
        return None if at is None else round(at.timestamp() * S) - START_US

    same = (
        "messages", "sendings", "sent_bytes", "resends", "resent_bytes", "first_number", "last_number",
        "missing_numbers", "out_of_order", "refusals", "order_acks", "acknowledged_number", "waiting",
        "first_waiting_number", "condition", "missing", "sender_queue_manager", "receiver_queue_manager", "began",
    )  # fmt: skip
    out = {name: row[name] for name in same}
    times = ("first_sent_at", "last_sent_at", "acknowledged_at", "stalled_since")
    out |= {name: us(row[name]) for name in times}
    out["gaps"] = [(each["first"], each["last"], each["bridged"]) for each in row["gaps"] or ()]
    out["stalls"] = [
        (us(each["began_at"]), us(each["ended_at"]), each["first_number"], each["waiting"], each["sendings"])
        for each in row["stalls"] or ()
    ]
    out["longest"] = None if row["longest_stall_s"] is None else round(row["longest_stall_s"] * S)
    ids = (row["transaction_sequence_id"], row["previous_sequence_id"])
    sequence, out["previous_sequence_id"] = (None if each is None else int(each) for each in ids)
    out["name"] = (
        row["source_queue_manager"], row["destination_queue"], sequence, row["sender_address"], row["receiver_address"],
    )  # fmt: skip
    return out


def expected(exchange):
    micros = (dt.timedelta(microseconds=1).__rtruediv__(each) for each in (
        SETTINGS.stall_after, SETTINGS.wait, SETTINGS.expire
    ))  # fmt: skip
    stall_after, wait, expire = map(round, micros)
    return expected_rows(exchange, stall_after=stall_after, wait=wait, expire=expire)


def part(exchange, seen, ends):
    """The packets at some places, and the connections that they, and every second one, are of."""
    packets = [packet for place, packet in enumerate(exchange.packets) if place in seen]
    names = {packet.connection.name for packet in packets}
    connections = [each for number, each in enumerate(exchange.connections) if each.name in names or number % 2]
    return Exchange(packets, connections, ends)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_runs_in_parts_give_what_is_computed_row_by_row(tmp_path, monkeypatch, seed):
    draw = Random(seed)
    monkeypatch.setattr(sequence_inputs, "MAX_SENDINGS", draw.choice([1, 20, 10**6]))
    monkeypatch.setattr(lake_module, "MAX_COLUMN_ROWS_IN_MEMORY", draw.choice([-1, 10**6]))  # in tasks, or not
    exchange = random_exchange(draw, days=draw.choice([0.01, 3, 8]))
    parts = lake_at(tmp_path / "parts")
    seen, ends = set(), {}
    while len(seen) < len(exchange.packets):
        left = [place for place in range(len(exchange.packets)) if place not in seen]
        seen |= set(draw.sample(left, min(len(left), draw.choice([1, 10, 30]))))
        if draw.random() < 0.2:  # some is forgotten, and comes again
            seen -= set(draw.sample(sorted(seen), len(seen) // 3))
        ends = {server: draw.randrange(at + 1) for server, at in exchange.ends.items() if draw.random() < 0.9}
        some = part(exchange, seen, ends)
        update(parts, some)
        assert {name: as_expected(row) for name, row in rows(parts).items()} == expected(some)
    update(parts, exchange)
    assert {name: as_expected(row) for name, row in rows(parts).items()} == expected(exchange)
    whole = lake_at(tmp_path / "whole")
    update(whole, exchange)
    assert rows(whole) == rows(parts)
    assert update_sequences.update(parts, "run", SETTINGS) == 0


def one_hop(*packets, ends=100, connections=()):
    """Sendings and order acks on one connection; each packet is said by its side, time, number, and more."""
    connection = Connection("one", ONE, TWO, 0, last=100 * S)
    found = []
    for place, (by, at, number, more) in enumerate(packets):
        said = {"sequence": SEQUENCE, "previous": number - 1, "source": GUIDS[ONE], "destination": GUIDS[TWO]}
        if by == "server":
            said = {"sequence": SEQUENCE, "is_ack": True, "queue_manager": GUIDS[TWO]}
        found.append(Packet(connection, by, round(at * S), 100 * place, number=number, **{**said, **more}))
    return Exchange(found, [connection, *connections], {TWO: round(ends * S)})


def only(lake):
    (row,) = rows(lake).values()
    return row


def test_columns_of_a_row(lake):
    exchange = one_hop(("client", 1, 1, {}), ("client", 2, 2, {}), ("server", 3, 2, {}))
    assert update(lake, exchange) == 1
    row = only(lake)
    assert (row["sequence_ordinal"], row["sequence_epoch_at"]) == (1, dt.datetime(1970, 1, 1, 0, 0, 7, tzinfo=dt.UTC))
    assert row["evidence"] == [packet.name for packet in exchange.packets]
    assert row["last_packet_at"] == moment(3 * S)
    assert (row["gaps"], row["stalls"], row["longest_stall_s"], row["confidence"]) == (None, None, None, "complete")
    assert row["event_date"] == row["first_sent_at"].date()


def test_an_epoch_of_zero_is_no_time(lake):
    update(lake, one_hop(("client", 1, 1, {"sequence": 5})))
    assert (only(lake)["sequence_epoch_at"], only(lake)["sequence_ordinal"]) == (None, 5)


def test_sequence_ids_have_64_bits_without_a_sign(lake):
    update(lake, one_hop(("client", 1, 1, {"sequence": 2**64 - 1}), ("server", 2, 1, {"sequence": 2**64 - 1})))
    assert (int(only(lake)["transaction_sequence_id"]), only(lake)["order_acks"]) == (2**64 - 1, 1)


def test_packets_that_begin_in_one_captured_packet_are_in_order_of_their_stream(lake):
    update(lake, one_hop(*(("client", 1, number, {}) for number in range(1, 9))))
    assert (only(lake)["out_of_order"], only(lake)["refusals"]) == (0, 0)


def test_a_later_capture_makes_a_wait_a_stall(lake):
    exchange = one_hop(("client", 1, 1, {"acknowledged": False}), ends=20)
    update(lake, exchange)
    assert only(lake)["condition"] == "waiting"
    for ends, longest in ((31, 30.0), (90, 89.0), (40, 39.0)):
        assert update(lake, replace(exchange, ends={TWO: ends * S})) == 1
        assert (only(lake)["condition"], only(lake)["longest_stall_s"]) == ("stalled", longest)
    assert update(lake, replace(exchange, ends={TWO: 90 * S, THREE: 500 * S})) == 1
    assert update(lake, replace(exchange, ends={TWO: 90 * S, THREE: 600 * S})) == 0
    update(lake, replace(exchange, ends={TWO: 86_400 * 9 * S}))
    assert only(lake)["longest_stall_s"] == 2 * 86_400  # what comes after transfers.wait changes no row
    assert update(lake, replace(exchange, ends={TWO: 86_400 * 10 * S})) == 0


def test_unseen_order_acks(lake):
    exchange = one_hop(("client", 1, 1, {}), ends=20)
    update(lake, exchange)
    assert (only(lake)["condition"], only(lake)["missing"]) == ("waiting", ["capture_ends", "no_response"])
    assert update(lake, replace(exchange, ends={TWO: 50 * S})) == 1
    assert only(lake)["condition"] == "unknown"
    assert update(lake, replace(exchange, ends={TWO: 90 * S})) == 0
    update(lake, replace(exchange, ends={TWO: 20 * S}))
    assert only(lake)["condition"] == "waiting"


@pytest.mark.parametrize(
    ("ack", "counted"),
    [
        ({}, True),
        ({"acknowledged_queue_manager": GUIDS[ONE]}, True),
        ({"acknowledged_queue_manager": GUIDS[THREE]}, False),
        ({"queue_manager": GUIDS[THREE]}, False),
        ({"sequence": SEQUENCE + 1}, False),
    ],
)
def test_whose_order_acks_count(lake, ack, counted):
    update(lake, one_hop(("client", 1, 1, {}), ("server", 2, 1, ack)))
    assert only(lake)["order_acks"] == counted


@pytest.mark.parametrize(("receiver_shown", "by", "counted"), [(True, TWO, 1), (True, THREE, 0), (False, THREE, 1)])
def test_order_acks_of_other_hops_without_a_destination_queue_manager(lake, receiver_shown, by, counted):
    """They are from the receiver of the hop; where that is not known, from anybody."""
    exchange = one_hop(("client", 1, 1, {"destination": None}))
    other = Connection("other", THREE, ONE, 0)
    exchange.connections[0].shown = (True, receiver_shown)
    exchange.connections.append(other)
    exchange.packets.append(Packet(other, "client", 2 * S, 0, SEQUENCE, 1, is_ack=True, queue_manager=GUIDS[by]))
    update(lake, exchange)
    assert only(lake)["order_acks"] == counted


def test_a_handshake_that_comes_later_shows_an_end(lake):
    exchange = one_hop(("client", 1, 1, {}))
    exchange.connections[0].shown = (True, False)
    update(lake, exchange)
    assert only(lake)["receiver_queue_manager"] is None
    later = Connection("later", THREE, TWO, 86_400 * S)
    assert update(lake, replace(exchange, connections=[*exchange.connections, later])) == 1
    assert only(lake)["receiver_queue_manager"] == GUIDS[TWO]
    later.at += 2 * S  # more than pending.expire after the sending
    assert update(lake, replace(exchange, connections=[*exchange.connections, later])) == 1
    assert only(lake)["receiver_queue_manager"] is None


def test_bytes_that_are_missing_are_told(lake):
    exchange = one_hop(("client", 1, 1, {}), ("client", 1.5, 1, {}), ("server", 2, 1, {}))
    update(lake, exchange)
    assert (only(lake)["missing"], only(lake)["refusals"]) == ([], 1)
    exchange.connections[0].holes = (("server", 1 * S, 3 * S, 300), ("client", 3 * S, 9 * S, 300))
    assert update(lake, exchange) == 0  # neither an order ack of a sequence that has emptied, nor what is sent later
    exchange.connections[0].holes = (("client", 1 * S, 2 * S, 300),)
    assert update(lake, exchange) == 1
    assert (only(lake)["missing"], only(lake)["refusals"], only(lake)["confidence"]) == (
        ["capture_loss"],
        None,
        "partial",
    )


def test_a_sequence_that_comes_between_two_changes_how_the_later_one_began(lake):
    def sequence(ordinal, at, *, acked):
        said = {"sequence": 7 << 32 | ordinal}
        packets = [("client", at, 1, {**said, "acknowledged": False})]
        return [*packets, ("server", at + 1, 1, said)] if acked else packets

    first, between, last = sequence(1, 10, acked=True), sequence(2, 20, acked=False), sequence(3, 30, acked=True)
    update(lake, one_hop(*first, *last))
    assert sorted(row["began"] for row in rows(lake).values()) == ["emptied", "first"]
    assert update(lake, one_hop(*first, *last, *between)) == 2
    found = {row["sequence_ordinal"]: row for row in rows(lake).values()}
    assert [found[n]["began"] for n in (1, 2, 3)] == ["first", "emptied", "abandoned"]
    assert int(found[3]["previous_sequence_id"]) == 7 << 32 | 2
    update(lake, one_hop(*first, *last, *sequence(2, 20, acked=True)))
    assert [row["began"] for row in rows(lake).values()].count("emptied") == 2
    update(lake, one_hop(*last))
    assert only(lake)["began"] == "first"


def test_more_stalls_than_a_row_holds(lake):
    packets = [("client", 0, number, {}) for number in range(1, 1103)]
    packets += [("server", 40 * number, number, {}) for number in range(1, 1102)]
    update(lake, one_hop(*packets, ends=41 * 1102))
    row = only(lake)
    assert [len(row[name]) for name in ("stalls", "evidence")] == [1000, 1000]
    assert (row["stalls"][0]["first_number"], row["stalls"][-1]["first_number"]) == (103, 1102)
    gaps = [("client", at, 2 * at + 1, {}) for at in range(1101)]
    update(lake, one_hop(*gaps))
    assert (len(only(lake)["gaps"]), only(lake)["gaps"][-1]["last"], only(lake)["missing_numbers"]) == (
        1000,
        2200,
        1100,
    )


def test_other_settings_recompute_all(lake):
    exchange = one_hop(("client", 1, 1, {"acknowledged": False}), ends=20)
    update(lake, exchange)
    assert update(lake, exchange, replace(SETTINGS, stall_after=dt.timedelta(seconds=5))) == 1
    assert only(lake)["condition"] == "stalled"


@pytest.mark.parametrize(("begins", "expected"), [(9, ["capture_begins"]), (4, [])])
def test_a_connection_that_began_before_the_capture_may_have_carried_it_before(lake, begins, expected):
    """Unless its message was made while the capture went on, by more than the source's clock may be wrong."""
    exchange = one_hop(("client", 10, 1, {"made": 10 * S, "begun": False}), ("server", 11, 1, {}))
    exchange.connections[0].at = begins * S
    update(lake, exchange)
    assert only(lake)["missing"] == expected


def test_an_order_ack_may_be_in_a_hole_between_other_addresses_of_the_same_queue_managers(lake):
    exchange = one_hop(("client", 1, 1, {"acknowledged": False}), ends=90)
    exchange.connections[0].last = 100 * S
    other = Connection("other", THREE, TWO, 2 * S, holes=(("server", 10 * S, 20 * S, 300),), last=30 * S)
    beside = replace(exchange, connections=[*exchange.connections, other])
    update(lake, beside)
    assert (only(lake)["condition"], only(lake)["missing"]) == ("stalled", ["capture_ends"])
    other.manager = GUIDS[ONE]  # the client has a second address
    update(lake, beside)
    assert only(lake)["missing"] == ["capture_ends", "capture_loss"]
    assert only(lake)["refusals"] is None
    other.holes = ()
    update(lake, beside)
    assert only(lake)["missing"] == ["capture_ends"]


def test_a_hole_may_hold_what_was_sent_before_the_first_message_that_was_seen(lake):
    """A hole that comes, or goes, in a session that had ended before: it counts from when that message was made."""
    exchange = one_hop(("client", 10, 1, {"made": 2 * S}), ("server", 11, 1, {}))
    before = Connection("before", ONE, TWO, S, holes=(("client", 3 * S, 4 * S, 300),), last=5 * S)
    update(lake, exchange)
    assert only(lake)["missing"] == []
    assert update(lake, replace(exchange, connections=[*exchange.connections, before])) == 1
    assert only(lake)["missing"] == ["capture_loss"]
    assert update(lake, exchange) == 1
    assert only(lake)["missing"] == []


def test_a_message_may_be_in_a_hole_between_other_addresses_of_the_same_queue_managers(lake):
    exchange = one_hop(("client", 1, 1, {}), ("client", 3, 3, {}), ("server", 4, 3, {}))
    other = Connection("other", THREE, TWO, S, holes=(("client", 2 * S, 2 * S, 300),), last=30 * S)
    beside = replace(exchange, connections=[*exchange.connections, other])
    update(lake, beside)
    assert (only(lake)["missing_numbers"], only(lake)["confidence"]) == (1, "complete")
    other.manager = GUIDS[ONE]
    update(lake, beside)
    assert only(lake)["missing"] == ["capture_loss"]


def test_order_acks_of_a_sequence_for_another_queue_manager_may_be_in_any_hole(lake):
    said = {"destination": GUIDS[THREE], "acknowledged": False}
    exchange = one_hop(("client", 1, 1, said), ends=90)
    other = Connection("other", THREE, ONE, 2 * S, holes=(("client", 10 * S, 20 * S, 300),), last=30 * S)
    update(lake, exchange)
    assert only(lake)["missing"] == ["capture_ends"]
    assert update(lake, replace(exchange, connections=[*exchange.connections, other])) == 1
    assert only(lake)["missing"] == ["capture_ends", "capture_loss"]
    other.holes = (("client", 10 * S, 20 * S, 30),)  # too small
    assert update(lake, replace(exchange, connections=[*exchange.connections, other])) == 1
    assert only(lake)["missing"] == ["capture_ends"]


def test_an_order_ack_between_other_addresses_of_the_same_queue_managers_ends_a_wait(lake):
    """Also where a later one comes by the same addresses; not where the other address is another machine's."""
    exchange = one_hop(("client", 1, 1, {}), ("client", 50, 2, {}), ("server", 51, 2, {}))
    other = Connection("other", THREE, TWO, S, shown=(False, True), last=9 * S)
    ack = Packet(other, "server", 2 * S, 0, SEQUENCE, 1, is_ack=True, queue_manager=GUIDS[TWO])
    both = replace(exchange, packets=[*exchange.packets, ack], connections=[*exchange.connections, other])
    found = []
    for other.shown, other.manager in (((False, True), None), ((True, True), GUIDS[ONE]), ((True, True), None)):
        update(lake, both)
        found.append((only(lake)["order_acks"], len(only(lake)["stalls"] or ())))
        assert as_expected(only(lake)) == next(iter(expected(both).values()))
    assert found == [(1, 1), (2, 0), (1, 1)]


def test_what_another_address_of_the_hop_sent_is_no_gap(lake):
    """A gap of the hop is one of each row within whose numbers it lies."""
    exchange = one_hop(*(("client", at, number, {}) for at, number in ((1, 1), (3, 4), (4, 8))))
    other = Connection("other", THREE, TWO, S, last=9 * S)
    said = {"source": GUIDS[ONE], "destination": GUIDS[TWO]}
    beside = [Packet(other, "client", 2 * S + n, 100 * n, SEQUENCE, n, n - 1, **said) for n in (2, 5, 7, 9)]
    both = replace(
        exchange, packets=[*exchange.packets, *beside], connections=[*exchange.connections, other],
    )  # fmt: skip
    expectation = {None: {ONE: [(2, 3), (5, 7)], THREE: [(3, 4), (6, 6), (8, 8)]},
                   GUIDS[ONE]: {ONE: [(3, 3), (6, 6)], THREE: [(3, 3), (6, 6)]}}  # fmt: skip
    for other.manager, expected_gaps in expectation.items():
        update(lake, both)
        found = {
            row["sender_address"]: [(gap["first"], gap["last"]) for gap in row["gaps"]] for row in rows(lake).values()
        }
        assert found == expected_gaps
        counts = [sum(last - first + 1 for first, last in gaps) for gaps in expected_gaps.values()]
        assert sorted(row["missing_numbers"] for row in rows(lake).values()) == sorted(counts)


def test_a_sequence_that_goes_on_over_another_address_is_one(lake):
    """Planted: 1 to 3 from one address, the rest and 2 again from another; before and behind are other sequences.

    Number 3 comes behind 4, 2 a second time; the receiver has to refuse both.
    """
    before, after = SEQUENCE - 1, SEQUENCE + 1
    of_first = [(0.5, 1, before), (1, 1, SEQUENCE), (2, 2, SEQUENCE), (5, 3, SEQUENCE)]
    exchange = one_hop(*(("client", at, number, {"sequence": name}) for at, number, name in of_first))
    other = Connection("other", THREE, TWO, 3 * S, last=99 * S)
    said = {"source": GUIDS[ONE], "destination": GUIDS[TWO]}
    of_second = [(4, 4, SEQUENCE), (6, 2, SEQUENCE), (7, 5, SEQUENCE), (9, 1, after)]
    beside = [Packet(other, "client", at * S, 100 * at, name, n, n - 2, **said) for at, n, name in of_second]
    both = replace(
        exchange, packets=[*exchange.packets, *beside], connections=[*exchange.connections, other],
    )  # fmt: skip
    names = ("previous_sequence_id", "began", "out_of_order", "refusals")

    def found():
        return {
            (row["sender_address"], int(row["transaction_sequence_id"])): tuple(row[name] for name in names)
            for row in rows(lake).values()
        }

    apart = {
        (ONE, before): (None, "first", 0, 0), (ONE, SEQUENCE): (before, "emptied", 0, 0),
        (THREE, SEQUENCE): (None, "first", 1, 1), (THREE, after): (SEQUENCE, "emptied", 0, 0),
    }  # fmt: skip
    together = {
        (ONE, before): (None, "first", 0, 0), (ONE, SEQUENCE): (before, "emptied", 1, 1),
        (THREE, SEQUENCE): (before, "emptied", 0, 1), (THREE, after): (SEQUENCE, "emptied", 0, 0),
    }  # fmt: skip
    for other.manager, expectation in ((None, apart), (GUIDS[ONE], together), (None, apart)):
        update(lake, both)
        assert found() == expectation
    other.manager = GUIDS[ONE]
    update(lake, exchange)  # the other address comes in a run of its own
    update(lake, both)
    assert found() == together
    (whole,) = {row["began"] for row in rows(lake).values() if row["previous_sequence_id"] == before}
    assert whole == "emptied"


def test_a_row_whose_ends_are_not_known_may_be_of_another_ones_hop(lake):
    """Planted: the connection to the other address has no handshake, so nobody knows whose numbers it carries."""
    exchange = one_hop(("client", 1, 1, {}), ("client", 5, 3, {}))
    beside = Connection("other", THREE, TWO, 2 * S, (False, True), last=99 * S)
    said = {"source": GUIDS[ONE], "destination": GUIDS[TWO]}
    sent = Packet(beside, "client", 3 * S, 100, SEQUENCE, 2, 1, **said)
    both = replace(exchange, packets=[*exchange.packets, sent], connections=[*exchange.connections, beside])
    for beside.shown, unclear in (((False, True), True), ((True, True), False)):
        update(lake, both)
        for row in rows(lake).values():
            assert ("capture_begins" in row["missing"], row["refusals"] is None) == (unclear, unclear) or (
                not unclear and row["sender_address"] == THREE
            )
