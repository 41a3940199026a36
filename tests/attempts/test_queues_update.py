"""The queue of a message and of an attempt, whichever capture or run brings the open, and what names it canonically."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from attempts.test_affected_scope import read
from attempts.test_tables import FOUR_TUPLE, HANDLE, _connection, at, gold_anew
from attempts.test_update import CLEANUP, add, change, killed, plain
from pipeline.attempts import affected_scope, server_slices
from pipeline.attempts import update as attempts_update
from pipeline.attempts.open_rows import open_queries, opens_function
from pipeline.attempts.operation_rows import operations_function
from pipeline.lake import lake as lake_module
from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.silver.queue_aliases import AliasIndex, compute_alias_rows
from schemas.attempts import QUEUE_OPENS, QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS
from tests.support.lakes import versions_text
from udfs.keys import key

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("in_few_calls_too")]


ORDERS, LARGE = "srv1\\private$\\orders", "srv1\\private$\\large"
NUMBERS = {"queue_handle": 28, "queue_descriptor": 28, "open_context": 28}
GIVEN = {"context_handle": HANDLE.hex(), "hresult": 0}
APP = FOUR_TUPLE | {"connection_id": "app", "client_address": "10.0.0.8", "run_id": "run"}
CONNECTED = [
    _connection("c1", 0), _connection("c2", 0, association_group_id=2, client_address="10.0.0.3"),
    _connection("app", 0, association_group_id=9, client_address="10.0.0.8"),
]  # fmt: skip


def named(name, at_s, queue=ORDERS, **more):
    """R_QMOpenRemoteQueue, a row of silver.client_calls."""
    return APP | {
        "call_key": name, "interface_name": "qmcomm", "opnum": 2, "requested_at": at(at_s),
        "responded_at": at(at_s + 0.1),
        "queue_format_name": f"DIRECT=OS:{queue}", "queue": queue, "errors": [], "response_bytes": 36,
        **NUMBERS, **GIVEN,
    } | more  # fmt: skip


def session(name, at_s, **more):
    return read(name, ("qm2qm", 2), at_s, at_s + 0.1, **NUMBERS | GIVEN | more)


def started(name, at_s, **more):
    values = {"queue_handle": 28, "request_id": 7, "action": 0, "timeout_ms": 5000, "hresult": 0,
              "remote_read_handle": f"{at_s:02d}" * 20}  # fmt: skip
    return read(name, ("qm2qm", 9), at_s, at_s + 0.1, **values | more)


def brought(name, at_s, destination="srv1\\sent-to"):
    """The message that a call brought."""
    return {"sighting_key": key(name), "call_key": name, "message_key": f"m-{name}", "body_bytes": 5,
            "seen_at": at(at_s), "destination_queue": destination}  # fmt: skip


def anew(lake, queries, find):
    """Rows as they would be if they were made now of all there is."""
    parts = {name: lake.query(query.sql, **query.inputs) for name, query in queries.items()}
    return lake.spark.createDataFrame(pa.concat_tables(find(parts)))


def operations_anew(lake):
    return anew(
        lake, server_slices.operation_queries(None, None), operations_function(AliasIndex.load(lake).canonical_names)
    )


def opens_anew(lake):
    return anew(lake, open_queries(None), opens_function(AliasIndex.load(lake).canonical_names))


class Story:
    """A lake that is filled step by step; after each run all is what it would be if it were made anew."""

    def __init__(self, lake):
        self.lake = lake
        add(lake, CONNECTIONS, *CONNECTED)
        servers = [FOUR_TUPLE["server_address"]]
        add(lake, CAPTURE_FILES, {"capture_id": "one", "servers": servers, "first_packet_at": at(0),
                                  "last_packet_at": at(90)})  # fmt: skip

    def add(self, *calls, messages=(), clients=()):
        add(self.lake, REMOTE_READ_CALLS, *(silver for silver, _ in calls))
        add(self.lake, RPC_CALLS, *(bronze for _, bronze in calls))
        if messages:
            add(self.lake, MESSAGES, *messages)
        if clients:
            add(self.lake, CLIENT_CALLS, *clients)

    def run(self, *, compared=True, **options):
        written = attempts_update.update(self.lake, cleanup=CLEANUP, **options)
        if not compared:
            return written
        assert plain(self.lake.read(RECEIVE_ATTEMPTS)) == plain(gold_anew(self.lake))
        if self.lake.read(REMOTE_READ_CALLS).where("opnum IN (6, 10)").limit(1).count():
            assert plain(self.lake.read(QUEUE_OPERATIONS)) == plain(operations_anew(self.lake))
        assert plain(self.lake.read(QUEUE_OPENS)) == plain(opens_anew(self.lake))
        facts = [name for name in QUEUE_ALIASES.names if name not in ("run_id", "ingested_at")]
        anew = compute_alias_rows(self.lake, options.get("declared", ())).select(facts).to_pylist()
        there = self.lake.read(QUEUE_ALIASES).select(*facts).toArrow().to_pylist()
        assert sorted(there, key=str) == sorted(anew, key=str)
        opened = {row.attempt_key: row.opened_queue for row in self.lake.read(RECEIVE_ATTEMPTS).collect()}
        for row in self.lake.read(MESSAGES).collect():
            queue = opened[row.sighting_key]
            assert (row.queue, row.inferred_queue) == (queue, None if queue else row.destination_queue)
        return written

    def queues(self):
        rows = self.lake.read(RECEIVE_ATTEMPTS).collect()
        return {row.evidence[-1]: row.queue for row in rows}

    def messages(self):
        return {row.call_key: (row.queue, row.inferred_queue) for row in self.lake.read(MESSAGES).collect()}


@pytest.fixture
def story(spark, tmp_path):
    return Story(Lake(spark, str(tmp_path / "lake")))


@pytest.mark.long
def test_the_open_is_captured_later_than_the_message_and_then_goes(story):
    story.add(session("open", 3), started("start", 5), messages=[brought("start", 5)])
    story.run(compared=False)
    assert story.messages() == {"start": (None, "srv1\\sent-to")}
    lake = story.lake
    versions = versions_text(lake, MESSAGES, QUEUE_ALIASES, RECEIVE_ATTEMPTS)
    assert story.run(compared=False) == 0
    assert versions_text(lake, MESSAGES, QUEUE_ALIASES, RECEIVE_ATTEMPTS) == versions
    # Another capture shows who opened the queue, before.
    story.add(clients=[named("name", 1)])
    assert story.run(compared=False) == 1
    assert story.messages() == {"start": (ORDERS, None)}
    assert story.queues() == {"start": ORDERS}
    # A session on another connection closed the number in between: what that was of nobody saw.
    close = {"context_handle": HANDLE.hex(), "hresult": 0, "connection_id": "c2"}
    story.add(session("other", 1.5, connection_id="c2"), read("close", ("qm2qm", 3), 2, 2.1, **close))
    assert story.run(compared=False) == 1
    assert story.messages() == {"start": (None, "srv1\\sent-to")}
    change(lake, REMOTE_READ_CALLS, gone=["close"])
    assert story.run() == 1
    assert story.messages() == {"start": (ORDERS, None)}


@pytest.mark.long
def test_the_queue_of_a_purge_by_number_is_found_by_what_comes_later(story):
    purge = read("purge", ("qm2qm", 6), 5, 5.1, queue_handle=28, hresult=0)
    story.add(session("open", 3), purge, started("start", 15))
    story.run(compared=False)

    def purged():
        return [(row.queue, row.outcome, row.missing) for row in story.lake.read(QUEUE_OPERATIONS).collect()]

    assert purged() == [(None, "done", ["no_open", "queue_unknown"])]
    story.add(clients=[named("name", 1)])
    story.run(compared=False)
    assert purged() == [(ORDERS, "done", [])]
    change(story.lake, REMOTE_READ_CALLS, gone=["purge"])
    story.run(compared=False)
    assert purged() == []


def test_who_the_client_claims_to_be_is_learnt_later_than_its_calls(story):
    """And which opens held the queue that another client was refused."""
    opened = {"queue": ORDERS, "access": 1, "share_mode": 0}
    refused = read("refused", ("RemoteRead", 2), 5, 5.1, connection_id="c2", **opened | {"share_mode": 1})
    refused[1].update(outcome="fault", fault_status=0xC00E0009)
    started = {"context_handle": "aa" * 20, "action": 0, "timeout_ms": 5, "request_id": 7, "hresult": 0}
    story.add(read("start", ("RemoteRead", 7), 3, 3.1, **started), refused)
    story.run()

    def opens():
        rows = story.lake.read(QUEUE_OPENS).collect()
        return {row.call_key: (row.principal, row.blocked_by, row.blocks, row.missing) for row in rows}

    def principals():
        return {row.principal for row in story.lake.read(RECEIVE_ATTEMPTS).collect()}

    assert (opens(), principals()) == ({"refused": (None, None, [], ["no_open"])}, {None})
    bind = {"bind_key": "b", "connection_id": "c1", **FOUR_TUPLE, "auth_principal": "CORP\\svc", "bound_at": at(0)}
    add(story.lake, RPC_BINDS, bind)
    story.add(read("open", ("RemoteRead", 2), 1, 1.1, context_handle="aa" * 20, **opened))
    assert story.run() == 1
    assert principals() == {"CORP\\svc"}
    assert opens() == {"refused": (None, ["open"], [], []), "open": ("CORP\\svc", None, ["refused"], [])}
    change(story.lake, RPC_BINDS, bind | {"auth_principal": "CORP\\other"})  # as after reading a capture again
    assert story.run() == 1
    assert (principals(), opens()["open"][0]) == ({"CORP\\other"}, "CORP\\other")


@pytest.mark.long
def test_a_late_close_of_what_a_move_went_to_reaches_the_move(story):
    target = {"move_context": Decimal(5)}
    source = {"context_handle": "aa" * 20}
    story.add(
        read("from", ("RemoteRead", 2), 1, 1.1, queue=ORDERS, **source),
        read("to", ("RemoteRead", 11), 2, 2.1, queue=f"{ORDERS};late", context_handle="bb" * 20, **target),
        read("move", ("RemoteRead", 10), 9, 9.1, hresult=0, lookup_id=Decimal(5), **source, **target),
    )
    story.run()

    def went():
        return [row.target_queue for row in story.lake.read(QUEUE_OPERATIONS).collect()]

    assert went() == [f"{ORDERS};late"]
    story.add(read("close", ("RemoteRead", 3), 5, 5.1, hresult=0, context_handle="bb" * 20))
    story.run()
    assert went() == [None]


@pytest.mark.long
def test_a_name_learnt_later_reaches_earlier_attempts_and_goes_with_its_evidence(story):
    guid = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
    private = f"{guid}\\00000009"
    story.add(
        session("open", 3), started("start", 5), started("journal", 15, queue_handle=29),
        messages=[brought("start", 5)],
        clients=[named("name", 1, private, queue_format_name=f"PRIVATE={private}"),
                 named("name2", 2, f"{private};journal", queue_format_name=f"PRIVATE={private};JOURNAL",
                       **dict.fromkeys(NUMBERS, 29))],
    )  # fmt: skip
    story.run()
    assert story.queues() == {"start": private, "journal": f"{private};journal"}
    seen = {"snapshot_id": "s", "call_key": "get", "queue": private, "pathname": ORDERS,
            "formatname": f"PRIVATE={private}", "observed_at": at(40)}  # fmt: skip
    add(story.lake, QUEUE_SNAPSHOTS, seen)
    assert story.run() == 2
    assert story.queues() == {"start": ORDERS, "journal": f"{ORDERS};journal"}
    assert story.messages() == {"start": (private, None)}  # as it was opened
    # The configuration knows another name of it; a path name is better, and the first one shown before others.
    assert story.run(declared=[[f"PRIVATE={private}", "old\\name"]]) == 0
    story.lake.delete(QUEUE_SNAPSHOTS, "TRUE")
    assert story.run() == 2
    assert story.queues() == {"start": private, "journal": f"{private};journal"}


@pytest.mark.long
@pytest.mark.parametrize("where", ["aliases", "messages", "gold"])
def test_killed_between_any_two_writes_and_repeated(story, monkeypatch, where):
    other = named("other", 0, LARGE, **dict.fromkeys(NUMBERS, 29))
    story.add(session("open", 3), started("start", 5), messages=[brought("start", 5)], clients=[other])
    story.run()
    story.add(clients=[named("name", 1)])
    target = {
        "aliases": (affected_scope, "find_recompute_scope"),
        "messages": (type(story.lake), "update_columns"),
        "gold": (IncrementalUpdate, "write_changes"),
    }
    killed(monkeypatch, *target[where], story.run)
    assert story.run() == 1
    assert story.messages() == {"start": (ORDERS, None)}
    assert story.queues() == {"start": "srv1\\private$\\orders"}


def _happenings(seed):
    """Random openings, closings and reads of three numbers by two hosts: calls of silver, of qmcomm, messages."""
    chance = random.Random(seed)
    reads, clients, messages = [], [], []
    for second in range(1, 40):
        number = dict.fromkeys(NUMBERS, chance.randint(28, 29))
        place = {"connection_id": chance.choice(["c1", "c2"])}
        kind = chance.choice(["name", "open", "close", "start", "start", "start", "cancel", "purge", "move"])
        name = f"{kind}-{second}"
        handle = {"context_handle": chance.choice(["aa", "bb"]) * 20}
        if kind == "name":
            clients.append(named(name, second, chance.choice([ORDERS, LARGE]), **number, **handle))
        elif kind == "open":
            reads.append(session(name, second, **number, **place, **handle))
        elif kind == "close":
            reads.append(read(name, ("qm2qm", 3), second, second + 0.1, hresult=0, **handle, **place))
        elif kind == "purge":
            reads.append(read(name, ("qm2qm", 6), second, second + 0.1, hresult=0, **place,
                              queue_handle=number["queue_handle"]))  # fmt: skip
        elif kind == "move":
            moved = {"move_context": Decimal(1)} | handle | place
            done = {"hresult": 0, "lookup_id": Decimal(5)}
            reads += [
                read(f"{name}-{n}", ("RemoteRead", n), second, second + 0.1, queue=ORDERS, **moved) for n in (2, 11)
            ]
            reads.append(read(name, ("RemoteRead", 10), second + 0.2, second + 0.3, **done, **moved))
        elif kind == "cancel":
            values = {"queue_handle": number["queue_handle"], "request_id": chance.randint(1, 3), "hresult": 0}
            reads.append(read(name, ("qm2qm", 5), second, second + 0.1, **values, **place))
        else:
            values = {"queue_handle": number["queue_handle"], "request_id": chance.randint(1, 3)}
            reads.append(started(name, second, **values, **place))
            messages.append(brought(name, second))
    return reads, clients, messages


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("here", [True, False], ids=["in the driver", "in Spark"])
def test_in_any_order_and_number_of_runs_all_is_as_if_made_anew(story, monkeypatch, seed, here):
    if not here:
        monkeypatch.setattr(server_slices, "_CALLS_IN_ONE_SLICE", 1)
        monkeypatch.setattr(server_slices, "_CALLS_OF_SCOPE_IN_ONE_SLICE", 1)
        monkeypatch.setattr(server_slices, "_CALLS_PER_SLICE", 1)
        monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    reads, clients, messages = _happenings(seed)
    chance = random.Random(seed)
    chance.shuffle(reads)
    chance.shuffle(clients)
    parts = chance.randint(3, 4)
    for part in range(parts):
        mine = reads[part::parts]
        keys = {silver["call_key"] for silver, _ in mine}
        story.add(*mine, clients=clients[part::parts], messages=[m for m in messages if m["call_key"] in keys])
        story.run()
    assert set(story.queues().values()) > {None}
    # A connection turns out to have ended half way: what was opened over it was let go.
    for name in ("c1", "app"):
        group = {"c1": {}, "app": {"association_group_id": 9, "client_address": "10.0.0.8"}}[name]
        change(story.lake, CONNECTIONS, _connection(name, 0, closed=20, closed_by="fin", **group))
        story.run()
