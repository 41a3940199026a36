"""The recorded estate from both sources: the collector's files, and the traffic of the same queries."""

from collections import Counter

import pyarrow as pa
import pytest

from pipeline.silver.decode import decode_calls, decode_collected_snapshots
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, PROPERTIES, QUEUE_SNAPSHOTS
from udfs.capture.capture_reader import read_capture
from udfs.properties.snapshot_lines import SNAPSHOT_SCHEMA, read_snapshot_rows

APART = {"snapshot_id", "call_key", "source", "queue_manager", "observed_at", "run_id", "event_date"}
ADDRESSES = {"orders1": "10.77.0.11", "relay1": "10.77.0.12", "shop1": "10.77.0.13", "shop2": "10.77.0.14"}


@pytest.fixture(scope="module")
def landed(project):
    rows = []
    for path in sorted((project / "data" / "estate" / "snapshots").iterdir()):
        with path.open("rb") as stream:
            rows += list(read_snapshot_rows(stream, path.name))
    assert not [row for row in rows if "reason" in row]
    batch = pa.RecordBatch.from_pylist(rows, schema=SNAPSHOT_SCHEMA)
    return batch.append_column("run_id", pa.array(["r"] * len(rows)))


@pytest.fixture(scope="module")
def wire(project):
    calls = read_capture(project / "data" / "estate" / "wire" / "collector.pcap.gz")["rpc_calls"]
    return calls.append_column("run_id", pa.array(["r"] * len(calls))).combine_chunks().to_batches()[0]


@pytest.mark.parametrize("table", [PROPERTIES, QUEUE_SNAPSHOTS, MACHINE_SNAPSHOTS], ids=str)
def test_both_roads_tell_the_same_in_every_column(landed, wire, table):
    collected = decode_collected_snapshots(landed)[str(table)].to_pylist()
    seen = decode_calls(wire)[str(table)].to_pylist()
    assert len(collected) == len(seen) > 0

    def facts(rows, addresses):
        managers = (addresses.get(row["queue_manager"], row["queue_manager"]) for row in rows)
        values = (repr({name: value for name, value in row.items() if name not in APART}) for row in rows)
        return Counter(zip(managers, values, strict=True))

    assert facts(collected, ADDRESSES) == facts(seen, {})
    assert {row["source"] for row in collected} == {"collector"}
    assert {row["source"] for row in seen} == {"wire"}


def test_an_observation_has_its_own_time_on_each_road(landed, wire):
    """The collector's time is between its query and the answer, the traffic's within that span (one clock here)."""
    ids = landed.column("snapshot_id").to_pylist()
    spans = dict(
        zip(
            ids,
            zip(landed.column("asked_at").to_pylist(), landed.column("collected_at").to_pylist(), strict=True),
            strict=True,
        )
    )
    assert len(spans) == landed.num_rows
    calls = decode_calls(wire)[str(QUEUE_SNAPSHOTS)].to_pylist()
    queues = decode_collected_snapshots(landed)[str(QUEUE_SNAPSHOTS)].to_pylist()
    for row in calls:
        fits = [each for each in queues if each["queue_format_name"] == row["queue_format_name"]
                and spans[each["snapshot_id"]][0] <= row["observed_at"] <= spans[each["snapshot_id"]][1]]  # fmt: skip
        assert len(fits) == (1 if row["queue_format_name"] else 0)


def test_the_estate_moved_while_it_was_recorded(landed):
    rows = decode_collected_snapshots(landed)[str(QUEUE_SNAPSHOTS)].to_pylist()
    by_queue = {}
    for row in sorted(rows, key=lambda row: row["observed_at"]):
        by_queue.setdefault(row["queue"].rpartition("\\")[2], []).append(row)
    relay = {"flowing", "stalled", "resending", "reset", "paused"}
    local = {"growing", "draining", "journal", "inactive", "ledger"}
    assert {name: len(found) for name, found in by_queue.items()} == dict.fromkeys(relay | local, 8) | {"till": 16}
    growing = [row["message_count"] for row in by_queue["growing"]]
    assert growing == sorted(set(growing))
    assert {row["hresult_name"] for row in by_queue["inactive"]} == {"MQ_ERROR_QUEUE_NOT_ACTIVE"}
    assert len({row["eod_next_seq"]["sequence_id"] for row in by_queue["reset"]}) == 2
    assert {row["state"] for row in by_queue["paused"]} == {"CONNECTED", "ONHOLD"}
    assert max(row["eod_resend_count"] for row in by_queue["resending"]) > 3
    assert by_queue["resending"][-1]["connection_history"][-1]["status_name"] == "SocketConnectFailure"
    assert by_queue["stalled"][-1]["eod_first_non_ack"] == by_queue["stalled"][-3]["eod_first_non_ack"]
