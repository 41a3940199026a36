"""Connections that were not established: what became of them, which have rows, over captures read in any order."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from capture.in_memory import read_captures
from example_counts import seeds
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import frames
from pcapgen.reading import to_rows
from udfs.capture import openings

S = 1_000_000_000
SYN, RST, ACK = frames.SYN, frames.RST, frames.ACK


def flow(port=1801, client="10.0.0.9", server="10.0.0.1", client_port=49200):
    return t.Flow(client=client, client_port=client_port, server=server, server_port=port)


def asks(of, *seconds, start=0):
    """Return the records of a client's SYNs, some seconds after a start."""
    parts = [t.Segment(t.START_NS + int((start + at) * S), t.CLIENT, -1, None, SYN) for at in seconds]
    return t.records(of, parts)


def answer(of, at, flags=RST | ACK):
    return t.records(of, [t.Segment(t.START_NS + int(at * S), t.SERVER, -1, 0, flags)])


def other_traffic(at, target="10.0.0.9", source="10.0.0.77"):
    """Return the record of a TCP packet to an address, of a connection that is not of MSMQ."""
    away = t.Flow(client=target, client_port=50000, server=source, server_port=443)
    return t.records(away, [t.Segment(t.START_NS + int(at * S), t.SERVER, 5, 7, ACK)])


def captured(*parts):
    return sorted((record for part in parts for record in part), key=lambda record: record.time_ns)


def read(*captures, order=None):
    """Return the tables of captures, lists of records, each read in a run of its own."""
    files = [c.pcap(records).data for records in captures]
    return read_captures([[each] for each in (files if order is None else [files[place] for place in order])])


def outcomes(tables):
    """Return what became of the connections with rows, by server port."""
    return sorted((row["server_port"], row["not_established"]) for row in to_rows(tables["connections"]))


@pytest.mark.parametrize(
    ("records", "outcome"),
    [
        (captured(asks(flow(), 0, 3, 9), other_traffic(5)), "no_answer"),
        (captured(asks(flow(), 0, 3, 9)), "answer_not_captured"),
        (captured(asks(flow(), 0, 3, 9), other_traffic(4000)), "answer_not_captured"),  # more than an hour away
        (captured(asks(flow(), 0), other_traffic(20.9)), "too_early"),
        (captured(asks(flow(), 0), other_traffic(21)), "no_answer"),
        (captured(asks(flow(), 0, 0.001), other_traffic(5)), "too_early"),  # a copy is no repetition
        (captured(asks(flow(), 0), answer(flow(), 0.1)), "reset"),
        (captured(asks(flow(), 0, 3), answer(flow(), 0.1)), "reset"),
        (captured(asks(flow(), 0, 3), answer(flow(), 3.1, SYN | ACK)), None),
        (captured(asks(flow(), 0, 3), answer(flow(), 3.1, ACK)), None),
    ],
)
def test_what_became_of_an_attempt(records, outcome):
    assert outcomes(read(records)) == [(1801, outcome)]


def test_a_client_that_goes_on_was_answered():
    of = flow()
    goes_on = t.records(of, [t.Segment(t.START_NS + S // 10, t.CLIENT, 0, 0, ACK)])
    assert outcomes(read(captured(asks(of, 0), goes_on, other_traffic(60)))) == [(1801, None)]
    gives_up = t.records(
        of, [t.Segment(t.START_NS + S, t.CLIENT, 0, None, RST)]
    )  # of a SYN with ACK that was not captured
    assert outcomes(read(captured(asks(of, 0), gives_up, other_traffic(60)))) == [(1801, None)]


def test_a_packet_that_is_no_tcp_shows_that_answers_would_be_captured():
    ping = c.Record(t.START_NS + S, frames.ethernet(frames.ipv4("10.0.0.77", "10.0.0.9", bytes(8), protocol=1)))
    assert outcomes(read(captured(asks(flow(), 0, 3), [ping]))) == [(1801, "no_answer")]
    ping = c.Record(t.START_NS + S, frames.ethernet(frames.ipv4("10.0.0.77", "10.0.0.8", bytes(8), protocol=1)))
    assert outcomes(read(captured(asks(flow(), 0, 3), [ping]))) == [(1801, "answer_not_captured")]


def test_rows_of_rpc_only_where_it_was_meant():
    alone = captured(asks(flow(135), 0, 3))
    assert outcomes(read(alone)) == []
    assert outcomes(read(captured(asks(flow(8080), 0, 3), asks(flow(2103), 1, 4)))) == [(2103, "answer_not_captured")]
    both = captured(alone, asks(flow(2103, client_port=49201), 1, 4))
    assert outcomes(read(both)) == [(135, "answer_not_captured"), (2103, "answer_not_captured")]
    later = asks(flow(1801, client_port=49201), 3700, 3703)  # more than an hour later
    assert outcomes(read(captured(alone, later))) == [(1801, "answer_not_captured")]
    elsewhere = asks(flow(1801, server="10.0.0.2", client_port=49201), 1, 4)
    assert outcomes(read(captured(alone, elsewhere))) == [(1801, "answer_not_captured")]


def queue_manager(at=0, client="10.0.0.50"):
    """Return the records of a session that the server of ``flow`` answers."""
    script = t.Script()
    script.send(t.CLIENT, bytes(40))
    script.send(t.SERVER, bytes(40))
    of = flow(client=client, client_port=40000)
    return t.records(of, t.segments(script, start_ns=t.START_NS + int(at * S)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_server_that_is_known_later_or_sooner_as_a_queue_manager(order):
    attempt = captured(asks(flow(135), 0, 3), asks(flow(2114, client_port=49201), 1, 4))
    tables = read(attempt, captured(queue_manager(200_000)), order=order)
    found = [each for each in outcomes(tables) if each[0] != 1801]
    assert found == [(135, "answer_not_captured"), (2114, "answer_not_captured")]
    used = sorted(
        (row["packets"], row["packets_used"], row["packets_other"]) for row in to_rows(tables["capture_files"])
    )
    assert used[0] == (4, 4, 0)
    assert {tuple(row["servers"]) for row in to_rows(tables["capture_files"])} == {("10.0.0.1",)}


def test_an_endpoint_mapper_alone_is_no_queue_manager():
    rows = [{"kind": "rpc", "server_port": port, "server_bytes": 9} for port in (135, 2103)]
    assert [openings.is_queue_manager(row) for row in rows] == [False, True]


def test_attempts_over_the_limit_of_a_capture_are_counted(monkeypatch):
    monkeypatch.setattr(openings, "MAX_RPC_ATTEMPTS", 3)
    records = captured(*(asks(flow(2103, client_port=50000 + n), n * 10, n * 10 + 3) for n in range(5)))
    records += captured(*(asks(flow(1801, client_port=51000 + n), 100 + n * 10, 103 + n * 10) for n in range(5)))
    tables = read(records)
    assert Counter(outcomes(tables)) == {(1801, "answer_not_captured"): 5, (2103, "answer_not_captured"): 3}
    (row,) = to_rows(tables["capture_files"])
    assert row["packets_not_read"] == [{"what": openings.OVER_LIMIT, "packets": 4}]
    assert (row["packets_used"], row["packets_other"], row["packets_binary_protocol"]) == (6, 4, 10)


def _dead_and_refusing(chance):
    """Return captured attempts of all kinds, some of them answered in the end."""
    parts = [queue_manager(chance.uniform(0, 60))]
    for number in range(12):
        of = flow(
            chance.choice([1801, 135, 2103, 2105]), server=f"10.0.0.{chance.randint(1, 3)}", client_port=49200 + number
        )
        start = chance.uniform(0, 120)
        parts.append(asks(of, *[0, 3, 9][: chance.randint(1, 3)], start=start))
        if chance.random() < 0.4:
            parts.append(answer(of, start + 9.5, chance.choice([RST | ACK, SYN | ACK])))
    parts += [other_traffic(at * 10) for at in range(20)]
    return captured(*parts)


@pytest.mark.parametrize("seed", seeds(6, 16))
def test_the_same_however_the_capture_is_cut_and_in_any_order(seed):
    chance = random.Random(seed)
    records = _dead_and_refusing(chance)
    whole = read(records)
    cuts = sorted(chance.sample(range(1, len(records)), chance.choice([1, 4, len(records) - 1])))
    files = [records[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    order = list(range(len(files)))
    chance.shuffle(order)
    in_files = read(*files, order=order)
    counts = ("packets_used", "packets_other", "packets_binary_protocol")
    columns = ("server_port", "kind", "not_established", "first_packet_at", "closed_by", "packets")

    def rows(tables):
        found = {row["client_port"]: tuple(row[name] for name in columns) for row in to_rows(tables["connections"])}
        assert len(found) == tables["connections"].num_rows
        files = to_rows(tables["capture_files"])
        return found | {name: sum(row[name] for row in files) for name in counts}

    assert rows(in_files) == rows(whole)
    together = read_captures([[c.pcap(each).data for each in files]])
    assert rows(together) == rows(whole)
