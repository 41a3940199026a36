"""How much of the captures is read is known while they are read, and shown to whoever waits."""

import gzip
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs import cli
from ledgers import ledger_of
from pipeline.bronze import read_progress
from pipeline.bronze.capture_tasks import build_read_tasks
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import list_files
from pipeline.bronze.read_progress import MarkedSource, ReadProgress, mark_path, marks_folder
from pipeline.lake.lake_path import LakePath
from udfs.files.file_source import FileSource

ONE, OTHER = "01-remoteread-ndr.pcap", "02-remoteread-ndr64-multiplexed.pcap"


@pytest.fixture
def reads(project, tmp_path):
    """The planned reads of two captures."""
    folder = tmp_path / "captures"
    folder.mkdir()
    for name in (ONE, OTHER):
        shutil.copy(project / "data" / "sample" / name, folder / name)
    return plan_ingest(list_files([str(folder)]), ledger_of()).reads


def test_captures_that_are_read_count_as_a_whole(reads, tmp_path):
    run, staged = LakePath(str(tmp_path / "run")), LakePath(str(tmp_path / "run" / "tables"))
    marks = marks_folder(run)
    marks.make_folder()
    progress = ReadProgress(reads, run, staged / "capture_files")
    assert progress.total_bytes == sum(read.file.size for read in reads)
    found = [progress.bytes_and_captures()]
    tasks = build_read_tasks(reads, run / "tasks", IngestClock(), staging_folder=str(staged), marks=marks)
    for number in range(tasks.part_count):
        assert [*tasks.read_part(number)]
        found.append(progress.bytes_and_captures())
    assert [captures for _, captures in found] == [0, 1, 2]
    assert (found[0][0], found[2][0]) == (0, progress.total_bytes)
    assert found[1][0] in {read.file.size for read in reads}
    assert marks.files() == {}


@pytest.mark.parametrize("start", [0, 5000])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_are_counted_while_a_capture_is_read(reads, tmp_path, monkeypatch, start, suffix):
    monkeypatch.setattr(read_progress, "_NOTE_INTERVAL_S", 0.001)
    content = Path(reads[0].file.path).read_bytes()
    file = tmp_path / f"capture{suffix}"
    file.write_bytes(gzip.compress(content) if suffix else content)
    mark = LakePath(str(tmp_path / "mark"))

    def noted(position):
        until = time.monotonic() + 60
        while int(mark.read_text()) != position and time.monotonic() < until:
            pass
        return int(mark.read_text())

    marked = MarkedSource(FileSource.from_path(str(file)), mark, start)
    with marked as source, source.open_decompressed(100, 1 << 30) as stream:
        assert noted(0) == 0
        assert source.compression == ("gzip" if suffix else None)  # opens and closes it once more
        assert stream.readinto(bytearray(20_000)) == 20_000
        if not suffix:
            assert noted(20_000 - start) == 20_000 - start
        while stream.readinto(bytearray(1 << 20)):
            pass
        assert noted(file.stat().st_size - start) == file.stat().st_size - start
    assert mark.exists()


def test_a_mark_that_says_nothing_counts_as_nothing(reads, tmp_path):
    run = LakePath(str(tmp_path / "run"))
    progress = ReadProgress(reads, run, run / "tables")
    for read, text in zip(reads, ("", "99999999999"), strict=True):
        mark_path(marks_folder(run), read.file.path).write_text(text)
    assert progress.bytes_and_captures() == (reads[1].file.size, 0)


def test_it_is_shown_while_the_block_lasts(reads, tmp_path, monkeypatch):
    monkeypatch.setattr(read_progress, "_SHOW_INTERVAL_S", 0)
    run, seen = LakePath(str(tmp_path / "run")), []

    @contextmanager
    def meter(total):
        yield lambda read, text: seen.append((total, read, text))

    progress = ReadProgress(reads, run, run / "tables")
    with progress.shown(meter):
        while not seen:
            pass
    assert seen[0] == (progress.total_bytes, 0, "0 of 2 captures")


def test_where_there_is_no_terminal_lines_tell_share_speed_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_METER_INTERVAL_S", 0)
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(cli.time, "monotonic", lambda: next(clock))
    with cli.byte_meter(1_000_000_000) as show:
        show(250_000_000, "1 of 4 captures")
        show(500_000_000, "2 of 4 captures")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "25 % read: 250M of 1.00GB, 25.0MB/s, 00:30 left, 1 of 4 captures",
        "50 % read: 500M of 1.00GB, 25.0MB/s, 00:20 left, 2 of 4 captures",
    ]


def test_on_a_terminal_there_is_one_line_that_goes_in_the_end(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cli.byte_meter(1000) as show:
        show(0, "0 of 4 captures")
        show(1000, "4 of 4 captures")
    shown = capsys.readouterr().err
    assert "\n" not in shown
    assert shown.split("\r")[-1].strip() == ""


def test_nothing_is_shown_of_no_bytes(capsys, monkeypatch):
    monkeypatch.setattr(cli, "_METER_INTERVAL_S", 0)
    with cli.byte_meter(0) as show:
        show(0, "0 of 0 captures")
    assert capsys.readouterr().err == "0 % read: 0.00 of 0.00B, ?B/s, ? left, 0 of 0 captures\n"
