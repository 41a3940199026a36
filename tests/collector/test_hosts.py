"""silver.hosts of recorded traffic and snapshots: who was seen with which name, address and identifier, and where."""

import pyarrow as pa
import pytest

from pipeline.decoding import TABLES, decode, decode_collected
from pipeline.hosts import hosts
from schemas.bronze import RPC_CALLS
from schemas.catalog import table
from schemas.snapshots import SNAPSHOTS_RAW
from udfs.capture.reader import read_capture
from udfs.properties.snapshot_lines import ROWS, read_lines

CAPTURES = ("sample/01-remoteread-ndr.pcap", "sample/08-endpoint-mapper.pcap", "estate/wire/collector.pcap.gz")
CLONED = "5ba1e0aa-0000-4000-8000-00000000c10e"
pytestmark = pytest.mark.spark


class Tables:
    """What of a lake is read here."""

    def __init__(self, spark, rows):
        self.frames = {name: spark.createDataFrame(found) for name, found in rows.items()}

    def exists(self, wanted):
        return str(wanted) in self.frames

    def read(self, wanted):
        return self.frames[str(wanted)]


def test_hosts_of_every_source(spark, project):
    captured = [read_capture(project / "data" / name)["rpc_calls"] for name in CAPTURES]
    calls = pa.concat_tables(captured)
    calls = calls.append_column("run_id", pa.array(["r"] * len(calls))).combine_chunks()
    lines = []
    for path in sorted((project / "data" / "estate" / "snapshots").iterdir()):
        with path.open("rb") as stream:
            lines += read_lines(stream, path.name)
    raw = pa.Table.from_pylist(lines, schema=ROWS)
    batch = raw.combine_chunks().to_batches()[0]
    collected = decode_collected(batch.append_column("run_id", pa.array(["r"] * len(raw))))
    rows = {str(RPC_CALLS): calls, str(SNAPSHOTS_RAW): raw}
    for name, found in decode(calls.to_batches()[0]).items():
        batches = [found, *([collected[name]] if name in collected else [])]
        rows[name] = pa.Table.from_batches(batches)
    assert {table(name) for name in rows} >= set(TABLES)

    found = hosts(Tables(spark, rows)).collect()
    told = {
        (row.source, row.address, row.host_name, row.queue_manager_id): row.sightings
        for row in found
        if row.source != "endpoint_mapper"
    }
    sent = {key: count for key, count in told.items() if key[0] == "message"}
    assert {key[1:] for key in sent} == {("10.0.0.9", None, "5f0c2b1a-9d3e-4c77-8a10-000102030405")}
    assert {key for key in told if key[0] == "format_name"} == {("format_name", "10.77.0.1", "srv1", None)}
    # eight rounds by two roads: of the machine, and of the queues that answered
    assert {key[1:]: count for key, count in told.items() if key[0] == "snapshot"} == {
        ("10.77.0.11", "orders1", None): 8 * 2 * (1 + 4),
        ("10.77.0.12", "relay1", None): 8,  # it has no queue of its own: only the collector knows its name
        ("10.77.0.13", "shop1", None): 16,
        ("10.77.0.13", "shop1", CLONED): 16,
        ("10.77.0.14", "shop2", None): 16,
        ("10.77.0.14", "shop2", CLONED): 16,
    }
    mapped = {row.address: row.sightings for row in found if row.source == "endpoint_mapper"}
    assert {address: mapped[address] for address in mapped if address != "10.77.0.1"} == dict.fromkeys(
        ("10.77.0.11", "10.77.0.12", "10.77.0.13", "10.77.0.14"), 8
    )
    assert mapped["10.77.0.1"] > 0
    assert all(row.first_seen_at <= row.last_seen_at for row in found)
