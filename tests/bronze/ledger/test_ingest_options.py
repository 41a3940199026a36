"""Options of an ingest: reprocess captures, read some days only, dry run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from bronze.ledger.simulation import HEADER, IngestSimulation, capture, record
from jobs import cli
from ledgers import ledger_of
from pcapgen.model import key
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.ingest_plan import files_on_days, plan_ingest, plan_reprocessing
from pipeline.bronze.input_files import InputFile
from pipeline.bronze.ledger_entries import (
    CaptureFileState,
    DateRange,
    IngestPlan,
    LedgerEntry,
    PlannedRead,
    ReprocessSelector,
)
from udfs.files.file_source import FileSource

DAY = 86_400
AB, ABC = capture("a", "b"), capture("a", "bc")
A_KEY = key(capture("a"))


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


MAY = DateRange(date(2024, 5, 1), date(2024, 5, 31))


def parsed(*arguments):
    made = cli.build_base_parser("a_job", "Does a thing.", captures=True)
    return made.parse_args(["--lake", "x", *arguments])


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("all", ReprocessSelector()),
        ("capture=" + "0a" * 16, ReprocessSelector(capture="0a" * 16)),
        ("capture=/data/ring/1.pcap", ReprocessSelector(capture="/data/ring/1.pcap")),
        ("capture=s3://bucket/a=b.pcap", ReprocessSelector(capture="s3://bucket/a=b.pcap")),
        ("date=2024-05-01", ReprocessSelector(days=DateRange(date(2024, 5, 1), date(2024, 5, 1)))),
        ("date=2024-05-01..2024-05-31", ReprocessSelector(days=MAY)),
        ("decoder=1", ReprocessSelector(except_decoder_version="1")),
    ],
)
def test_what_to_read_again(text, choice):
    assert parsed("--reprocess", text).reprocess == choice


def test_a_relative_path_means_the_file_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parsed("--reprocess", "capture=1.pcap").reprocess.capture == str(tmp_path / "1.pcap")


def test_days_and_dry_run():
    both = parsed("--between", "2024-05-01..2024-05-31", "--dry-run")
    assert (both.between, both.dry_run) == (MAY, True)
    neither = parsed()
    assert (neither.between, neither.dry_run, neither.reprocess) == (None, False, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--reprocess", "some"], "argument --reprocess: not all, capture=ID-or-path, date=DAYS or "),
        (["--reprocess", "capture="], "argument --reprocess: not all, "),
        (["--reprocess", "date=May"], "argument --reprocess: not dates like 2024-05-01..2024-05-31: 'May'"),
        (["--between", "2024-05-01..2024-02-30"], "argument --between: not dates like "),
        (["--between", "2024-05-01.."], "argument --between: not dates like "),
        (["--between", "2024-05-02..2024-05-01"], "argument --between: ends before it begins: "),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as left:
        parsed(*arguments)
    assert left.value.code == cli.ExitCode.USAGE_ERROR
    assert capsys.readouterr().err.startswith(f"a_job: {complaint}")


# -- reprocessing ---------------------------------------------------------------------------------------------------


def run_and_reprocess(simulation: IngestSimulation, selector: ReprocessSelector) -> tuple[IngestPlan, int]:
    files = [simulation.find_file(path) for path in sorted(simulation.files)]
    done = plan_ingest(
        files, ledger_of(simulation.ledger.values()), open_source=simulation.open_source, find_file=simulation.find_file
    )
    count = plan_reprocessing(done, ledger_of(simulation.ledger.values()), selector, find_file=simulation.find_file)
    simulation.carry_out(done)
    return done, count


def test_reading_all_again_replaces_all_and_changes_nothing():
    simulation = IngestSimulation()
    for path, content in [("/c/1", AB), ("/c/2", AB), ("/c/3", capture("a", "x")), ("/c/4", b"rubbish")]:
        simulation.put(path, content)
    simulation.run()
    before = simulation.captures()
    done, count = run_and_reprocess(simulation, ReprocessSelector())
    assert (count, done.replaced_captures) == (3, before.keys())
    assert [read.file.path for read in done.reads] == ["/c/1", "/c/3", "/c/4"]
    assert simulation.captures() == before


@pytest.mark.parametrize("what", [A_KEY, "/c/1", "/c/2"])
def test_one_capture_by_its_key_its_path_or_that_of_a_copy(what):
    simulation = IngestSimulation()
    for path, content in [("/c/1", AB), ("/c/2", AB), ("/c/3", capture("x"))]:
        simulation.put(path, content)
    simulation.run()
    done, count = run_and_reprocess(simulation, ReprocessSelector(capture=what))
    assert (count, done.replaced_captures) == (1, {A_KEY})


def test_what_has_grown_is_read_from_its_beginning():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    simulation.put("/c/1", ABC)
    done, _ = run_and_reprocess(simulation, ReprocessSelector())
    assert ([read.start_offset for read in done.reads], done.replaced_captures, done.missing_captures) == (
        [0],
        {A_KEY},
        [],
    )
    assert simulation.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_capture_whose_name_changes_is_replaced_and_not_renamed():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    longer = capture("a", "xyz")
    simulation.put("/c/2", longer)
    done, _ = run_and_reprocess(simulation, ReprocessSelector())
    assert (done.replaced_captures, done.renamed_captures) == ({A_KEY}, {})
    assert {facts[2] for facts in simulation.captures().values()} == {AB, longer}


def test_a_copy_stands_in_for_a_file_that_is_gone_and_without_one_the_rows_stay():
    simulation = IngestSimulation()
    for path, content in [("/c/1", ABC), ("/c/2", AB), ("/c/3", ABC), ("/d/1", capture("x"))]:
        simulation.put(path, content)
    simulation.run()
    del simulation.files["/c/1"], simulation.files["/d/1"]
    before = simulation.captures()
    done, count = run_and_reprocess(simulation, ReprocessSelector())
    assert (count, done.replaced_captures) == (2, {A_KEY})
    assert [(read.file.path, read.capture_files.path) for read in done.reads] == [("/c/3", "/c/1")]
    assert [entry.file.path for entry in done.missing_captures] == ["/d/1"]
    assert simulation.captures() == before
    assert "cannot read /d/1 again: it is gone or has changed" in [*done.describe()]


def test_files_need_not_be_among_those_of_the_run():
    simulation = IngestSimulation()
    simulation.put("/c/1", AB)
    simulation.run()
    done = plan_ingest(
        [], ledger_of(simulation.ledger.values()), open_source=simulation.open_source, find_file=simulation.find_file
    )
    plan_reprocessing(done, ledger_of(simulation.ledger.values()), ReprocessSelector(), find_file=simulation.find_file)
    assert [(read.capture_id, read.file.path) for read in done.reads] == [(A_KEY, "/c/1")]


def test_a_capture_is_read_again_by_the_clock_of_its_first_reading_unless_it_has_grown():
    simulation = IngestSimulation()
    for path in ("/c/1", "/d/1"):
        simulation.put(path, AB if path == "/c/1" else capture("x"))
    simulation.run()
    simulation.ledger = {name: replace(entry, ingested_us=5) for name, entry in simulation.ledger.items()}
    simulation.put("/c/1", ABC)
    done, _ = run_and_reprocess(simulation, ReprocessSelector())
    assert {read.file.path: read.ingested_us for read in done.reads} == {"/c/1": None, "/d/1": 5}
    clock = IngestClock(timedelta(seconds=1), datetime(2024, 1, 1, tzinfo=UTC))
    assert [clock.latest_us(None), clock.latest_us(5)] == [us("2024-01-01T00:00:01"), 1_000_005]


def test_days_and_decoder_versions():
    file = CaptureFileState("/c/1", 1, 1)
    row = LedgerEntry("k", file, first_us=us("2024-05-31T23:59:59"), last_us=us("2024-06-02"))
    rows = [row, replace(row, capture_id="one", decoder_version="1"), LedgerEntry("without packets", file)]

    def selected(**by) -> set[str]:
        return {entry.capture_id for entry in ledger_of(rows).selected(ReprocessSelector(**by))}

    assert selected(days=MAY) == {"k", "one"}
    assert selected(days=DateRange(date(2024, 6, 1), date(2024, 6, 1))) == {"k", "one"}
    assert selected(days=DateRange(date(2024, 6, 3), date(2024, 6, 4))) == set()
    assert selected(except_decoder_version="1") == {"k", "without packets"}
    assert selected(except_decoder_version="2") == {"k", "one", "without packets"}


def test_nothing_chosen_changes_nothing():
    done = IngestPlan()
    row = LedgerEntry("k", CaptureFileState("/c/1", 1, 1))
    assert (
        plan_reprocessing(done, ledger_of([row]), ReprocessSelector(capture="other"), find_file={}.get),
        bool(done),
    ) == (
        0,
        False,
    )


# -- some days -------------------------------------------------------------------------------------------------------


def packets(*days: str) -> bytes:
    return HEADER + b"".join(record(b"p", us(day) // 1_000_000) for day in days)


def is_selected(content: bytes, modified: str | None, known=()) -> bool:
    file = InputFile("/c/1", len(content), None if modified is None else us(modified))
    files = files_on_days(
        [file], ledger_of(known), MAY, open_source=lambda listed: FileSource.from_bytes(content, listed.path)
    )
    assert files in ([], [file])
    return bool(files)


@pytest.mark.parametrize(
    ("content", "modified", "wanted"),
    [
        (packets("2024-05-10"), "2026-01-01", True),
        (packets("2024-04-10"), "2024-05-31T23:59:59", True),
        (packets("2024-04-10", "2024-05-31T23:59:59", "2024-07-01"), "2024-07-01", True),
        (packets("2024-04-10", "2024-07-01"), "2024-07-01", False),
        (packets("2024-04-30T23:59:59", "2024-06-01"), None, False),
        (packets("2024-04-30", "2024-05-01"), None, True),
        (packets("2024-06-01"), "2024-06-01", False),
        (packets("2024-04-30"), "2024-04-30", False),
        (b"rubbish", "2024-05-01", True),
        (b"rubbish", "2024-06-01", False),
        (packets("2024-04-30", "2024-05-01")[:-8], None, False),
    ],
)
def test_files_of_some_days(content, modified, wanted):
    assert is_selected(content, modified) is wanted


def test_known_files_are_not_opened_to_find_their_days():
    file = InputFile("/c/1", 10, 1)

    def refuse(listed):
        raise AssertionError(f"{listed} opened")

    row = LedgerEntry("k", CaptureFileState(*(file.path, file.size, file.modified_us)))
    assert files_on_days([file], ledger_of([row]), MAY, open_source=refuse) == [file]


def test_a_dry_run_says_what_would_be_read():
    plan = IngestPlan(
        reads=[PlannedRead("k", InputFile("/c/1", 5, 1), None, "k", 3)],
        renamed_captures={"k": "l"},
        replaced_captures={"m"},
    )
    assert [*plan.describe()] == ["read /c/1 (from byte 3)", "rename capture k to l", "remove capture m"]
