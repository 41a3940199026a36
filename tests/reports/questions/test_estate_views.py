"""The views of the estate: planted estates come out exactly, in both engines; names, gaps, and what was not seen."""

import datetime as dt
from collections import Counter, defaultdict
from time import process_time
from zoneinfo import ZoneInfo

import pytest

from pipeline.lake.queries.duckdb_sql import DuckDbSql
from pipeline.reports.views.catalog import LakeViews
from pipeline.reports.views.scope import Scope
from reports.questions import in_memory_lake
from reports.questions import planted_estate as planted
from reports.questions.both_engines import answers_of, quick_session
from reports.questions.in_memory_lake import InMemoryLake, rows
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
    ends = {"sender_address": "10.1.0.1", "receiver_address": "10.1.0.2", "length_bytes": 500, "capture_id": "c"}
    ends |= {key: more.pop(key) for key in ends if key in more}
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


def capture(name, first, last, **more):
    return {"capture_id": name, "packets": 1, "first_packet_at": first, "last_packet_at": last} | more


def together(*parts):
    tables = defaultdict(list)
    for part in parts:
        for table, given in part.items():
            tables[table] += given
    return tables


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
def test_a_planted_estate_comes_out_exactly_in_both_engines(spark):
    """Flows and machines: in both engines in test_views.py, and of recordings in test_recorded_transfers.py."""
    estate = planted.plant(7, queues=3, messages=120)
    answer = answers_of(LakeViews(InMemoryLake(quick_session(spark), planted.tables_of(estate))))
    check_queues(plain(answer("estate_queues")), estate)
    hours = Counter((each.queue, int(at) // 15 * 15) for each in estate if each.hops for at in each.hops[-1][2])
    found = plain(answer("estate_hours"))
    assert {(row["queue"], row["start_at"]): row["sendings"] for row in found} == hours
    assert plain(answer("estate_coverage")) == [
        {"first_at": 0, "until_at": 1001, "minutes": 1001}, {"first_at": 1500, "until_at": 2000, "minutes": 500},
    ]  # fmt: skip
    last = [row for row in plain(answer("estate_queue_coverage")) if row["first_at"]]
    assert {row["queue"]: row["minutes"] for row in last} == dict.fromkeys(planted.by_queue(estate), 500)


def test_flows_and_machines_of_a_planted_estate():
    estate = planted.plant(7)
    views = LakeViews(InMemoryLake(None, planted.tables_of(estate)))
    flows = Counter()
    for each in estate:
        for sender, receiver, times in each.hops:
            flows[sender.name, receiver.name, each.queue, "tcp_1801"] += len(times)
        flows.update({(each.queue[:5], reader.name, each.queue, "rpc_read"): 0 for _, reader, _, _ in each.reads})
    found = plain(views.answer("estate_flows"))
    assert {tuple(row[name] for name in ("sender", "receiver", "queue", "way")) for row in found} == set(flows)
    for row in found:
        way = tuple(row[name] for name in ("sender", "receiver", "queue", "way"))
        assert row["sendings"] == (flows[way] or None)
    machines = {row["machine"]: row for row in plain(views.answer("estate_machines"))}
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


@pytest.mark.parametrize("seed", range(4))
def test_other_planted_estates(seed):
    estate = planted.plant(seed, queues=1 + 3 * seed, messages=150)
    lake = InMemoryLake(None, planted.tables_of(estate))
    check_queues(plain(LakeViews(lake).answer("estate_queues")), estate)


def test_a_message_counts_once_over_two_hops_sent_again_and_read():
    second = {"hop_count": 1, "sender_address": "10.1.0.2", "receiver_address": "10.1.0.3"}
    tables = together(sent("m", 1), sent("m", 2), sent("m", 3, **second), sent("m", 3.1, **second), read("m", 9))
    (row,) = asked("estate_queues", tables)
    counted = ("messages", "sent_messages", "read_messages", "sendings", "resendings", "peak_per_minute", "peak_at")
    assert [row[name] for name in counted] == [1, 1, 1, 2, 1, 2, 3]
    flows = [
        (row["sender"], row["receiver"], row["messages"], row["sendings"]) for row in asked("estate_flows", tables)
    ]
    assert sorted(flows) == [("10.1.0.1", "10.1.0.2", 1, 2), ("10.1.0.2", "10.1.0.3", 1, 2)]
    assert [(row["start_at"], row["sendings"]) for row in asked("estate_hours", tables)] == [(0, 2)]


def test_what_was_not_seen_is_null_and_not_zero():
    (only_read,) = asked("estate_queues", read("m", 9, priority=3))
    for name in ("sent_messages", "sendings", "resendings", "mean_per_minute", "p95_per_minute", "peak_at", "receives",
                 "peeks", "express", "encrypted", "acks_asked", "largest_time_to_live_s", "target_journal", "comqc",
                 "dead_lettered", "purges", "largest_depth_bytes", "sequences"):  # fmt: skip
        assert only_read[name] is None, name
    assert (only_read["messages"], only_read["headers_known"], only_read["security_known"]) == (1, 1, 0)
    (known,) = asked("estate_queues", read("m", 9, encrypted=False, delivery="express", acknowledgement_requested=0))
    assert (known["encrypted"], known["express"], known["recoverable"], known["acks_asked"]) == (0, 1, 0, 0)
    report = {"queue": QUEUE, "queue_manager": "HOST1", "state": "LOCAL CONNECTION", "valid_from": 5, "valid_to": 8,
              "message_count": 7, "bytes": 90}  # fmt: skip
    (idle,) = asked("estate_queues", {QUEUE_HISTORY: [report, report | {"state": "UNKNOWN", "valid_from": 8}]})
    assert {name: idle[name] for name in ("holders", "senders", "messages", "headers_known", "undecoded_messages")} == {
        "holders": ["host1"], "senders": [], "messages": None, "headers_known": None, "undecoded_messages": None,
    }  # fmt: skip
    assert (idle["largest_depth_messages"], idle["largest_depth_bytes"], idle["first_seen_at"]) == (7, 90, 5)


def test_rates_rest_on_the_time_that_was_captured():
    """Of 40 minutes, captured are 20: in one of them 6 messages are sent, in another 2."""
    captures = [capture(str(at), at, at + 9.5) for at in (0, 30)]
    captures.append({"capture_id": "c", "packets": 0, "first_packet_at": 10, "last_packet_at": 29})
    tables = together({CAPTURE_FILES: captures}, *(sent(f"m{n}", 3.1 + n / 100) for n in range(6)),
                      sent("a", 32), sent("b", 32.5))  # fmt: skip
    rates = ("captured_minutes", "mean_per_minute", "p95_per_minute", "peak_per_minute", "peak_at")
    (row,) = asked("estate_queues", tables)
    assert [row[name] for name in rates] == [20, 8 / 20, 2, 6, 3]
    assert [row["minutes"] for row in asked("estate_coverage", tables)] == [10, 10]
    (later,) = asked("estate_queues", tables, since=31, until=35)
    assert [later[name] for name in rates] == [5, 2 / 5, 2, 2, 32]
    assert asked("estate_coverage", tables, since=31, until=35) == [{"first_at": 31, "until_at": 36, "minutes": 5}]
    (of_now,) = asked("estate_queues", tables, until=5)
    assert [of_now[name] for name in rates] == [6, 1, 6, 6, 3]


def test_rates_of_a_queue_rest_on_the_captures_that_could_show_it():
    """Two taps, with a folder for each day and one for all: that of the queue ran for 10 of 60 minutes."""
    captures = [
        capture("a", 0, 59.5, path="/caps/one/a.pcap"), capture("b", 10, 14.5, path="/caps/two/day=2024-05-01/b.pcap"),
        capture("c", 20, 24.5, path="/caps/two/day=2024-05-02/c.pcap"), capture("d", 70, 71, path="C:\\caps\\d.pcap"),
    ]  # fmt: skip
    tables = together({CAPTURE_FILES: captures}, sent("m", 21, capture_id="c"), read("r", 5, queue="host1\\q"),
                      sent("w", 70.5, capture_id="d", destination_queue="host1\\w"))  # fmt: skip
    found = {row["queue"]: row["captured_minutes"] for row in asked("estate_queues", tables)}
    assert found == {QUEUE: 10, "host1\\q": None, "host1\\w": 2}
    coverage = [tuple(row.values()) for row in asked("estate_queue_coverage", tables)]
    assert coverage == [(QUEUE, 10, 15, 5), (QUEUE, 20, 25, 5), ("host1\\w", 70, 72, 2)]
    assert [row["minutes"] for row in asked("estate_coverage", tables)] == [60, 2]
    (row,) = asked("estate_queue_coverage", tables, since=22, until=60)
    assert row == {"queue": QUEUE, "first_at": 22, "until_at": 25, "minutes": 3}


def test_journals_subqueues_and_dead_letters_belong_to_their_queue():
    system = "host1\\system$;deadletter"
    transfer = {"message_key": "refused", "destination_queue": QUEUE, "dead_letter_class": 0x8004, "first_sent_at": 3}
    move = {"operation": "move", "outcome": "done", "queue": QUEUE, "target_queue": f"{QUEUE};poison",
            "requested_at": 4}  # fmt: skip
    tables = together(
        read("a", 1, queue=f"{QUEUE};retry"), read("b", 2, queue=f"{QUEUE};journal"), read("dead", 3, queue=system),
        *(read(name, 3, queue=system, message_key=None) for name in ("cut", "short")),
        sent("refused", 3), {MESSAGE_TRANSFERS: [transfer], QUEUE_OPERATIONS: [move, move | {"outcome": "failed"}]},
    )  # fmt: skip
    found = {row["queue"]: row for row in asked("estate_queues", tables)}
    assert found.keys() == {QUEUE, system}
    row = found[QUEUE]
    assert (row["messages"], row["dead_lettered"], row["moves"], row["purges"]) == (3, 4, 1, None)
    assert (row["subqueues"], row["target_journal"]) == (["poison", "retry"], True)
    assert (found[system]["messages"], found[system]["headers_known"], found[system]["subqueues"]) == (3, 1, [])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("10.0.0.1\\q", "direct_address"), ("fe80::1\\private$\\q", "direct_address"),
        ("srv.example\\q", "direct_name"), ("10.example\\q", "direct_name"),
        ("direct=http://srv/msmq/q", "http"), ("multicast=224.0.0.1:8", "multicast"),
        (f"public={GUID}1", "public"), (f"{GUID}1\\0000000a", "private"), (f"machine={GUID}1;journal", "machine"),
        (f"dl={GUID}1", "distribution_list"), ("srv1\\q,srv2\\q", "list"),
    ],
)  # fmt: skip
def test_kinds_of_format_names(name, kind):
    (row,) = asked("estate_queues", sent("m", 1, destination_queue=name))
    assert (row["queue"], row["format_names"]) == (name, [kind])
    assert (row["multicast_messages"], row["list_messages"]) == (
        int(kind == "multicast"), int(kind in {"distribution_list", "list"}),
    )  # fmt: skip


def host(guid=None, name=None, address=None):
    return {"queue_manager_id": guid, "host_name": name, "address": address, "host_key": str((guid, name, address)),
            "source": "session", "first_seen_at": 1, "last_seen_at": 2}  # fmt: skip


A, B = GUID + "1", GUID + "2"
X, Y = "10.1.0.1", "10.1.0.2"


@pytest.mark.parametrize(
    ("hosts", "machines"),
    [
        ([host(A, None, X)], {A}),
        ([host(A, "srv1", None), host(A, None, X)], {"srv1"}),
        ([host(A, None, X), host(None, "srv1", X), host(A, None, Y)], {"srv1"}),
        ([host(A, "srv1", X), host(None, "srv1.example", X)], {"srv1.example"}),
        ([host(A, "srv1.example", None), host(A, None, X), host(None, "srv1", X)], {"srv1.example"}),
        ([host(A, "srv1", X), host(A, "srv2", Y)], {A, "srv1", "srv2"}),  # a cloned GUID
        ([host(A, None, X), host(B, None, X)], {A, B, X}),  # behind NAT
        ([host(A, "srv1", X), host(B, "srv2", X)], {"srv1", "srv2", X}),
        ([host(None, None, X), host(None, None, Y)], {X, Y}),
        ([host(A, "srv1", None), host(B, "srv2", None)], {"srv1", "srv2"}),
        ([host(None, "srv1", None)], {"srv1"}),
    ],
)
def test_one_machine_has_one_name(hosts, machines):
    found = asked("estate_machines", {HOSTS: hosts})
    assert {row["machine"] for row in found} == machines
    identifiers = {value for each in hosts for value in (each["queue_manager_id"], each["host_name"], each["address"])}
    listed = [each for row in found for name in ("queue_manager_ids", "host_names", "addresses") for each in row[name]]
    assert sorted(listed) == sorted(identifiers - {None})


def test_roles_versions_and_clocks_of_machines():
    called = {"requested_at": 1, "responded_at": 2, "server_address": Y, "client_address": X}
    tables = together(
        sent("a", 1), sent("b", 2, hop_count=1, sender_address=Y, receiver_address="10.1.0.3"),
        {
            HOSTS: [host(A, "srv1", X), host(B, "srv2", Y)],
            RECEIVE_ATTEMPTS: [{"message_key": "a", "queue": QUEUE, "server_address": Y, "client_address": X,
                                "is_receive": True, "started_at": 3, "message_bytes": 7}],
            MANAGEMENT_CALLS: [called, called | {"server_address": "10.1.0.9", "responded_at": None}],
            MACHINE_SNAPSHOTS: [{"queue_manager": "SRV1", "observed_at": 4, "hresult": 0, "type": "MSMQ 6.3"}],
            REMOTE_READ_CALLS: [called | {"call_key": "v", "protocol": "RemoteRead", "version_major": 6,
                                          "version_minor": 1, "build_number": 7601}],
            SESSIONS: [{"client_address": X, "server_class": True, "first_packet_at": 1, "last_packet_at": 2}],
            MESSAGE_TRANSFERS: [{"source_queue_manager": A, "sent_at": 5, "first_sent_at": 4.5}],
        },
    )  # fmt: skip
    found = {row["machine"]: row for row in asked("estate_machines", tables)}
    assert found.keys() == {"srv1", "srv2", "10.1.0.3"}
    assert found["srv1"]["roles"] == ["asks_qmmgmt", "reads_remotely", "reports", "sends"]
    assert found["srv2"]["roles"] == ["answers_qmmgmt", "holds_queues", "receives", "routes", "serves_reads"]
    assert (found["srv1"]["versions"], found["srv1"]["server_class"]) == (["6.1.7601", "MSMQ 6.3"], True)
    assert (found["srv1"]["clock_ahead_s"], found["srv2"]["clock_ahead_s"]) == (30, None)
    assert (found["srv2"]["routed_messages"], found["srv2"]["served_messages"], found["srv2"]["queues_held"]) == (
        1,
        1,
        1,
    )
    (by_name,) = asked("estate_machines", tables, machines={"srv2"})
    assert by_name == found["srv2"]


def test_messages_that_came_over_http_are_a_way_of_their_own():
    call = {"call_key": "m read 4", "server_address": Y}
    tables = together(read("m", 4, is_srmp=True), {REMOTE_READ_CALLS: [call], HOSTS: [host(A, "srv1", None)]})
    (flow,) = asked("estate_flows", tables)
    assert [flow[name] for name in ("sender", "receiver", "way", "messages", "bytes")] == ["srv1", Y, "http", 1, 100]
    (row,) = asked("estate_queues", tables)
    assert row["http_messages"] == 1


def test_hours_and_machines_limit_what_counts():
    tables = together(sent("a", 1), sent("a", 50), sent("b", 52, sender_address="10.1.0.7", source_queue_manager=B))
    (row,) = asked("estate_queues", tables, since=40, until=60)
    assert (row["messages"], row["sendings"], row["first_seen_at"]) == (2, 2, 50)
    (row,) = asked("estate_queues", tables, machines={"10.1.0.7"})
    assert (row["messages"], row["senders"]) == (1, [B])
    assert asked("estate_queues", tables, queues={"none"}) == []
    (flow,) = asked("estate_flows", tables, machines={"10.1.0.7"})
    assert (flow["sender"], flow["messages"]) == ("10.1.0.7", 1)


def test_largest_packets_of_messages_that_were_only_read_have_their_whole_body():
    call = {"call_key": "m read 4", "packet_bytes": 1_000}
    tables = together(read("m", 4, body_bytes=9_000, body_bytes_seen=800), {REMOTE_READ_CALLS: [call]})
    (row,) = asked("estate_queues", tables)
    assert row["largest_packet_bytes"] == 9_200


def test_lists_are_bounded_and_name_queues_by_one_name():
    parts = [sent(f"m{n}", 1, source_queue_manager=f"{n:02}") for n in range(30)]
    (row,) = asked("estate_queues", together(*parts, sent("again", 2, source_queue_manager="29")))
    assert (row["senders"][0], len(row["senders"]), row["sender_count"]) == ("29", 20, 30)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", dt.date(2024, 3, 31), 23), ("Europe/Berlin", dt.date(2024, 10, 27), 25),
        ("Australia/Lord_Howe", dt.date(2024, 4, 7), 24.5), ("Asia/Kathmandu", dt.date(2024, 4, 7), 24),
    ],
)  # fmt: skip
def test_quarters_of_an_hour_make_whole_days_and_hours_of_any_zone(zone, day, hours):
    """A message every five minutes of three days: each local hour gets those of its own, whatever the clocks do."""
    local = ZoneInfo(zone)
    start = dt.datetime.combine(day, dt.time(), local).astimezone(dt.UTC) - dt.timedelta(days=1)
    every = [start + dt.timedelta(minutes=at) for at in range(0, 3 * 24 * 60, 5)]
    tables = together(*(sent(str(at), (at - EPOCH).total_seconds() / 60) for at in every))
    tables[CAPTURE_FILES] = [{"capture_id": "c", "last_packet_at": (every[-1] - EPOCH).total_seconds() / 60}]
    found = Counter[tuple[dt.date, int]]()
    for row in asked("estate_hours", tables):
        there = (EPOCH + dt.timedelta(minutes=row["start_at"])).astimezone(local)
        found[there.date(), there.hour] += row["sendings"]
    assert found == Counter((at.astimezone(local).date(), at.astimezone(local).hour) for at in every)
    assert sum(count for (date, _), count in found.items() if date == day) == hours * 12


@pytest.mark.long
def test_a_large_estate_is_answered_in_seconds_with_little_memory(monkeypatch, tmp_path):
    """300 machines, 1,000 queues, 200,000 messages: some 4 s of processor time."""
    estate = planted.large_tables(machines=300, queues=1_000, messages=200_000)
    monkeypatch.setattr("pipeline.lake.queries.duckdb_sql._MEMORY_MB", 512)
    sql = DuckDbSql(tmp_path)
    monkeypatch.setattr(in_memory_lake, "shared_sql", lambda: sql)
    views = LakeViews(InMemoryLake(None, estate))
    before = process_time()
    found = {name: views.answer(name) for name in ("estate_queues", "estate_flows", "estate_machines")}
    assert process_time() - before < 40
    assert {name: rows.num_rows for name, rows in found.items() if name != "estate_flows"} == {
        "estate_queues": 1_000, "estate_machines": 300,
    }  # fmt: skip
    assert sum(found["estate_queues"]["messages"].to_pylist()) == 200_000
    assert sum(found["estate_flows"]["sendings"].to_pylist()) == 200_000
