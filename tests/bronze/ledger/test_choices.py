"""What a person asks of a run: to read again, only some days, or only to say what would be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from bronze.ledger.world import HEADER, World, capture, record
from jobs import cli
from pcapgen.model import key
from pipeline.bronze.ingest_plan import plan, reprocess, within
from pipeline.bronze.input_files import Listed
from pipeline.bronze.ledger_entries import Days, Known, Plan, Read, Reprocess, Sighting
from udfs.files.sources import Source

DAY = 86_400
AB, ABC = capture("a", "b"), capture("a", "bc")
A_KEY = key(capture("a"))


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


MAY = Days(date(2024, 5, 1), date(2024, 5, 31))


def parsed(*arguments):
    made = cli.parser("a_job", "Does a thing.", captures=True)
    return made.parse_args(["--lake", "x", *arguments])


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("all", Reprocess()),
        ("capture=" + "0a" * 16, Reprocess(capture="0a" * 16)),
        ("capture=/data/ring/1.pcap", Reprocess(capture="/data/ring/1.pcap")),
        ("capture=s3://bucket/a=b.pcap", Reprocess(capture="s3://bucket/a=b.pcap")),
        ("date=2024-05-01", Reprocess(days=Days(date(2024, 5, 1), date(2024, 5, 1)))),
        ("date=2024-05-01..2024-05-31", Reprocess(days=MAY)),
        ("decoder=1", Reprocess(decoder="1")),
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
    assert left.value.code == cli.Exit.USAGE
    assert capsys.readouterr().err.startswith(f"a_job: {complaint}")


# -- reading again ---------------------------------------------------------------------------------------------------


def again(world: World, choice: Reprocess) -> tuple[Plan, int]:
    files = [world.find(path) for path in sorted(world.files)]
    done = plan(files, world.ledger.values(), source=world.source, find=world.find)
    count = reprocess(done, world.ledger.values(), choice, find=world.find)
    world.carry_out(done)
    return done, count


def test_reading_all_again_replaces_all_and_changes_nothing():
    world = World()
    for path, content in [("/c/1", AB), ("/c/2", AB), ("/c/3", capture("a", "x")), ("/c/4", b"rubbish")]:
        world.put(path, content)
    world.run()
    before = world.captures()
    done, count = again(world, Reprocess())
    assert (count, done.replaced) == (3, before.keys())
    assert [read.file.path for read in done.read] == ["/c/1", "/c/3", "/c/4"]
    assert world.captures() == before


@pytest.mark.parametrize("what", [A_KEY, "/c/1", "/c/2"])
def test_one_capture_by_its_key_its_path_or_that_of_a_copy(what):
    world = World()
    for path, content in [("/c/1", AB), ("/c/2", AB), ("/c/3", capture("x"))]:
        world.put(path, content)
    world.run()
    done, count = again(world, Reprocess(capture=what))
    assert (count, done.replaced) == (1, {A_KEY})


def test_what_has_grown_is_read_from_its_beginning():
    world = World()
    world.put("/c/1", AB)
    world.run()
    world.put("/c/1", ABC)
    done, _ = again(world, Reprocess())
    assert ([read.start for read in done.read], done.replaced, done.missing) == ([0], {A_KEY}, [])
    assert world.captures() == {A_KEY: ("/c/1", (), ABC)}


def test_a_capture_whose_name_changes_is_replaced_and_not_renamed():
    world = World()
    world.put("/c/1", AB)
    world.run()
    longer = capture("a", "xyz")
    world.put("/c/2", longer)
    done, _ = again(world, Reprocess())
    assert (done.replaced, done.renamed) == ({A_KEY}, {})
    assert {facts[2] for facts in world.captures().values()} == {AB, longer}


def test_a_copy_stands_in_for_a_file_that_is_gone_and_without_one_the_rows_stay():
    world = World()
    for path, content in [("/c/1", ABC), ("/c/2", AB), ("/c/3", ABC), ("/d/1", capture("x"))]:
        world.put(path, content)
    world.run()
    del world.files["/c/1"], world.files["/d/1"]
    before = world.captures()
    done, count = again(world, Reprocess())
    assert (count, done.replaced) == (2, {A_KEY})
    assert [(read.file.path, read.names.path) for read in done.read] == [("/c/3", "/c/1")]
    assert [known.file.path for known in done.missing] == ["/d/1"]
    assert world.captures() == before
    assert "cannot read /d/1 again: it is gone or has changed" in [*done.lines()]


def test_files_need_not_be_among_those_of_the_run():
    world = World()
    world.put("/c/1", AB)
    world.run()
    done = plan([], world.ledger.values(), source=world.source, find=world.find)
    reprocess(done, world.ledger.values(), Reprocess(), find=world.find)
    assert [(read.capture_id, read.file.path) for read in done.read] == [(A_KEY, "/c/1")]


def test_days_and_decoder_versions():
    row = Known("k", Sighting("/c/1", 1, 1), first_us=us("2024-05-31T23:59:59"), last_us=us("2024-06-02"))
    assert Reprocess(days=MAY).chooses(row)
    assert Reprocess(days=Days(date(2024, 6, 1), date(2024, 6, 1))).chooses(row)
    assert not Reprocess(days=Days(date(2024, 6, 3), date(2024, 6, 4))).chooses(row)
    assert not Reprocess(days=MAY).chooses(Known("k", Sighting("/c/1", 1, 1)))
    one = replace(row, decoder_version="1")
    assert [Reprocess(decoder=version).chooses(each) for version in "12" for each in (one, row)] == [
        False, True, True, True,
    ]  # fmt: skip


def test_nothing_chosen_changes_nothing():
    done = Plan()
    row = Known("k", Sighting("/c/1", 1, 1))
    assert (reprocess(done, [row], Reprocess(capture="other"), find={}.get), bool(done)) == (0, False)


# -- some days -------------------------------------------------------------------------------------------------------


def packets(*days: str) -> bytes:
    return HEADER + b"".join(record(b"p", us(day) // 1_000_000) for day in days)


def looked_at(content: bytes, modified: str | None, known=()) -> bool:
    file = Listed("/c/1", len(content), None if modified is None else us(modified))
    files = within([file], known, MAY, source=lambda listed: Source.of_bytes(content, listed.path))
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
    assert looked_at(content, modified) is wanted


def test_known_files_are_not_opened_to_find_their_days():
    file = Listed("/c/1", 10, 1)

    def refuse(listed):
        raise AssertionError(f"{listed} opened")

    row = Known("k", Sighting(*(file.path, file.size, file.modified_us)))
    assert within([file], [row], MAY, source=refuse) == [file]


def test_a_dry_run_says_what_would_be_read():
    names = Plan(read=[Read("k", Listed("/c/1", 5, 1), None, "k", 3)], renamed={"k": "l"}, replaced={"m"})
    assert [*names.lines()] == ["read /c/1 (from byte 3)", "rename capture k to l", "take out capture m"]
