"""The data source msmq_capture: any files, any rows, options that are checked; without a lake."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pipeline.data_source import capture_rows
from pipeline.data_source.capture_source import register_capture_source
from pipeline.data_source.options import ROW_NAMES
from pipeline.silver.decode import DECODED_TABLES
from pipeline.transfers.one_capture import SESSION_TABLES
from schemas.messages import MESSAGES
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture
from udfs.messages import message_decoder
from user_code.reading import rows_of

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
    for name in ROW_NAMES:
        counts[name] = rows_of(sample / FILE, rows=name).num_rows
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
    assert set(ROW_NAMES) == {"calls", *BRONZE_SCHEMAS, *(table.name for table in (*DECODED_TABLES, *SESSION_TABLES))}


def test_chosen_columns(source, sample):
    """The names are in the order in which they are told, each once."""
    whole = source(rows="messages").load(str(sample / FILE))
    some = source(rows="messages", columns=" label, seen_at,label").load(str(sample / FILE))
    assert some.schema.names == ["label", "seen_at"]
    assert sorted(some.collect(), key=str) == sorted(whole.select("label", "seen_at").collect(), key=str)


PARTS = 6  # in which the columns are asked for
WITH_EVERYTHING = {"keep_packets": "true", "keep_bodies": "true"}


@pytest.mark.parametrize(
    ("rows", "capture"),
    [
        ("messages", "transfers/03-transactions.pcapng"),
        *(("messages", f"sample/{name}") for name in (FILE, "11-queued-components.pcap")),
        ("comqc_calls", "sample/11-queued-components.pcap"),
        ("remote_read_calls", f"sample/{FILE}"),
        ("client_calls", "sample/03-qm2qm-dependent-client.pcap"),
        *((name, "sample/04-qmmgmt.pcapng") for name in ("management_calls", "properties", "queue_snapshots")),
        ("machine_snapshots", "sample/04-qmmgmt.pcapng"),
        ("sendings", "transfers/03-transactions.pcapng"),
    ],
)
def test_some_columns_are_what_they_are_among_all(project, rows, capture):
    whole = rows_of(project / "data" / capture, rows=rows, **WITH_EVERYTHING)
    assert whole.num_rows > 0
    for first in range(PARTS):
        names = whole.column_names[first::PARTS]
        some = rows_of(project / "data" / capture, rows=rows, columns=",".join(names), **WITH_EVERYTHING)
        assert some.column_names == names
        assert sorted(map(str, some.to_pylist())) == sorted(map(str, whole.select(names).to_pylist()))


def test_what_is_not_asked_for_is_not_computed(project, monkeypatch):
    capture = project / "data" / "transfers" / "03-transactions.pcapng"

    def fail(*_, **__):
        raise AssertionError("computed")

    for place, name, put, columns in (
        (message_decoder, "message_key_column", fail, "message_key"),
        (message_decoder, "hashlib", SimpleNamespace(sha256=fail), "body_sha256"),
        (capture_rows, "CaptureSessions", fail, "session_number"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, put)
            assert rows_of(capture, rows="messages", columns="label").num_rows > 10
            with pytest.raises(AssertionError, match="computed"):
                rows_of(capture, rows="messages", columns=columns)


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
        ({"columns": "call_key, label"}, "msmq_capture: rpc_calls has no column 'label'; one of call_key, "),
        ({"rows": "sessions", "columns": ""}, "msmq_capture: sessions has no column ''; one of connection_id, "),
        ({"maxFilesPerTrigger": "1"}, "msmq_capture: no maxFilesPerTrigger: it needs Spark 4.2"),
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
