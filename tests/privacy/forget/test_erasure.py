"""After an erasure deleted rows are in no file, and the provenance in commits is still right."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.privacy import erasure
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import QUARANTINE
from schemas.quality import QUALITY_RESULTS
from tests.support.lakes import changes

pytestmark = [pytest.mark.spark, pytest.mark.long]
OLD, YOUNG = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC)


def rows(spark, *given):
    names = ("quarantine_key", "seen_at", "sample")
    full = [{**dict.fromkeys(QUARANTINE.names), **dict(zip(names, row, strict=True))} for row in given]
    schema = QUARANTINE.struct(without=("event_date",))
    return spark.createDataFrame([[row[name] for name in schema.names] for row in full], schema)


def marked(root):
    """Return the files that hold the marker: in values of Parquet files, in the bytes of others."""
    found = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        text = path.read_bytes().decode("latin-1")
        if path.suffix == ".parquet":
            text += str(pq.read_table(path).to_pylist())
        if "zqmarker" in text:
            found.append(path.relative_to(root))
    return found


def test_what_was_deleted_is_in_no_file_and_the_next_run_finds_nothing_to_do(spark, tmp_path):
    lake = Lake(spark, str(tmp_path / "a lake, 100 %"))
    with lake.hold_exclusive_access(lambda: None):
        lake.append(QUARANTINE, rows(spark, ("zqmarker1", OLD, b"zqmarker"), ("keep", YOUNG, b"k")))
        lake.append(QUARANTINE, rows(spark, ("zqmarker2", OLD, b"zqmarker")))
        lake.note_provenance(QUARANTINE, json.dumps({"ends": {"zqmarker.example.com": 5}}))
        lake.delete_values(QUARANTINE, "quarantine_key", {"zqmarker1", "zqmarker2"}, dates=None)
        lake.note_provenance(QUARANTINE, json.dumps({"ends": {}}))
        version = lake.version(QUARANTINE)
        lake.note_provenance(QUALITY_RESULTS, json.dumps({str(QUARANTINE): version, "seen bronze.nothing": version}))
        work = Path(str(RunMarkers.of(lake).root))
        (work / "silver" / "left").mkdir(parents=True)
        for name in ("summary", ".half", "again"):
            (work / name).write_text("zqmarker" if name != "again" else "{}")
        assert len(marked(tmp_path)) > 5
        assert erasure.erase_history(lake) == 2
        erasure.remove_leftover_files(lake)
    assert marked(tmp_path) == []
    assert [path.name for path in work.iterdir()] == ["again"]
    again = Lake(spark, lake.root)
    assert [row.quarantine_key for row in again.read(QUARANTINE).collect()] == ["keep"]
    newest = again.version(QUARANTINE)
    with again.hold_exclusive_access(lambda: None):
        assert again.versions.provenance(QUALITY_RESULTS) == {str(QUARANTINE): newest, "seen bronze.nothing": version}
        assert again.versions.provenance(QUARANTINE) == {"ends": {}}
    again.append(QUARANTINE, rows(spark, ("new", YOUNG, b"n")))
    assert [row.quarantine_key for row in changes(again, QUARANTINE, newest).collect()] == ["new"]
    # A table that was computed from a version that is gone is recomputed.
    feeds = ChangeFeeds(again, {str(QUARANTINE): 1}, {str(QUARANTINE): again.version(QUARANTINE)})
    assert feeds.rows(QUARANTINE, "SELECT quarantine_key FROM {feed}", 10) is None
    with again.hold_exclusive_access(lambda: None):  # once more, with nothing to do
        assert erasure.erase_history(again) == 2
    assert Lake(spark, lake.root).read(QUARANTINE).count() == 2
