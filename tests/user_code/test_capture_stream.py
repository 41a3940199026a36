"""The data source msmq_capture as a stream: new files alone, each once, and no file that is not as it was."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from pipeline.bronze import input_files
from pipeline.bronze.input_files import InputFile
from pipeline.data_source import options as source_options
from pipeline.data_source.capture_source import CaptureDataSource, register_capture_source
from pipeline.data_source.file_stream import MAX_FILES

pytestmark = pytest.mark.spark

FIRST, SECOND, THIRD = "01-remoteread-ndr.pcap", "04-qmmgmt.pcapng", "12-lookups.pcap"


@pytest.fixture
def folder(tmp_path):
    """An empty folder for captures."""
    (tmp_path / "captures").mkdir()
    return tmp_path / "captures"


@pytest.fixture
def add(project, folder):
    """Put a capture of the sample into the folder, with its time."""
    return lambda name: shutil.copy2(project / "data" / "sample" / name, folder / name)


@pytest.fixture
def stream(spark, tmp_path, folder):
    """Run the stream over all that is new; return the names of the files of each micro-batch so far, by its number.

    With ``failing`` the sink fails when it has a batch.
    """
    register_capture_source(spark)
    batches = {}

    def run(*, failing=False, **options):
        def sink(frame, number):
            if failing:
                raise RuntimeError("the sink is full")
            batches[number] = sorted(path.rpartition("/")[2] for (path,) in frame.collect())

        read = spark.readStream.format("msmq_capture").options(rows="capture_files", columns="path", **options)
        write = read.load(str(folder)).writeStream.foreachBatch(sink).trigger(availableNow=True)
        write.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        return batches

    return run


def refusal(stream, **options):
    """Return why a run of the stream fails."""
    with pytest.raises(StreamingQueryException) as refused:
        stream(**options)
    return str(refused.value)


def test_each_run_reads_what_is_new_in_one_micro_batch(stream, add):
    add(FIRST)
    add(SECOND)
    assert stream() == {0: [FIRST, SECOND]}
    assert stream() == {0: [FIRST, SECOND]}
    add(THIRD)
    assert stream() == {0: [FIRST, SECOND], 1: [THIRD]}


def test_the_rows_are_those_of_a_read(spark, project, tmp_path):
    register_capture_source(spark)
    capture = str(project / "data" / "transfers" / "03-transactions.pcapng")
    options = {"rows": "messages", "columns": "message_key,label,session_number"}
    write = spark.readStream.format("msmq_capture").options(**options).load(capture).writeStream.format("parquet")
    places = {"path": str(tmp_path / "sink"), "checkpointLocation": str(tmp_path / "checkpoint")}
    write.trigger(availableNow=True).options(**places).start().awaitTermination()
    streamed = spark.read.parquet(places["path"]).collect()
    read = spark.read.format("msmq_capture").options(**options).load(capture).collect()
    assert sorted(map(str, streamed)) == sorted(map(str, read))
    assert len(read) > 10


@pytest.mark.long
def test_a_batch_that_failed_is_read_again_from_files_as_they_were(stream, add, folder):
    add(FIRST)
    assert "the sink is full" in refusal(stream, failing=True)
    add(SECOND)
    (folder / FIRST).rename(folder.parent / "elsewhere")
    assert f"msmq_capture: {folder / FIRST} is gone since the stream listed it" in refusal(stream)
    (folder / FIRST).write_bytes(b"another file")
    assert f"msmq_capture: {folder / FIRST} has changed since the stream listed it" in refusal(stream)
    (folder.parent / "elsewhere").rename(folder / FIRST)
    assert stream() == {0: [FIRST]}
    assert stream() == {0: [FIRST], 1: [SECOND]}


def test_a_file_that_was_read_must_stay_as_it_was(stream, add, folder):
    added = add(FIRST)
    stream()
    add(SECOND)
    facts = added.stat()
    os.utime(added, (facts.st_atime, facts.st_mtime + 1))
    assert f"msmq_capture: {added} has changed since the stream listed it" in refusal(stream)
    added.unlink()
    assert f"msmq_capture: {added} is gone since the stream listed it" in refusal(stream)
    add(FIRST)
    assert stream() == {0: [FIRST], 1: [SECOND]}


def test_a_file_that_cannot_be_read_fails_the_batch(monkeypatch, add):
    """What is wrong with the place of a file, not with the file, may be mended: its rows must not be left out."""
    capture = add(FIRST)
    source = CaptureDataSource({"path": str(capture), "rows": "calls"})
    reader = source.streamReader(source.schema())
    tasks = reader.partitions(reader.initialOffset(), reader.latestOffset())
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) > 10

    def fail(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(input_files, "open_stored_file", fail)
    tasks = reader.partitions(reader.initialOffset(), reader.latestOffset())
    with pytest.raises(ValueError, match=f"{FIRST} cannot be read: .*Permission denied"):
        list(reader.read(tasks[0]))


def test_max_files_per_trigger_is_refused_by_its_name(stream):
    with pytest.raises(AnalysisException) as refused:
        stream(maxFilesPerTrigger="10")
    assert "msmq_capture: no maxFilesPerTrigger: it needs Spark 4.2" in str(refused.value)


def stream_reader(monkeypatch, files):
    """The reader of a stream over files that are told, not there."""
    source = CaptureDataSource({"path": "/captures"})
    monkeypatch.setattr(source_options, "list_files", lambda _: files)
    return source.streamReader(source.schema())


def test_an_offset_names_as_many_files_as_it_may_and_no_more(monkeypatch):
    files = [InputFile(f"/captures/{number:06}.pcap", 24, number) for number in range(MAX_FILES + 1)]
    offset = stream_reader(monkeypatch, files[:-1]).latestOffset()
    assert len(offset["files"]) == MAX_FILES
    assert offset["files"]["/captures/000007.pcap"] == [24, 7]
    assert len(json.dumps(offset)) < 8_000_000
    with pytest.raises(ValueError, match=r"msmq_capture: 100,001 files, and a stream can tell 100,000 apart"):
        stream_reader(monkeypatch, files).latestOffset()


def test_a_checkpoint_whose_files_are_not_what_was_listed_is_refused(monkeypatch):
    """As one is that was written when the reader did not know what had been read before."""
    reader = stream_reader(monkeypatch, [])
    before, after = ({"files": {"/captures/a.pcap": [size, None]}} for size in (1, 2))
    with pytest.raises(ValueError, match=r"a\.pcap has changed"):
        reader.partitions(before, after)
    with pytest.raises(ValueError, match=r"a\.pcap is gone"):
        reader.partitions(before, {"files": {}})
