"""``silver.hosts`` of recorded traffic and snapshots: machines by name, address and identifier, and the evidence."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines import shared_sql, without_spark
from messages.building import SOURCE
from pipeline.lake.lake import Lake
from pipeline.lake.queries.answer import query_in_spark
from pipeline.silver import hosts
from pipeline.silver.decode import DECODED_TABLES, decode_calls, decode_collected_snapshots
from pipeline.silver.hosts import apply_host_changes, compute_hosts, update_collected_snapshots, update_hosts
from pipeline.transfers import update as sessions_update
from schemas.bronze import RPC_CALLS
from schemas.catalog import table
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from transfers.conversations import ACCEPTOR, CLIENT, INITIATOR, SERVER, START, Conversation, establish, message
from transfers.test_update import load
from udfs.capture.capture_reader import read_capture
from udfs.properties.snapshot_lines import SNAPSHOT_SCHEMA, read_snapshot_rows

CAPTURES = ("sample/01-remoteread-ndr.pcap", "sample/08-endpoint-mapper.pcap", "estate/wire/collector.pcap.gz")
CLONED = "5ba1e0aa-0000-4000-8000-00000000c10e"


class LakeInMemory:
    """The methods of a lake that ``compute_hosts`` uses, over Arrow tables; DuckDB or Spark answers queries."""

    def __init__(self, rows, spark=None):
        self.rows, self.spark = rows, spark

    def exists(self, wanted):
        return str(wanted) in self.rows

    def query(self, sql, /, **of):
        given = {name: each if isinstance(each, pa.Table) else self._rows(each) for name, each in of.items()}
        return (
            shared_sql().answer(sql, given) if self.spark is None else query_in_spark(self.spark, sql, given).toArrow()
        )

    def _rows(self, wanted):
        return self.rows.get(str(wanted), wanted.schema().empty_table())


@pytest.mark.parametrize(
    ("manager", "address", "hop_count", "known"),
    [
        (CLONED, "10.0.0.9", 0, True),
        (CLONED, "0.0.0.0", 0, False),
        (CLONED, "::", 0, False),
        ("00000000-0000-0000-0000-000000000000", "10.0.0.9", 0, False),
        (CLONED, "10.0.0.9", 1, False),  # it came from a routing server
        (CLONED, "10.0.0.9", None, False),
    ],
)
def test_a_message_shows_where_its_queue_manager_is(manager, address, hop_count, known):
    messages = pa.table(
        {
            "source_queue_manager": [manager],
            "sender_address": [address],
            "hop_count": pa.array([hop_count], pa.int32()),
            "connection_id": ["connection"],
            "packet_key": ["packet"],
            "seen_at": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )
    found = compute_hosts(LakeInMemory({str(MESSAGES): messages}))
    assert [(row["queue_manager_id"], row["address"]) for row in found] == [(manager, address)] * known


@pytest.mark.spark
@pytest.mark.parametrize("by_spark", [True, False])
def test_hosts_of_every_source(spark, project, by_spark):
    captured = [read_capture(project / "data" / name)["rpc_calls"] for name in CAPTURES]
    calls = pa.concat_tables(captured)
    calls = calls.append_column("run_id", pa.array(["r"] * len(calls))).combine_chunks()
    lines = []
    for path in sorted((project / "data" / "estate" / "snapshots").iterdir()):
        with path.open("rb") as stream:
            lines += read_snapshot_rows(stream, path.name)
    raw = pa.Table.from_pylist(lines, schema=SNAPSHOT_SCHEMA)
    batch = raw.combine_chunks().to_batches()[0]
    collected = decode_collected_snapshots(batch.append_column("run_id", pa.array(["r"] * len(raw))))
    rows = {str(RPC_CALLS): calls, str(SNAPSHOTS_RAW): raw}
    for name, found in decode_calls(calls.to_batches()[0]).items():
        batches = [found, *([collected[name]] if name in collected else [])]
        rows[name] = pa.Table.from_batches(batches)
    assert {table(name) for name in rows} >= set(DECODED_TABLES)

    found = compute_hosts(LakeInMemory(rows, spark if by_spark else None))
    sightings = {
        (row["source"], row["address"], row["host_name"], row["queue_manager_id"]): row["sightings"]
        for row in found
        if row["source"] != "endpoint_mapper"
    }
    sent = {key: count for key, count in sightings.items() if key[0] == "message"}
    assert {key[1:] for key in sent} == {("10.0.0.9", None, "5f0c2b1a-9d3e-4c77-8a10-000102030405")}
    assert {key for key in sightings if key[0] == "format_name"} == {("format_name", "10.77.0.1", "srv1", None)}
    # eight rounds from two sources: of the machine, and of the queues that answered
    assert {key[1:]: count for key, count in sightings.items() if key[0] == "snapshot"} == {
        ("10.77.0.11", "orders1", None): 8 * 2 * (1 + 4),
        ("10.77.0.12", "relay1", None): 8,  # it has no queue of its own: only the collector knows its name
        ("10.77.0.13", "shop1", None): 16,
        ("10.77.0.13", "shop1", CLONED): 16,
        ("10.77.0.14", "shop2", None): 16,
        ("10.77.0.14", "shop2", CLONED): 16,
    }
    mapped = {row["address"]: row["sightings"] for row in found if row["source"] == "endpoint_mapper"}
    assert {address: mapped[address] for address in mapped if address != "10.77.0.1"} == dict.fromkeys(
        ("10.77.0.11", "10.77.0.12", "10.77.0.13", "10.77.0.14"), 8
    )
    assert mapped["10.77.0.1"] > 0
    assert all(row["first_seen_at"] <= row["last_seen_at"] for row in found)


SEEN = st.tuples(
    st.sampled_from("abc"), st.integers(0, 9).map(lambda n: datetime(2024, 5, 1, tzinfo=UTC) + timedelta(n))
)


def counted(sightings):
    """Return first time, last time and count of sightings (host, time), by host."""
    times = {}
    for host, at in sightings:
        times.setdefault(host, []).append(at)
    return {host: (min(found), max(found), len(found)) for host, found in times.items()}


def times_and_counts(rows):
    return {row["host_name"]: (row["first_seen_at"], row["last_seen_at"], row["sightings"]) for row in rows.values()}


def changes(before, now):
    """Changes as the update reads them from change feeds, by host."""
    net = Counter(now)
    net.subtract(before)
    found = []
    for host in {host for host, _ in net}:
        came, gone = ([at for (name, at), n in net.items() if name == host and n * way > 0] for way in (1, -1))
        seen = {"queue_manager_id": None, "address": "10.0.0.1", "source": "snapshot", "host_name": host}
        times = {
            f"{end}_{what}_at": better(times, default=None)
            for what, times in (("seen", came), ("gone", gone))
            for end, better in (("first", min), ("last", max))
        }
        if came or gone:
            more = sum(n for (name, _), n in net.items() if name == host)
            found.append({**seen, **times, "untimed": False, "sightings": more})
    return found


@given(st.lists(SEEN), st.lists(SEEN), st.data())
def test_sightings_that_come_and_go_are_added_and_taken_off_or_not_told_at_all(before, more, data):
    rows = apply_host_changes({}, changes([], before))
    assert times_and_counts(rows) == counted(before)
    stay = data.draw(st.lists(st.booleans(), min_size=len(before), max_size=len(before)))
    now = [seen for seen, stays in zip(before, stay, strict=True) if stays] + more
    found = apply_host_changes(rows, data.draw(st.permutations(changes(before, now))))
    if found is not None:
        assert times_and_counts(found) == counted(now)
    ends = {(host, at) for host, (first, last, _) in counted(before).items() for at in (first, last)}
    if not (Counter(before) - Counter(now)).keys() & ends and not (Counter(now) - Counter(before)):
        assert found is not None


def test_any_number_of_new_sightings_is_added(tmp_path, monkeypatch):
    """Those of before are not read again, however many come."""
    lake, many = Lake(without_spark(), str(tmp_path / "lake")), 25_000
    for first, end in ((0, 3), (3, many)):
        times = [START + timedelta(seconds=at) for at in range(first, end)]
        same = {"source_queue_manager": str(SOURCE), "sender_address": CLIENT, "hop_count": 0}
        rows = [{**same, "sighting_key": str(at), "seen_at": at, "event_date": at.date()} for at in times]
        lake.append(MESSAGES, pa.Table.from_pylist(rows, MESSAGES.schema()))
        update_hosts(lake, "run", {"decoder": "same", "hosts": "same"})
        monkeypatch.setattr(hosts, "compute_hosts", None)
    (found,) = lake.select(HOSTS, "TRUE").to_pylist()
    (computed,) = compute_hosts(lake)
    assert {name: found[name] for name in computed} == computed
    assert (found["sightings"], found["last_seen_at"]) == (many, START + timedelta(seconds=many - 1))


def test_both_ends_of_a_handshake(tmp_path):
    """Of one that was not answered only the initiator: what it asked for need not be there."""
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    unanswered = Conversation("unanswered", 40_001)
    unanswered.say("client", "establish_connection", establish(), 5)
    load(lake, [Conversation("answered", 40_000).handshake(), unanswered])
    sessions_update.update(lake, "run")
    for each in ("once", "again"):
        provenance = update_collected_snapshots(lake, {})[1]
        assert (provenance is None) == (each == "again")
        if provenance is not None:
            update_hosts(lake, "run", provenance)
    rows = lake.select(HOSTS, "TRUE").to_pylist()
    found = {(row["source"], row["address"], row["queue_manager_id"]): row for row in rows}
    initiator, acceptor = ("session", CLIENT, str(INITIATOR)), ("session", SERVER, str(ACCEPTOR))
    assert {name: row["sightings"] for name, row in found.items()} == {initiator: 2, acceptor: 1}
    assert found[initiator]["first_seen_at"] == START
    assert found[initiator]["last_seen_at"] == START + timedelta(seconds=5)
    assert found[acceptor]["first_seen_at"] == START + timedelta(milliseconds=10)
    load(lake, [Conversation("answered", 40_000).handshake(), unanswered, Conversation("third", 40_002).handshake()])
    sessions_update.update(lake, "run")
    provenance = update_collected_snapshots(lake, {})[1]
    update_hosts(lake, "run", provenance)
    counts = {row["address"]: row["sightings"] for row in lake.select(HOSTS, "TRUE").to_pylist()}
    assert counts == {CLIENT: 3, SERVER: 2}


def test_what_a_routing_server_sends_is_not_its_sources_address(tmp_path):
    """Its handshake, also one that is read later, says that the address is another queue manager's."""
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    unseen, seen = Conversation("session", 40_000), Conversation("session", 40_000)
    seen.handshake()
    for talk in (unseen, seen):
        talk.skip("client", 10_000 - talk.offsets["client"])
        talk.say("client", "user_message", message(1), 5)
    for talk, expected in ((unseen, {(CLIENT, str(SOURCE))}), (seen, set()), (unseen, {(CLIENT, str(SOURCE))})):
        load(lake, [talk])
        sessions_update.update(lake, "run")
        update_hosts(lake, "run", update_collected_snapshots(lake, {})[1])
        rows = lake.select(HOSTS, "source = 'message'").to_pylist()
        assert {(row["address"], row["queue_manager_id"]) for row in rows} == expected
