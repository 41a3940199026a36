"""Attempts follow calls that come, change and go in any order and number of runs: each leaves what one run would.

The reference queue manager (``broker``) tells random conversations. A run sees them up to some moment, or without some
of their calls. Attempts, purges and moves, and the queues of messages are compared after each, however few rows a step
takes for many.
"""

from dataclasses import replace
from datetime import timedelta
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from attempts.broker import Broker, captured
from attempts.telling import SERVER, facts_of, gold_of
from attempts.test_dependency_keys import OFTEN, answered, as_of
from attempts.test_server_slices import captured_in_part, tables_of
from engines import without_spark
from example_counts import seeds
from pipeline.arrow_rows import is_in
from pipeline.attempts import affected_scope, server_slices
from pipeline.attempts import update as attempts_update
from pipeline.attempts.attempt_rows import ATTEMPT_KEY_SQL
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.silver.queue_aliases import AliasIndex
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES
from schemas.messages import MESSAGES
from udfs.keys import key

CLEAN_UP = timedelta(minutes=5)
HOURS = 3_600 * 40  # a story of some seconds lasts for days


def stretched(calls, connections, by):
    """The same in more time."""
    times = ("requested_at", "responded_at", "cancelled_at", "orphaned_at")
    slower = [
        call._replace(**{name: at * by for name in times if (at := getattr(call, name)) is not None}) for call in calls
    ]
    lives = ("first_packet_at", "last_packet_at", "closed_at")
    return slower, [
        replace(each, **{name: at * by for name in lives if (at := getattr(each, name)) is not None})
        for each in connections
    ]


def states(chance):
    """What is known after each run: calls, connections, and until when; in the end all."""
    broker = Broker(chance).run(chance.randint(20, 80), **chance.choice(OFTEN))
    calls, connections = captured(broker)
    connections = [
        replace(each, client_address=f"10.0.1.{chance.randrange(3)}",
                **chance.choice([{}, {}, {}, {"syn_seen": False, "association_group_id": None}, {"missing_bytes": 1}]))
        for each in connections
    ]  # fmt: skip
    losses = {call.call_key: chance.randrange(1 << 32) for call in calls} if chance.random() < 0.3 else {}
    by = chance.choice([1, HOURS])
    calls, connections = stretched(calls, connections, by)
    found = []
    for _ in range(chance.randint(1, 3)):
        at = chance.randint(0, broker.now) * by
        share = chance.choice([0.8, 0.98])
        some = [call for call in calls if chance.random() < share]
        found.append(chance.choice([(*as_of(calls, connections, at), at), (some, connections, broker.now * by)]))
    found.append((calls, connections, broker.now * by))
    return [
        ([captured_in_part(call, Random(losses[call.call_key])) if losses else call for call in known], *others)
        for known, *others in found
    ]


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=[pytest.mark.spark, pytest.mark.long])])
def test_an_attempt_has_the_same_key_in_sql(by_spark, request):
    names = ["a" * 32, "start", "x" * 255, "\u00e9 of two bytes", ""]
    rows = pa.table({"call_key": names})
    sql = f"SELECT call_key, {ATTEMPT_KEY_SQL} AS attempt_key FROM {{rows}}"
    spark = request.getfixturevalue("spark") if by_spark else None
    for row in answered(sql, spark, rows).to_pylist():
        assert row["attempt_key"] == key(row["call_key"])


class Story:
    """A lake whose tables are changed from state to state."""

    def __init__(self, root):
        self.lake, self.before = Lake(without_spark(), str(root)), {}

    def run(self, calls, connections, until):
        facts, connected = facts_of(calls, connections)
        tables = tables_of(facts, connected)
        messages = tables[MESSAGES].filter(pc.is_valid(tables[MESSAGES]["message_key"]))
        keys = pa.array([*map(key, messages["call_key"].to_pylist())], pa.string())
        messages = messages.set_column(messages.column_names.index("sighting_key"), "sighting_key", keys)
        seen = facts.filter(pc.is_valid(facts["message_key"]))["responded_at"]
        tables[MESSAGES] = messages.set_column(messages.column_names.index("seen_at"), "seen_at", seen)
        ends = pa.array([until], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        capture = {"capture_id": ["one"], "servers": [[SERVER]], "first_packet_at": ends, "last_packet_at": ends}
        schema = CAPTURE_FILES.schema()
        tables[CAPTURE_FILES] = pa.table(
            [pa.array(capture[name], kind) if name in capture else pa.nulls(1, kind)
             for name, kind in zip(schema.names, schema.types, strict=True)], schema=schema,
        )  # fmt: skip
        for table, rows in tables.items():
            self._change(table, rows.drop_columns(["event_date"]) if "event_date" in rows.column_names else rows)
        attempts_update.update(self.lake, cleanup=CLEAN_UP)
        self._compare(calls, connections, until)

    def _change(self, table, rows):
        name, there = table.key[0], self.before.get(table, rows.slice(0, 0))
        fresh, stale = changed_keys(rows, there, name)
        if len(fresh) or len(stale):
            self.lake.delete_and_insert(table, name, stale, rows.filter(is_in(rows, name, fresh)), dates=None)
        self.before[table] = rows

    def _compare(self, calls, connections, until):
        aliases = AliasIndex.load(self.lake).canonical_names
        attempts, operations = gold_of(calls, connections, until=until, aliases=aliases)
        for table, expected in ((RECEIVE_ATTEMPTS, attempts), (QUEUE_OPERATIONS, operations)):
            rows, by_key = self.lake.select(table, "TRUE"), table.key[0]
            assert rows.sort_by(by_key).to_pylist() == expected.sort_by(by_key).to_pylist()
        opened = dict(zip(attempts["attempt_key"].to_pylist(), attempts["opened_queue"].to_pylist(), strict=True))
        for row in self.lake.select(MESSAGES, "TRUE").to_pylist():
            if (name := row["sighting_key"]) in opened:
                assert row["queue"] == opened[name]
                assert row["inferred_queue"] == (None if opened[name] else row["destination_queue"])


@pytest.mark.parametrize("seed", seeds(6, 200))
def test_each_run_leaves_what_one_of_all_would(seed, tmp_path, monkeypatch):
    chance = Random(seed)
    if chance.random() < 0.7:
        monkeypatch.setattr(affected_scope, "MIN_CALLS_FOR_KEYS", -1)
    if chance.random() < 0.6:
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", chance.choice([-1, 1, 20]))
    if chance.random() < 0.6:
        for limit in ("_CALLS_IN_ONE_SLICE", "_CALLS_OF_SCOPE_IN_ONE_SLICE"):
            monkeypatch.setattr(server_slices, limit, 1)
        monkeypatch.setattr(server_slices, "_CALLS_PER_SLICE", chance.choice([1, 10, 1000]))
    story = Story(tmp_path / "lake")
    for state in states(chance):
        story.run(*state)
