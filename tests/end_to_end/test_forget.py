"""``jobs.forget``: nothing older than a date is in any file of the lake; the rest is as if it had never been read."""

from __future__ import annotations

import datetime as dt
import json
import random
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from capture.merge.comparing import OF_THE_RUN, differences
from capture.merge.cutting import elsewhere, layout
from end_to_end.lakes import Job, tables
from end_to_end.test_expiry import RECORDS, over_days
from jobs import forget, ingest_captures, run_all
from pcapgen.record import sample_captures
from pipeline.bronze.retention_cutoff import RetentionCutoff
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.runs.recovery import RunMarkers
from schemas import catalog
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, RPC_BINDS, RPC_CALLS
from schemas.quality import QUALITY_RESULTS
from schemas.sessions import SESSION_PACKETS

pytestmark = [pytest.mark.spark, pytest.mark.long]
SAMPLE = {path.name[:2]: path for path in sample_captures()}
DAYS_BEFORE = 60
# Words of the sample, and words of the same length in their place in what is older.
OLD_WORDS = {"orders": "zqolds", "srv1": "zqh1", "order ": "zqlab ", "cli1": "zqc1"}
CROSSING_WORDS = {"orders": "zqcros", "order ": "zqcla "}
BROKEN = "zqbrokenline"
MARKER = re.compile("|".join({*OLD_WORDS.values(), *CROSSING_WORDS.values(), BROKEN, r"10\.177\.", r"10\.188\."}))


def renamed(data: bytes, words: dict[str, str]) -> bytes:
    for word, other in words.items():
        data = data.replace(word.encode("utf-16-le"), other.encode("utf-16-le")).replace(word.encode(), other.encode())
    return data


def earlier(capture: bytes, days: int, records: slice, words: dict[str, str]) -> bytes:
    """Return a pcap capture with some of its records moved to earlier days and other words in them."""
    whole = layout(capture)
    order = "<" if capture[:1] in b"\xd4\x4d" else ">"
    units = [unit.data for unit in whole.units]
    for number in range(*records.indices(len(units))):
        data = units[number]
        (seconds,) = struct.unpack_from(order + "I", data)
        units[number] = struct.pack(order + "I", seconds - days * 86400) + renamed(data[4:], words)
    return capture[:24] + b"".join(units)


def first_day(capture: bytes) -> str:
    (seconds,) = struct.unpack_from("<I", capture, 24)
    return str(dt.datetime.fromtimestamp(seconds, dt.UTC).date())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Captures and snapshots: older than the date, on both sides of it, and later."""
    folder = tmp_path_factory.mktemp("world")
    captures, snapshots = folder / "captures", folder / "snapshots"
    captures.mkdir()
    snapshots.mkdir()
    plain = SAMPLE["01"].read_bytes()
    every = slice(None)
    (captures / "old.pcap").write_bytes(earlier(elsewhere(plain, 100), DAYS_BEFORE, every, OLD_WORDS))
    half = len(layout(plain).units) // 2
    crossing = earlier(elsewhere(plain, 20), DAYS_BEFORE, slice(half), CROSSING_WORDS)
    (captures / "crossing.pcap").write_bytes(crossing)
    old = SAMPLE["03"].read_bytes()
    (captures / "old_qm2qm.pcap").write_bytes(earlier(elsewhere(old, 111), DAYS_BEFORE, every, OLD_WORDS))
    for name in ("01", "03", "07"):
        shutil.copy(SAMPLE[name], captures)
    lines = sorted((Path(__file__).parents[2] / "data/estate/snapshots").glob("*.jsonl"))
    year = re.compile(r'("(?:asked|collected)_at":")(\d{4})-(\d\d)')
    for path in lines[:10]:
        text = path.read_text()
        before = year.sub(lambda found: f"{found[1]}{int(found[2]) - 1}-{found[3]}", text)
        before = before.replace("orders1", "zqolds1").replace("10.77.0.11", "10.177.0.11").replace("growing", "zqlab x")
        (snapshots / f"old-{path.name}").write_text(before)
        (snapshots / path.name).write_text(before + f"{BROKEN}\n" + before.splitlines()[0] + "\n" + text)
    (snapshots / lines[20].name).write_text(lines[20].read_text())
    return folder


def arguments(world: Path, lake: Path) -> list[str]:
    given = ["--captures", str(world / "captures"), "--snapshots", str(world / "snapshots")]
    return ["--lake", str(lake), *given, "--set", "store.bodies=true", "--set", "store.packets=true"]


def found_in(folder: Path) -> Iterator[str]:
    """Yield the files of a folder that hold a marker: in values of Parquet files, in the bytes of others."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        texts = [data.decode("latin-1"), data.decode("utf-16-le", "replace"), data[1:].decode("utf-16-le", "replace")]
        if path.suffix == ".parquet":
            texts += values(pq.read_table(path))
        for text in texts:
            if seen := MARKER.search(text):
                yield f"{path.relative_to(folder)}: {seen[0]}"
                break


def values(table: pa.Table) -> list[str]:
    """Return all texts of a table, and its bytes decoded as Latin-1 and as UTF-16 of both alignments."""
    texts: list[str] = []

    def walk(value: object) -> None:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, bytes):
            texts.extend([value.decode("latin-1"), value.decode("utf-16-le", "replace")])
            texts.append(value[1:].decode("utf-16-le", "replace"))
        elif isinstance(value, dict):
            for key, each in value.items():
                walk(key)
                walk(each)
        elif isinstance(value, list | tuple):
            for each in value:
                walk(each)

    for column in table.columns:
        for value in column.to_pylist():
            walk(value)
    return texts


@pytest.fixture(scope="module")
def day(world):
    return first_day(SAMPLE["01"].read_bytes())


@pytest.fixture(scope="module")
def full(spark, world, tmp_path_factory):
    """A lake of all captures and snapshots, with its pages and quality results."""
    root = tmp_path_factory.mktemp("full") / "lake"
    (root / "_spool").mkdir(parents=True)
    shutil.copy(world / "captures" / "old.pcap", root / "_spool" / "piped.capture")
    pages = ["--pages", str(root / "pages"), "--set", "quality.in_runs=true"]
    assert run_all.main([*arguments(world, root), *pages]) in (0, 1)
    return root


@pytest.fixture(scope="module")
def never(spark, world, day, tmp_path_factory):
    """A lake whose cutoff was set before it read anything."""
    root = tmp_path_factory.mktemp("never") / "lake"
    RetentionCutoff(dt.date.fromisoformat(day)).save(RunMarkers(LakePath(str(root / "_runs"))))
    assert run_all.main(arguments(world, root)) == 0
    return Lake(spark, str(root))


def same(lake: Lake, other: Lake) -> None:
    assert not (found := differences(tables(lake), tables(other), left_out=OF_THE_RUN)), "\n".join(found)


def test_nothing_of_it_is_in_any_file_and_what_is_left_is_as_if_it_had_never_been(
    spark, world, day, full, never, tmp_path, capsys
):
    root = Path(shutil.copytree(full, tmp_path / "lake"))
    assert {line.split(":")[1] for line in found_in(root)} >= {" zqolds", " zqlab "}
    assert any(line.startswith("pages/") for line in found_in(root))
    before = {path for path in root.rglob("*") if path.is_file()}

    assert forget.main(["--lake", str(root), "--before", day, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert re.search(r"bronze.rpc_calls +\d+ rows would be removed", output)
    assert {path for path in root.rglob("*") if path.is_file()} == before

    assert forget.main(["--lake", str(root), "--before", day]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["forgotten"]["bronze.rpc_calls"] > 0
    assert summary["forgotten"]["bronze.snapshots_raw"] > 0
    assert list(found_in(root)) == []
    lake = Lake(spark, str(root))
    same(lake, never)
    assert list(found_in(Path(never.root))) == []

    versions = {table: lake.version(table) for table in catalog.DATA_TABLES}
    assert run_all.main(arguments(world, root)) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bytes"] == 0
    assert {table: lake.version(table) for table in catalog.DATA_TABLES} == versions  # the next run has nothing to do
    assert list(found_in(root)) == []

    assert run_all.main([*arguments(world, root), "--reprocess", "all"]) == 0
    assert list(found_in(root)) == []
    same(lake, never)
    assert lake.read(QUALITY_RESULTS).count() > 0


def test_it_goes_on_when_files_grow_and_come(spark, world, day, full, never, tmp_path):
    """Later ingests give the same tables as in a lake that never held the older rows."""
    lakes = []
    for number, source in enumerate((full, Path(never.root))):
        root = Path(shutil.copytree(source, tmp_path / f"{number}"))
        if not number:
            assert forget.main(["--lake", str(root), "--before", day]) == 0
        lakes.append(Lake(spark, str(root)))
    more = tmp_path / "more"
    more.mkdir()
    shutil.copy(SAMPLE["09"], more)
    shutil.copy(world / "captures" / "old.pcap", more / "another.pcap")
    for lake in lakes:
        given = ["--captures", str(world / "captures"), str(more), "--snapshots", str(world / "snapshots")]
        assert (
            run_all.main(["--lake", lake.root, *given, "--set", "store.bodies=true", "--set", "store.packets=true"])
            == 0
        )
        assert list(found_in(Path(lake.root))) == []
    same(*lakes)


@pytest.mark.parametrize("when", [0.1, 0.4, 0.7, 0.95])
def test_killed_anywhere_and_repeated_it_is_done(spark, world, day, full, never, tmp_path, when):
    whole = Path(shutil.copytree(full, tmp_path / "whole"))
    watched = Job(whole, [], "forget", ("--before", day))
    watched.watch()
    root = Path(shutil.copytree(full, tmp_path / "lake"))
    chance = random.Random(when)
    print(
        Job(root, [], "forget", ("--before", day)).kill(watched.moment(when), chance.choice(["all", "driver", "java"]))
    )
    lake = Lake(spark, str(root))
    if when == 0.7:  # an ordinary run comes first
        assert run_all.main(arguments(world, root)) == 0
        same(lake, never)
    assert forget.main(["--lake", str(root), "--before", day]) == 0
    assert list(found_in(root)) == []
    same(lake, never)
    assert lake.read(RPC_CALLS).where(f"event_date < '{day}'").count() == 0
    assert lake.read(CAPTURE_FILES).count() == never.read(CAPTURE_FILES).count()


@pytest.mark.parametrize("kind", [*RECORDS])
def test_a_connection_that_goes_on_keeps_its_key_and_its_binds(spark, tmp_path, kind):
    """Six files show it, three days apart; the first two are forgotten, and gone, before the last two come."""
    files = []
    for number, piece in enumerate(over_days(RECORDS[kind](30), 6, days_apart=3)):
        files.append(tmp_path / f"{number}.pcap")
        files[-1].write_bytes(piece)
    day = first_day(files[2].read_bytes())
    lakes = [tmp_path / "forgetful", tmp_path / "other"]
    for root in lakes:
        assert ingest_captures.main(["--lake", str(root), "--captures", *map(str, files[:4])]) == 0
    for file in files[:2]:
        file.unlink()
    assert forget.main(["--lake", str(lakes[0]), "--before", day]) == 0
    for root in lakes:
        assert ingest_captures.main(["--lake", str(root), "--captures", *map(str, files[2:])]) == 0
    (row,), (other,) = (Lake(spark, str(root)).read(CONNECTIONS).collect() for root in lakes)
    assert (row.connection_id, row.first_packet_at) == (other.connection_id, other.first_packet_at)
    found, expected = (
        [
            [
                each.asDict()
                for each in Lake(spark, str(root)).read(table).drop(*OF_THE_RUN).orderBy(*table.key).collect()
            ]
            for table in (RPC_CALLS, SESSION_PACKETS, RPC_BINDS)
        ]
        for root in lakes
    )
    for rows in expected[:2]:
        rows[:] = [each for each in rows if str(each["event_date"]) >= day]
    for some, others in zip(found, expected, strict=True):
        assert [row for row in others if row not in some] == []
        more = [row["outcome"] for row in some if row not in others]
        assert more in ([], ["no_request"])  # the response of a call of the evening before
    assert any(expected[:2])
    kept = Lake(spark, str(lakes[0])).read(PENDING).where(f"last_packet_at < '{day}'").toArrow()["segments"].to_pylist()
    assert len(kept) == 2
    assert sum(len(each["data"] or b"") for segments in kept for each in segments) < 500  # the bind alone
