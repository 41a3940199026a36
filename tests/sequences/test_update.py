"""Incremental updates of gold.ack_sequences equal a full recomputation, in memory and in Spark."""

import datetime as dt
import json
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from attempts.broker import AUDIT, ORDERS, Broker, captured
from attempts.stories import ORDERS as STORY_QUEUE
from attempts.stories import OTHER_HANDLE, PEEK, UOW, connection, end, opened, start, us
from attempts.telling import SERVER, gold_of, key_of, sequences_here
from killing import killed_and_repeated
from pipeline.attempts.attempts_state import AttemptsState
from pipeline.attempts.calls.decoded_call import DecodedCall
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.sequences import update as sequences_update
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from tests.support.engines import without_spark

pytestmark = pytest.mark.spark

START = ("RemoteRead", 7)
LOST_AFTER = dt.timedelta(seconds=60)


def comparable(rows):
    return sorted(({name: value for name, value in row.items() if name != "run_id"} for row in rows), key=str)


def sealed_until(attempts):
    """Return the time of the last sealed read at the server."""
    times = [
        row["ended_at"] or row["returned_at"] or row["started_at"]
        for row in attempts.to_pylist()
        if "sealed" in row["missing"] and (row["lookup_id"], row["message_key"]) == (None, None)
        if row["is_receive"] is not False
    ]
    return {SERVER: round(max(times).timestamp() * 1e6)} if times else {}


def sequences(lake, lost_after, poison_after):
    return sequences_update.update(lake, lost_after=lost_after, poison_after=poison_after)


def _sealed(call):
    """Return a call as it is known without its stubs."""
    times = call.requested_at, call.responded_at
    return DecodedCall(call.call_key, call.protocol, call.opnum, call.connection_id, *times, encrypted=True)


class Follower:
    """A lake with the attempts and operations of some of a broker's calls, and the sequences made of them."""

    def __init__(self, lake, broker):
        self.lake = lake
        self.broker = broker
        self.written_tables = {}

    def write(self, calls=None, *, aliases=None, lost_after=LOST_AFTER, poison_after=3, lost=None, sealed=()):
        """Write the attempts and operations of these calls (default: all), update the sequences, and check all rows."""
        every, connections = captured(self.broker)

        def message_key(call):
            number = None if call.encrypted else self.broker.brought.get(call.call_key)
            return None if number is None or (number % 7 == 0 and call.opnum) else f"message {number}"

        known = every if calls is None else [call for call in every if call.call_key in calls]
        known = [_sealed(call) if call.call_key in sealed else call for call in known]
        gold = gold_of(known, connections, until=self.broker.now, message_key=message_key, aliases=aliases)
        for table, rows in zip((RECEIVE_ATTEMPTS, QUEUE_OPERATIONS), gold, strict=True):
            before = self.written_tables.get(table, rows.slice(0, 0))
            provenance = json.dumps(AttemptsState({}, {}, cancels=False, lost=lost or {}).as_provenance())
            self.lake.replace_changed(
                table, rows, before, dates=set(before["event_date"].to_pylist()), provenance=provenance
            )
            self.written_tables[table] = rows
        written = self.run(lost_after, poison_after)
        settings = {"lost_after": lost_after.seconds, "poison_after": poison_after}
        expected = sequences_here(
            *gold, **settings, unseen={"capture_loss": lost or {}, "sealed": sealed_until(gold[0])}
        )
        rows = self.lake.select(ACK_SEQUENCES, "TRUE").to_pylist()
        assert comparable(rows) == comparable(expected)
        self.written = written
        return expected

    def run(self, lost_after=LOST_AFTER, poison_after=3):
        return sequences(self.lake, lost_after, poison_after)


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


def test_more_of_a_capture_changes_the_messages_it_is_about_and_no_others(lake, monkeypatch):
    follower = Follower(lake, Broker(Random(11)).run(150))
    follower.write()
    before = lake.version(ACK_SEQUENCES)
    assert follower.run() == 0
    assert lake.version(ACK_SEQUENCES) == before
    # From here on a full recomputation fails. Some calls come, and some go.
    gone = {call["call_key"] for call in follower.broker.calls[5:60:7]}
    follower.broker.run(25)
    with monkeypatch.context() as patch:
        patch.setattr(sequences_update._ReceiveSequencesUpdate, "_recompute_all", None)
        follower.write({call["call_key"] for call in follower.broker.calls} - gone)
        assert 0 < follower.written < lake.read(ACK_SEQUENCES).count()
        # A late capture shows that calls were lost at the server, then that they were lost later too.
        left = [row for row in lake.read(ACK_SEQUENCES).collect() if row["fate"] in ("returned", "held", "purged")]
        times = sorted(round(row["settled_at"].timestamp() * 1e6) for row in left if row["settled_at"] is not None)
        for until in (times[len(times) // 2], times[-1] + 1, 0):
            follower.write({call["call_key"] for call in follower.broker.calls} - gone, lost={SERVER: until})
            assert 0 < follower.written <= len(left)
        # One of the last reads turns out to be sealed, and then not to be there.
        starts = [call["call_key"] for call in follower.broker.calls if (call["protocol"], call["opnum"]) == START]
        expected = follower.write({call["call_key"] for call in follower.broker.calls} - gone, sealed=starts[-1:])
        assert any(row["missing"] == ["sealed"] for row in expected)
        follower.write({call["call_key"] for call in follower.broker.calls} - gone - {*starts[-1:]})
    # Another setting recomputes everything, here in Spark.
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    follower.write(lost_after=dt.timedelta(seconds=5), poison_after=1)


@pytest.mark.parametrize("seed", range(3))
def test_however_many_change_the_rows_of_these_are_computed_in_memory_or_in_tasks(tmp_path, monkeypatch, seed):
    chance = Random(seed)
    broker = Broker(Random(seed)).run(150)
    follower = Follower(Lake(without_spark(), str(tmp_path / "lake")), broker)
    part_of = {call["call_key"]: chance.randint(1, 3) for call in broker.calls}
    for parts in ({1}, {1, 2}, {1, 2, 3}, {2, 3}):
        most = chance.choice([1, 50_000])
        monkeypatch.setattr(sequences_update, "MAX_ROWS_IN_MEMORY", most)
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", most)
        follower.write({name for name, part in part_of.items() if part in parts})
        monkeypatch.setattr(sequences_update._ReceiveSequencesUpdate, "_recompute_all", None)
        assert follower.written


@pytest.mark.parametrize("most", [1, pytest.param(50_000, marks=pytest.mark.long)], ids=["in tasks", "in memory"])
def test_messages_of_two_queues_with_the_same_numbers(tmp_path, monkeypatch, most):
    """Some attempts show a message's lookup identifier alone, some its key alone, and some both, which bind the two."""
    chance, lake = Random(1), Lake(without_spark(), str(tmp_path / "lake"))
    every, connections = captured(Broker(Random(1)).run(150))
    attempts, operations = gold_of(every, connections, until=us(10**6), message_key=lambda call: call.call_key)
    rows = [row for row in attempts.to_pylist() if row["lookup_id"] is not None]
    for row in [*rows]:
        row["lookup_id"] %= 5  # several attempts at each message
        row["message_key"] = f"{row['queue']} {row['lookup_id']}"
        there = {name: f"{row[name]} there" for name in ("attempt_key", "queue", "message_key")}
        rows.append(row | there)
    for row in rows:
        if shows := chance.choice([None, "lookup_id", "message_key"]):
            row[shows] = None
    lake.append(QUEUE_OPERATIONS, operations)
    lake.replace(RECEIVE_ATTEMPTS, attempts.slice(0, 0), provenance="{}")
    monkeypatch.setattr(sequences_update, "MAX_ROWS_IN_MEMORY", most)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", most)
    before, gone = attempts.slice(0, 0), set()
    for _ in range(12):
        some = pa.Table.from_pylist([row for row in rows if row["attempt_key"] not in gone], attempts.schema)
        dates = {*attempts["event_date"].to_pylist()}
        lake.replace_changed(RECEIVE_ATTEMPTS, some, before, dates=dates, provenance="{}")
        before, gone = some, gone ^ {row["attempt_key"] for row in chance.sample(rows, 4)}
        sequences(lake, LOST_AFTER, 3)
        assert comparable(lake.select(ACK_SEQUENCES, "TRUE").to_pylist()) == comparable(
            sequences_here(some, operations)
        )
        monkeypatch.setattr(sequences_update._ReceiveSequencesUpdate, "_recompute_all", None)


def follow(lake, monkeypatch, *states, key_of=key_of):
    """The sequences after each state of what is known, a list of calls: only the first computes all."""
    before = gold_of([], [connection()], until=us(60))
    for calls in states:
        gold = gold_of(calls, [connection()], until=us(60), abort_counts={"start": 0, "peek": 1}, message_key=key_of)
        for table, rows, old in zip((RECEIVE_ATTEMPTS, QUEUE_OPERATIONS), gold, before, strict=True):
            lake.replace_changed(table, rows, old, dates=set(old["event_date"].to_pylist()), provenance="{}")
        before = gold
        sequences(lake, LOST_AFTER, 3)
        rows = lake.select(ACK_SEQUENCES, "TRUE").to_pylist()
        assert comparable(rows) == comparable(sequences_here(*gold))
        yield sorted(rows, key=lambda row: row["queue"] or "")
        monkeypatch.setattr(sequences_update._ReceiveSequencesUpdate, "_recompute_all", None)


def test_a_read_of_a_subqueue_tells_of_a_message_in_its_queue(lake, monkeypatch):
    taken = [opened(), start(1, opnum=13, transaction_id=UOW), end(2, opnum=15)]
    away = [opened(2.5, queue=f"{STORY_QUEUE};sub", handle=OTHER_HANDLE, name="open2")]
    away.append(start(3, action=PEEK, name="peek", context_handle=OTHER_HANDLE))
    said = [[row["fate"] for row in rows] for rows in follow(lake, monkeypatch, taken, [*taken, *away], taken)]
    assert said == [["consumed"], ["moved"], ["consumed"]]


@pytest.mark.parametrize(
    ("unnumbered", "unkeyed"),
    [((), ()), ((), ["start"]), ((), ["again"]), (["start", "again"], ())],
)
def test_a_read_at_an_unknown_queue_makes_fates_of_its_message_uncertain(lake, monkeypatch, unnumbered, unkeyed):
    numbers = {name: {"sequence_id": None} if name in unnumbered else {} for name in ("start", "again")}
    taken = [opened(), start(1, **numbers["start"]), end(2)]
    again = [start(3, name="again", context_handle=OTHER_HANDLE, **numbers["again"])]
    again.append(end(4, ack=1, name="end2", context_handle=OTHER_HANDLE))
    late = opened(2.5, handle=OTHER_HANDLE, name="open2")

    def key_of(call):
        return "message 5" if call.call_key in ("start", "again") and call.call_key not in unkeyed else None

    calls = taken, [*taken, *again], [*taken, late, *again], [*taken, *again], taken
    found = [
        [(row["fate"], row["missing"]) for row in rows] for rows in follow(lake, monkeypatch, *calls, key_of=key_of)
    ]
    unsure = [("returned", ["no_open", "queue_unknown"]), ("consumed", ["queue_unknown"])]
    assert found == [[("consumed", [])], unsure, [("returned", [])], unsure, [("consumed", [])]]


def test_a_read_of_another_message_at_an_unknown_queue_leaves_fates_as_they_are(lake, monkeypatch):
    taken = [opened(), start(1), end(2)]
    other = [start(3, name="start2", message=6, context_handle=OTHER_HANDLE)]
    *_, rows = follow(lake, monkeypatch, taken, [*taken, *other])
    assert [(row["queue"], row["missing"]) for row in rows][1:] == [(STORY_QUEUE, [])]


@pytest.mark.long
def test_a_name_learnt_later_and_a_late_half_of_a_capture(lake, monkeypatch):
    follower = Follower(lake, Broker(Random(12)).run(150))
    every = [call["call_key"] for call in follower.broker.calls]
    follower.write(set(every[::2]))
    monkeypatch.setattr(sequences_update._ReceiveSequencesUpdate, "_recompute_all", None)
    follower.write()
    follower.write(aliases={AUDIT: ORDERS})
    follower.write()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("here", [True, False], ids=["in the driver", "in Spark"])
def test_in_any_order_and_number_of_runs_all_is_as_if_made_anew(lake, monkeypatch, seed, here):
    chance = Random(seed)
    broker = Broker(Random(seed)).run(250)
    if not here:
        monkeypatch.setattr(sequences_update, "MAX_ROWS_IN_MEMORY", -1)
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    follower = Follower(lake, broker)
    part_of = {call["call_key"]: chance.randint(1, 5) for call in broker.calls}
    for part in range(1, 6):
        follower.write({name for name, of in part_of.items() if of <= part})
    follower.write({name for name, of in part_of.items() if of != 3})


@pytest.mark.long
@pytest.mark.parametrize("here", [True, False], ids=["one commit", "Spark's two"])
def test_killed_before_any_commit_and_repeated(lake, monkeypatch, here):
    if not here:
        lake = Lake(lake.spark, lake.root, store="spark")
    follower = Follower(lake, Broker(Random(5)).run(120))
    follower.write()
    follower.broker.run(40)
    kills = []

    def run(*settings):
        kills.append(killed_and_repeated(lake, lambda held: sequences(held, *settings)))

    monkeypatch.setattr(follower, "run", run)
    follower.write()
    assert kills[0] > (0 if here else 1)


@pytest.mark.long
def test_a_feed_that_does_not_reach_back_makes_all_anew(lake, spark):
    follower = Follower(lake, Broker(Random(6)).run(80))
    follower.write()
    spark.sql(
        f"ALTER TABLE {lake.sql_name(RECEIVE_ATTEMPTS)} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')"
    )
    follower.broker.run(30)
    follower.write()


@pytest.mark.long
def test_a_lake_of_an_earlier_state_gets_the_columns_that_came_since(lake):
    new = {"queue_handle", "ack_refused", "ack_unanswered", "reader_gone_at"}
    earlier = tuple(column for column in RECEIVE_ATTEMPTS.columns if column.name not in new)
    lake.create(replace(RECEIVE_ATTEMPTS, columns=earlier))
    assert not new & set(lake._log.columns(RECEIVE_ATTEMPTS))  # reading gives nulls for them
    for _ in range(2):
        lake.add_missing_columns(RECEIVE_ATTEMPTS)
        assert {*RECEIVE_ATTEMPTS.names} == set(lake._log.columns(RECEIVE_ATTEMPTS))
    Follower(lake, Broker(Random(4)).run(60)).write()


@pytest.mark.long
def test_no_attempts_no_table_and_of_none_none(lake):
    assert sequences_update.update(lake, lost_after=LOST_AFTER, poison_after=3) == 0
    assert not lake.exists(ACK_SEQUENCES)
    lake.create(RECEIVE_ATTEMPTS)
    assert sequences_update.update(lake, lost_after=LOST_AFTER, poison_after=3) == 0
    assert lake.read(ACK_SEQUENCES).count() == 0
