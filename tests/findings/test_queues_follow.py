"""Findings on queues follow their tables: in any order of changes the result is that of all rows, also in Spark."""

import random
from functools import partial

import pytest

from findings.facts import plain
from pipeline.arrow_rows import epoch_day, rows_to_table
from pipeline.concurrency import run_concurrently
from pipeline.findings import update as findings_update
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.eod import EOD_SOURCES
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from udfs.keys import key

pytestmark = [pytest.mark.spark, pytest.mark.long]

US = 1_000_000
NOON = 1_714_564_800 * US
HOUR, DAY = 3600, 86400
SERVER, OWNER = "10.0.0.1", "srv1"
ORDERS, OTHER, DEAD = "srv1\\private$\\orders", "srv1\\private$\\other", "srv1\\system$;deadletter"
ALIAS = "10.0.0.1\\private$\\orders"


def us(seconds):
    return NOON + round(seconds * US)


def snapshot(at, number, *, queue=ORDERS, source="collector", journal=None):
    """A report, from the collector by name, or from the wire; requested half a second before."""
    name = f"s {queue} {at}"
    wire = source == "wire"
    row = {
        "snapshot_id": name, "call_key": name if wire else None, "source": source, "hresult": 0, "queue": queue,
        "queue_manager": SERVER if wire else OWNER, "observed_at": us(at), "message_count": number,
        "journal_message_count": journal, "state": "LOCAL CONNECTION", "errors": [],
    }  # fmt: skip
    yield QUEUE_SNAPSHOTS, row
    if wire:
        yield RPC_CALLS, {"call_key": name, "capture_id": "one", "request_at": us(at - 0.5), "interface_name": "qmmgmt"}
    else:
        yield SNAPSHOTS_RAW, {"snapshot_id": name, "asked_at": us(at - 0.5)}


def read(at, outcome="peeked", *, message=5, queue=ORDERS, client="10.0.0.2", ended=None):
    start, end, connection = f"start {client} {at}", f"end {client} {at}", f"connection {client}"
    keys = [start] if ended is None else [start, end]
    receive = outcome != "peeked"
    yield RECEIVE_ATTEMPTS, {
        "attempt_key": key(start), "protocol": "RemoteRead", "queue": queue, "server_address": SERVER,
        "client_address": client, "connection_id": connection, "is_receive": receive, "transactional": False,
        "action_name": "MQ_ACTION_RECEIVE" if receive else "MQ_ACTION_PEEK_CURRENT", "started_at": us(at),
        "returned_at": us(at + 0.1), "ended_at": None if ended is None else us(ended), "wait_ms": 100.0,
        "lookup_id": message, "message_key": f"m{message}", "start_hresult": 0, "outcome": outcome,
        "ack_refused": False, "ack_unanswered": False, "evidence": keys, "missing": [], "errors": [],
    }  # fmt: skip
    for name in keys:
        yield RPC_CALLS, {"call_key": name, "capture_id": "one", "request_at": us(at), "interface_name": "RemoteRead"}
    yield REMOTE_READ_CALLS, {"call_key": start, "requested_at": us(at), "arrived_at": us(-5000), "cursor_handle": 0}


def connection(client):
    yield CONNECTIONS, {"connection_id": f"connection {client}", "first_packet_at": us(-100), "kind": "binary_protocol"}


def twice(at):
    """One message that two readers receive."""
    for place, client in enumerate(("10.0.0.5", "10.0.0.3")):
        yield from connection(client)
        begin = at + 5 * place
        yield from read(begin, "acked", message=77, ended=begin + 1, client=client)
    yield ACK_SEQUENCES, {
        "sequence_key": f"q{at}", "queue": ORDERS, "lookup_id": 77, "message_key": "m77", "attempts": 2,
        "outcomes": ["acked", "acked"], "first_attempt_at": us(at), "settled_at": us(at + 6), "evidence": [],
    }  # fmt: skip


def ends(at):
    yield EOD_SOURCES, {
        "source_key": f"k{at}", "queue_manager": "far", "queue": OTHER, "observed_at": us(at), "evidence": [f"e{at}"],
        "sender_queue_manager": "guid", "disagrees_with_sender": "gap: ...",
    }  # fmt: skip


def transactions(at):
    """A receive of OTHER in a transaction, and a move to its subqueue."""
    for table, row in read(at, "acked", message=3, queue=OTHER, client="10.0.0.4", ended=at + 1):
        yield table, row | ({"transaction_id": "t"} if table is RECEIVE_ATTEMPTS else {})
    yield QUEUE_OPERATIONS, {
        "call_key": f"move {at}", "operation": "move", "queue": OTHER, "target_queue": f"{OTHER};sub",
        "outcome": "done", "server_address": SERVER, "client_address": "10.0.0.4", "transaction_id": "t",
        "lookup_id": 3, "requested_at": us(at), "responded_at": us(at + 0.1), "evidence": [],
    }  # fmt: skip


def kind(at, xact):
    for table, row in snapshot(at, None, queue=OTHER):
        yield table, row | ({"xact": xact} if table is QUEUE_SNAPSHOTS else {})


PARTS = {
    "transactions": [*connection("10.0.0.4"), *transactions(0), *transactions(3 * DAY), *transactions(9 * DAY)],
    "a queue that is not transactional": [*kind(HOUR, "NO"), *kind(HOUR + 60, "No"), *kind(3.5 * DAY, "NO")],
    "it is made anew": [*kind(9.2 * DAY, "NO"), *kind(9.4 * DAY, "YES")],
    "reads": [*connection("10.0.0.2"), *read(0), *read(40)],
    "a report on the wire": [*snapshot(20, 0, source="wire", queue=ALIAS)],  # by another name of the queue
    "a report beside it": [*snapshot(21, 0)],
    "a report that is right": [*snapshot(22, 3)],
    "dead letters": [*snapshot(0, 1, queue=DEAD), *snapshot(HOUR, 4, queue=DEAD)],
    "more of them": [*snapshot(2 * HOUR, 9, queue=DEAD), *snapshot(DAY, 12, queue=DEAD)],
    "fewer before": [*snapshot(-HOUR, 0, queue=DEAD)],
    "a journal": [*(each for at in range(3) for each in snapshot(at * HOUR, 0, queue=OTHER, journal=1000 * at))],
    "two readers": [*twice(600)],
    "ends": [*ends(0), *ends(HOUR), *ends(2 * DAY)],
}
TABLES = (
    CAPTURE_FILES, HOSTS, RPC_CALLS, CONNECTIONS, REMOTE_READ_CALLS, QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS, ACK_SEQUENCES,
    QUEUE_OPERATIONS, EOD_SOURCES, SNAPSHOTS_RAW, QUEUE_ALIASES,
)  # fmt: skip
FOUND = {"O03": 2, "O04": 1, "O05": 2, "O06": 2, "R53": 1, "R59": 2, "R66": 2}


def table_of(table, rows):
    schema = table.schema()
    dated = [{**dict.fromkeys(schema.names), **row} for row in rows]
    for row in dated:
        row["event_date"] = epoch_day(*(row[name] for name in table.event_date_columns))
    return rows_to_table(dated, schema)


class World:
    def __init__(self, session, root):
        self.lake = Lake(session, str(root))
        for table in TABLES:
            self.lake.create(table)
        self._append(QUEUE_ALIASES, [{"queue": ALIAS, "other_queue": ORDERS, "canonical_queue": ORDERS},
                                     {"queue": ORDERS, "other_queue": ALIAS, "canonical_queue": ORDERS}])  # fmt: skip
        self.names = '{"names": {"' + SERVER + '": "' + OWNER + '"}}'

    def _append(self, table, rows):
        self.lake.append(table, table_of(table, rows))

    def add(self, name):
        by_table = {}
        for table, row in PARTS[name]:
            by_table.setdefault(table, []).append(row)
        run_concurrently({table: partial(self._append, table, rows) for table, rows in by_table.items()})

    def take(self, name):
        by_table = {}
        for table, row in PARTS[name]:
            by_table.setdefault(table, set()).add(row[table.key[0]])
        for table, keys in by_table.items():
            self.lake.delete_values(table, table.key[0], keys, dates=None)

    def found(self):
        findings_update.update(self.lake)
        rows = self.lake.select(FINDINGS, "scope = 'queue'")
        found = plain(rows)
        assert len(found) == rows.num_rows
        return found

    def recomputed(self):
        self.lake.note_provenance(FINDINGS, "nothing")
        return self.found()


def test_findings_on_queues_follow_what_comes_and_goes(spark, tmp_path, monkeypatch):
    world = World(spark, tmp_path / "lake")
    world.lake.note_provenance(QUEUE_HISTORY, world.names)
    order = list(PARTS)
    random.Random(4).shuffle(order)
    world.add(order[0])
    world.found()
    full_runs = []
    whole = findings_update._FindingsUpdate._evaluate_all
    monkeypatch.setattr(
        findings_update._FindingsUpdate, "_evaluate_all", lambda self: full_runs.append(1) or whole(self)
    )
    for name in order[1:]:
        world.add(name)
        found = world.found()
    assert not full_runs
    rules = [row["rule_id"] for row in found.values() if row["severity"] != "info"]
    assert {rule: rules.count(rule) for rule in sorted(set(rules))} == FOUND
    version = world.lake.version(FINDINGS)
    assert findings_update.update(world.lake) == 0
    assert world.lake.version(FINDINGS) == version
    assert world.recomputed() == found
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)  # in Spark
    assert world.recomputed() == found
    monkeypatch.undo()
    world.take("a report on the wire")
    world.take("fewer before")
    world.take("a queue that is not transactional")
    fewer = world.found()
    assert len(fewer) < len(found)
    assert world.recomputed() == fewer


def test_a_report_leaves_the_findings_of_other_rules_as_they_are(spark, tmp_path):
    """It makes the reads of its queue be read, and these show two readers of a message once more."""
    world = World(spark, tmp_path / "lake")
    world.lake.note_provenance(QUEUE_HISTORY, world.names)
    world.add("two readers")
    found = world.found()
    assert [row["rule_id"] for row in found.values()] == ["R53"]
    world.add("a report that is right")
    assert world.found() == found
