"""The reference queue manager's traffic as a capture, cut at random, read in any order: gold still tells its truth."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attempts.broker import Broker, attempts_truth, truth
from attempts.telling import sequences_here
from attempts.test_sample import gold_of
from attempts.wire import SENDER, SENT_AT, capture_of, ports, records_of
from capture.in_memory import read_captures
from capture.merge.cutting import cut, records
from example_counts import examples
from jobs import run_all
from pcapgen.containers import pcap, pcapng, statistics
from pipeline.attempts.capture_gaps import latest_by_server
from pipeline.lake.lake import Lake
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from udfs.keys import key


def in_pieces(broker, chance, *, runs):
    """The capture as files, each given to a run: any number of files in any order."""
    capture = capture_of(broker)
    count = records(capture)
    pieces = cut(capture, sorted(chance.sample(range(1, count), min(chance.randint(0, 6), count - 1))))
    chance.shuffle(pieces)
    return [pieces[run::runs] for run in range(runs) if pieces[run::runs]]


def told(attempts, sequences, broker):
    """Attempts and sequences in the form of the truth: calls and messages by the names that the broker gave them."""
    of_port = {port: name for name, port in ports(broker).items()}
    starts = {(call["connection_id"], call["requested_at"]): call["call_key"] for call in broker.calls}
    numbers = {key(str(SENDER), number, SENT_AT * 1_000_000): number for number in range(1, broker.messages + 1)}
    made = {
        starts[of_port[row["client_port"]], micros(row["started_at"])]: (
            row["outcome"], row["queue"], micros(row["ended_at"])
        )
        for row in attempts
    }  # fmt: skip
    rows = {
        ((row["queue"], row["handle"]), numbers[row["message_key"]]): (
            row["outcomes"], row["readers"], row["peeks"], row["fate"], row["moved_to"], row["loss_risk"],
        )
        for row in sequences
    }  # fmt: skip
    return made, rows


def micros(time):
    return None if time is None else round(time.timestamp() * 1_000_000)


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 80), st.integers(1, 3))
def test_cut_at_random_and_read_in_any_order(seed, steps, runs):
    chance, broker = Random(seed), Broker(Random(seed)).run(steps)
    assume(broker.calls)
    attempts, operations, _, _ = gold_of(read_captures(in_pieces(broker, chance, runs=runs)))
    made, rows = told(attempts.to_pylist(), sequences_here(attempts, operations), broker)
    assert made == attempts_truth(broker)
    assert rows == truth(broker)


_FAR_NS = 80 * 366 * 86400 * 10**9
_OF_A_BEGINNING = 5  # packets: three of the handshake, the bind and its answer


def lossy(chance, records):
    """What a machine captured that lost some packets, began late or stopped early: packets, file, and ``says``.

    Either it ``says`` how many it lost, or it lost no connection's last packet: behind that nothing shows that there
    was more. It lost no connection's handshake and bind: without them, and idle since, it is in nobody's association.
    """
    way, place = chance.choice(("a few", "burst", "begins", "ends", "both")), chance.randrange(len(records))
    share = chance.choice((0.005, 0.02, 0.1)) if way in ("a few", "both") else 0
    length = chance.randint(1, 40) if way == "burst" else 0
    first, last = place if way in ("begins", "both") else 0, place if way == "ends" else len(records) - 1
    while records[last][1].time_ns in [record.time_ns for _, record in records[last + 1 : last + 2]]:
        last += 1  # a clock tells only microseconds: what happened at the same time is told by all of them
    here = records[first : last + 1]
    kept = [chance.random() >= share and not place <= at < place + length for at in range(len(here))]
    says = chance.random() < 0.5
    begun = Counter(name for name, _ in records[:first])
    for at, (name, _) in enumerate(here):
        begun[name] += 1
        kept[at] |= begun[name] <= _OF_A_BEGINNING
    ends = {name: at for at, (name, _) in enumerate(here)}
    for at in () if says else ends.values():
        kept[at] = True
    found = [record for (_, record), there in zip(here, kept, strict=True) if there]
    if says:
        return found, pcapng(found).data + statistics(drops=kept.count(False)), True
    return found, pcap(found).data, False


def unseen_of(tables):
    """What can have been missed, as the job finds it."""
    connections = [
        (row["server_address"], micros(row["last_packet_at"]))
        for row in tables["connections"].to_pylist()
        if row["missing_bytes"]
    ]
    dropped = [
        (server, micros(row["last_packet_at"]))
        for row in tables["capture_files"].to_pylist()
        for server in row["servers"] or ()
        if row["packets_dropped"]
    ]
    return {"capture_loss": latest_by_server([*connections, *dropped])}


def with_wrong_times(chance, records):
    """A capture of all packets, of which some say that they are eighty years later."""
    share = chance.choice((0.02, 0.1, 0.3))
    later = [replace(each, time_ns=each.time_ns + _FAR_NS) if chance.random() < share else each for each in records]
    return pcap(later).data


def what_is_complete_is_true(seed, steps, *, wrong_times=False):
    """Of a capture with gaps, whatever is called complete is as it was: outcomes of attempts, and fates as of its end.

    A connection's last packet, a RST, has no bytes that could be missed: where it was lost the connection seems to go
    on, and a message that it gave back seems to have been given back later, by the clean-up timer. So does one whose
    End was in the last packets of its connection, all lost: of what expired then only the queue is compared.
    """
    chance, broker = Random(seed), Broker(Random(seed)).run(steps)
    assume(broker.calls)
    records, capture, without_ends = lossy(chance, records_of(broker))
    assume(records)
    if wrong_times:
        records, without_ends = [record for _, record in records_of(broker)], True
        capture = with_wrong_times(chance, records)
    tables = read_captures([[capture]], latest_time_ns=records[-1].time_ns)
    assume(len(tables["rpc_calls"]))
    attempts, operations, _, _ = gold_of(tables)
    sure = [row for row in attempts.to_pylist() if row["confidence"] == "complete"]
    sequences = sequences_here(attempts, operations, unseen=unseen_of(tables))
    made, rows = told(sure, [row for row in sequences if row["confidence"] == "complete"], broker)
    happened, fates = attempts_truth(broker), truth(broker, until=records[-1].time_ns // 1000)
    if without_ends:
        made = {name: happened[name][:1] + row[1:] if row[0] == "expired" else row for name, row in made.items()}
    by_itself = {"expired": "rundown"}
    assert {name: (by_itself.get(row[0], row[0]), row[1]) for name, row in made.items()} == {
        name: (by_itself.get(happened[name][0], happened[name][0]), happened[name][1]) for name in made
    }
    assert {name: row[3] for name, row in rows.items()} == {name: fates[name][3] for name in rows}
    return len(made), len(rows)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 60))
def test_whatever_was_lost_what_is_complete_is_true(seed, steps):
    what_is_complete_is_true(seed, steps)


@settings(max_examples=examples(6), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 60))
def test_whatever_is_ahead_of_the_clock_what_is_complete_is_true(seed, steps):
    what_is_complete_is_true(seed, steps, wrong_times=True)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 150))
def test_whatever_is_ahead_in_much_what_is_complete_is_true(seed, steps):
    what_is_complete_is_true(seed, steps, wrong_times=True)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 150))
def test_whatever_was_lost_of_much_what_is_complete_is_true(seed, steps):
    what_is_complete_is_true(seed, steps)


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("seed", [7, 8])
def test_through_the_jobs_in_several_runs(spark, tmp_path, seed):
    chance, broker = Random(seed), Broker(Random(seed)).run(250)
    lake, folder = Lake(spark, str(tmp_path / "lake")), tmp_path / "captures"
    folder.mkdir()
    for number, files in enumerate(in_pieces(broker, chance, runs=3)):
        for place, content in enumerate(files):
            (folder / f"{number}-{place}.pcap").write_bytes(content)
        assert run_all.main(["--lake", lake.root, "--captures", str(folder)]) == 0
    attempts, sequences = (lake.select(table, "TRUE").to_pylist() for table in (RECEIVE_ATTEMPTS, ACK_SEQUENCES))
    made, rows = told(attempts, sequences, broker)
    assert made == attempts_truth(broker)
    assert rows == truth(broker)
