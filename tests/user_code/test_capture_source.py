"""The data source msmq_capture: any files, any rows, options that are checked; without a lake."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import functions as F

from pipeline.silver.capture_source import _ROW_NAMES, CaptureDataSource, register_capture_source
from pipeline.silver.decode import DECODED_TABLES
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture

pytestmark = pytest.mark.spark

FILE = "01-remoteread-ndr.pcap"


@pytest.fixture
def sample(project):
    return project / "data" / "sample"


@pytest.fixture
def source(spark):
    register_capture_source(spark)
    return lambda **options: spark.read.format("msmq_capture").options(**options)


def paths(frame):
    return {path.rpartition("/")[2] for (path,) in frame.select("path").collect()}


def test_a_file_a_folder_a_pattern_and_several_of_them(source, sample):
    read = source(rows="capture_files")
    every = {path.name for path in sample.iterdir() if ".pcap" in path.name}
    assert paths(read.load(str(sample / FILE))) == {FILE}
    assert paths(read.load(str(sample))) == every
    assert paths(read.load(f"{sample}/0[1-3]*")) == {name for name in every if name[:2] in ("01", "02", "03")}
    several = [str(sample / FILE), f"{sample}/02*"]
    assert paths(read.load(several)) == {name for name in every if name[:2] in ("01", "02")}


def test_every_kind_of_rows(source, sample, spark, demo_lake):
    """Of a capture that shares no conversation with another one a lake has the same rows."""
    capture = read_capture(sample / FILE, all_pdus=True)
    counts = {}
    for name in _ROW_NAMES:  # as Spark's processes call it
        made = CaptureDataSource({"rows": name, "path": str(sample / FILE)})
        reader = made.reader(made.schema())
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        assert {tuple(batch.schema.names) for batch in batches} <= {tuple(made.schema().names)}
        counts[name] = sum(batch.num_rows for batch in batches)
    assert {name: counts[name] for name in BRONZE_SCHEMAS} == {name: capture[name].num_rows for name in BRONZE_SCHEMAS}
    assert counts["calls"] == counts["rpc_calls"] == source().load(str(sample / FILE)).count()
    keys = capture["rpc_calls"]["call_key"].to_pylist()
    for table in DECODED_TABLES:
        if "call_key" in table.names:
            lake = spark.read.format("delta").load(f"{demo_lake}/silver/{table.name}")
            assert counts[table.name] == lake.where(F.col("call_key").isin(keys)).count(), table.name
    assert counts["remote_read_calls"] > counts["messages"] > 0
    read = source(rows="messages").load(str(sample / FILE))
    assert (read.schema.names, read.count()) == (list(MESSAGES.names), counts["messages"])
    assert set(_ROW_NAMES) == {"calls", *BRONZE_SCHEMAS, *(table.name for table in DECODED_TABLES)}


def test_packets_and_bodies_where_they_are_wanted(source, sample):
    read = lambda rows, **options: source(rows=rows, **options).load(str(sample / FILE))  # noqa: E731
    assert read("messages").where("body IS NOT NULL").count() == 0
    assert read("messages", keep_bodies=True).where("length(body) = body_bytes_seen").count() > 10
    assert read("remote_read_calls").where("packet IS NOT NULL").count() == 0
    assert read("remote_read_calls", keep_packets=True).where("length(packet) = packet_bytes").count() > 10


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"rows": "packets"}, "msmq_capture: rows='packets'; one of rpc_calls, "),
        ({"row": "calls"}, "msmq_capture: no option row; one of rows, "),
        ({"keep_bodies": "yes"}, "msmq_capture: keep_bodies='yes'; true or false"),
        ({"block_bytes": "16MiB"}, "msmq_capture: block_bytes='16MiB': "),
        ({"tunnel_ports": "4791"}, "msmq_capture: tunnel_ports='4791': "),
    ],
)
def test_a_wrong_option_is_refused(source, sample, options, complaint):
    with pytest.raises(AnalysisException) as refused:
        source(**options).load(str(sample / FILE))
    assert complaint in str(refused.value)


def test_captures_that_are_not_there(source, tmp_path):
    for read, complaint in (
        (source().load(str(tmp_path / "none.pcap")), "no such file or folder"),
        (source().load(), "msmq_capture: which captures?"),
    ):
        with pytest.raises(AnalysisException) as refused:
            read.count()
        assert complaint in str(refused.value)


def test_what_is_no_capture_is_a_row(source, sample, tmp_path):
    (tmp_path / "broken.pcap").write_bytes(b"no capture")
    folders = [str(tmp_path), str(sample / FILE)]
    rows = {row.path.rpartition("/")[2]: row.status for row in source(rows="capture_files").load(folders).collect()}
    assert rows == {"broken.pcap": "unreadable", FILE: "complete"}
    assert source().load(folders).count() == source().load(str(sample / FILE)).count()


def test_a_stream_is_refused(spark, source, sample, tmp_path):
    stream = spark.readStream.format("msmq_capture").load(str(sample))
    with pytest.raises(StreamingQueryException) as refused:
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().awaitTermination()
    assert "msmq_capture: no readStream; to follow a folder that fills, run ingest_captures" in str(refused.value)
