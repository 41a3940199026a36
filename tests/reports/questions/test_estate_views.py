"""The views of the estate: planted estates come out exactly, in both engines; names, gaps, and what was not seen."""

import datetime as dt
from collections import Counter, defaultdict
from zoneinfo import ZoneInfo

import pytest

from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.scope import Scope
from reports.questions import planted_estate as planted
from reports.questions.both_engines import answers_of, quick_session
from reports.questions.in_memory_lake import InMemoryLake, rows
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import QUEUE_OPERATIONS, RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES
from schemas.calls import MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_history import QUEUE_HISTORY
from schemas.queue_snapshots import MACHINE_SNAPSHOTS
from schemas.sessions import SENDINGS, SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
QUEUE = "host1\\private$\\orders"
GUID = "5f0c2b1a-9d3e-4c77-8a10-00000000000"


def minutes(value):
    return (value - EPOCH).total_seconds() / 60 if isinstance(value, dt.datetime) else value


def plain(found):
    """Rows of an answer, times in minutes."""
    return [{name: minutes(value) for name, value in row.items()} for row in found.to_pylist()]


def asked(name, tables, *, since=None, until=None, **scope):
    """Rows of a view over tables, given as rows, within hours in minutes."""
    since, until = (None if at is None else EPOCH + dt.timedelta(minutes=at) for at in (since, until))
    lake = InMemoryLake(None, {table: rows(table, *given) for table, given in tables.items()})
    return plain(LakeViews(lake, until, scope=Scope(since, until, **scope)).answer(name))


def sent(name, at, **more):
    """A message on TCP 1801: its sighting and its sending, for `tables_of`."""
    ends = {"sender_address": "10.1.0.1", "receiver_address": "10.1.0.2", "length_bytes": 500}
    ends |= {key: more.pop(key) for key in [*ends, "receiver_queue_manager"] if key in more}
    packet = f"{name} {at}"
    seen = {"message_key": name, "sighting_key": packet, "packet_key": packet, "seen_at": at, "hop_count": 0,
            "source_queue_manager": GUID + "1", "destination_queue": QUEUE, "body_bytes": 100,
            "message_kind": "application"}  # fmt: skip
    return {MESSAGES: [seen | more], SENDINGS: [{"packet_key": packet, "sent_at": at} | ends]}


def read(name, at, **more):
    """A message that was read remotely."""
    call = f"{name} read {at}"
    seen = {"message_key": name, "sighting_key": call, "call_key": call, "seen_at": at, "queue": QUEUE,
            "source_queue_manager": GUID + "1", "destination_queue": QUEUE, "body_bytes": 100,
            "message_kind": "application"}  # fmt: skip
    return {MESSAGES: [seen | more]}


def together(*parts):
    tables = defaultdict(list)
    for part in parts:
        for table, given in part.items():
            tables[table] += given
    return tables


@pytest.fixture(scope="module")
def estate():
    return planted.plant(7)


@pytest.fixture(scope="module")
def answer(estate, spark):
    """The answer of both engines, which is one, as rows."""
    answers = answers_of(LakeViews(InMemoryLake(quick_session(spark), planted.tables_of(estate))))
    return lambda name: plain(answers(name))


def check_queues(found, estate):
    expected = planted.by_queue(estate)
    assert [row["queue"] for row in found] == sorted(expected, key=lambda queue: (-len(expected[queue]), queue))
    for row in found:
        of_queue = expected[row["queue"]]
        wanted = planted.rates_of(of_queue) | planted.features_of(of_queue) | planted.use_of(of_queue)
        told = {name: set(row[name]) if isinstance(wanted[name], set) else row[name] for name in wanted}
        assert told == wanted
        assert (row["sender_count"], row["reader_count"]) == (len(wanted["senders"]), len(wanted["readers"]))


@pytest.mark.spark
def test_a_planted_estate_comes_out_exactly_in_both_engines(answer, estate):
    check_queues(answer("estate_queues"), estate)
    flows, hours = Counter(), Counter()
    for each in estate:
        for sender, receiver, times in each.hops:
            flows[sender.name, receiver.name, each.queue, "tcp_1801"] += len(times)
        flows.update({(each.queue[:5], reader.name, each.queue, "rpc_read"): 0 for _, reader, _, _ in each.reads})
        hours.update((each.queue, int(at) // 15 * 15) for at in (each.hops[-1][2] if each.hops else ()))
    found = answer("estate_flows")
    assert {tuple(row[name] for name in ("sender", "receiver", "queue", "way")) for row in found} == set(flows)
    for row in found:
        way = tuple(row[name] for name in ("sender", "receiver", "queue", "way"))
        assert row["sendings"] == (flows[way] or None)
    assert {(row["queue"], row["start_at"]): row["sendings"] for row in answer("estate_hours")} == hours
    machines = {row["machine"]: row for row in answer("estate_machines")}
    assert machines.keys() == {each.name for each in planted.MACHINES}
    for machine in planted.MACHINES:
        row = machines[machine.name]
        handed = [(each, hop) for each in estate for hop in each.hops]
        assert row["sent_messages"] == (sum(each.source == machine for each in estate) or None)
        assert row["received_messages"] == (len({e.key for e, hop in handed if hop[1] == machine}) or None)
        assert row["read_messages"] == (len({e.key for e in estate for r in e.reads if r[1] == machine}) or None)
        assert row["sent_bytes"] == (sum(
            planted.size_of(e, e.hops.index(hop)) * len(hop[2]) for e, hop in handed if hop[0] == machine
        ) or None)  # fmt: skip
        assert (row["queue_manager_ids"], row["addresses"], row["host_names"]) == (
            [machine.guid], [machine.address], [machine.name],
        )  # fmt: skip
    assert "routes" in machines["host5"]["roles"]
    assert [row["machine"] for row in machines.values() if "routes" in row["roles"]] == ["host5"]
    assert answer("estate_coverage") == [
        {"first_at": 0, "until_at": 1001, "minutes": 1001}, {"first_at": 1500, "until_at": 2000, "minutes": 500},
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_other_planted_estates(seed):
    estate = planted.plant(seed, queues=1 + 3 * seed, messages=150)
    lake = InMemoryLake(None, planted.tables_of(estate))
    check_queues(plain(LakeViews(lake).answer("estate_queues")), estate)
