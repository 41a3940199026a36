"""Tables that delta-rs stores: changes of rows are as Spark makes them, also while others write."""

import datetime as dt
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.errors import ConflictError, LakeNameError
from pipeline.lake.lake import Lake
from pipeline.lake.queries import answer
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, ChangesSince, FilteredTable
from pipeline.lake.storage import delta_rs
from pipeline.lake.storage.log import NO_PROVENANCE
from schemas.bronze import CAPTURE_FILES, QUARANTINE
from tests.support.lakes import changes

pytestmark = pytest.mark.spark

NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


def rows(*told, **shared):
    """Rows of bronze.quarantine, of (key, reason, size, time)."""
    names = ("quarantine_key", "reason", "size_bytes", "seen_at")
    schema = pa.schema([field for field in QUARANTINE.schema() if field.name != "event_date"])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | shared for row in told], schema)


def stored(lake):
    found = lake.select(QUARANTINE, "TRUE", ("quarantine_key", "reason", "size_bytes"))
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


ALIKE = (
    ("a", "one", 1, NOON), ("a", "two", 1, NOON), ("a", None, 1, NOON), ("a", "one", None, NOON),
    ("a", None, None, None), (None, None, 1, None), (None, "one", 1, NOON), ("b", "one", 1, NOON),
    ("b", None, 2, None),
)  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    [
        "quarantine_key = 'a' AND reason = 'one' AND size_bytes = 1",
        "quarantine_key = 'a' AND reason IS NULL",
        "reason IS NULL AND size_bytes = 1",
        "size_bytes IS NULL OR reason = 'two'",
        "quarantine_key IS NULL",
        "quarantine_key IN {some} AND event_date IS NULL",
        "coalesce(reason, 'one') = 'one'",
    ],
)
def test_of_rows_with_one_key_those_alone_change_that_meet_the_condition(lake, condition):
    of = {"some": ["a", "b"]} if "{some}" in condition else {}
    lake.append(QUARANTINE, rows(*ALIKE))
    columns = "quarantine_key, CASE WHEN {0} THEN 'new' ELSE reason END, CASE WHEN {0} THEN 7 ELSE size_bytes END"
    updated, left = (
        sorted((tuple(row.values()) for row in lake.query(sql, rows=QUARANTINE, **of).to_pylist()), key=str)
        for sql in (
            f"SELECT {columns.format(condition)} FROM {{rows}}",
            f"SELECT quarantine_key, reason, size_bytes FROM {{rows}} WHERE ({condition}) IS NOT TRUE",
        )
    )
    assert 0 < len(left) < len(updated) == len(ALIKE)
    lake.update(QUARANTINE, {"reason": "'new'", "size_bytes": "7"}, condition, **of)
    assert stored(lake) == updated
    lake.restore(QUARANTINE, 1)
    lake.delete(QUARANTINE, condition, **of)
    assert stored(lake) == left


@pytest.fixture
def intruder(lake, spark, monkeypatch):
    """A function that has another writer commit before each of the next commits, as often as it is told."""
    left, other, properties = [], Lake(spark, lake.root), delta_rs._properties

    def after_another(*given):
        if left:
            row = left.pop()
            before, left[:] = left[:], ()
            other.append(QUARANTINE, row)
            left[:] = before
        return properties(*given)

    monkeypatch.setattr(delta_rs, "_properties", after_another)
    return lambda times: left.extend(rows((f"other {number}", None, 1, NOON)) for number in range(times))


REASONS = pa.table({"quarantine_key": ["a", "other 0"], "reason": ["r", "r"]})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lake: lake.append(QUARANTINE, rows(("b", "r", 1, NOON))),
         [("a", None, 1), ("b", "r", 1), ("other 0", None, 1), ("other 1", None, 1)]),
        (lambda lake: lake.update(QUARANTINE, {"reason": "'r'"}, "reason IS NULL"),
         [("a", "r", 1), ("other 0", "r", 1), ("other 1", "r", 1)]),
        (lambda lake: lake.delete(QUARANTINE, "quarantine_key IN ('a', 'other 0')"), [("other 1", None, 1)]),
        (lambda lake: lake.replace(QUARANTINE, rows(("b", "r", 1, NOON))), [("b", "r", 1)]),
        (lambda lake: lake.delete_and_insert(QUARANTINE, "quarantine_key", ["other 0"], rows(("other 0", "r", 2, NOON)),
                                             dates=None),
         [("a", None, 1), ("other 0", "r", 2), ("other 1", None, 1)]),
        (lambda lake: lake.update_columns(QUARANTINE, REASONS, dates=None),
         [("a", "r", 1), ("other 0", "r", 1), ("other 1", None, 1)]),
    ],
    ids=["append", "update", "delete", "replace", "delete_and_insert", "update_columns"],
)  # fmt: skip
def test_what_others_committed_meanwhile_is_changed_too(lake, intruder, change, expected):
    lake.append(QUARANTINE, rows(("a", None, 1, NOON)))
    intruder(2)
    change(lake)
    assert stored(lake) == expected
    assert (lake.version(QUARANTINE), lake.versions.provenance_json(QUARANTINE)) == (4, NO_PROVENANCE)
    lake.append(QUARANTINE, rows(("a", None, 1, NOON)))
    intruder(100)
    with pytest.raises(ConflictError, match="others change this table"):
        change(lake)


def test_a_table_is_replaced_by_the_answer_to_a_query_over_itself(lake, spark, tmp_path):
    names = ", ".join("upper(reason) AS reason" if name == "reason" else name for name in QUARANTINE.names)
    for each in (lake, Lake(spark, str(tmp_path / "other"), store="spark")):
        each.append(QUARANTINE, rows(("a", "r", 1, NOON), ("b", None, 1, NOON), ("c", "r", 2, NOON)))
        sql = f"SELECT {names} FROM {{rows}} WHERE quarantine_key IN {{keys}}"
        each.replace_by_query(QUARANTINE, sql, rows=QUARANTINE, keys=["a", "b"], provenance="mine")
        assert stored(each) == [("a", "R", 1), ("b", None, 1)]
        assert each.versions.provenance_json(QUARANTINE) == "mine"


def test_what_tasks_compute_of_groups_is_laid_out_by_time(lake, monkeypatch):
    """A change of the newest rows then leaves all files but the last one as they are."""
    for name in (
        "storage.data_files.MAX_ROW_GROUP_ROWS",
        "storage.data_files.MAX_FILE_ROWS",
        "queries.duckdb_sql._LARGE_BATCH_ROWS",
    ):
        monkeypatch.setattr(f"pipeline.lake.{name}", 2048)

    def group(number):
        moments = ((f"{number} {hour}", None, hour, NOON + dt.timedelta(hours=hour)) for hour in range(2000))
        yield from rows(*moments).to_batches()

    lake.append(QUARANTINE, PartitionedRows(3, 0, group, in_tasks=True))
    assert sorted(stored(lake)) == sorted((f"{one} {hour}", None, hour) for one in range(3) for hour in range(2000))
    table = DeltaTable(lake.path(QUARANTINE))
    files = pa.table(table.get_add_actions(flatten=True)).sort_by("min.seen_at")
    assert files["num_records"].to_pylist() == [2048, 2048, 6000 - 2 * 2048]
    ends, begins = files["max.seen_at"].to_pylist(), files["min.seen_at"].to_pylist()
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert {file.name for file in Path(lake.path(QUARANTINE)).glob("*.parquet")} == {*files["path"].to_pylist()}


@pytest.mark.parametrize("others", [0, 1, 2])
def test_new_rows_are_added_beside_the_files_of_changed_ones(lake, intruder, others):
    """The next change of a new row writes no row again that was there before it; a change has no moment without it."""
    there = rows(*((name, None, 1, NOON) for name in "abcde"))
    lake.append(QUARANTINE, there, provenance="before")
    intruder(others)
    lake.delete_and_insert(
        QUARANTINE, "quarantine_key", ["a", "b"], rows(("a", "r", 1, NOON), ("new", "r", 1, NOON)), dates=None,
        provenance="mine", previous_provenance="before",
    )  # fmt: skip
    there = [*((name, None, 1) for name in "cde"), ("new", "r", 1)]
    assert stored(lake) == [("a", "r", 1), *there, *((f"other {number}", None, 1) for number in range(others))]
    commits = lake._log.commits_since(QUARANTINE, 1)
    ours = [commit for commit in commits if commit.provenance_json in ("before", "mine")]
    merged = [(commit.provenance_json, commit.rows_written) for commit in ours if commit.operation == "MERGE"]
    assert merged[0] == ("before", 1)
    assert (ours[-1].operation, ours[-1].provenance_json, ours[-1].rows_written) == ("WRITE", "mine", 2)
    fragments = DeltaTable(lake.location(QUARANTINE)).to_pyarrow_dataset().get_fragments()
    assert ["new"] in [each.to_table()["quarantine_key"].to_pylist() for each in fragments]


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    ("leaving", "operations"),
    [("a", "MERGE WRITE"), ("abc", "MERGE WRITE"), ("abcd", "WRITE"), ("abcde", "MERGE WRITE"), ("abcdefg", "WRITE")],
)
def test_files_all_of_whose_rows_leave_are_removed(lake, intruder, leaving, operations, others):
    """With all that comes in the same commit; a merge is left to change other files. The feed tells what changed."""
    times = {name: NOON + dt.timedelta(hours=hour) for hour, name in enumerate("abcdefg")}
    for part in ("dcba", "gfe"):
        lake.append(QUARANTINE, rows(*((name, None, 1, times[name]) for name in part)), provenance="before")
    intruder(others)
    coming = [(name, "r", 1, times[name]) for name in leaving[::2]] + [("new", "r", 1, NOON)]
    lake.delete_and_insert(
        QUARANTINE, "quarantine_key", [*leaving], rows(*coming), dates=None, provenance="mine",
        previous_provenance="before",
    )  # fmt: skip
    staying = [(name, None, 1) for name in "abcdefg" if name not in leaving]
    there = [*((f"other {number}", None, 1) for number in range(others)), *(row[:3] for row in coming), *staying]
    assert stored(lake) == sorted(there, key=str)
    ours = lake._log.commits_since(QUARANTINE, 2 + others)
    made = [(commit.operation, commit.provenance_json) for commit in ours]
    wanted = operations.split()
    assert made == [*((each, "before") for each in wanted[:-1]), (wanted[-1], "mine")]
    assert ours[-1].rows_written == len(coming)
    feed = ChangesSince(QUARANTINE, 2, lake.version(QUARANTINE))
    net = lake.query(f"SELECT quarantine_key, {MORE_ROWS_SQL} AS more FROM {{feed}} GROUP BY ALL", feed=feed)
    came = {"new": 1, **{f"other {number}": 1 for number in range(others)}}
    changed = dict.fromkeys(leaving[::2], 0) | dict.fromkeys(leaving[1::2], -1)
    assert dict(zip(*(net[name].to_pylist() for name in ("quarantine_key", "more")), strict=True)) == came | changed


@pytest.mark.parametrize("in_tasks", [False, True])
@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize(
    ("leaving", "operations"), [("x", "WRITE"), ("ab", "MERGE WRITE"), ("abc", "WRITE"), ("abcd", "MERGE WRITE")]
)
def test_rows_in_parts_replace_others_as_rows_in_memory(lake, intruder, leaving, operations, others, in_tasks):
    for part in ("abc", "de"):
        lake.append(QUARANTINE, rows(*((name, None, 1, NOON) for name in part)), provenance="before")
    intruder(others)
    parts = [rows((name, "r", 1, NOON)).to_batches() for name in ("a", "new")]
    coming = PartitionedRows(len(parts), 0, lambda number: parts[number], in_tasks=in_tasks)
    lake.delete_and_insert(
        QUARANTINE, "quarantine_key", [*leaving], coming, dates=None, provenance="mine", previous_provenance="before"
    )
    there = [(name, None, 1) for name in "abcde" if name not in leaving]
    there += [("a", "r", 1), ("new", "r", 1), *((f"other {number}", None, 1) for number in range(others))]
    assert stored(lake) == sorted(there, key=str)
    ours = [commit for commit in lake._log.commits_since(QUARANTINE, 2) if commit.provenance_json in ("before", "mine")]
    assert [commit.operation for commit in ours] == operations.split()
    assert [commit.provenance_json for commit in ours] == [*("before",) * (len(ours) - 1), "mine"]
    assert ours[-1].rows_written == 2


@pytest.mark.parametrize("as_frame", [True, pytest.param(False, marks=pytest.mark.long)])
def test_columns_are_set_in_the_rows_of_some_keys_and_other_rows_deleted(lake, spark, tmp_path, as_frame):
    new = pa.table({"quarantine_key": ["a", "b", "none"], "reason": ["new", None, "new"], "gone": [False, True, False]})
    stored_rows, found = (("a", "one", 1, NOON), ("b", "one", 1, None), ("c", None, 2, NOON), ("d", "one", 1, NOON)), []
    new = pa.concat_tables([new, new.slice(0, 1).set_column(0, "quarantine_key", [["c"]])])
    for each in (lake, Lake(spark, str(tmp_path / "other"), store="spark")):
        each.append(QUARANTINE, rows(*stored_rows))
        given = arrow_to_frame(spark, new) if as_frame else new
        each.update_columns(QUARANTINE, given, dates=[NOON.date()], deleted="gone")
        dated = stored(each)
        each.update_columns(QUARANTINE, new.select(["quarantine_key", "gone"]), dates=None, deleted="gone")
        found.append((dated, stored(each)))
        version = each.version(QUARANTINE)
        each.update_columns(QUARANTINE, new.slice(2, 1), dates=None, deleted="gone")
        assert each.version(QUARANTINE) == version
    assert found[0] == found[1]
    assert found[0] == (
        [("a", "new", 1), ("b", "one", 1), ("c", "new", 2), ("d", "one", 1)],
        [("a", "new", 1), ("c", "new", 2), ("d", "one", 1)],
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda lake: lake.update(QUARANTINE, {"reason": "'r'"}, "quarantine_key IN ('h2', 'h4')"),
        lambda lake: lake.delete(QUARANTINE, "quarantine_key IN ('h2', 'h4')"),
        lambda lake: lake.delete_and_insert(
            QUARANTINE, "quarantine_key", ["h2", "h4"], rows(("new", "r", 1, NOON)), dates=None
        ),
        lambda lake: lake.update_columns(
            QUARANTINE, pa.table({"quarantine_key": ["h2", "h4"], "reason": ["r", "r"]}), dates=None
        ),
    ],
    ids=["update", "delete", "delete_and_insert", "update_columns"],
)
def test_only_files_of_the_times_of_changed_rows_are_read(lake, change):
    for hour in range(6):
        time = NOON + dt.timedelta(hours=hour)
        lake.append(QUARANTINE, rows(*((f"h{hour}{end}", None, 1, time) for end in ("", " two", " three"))))
    lake.append(QUARANTINE, rows(("untimed", None, 1, None)))
    change(lake)
    (merge,) = (commit for commit in DeltaTable(lake.path(QUARANTINE)).history() if commit["operation"] == "MERGE")
    metrics = merge["operationMetrics"]
    assert metrics["num_target_files_scanned"] == 2
    assert {("h2", None, 1), ("h4", None, 1)}.isdisjoint(stored(lake))
    assert {("h0", None, 1), ("h5", None, 1), ("untimed", None, 1)} < {*stored(lake)}


def test_rows_without_a_time_or_beyond_the_calendar_change_too(lake):
    beyond = rows(("far", None, 1, NOON)).drop_columns("seen_at")
    times = pa.array([1 << 60], pa.int64()).cast(QUARANTINE.schema().field("seen_at").type)
    lake.append(QUARANTINE, beyond.append_column("seen_at", times).append_column("event_date", [[NOON.date()]]))
    lake.append(QUARANTINE, rows(("none", None, 1, None), ("old", None, 1, dt.datetime(1, 1, 1, tzinfo=dt.UTC))))
    many = [(f"{day}", None, 1, NOON + dt.timedelta(days=day * day)) for day in range(40)]
    lake.append(QUARANTINE, rows(*many))
    for keys in (["none"], ["old"], ["far", "none"], [*map(str, range(1, 40, 2))], ["0", "none"]):
        new = pa.table({"quarantine_key": keys, "reason": [" ".join(keys)] * len(keys)})
        lake.update_columns(QUARANTINE, new, dates=None)
        assert {key for key, reason, _ in stored(lake) if reason == " ".join(keys)} == {*keys}


def test_compaction_is_no_change_and_the_feed_tells_of_none(lake):
    for key in "abc":
        lake.append(QUARANTINE, rows((key, None, 1, NOON)))
    version = lake.version(QUARANTINE)
    DeltaTable(lake.location(QUARANTINE)).optimize.compact()
    assert len(DeltaTable(lake.location(QUARANTINE)).file_uris()) == 1
    lake.delete(QUARANTINE, "quarantine_key = 'b'")
    newest = lake.version(QUARANTINE)
    asked = ChangesSince(QUARANTINE, version, newest)
    feed = lake.query("SELECT quarantine_key, _change_type, _commit_version FROM {feed}", feed=asked)
    assert feed.to_pylist() == [{"quarantine_key": "b", "_change_type": "delete", "_commit_version": newest}]
    told = changes(lake, QUARANTINE, version).select(*feed.column_names).collect()
    assert [row.asDict() for row in told] == feed.to_pylist()


def test_a_table_made_anew_in_its_folder_is_read_anew(lake, spark):
    lake.append(QUARANTINE, rows(("a", None, 1, NOON)))
    shutil.rmtree(lake.path(QUARANTINE))
    Lake(spark, lake.root).append(QUARANTINE, rows(("b", None, 1, NOON)))
    assert stored(lake) == [("b", None, 1)]


@pytest.mark.parametrize("name", ["a#b", "a?b", "a[b", "a]b", "a\\b", "a^b", "a|b", "a%20b", "a\nb"])
def test_a_folder_that_delta_rs_does_not_take_is_refused(spark, tmp_path, name):
    with pytest.raises(LakeNameError, match="delta-rs takes no folder"):
        Lake(spark, str(tmp_path / name))
    Lake(spark, str(tmp_path / name), store="spark")


@pytest.mark.parametrize(
    "name",
    [" a b ", "100%", "%2", "%zz", "a'b\"c`d", "<{$x}>", "a:b;c,d=e&f@g!", "*~+()", "\u00fc\U0001f600\u00a0"],
)
def test_any_other_folder_is_a_lake(spark, tmp_path, name):
    lake = Lake(spark, str(tmp_path / name))
    lake.append(QUARANTINE, rows(("a", None, 1, NOON)))
    lake.update(QUARANTINE, {"reason": "'r'"}, "TRUE")
    for each in (lake, Lake(spark, str(tmp_path / name))):
        assert stored(each) == [("a", "r", 1)]
        assert [row.reason for row in each.read(QUARANTINE).collect()] == ["r"]
    assert changes(lake, QUARANTINE, 1).count() == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_several_steps_ask_is_answered_once_for_each_version(lake, monkeypatch):
    asked = []
    real = lake._answers._sql.answer
    monkeypatch.setattr(lake._answers._sql, "answer", lambda *args: asked.append(args) or real(*args))

    def largest(name):
        return lake.query_shared(f"SELECT max({name}) AS largest FROM {{rows}}", rows=QUARANTINE)["largest"].to_pylist()

    assert largest("size_bytes") == [None]
    lake.append(QUARANTINE, rows(("a", "one", 1, NOON)))
    lake.append(CAPTURE_FILES, CAPTURE_FILES.schema().empty_table())
    assert [largest("size_bytes") for _ in range(3)] == [[1]] * 3
    assert largest("reason") == ["one"]
    lake.append(QUARANTINE, rows(("b", "two", 2, NOON)))
    assert [largest("size_bytes") for _ in range(3)] == [[2]] * 3
    assert len(asked) == 4


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_rows_that_several_queries_share_are_those_of_the_newest_version(lake, monkeypatch, limit):
    monkeypatch.setattr(answer, "_MAX_SHARED_BYTES", limit)
    shared = FilteredTable(QUARANTINE, "size_bytes > 1 AND reason = 'one'", is_shared=True)
    asked = []
    real = lake._answers._sql.answer_at_most
    monkeypatch.setattr(lake._answers._sql, "answer_at_most", lambda *args: asked.append(args) or real(*args))

    def keys(where):
        for source in (shared, shared._replace(is_shared=False)):
            sql = f"SELECT quarantine_key FROM {{rows}} WHERE {where} ORDER BY quarantine_key"
            yield lake.query(sql, rows=source)["quarantine_key"].to_pylist()

    lake.append(
        QUARANTINE, rows(("a", "one", 1, NOON), ("b", "one", 2, NOON), ("c", "one", 3, NOON), ("d", "", 2, NOON))
    )
    assert [*keys("size_bytes < 3")] == [["b"]] * 2
    assert [*keys("seen_at IS NOT NULL")] == [["b", "c"]] * 2
    assert len(asked) == 1
    lake.append(QUARANTINE, rows(("e", "one", 9, None)))
    assert [*keys("TRUE")] == [["b", "c", "e"]] * 2
    assert len(asked) == 2
    version = lake.version(QUARANTINE)
    shutil.rmtree(lake.path(QUARANTINE))  # and another one is made in its place
    other = Lake(lake.spark, lake.root)
    for row in (("f", "one", 2, NOON), ("g", "two", 2, NOON)):
        other.append(QUARANTINE, rows(row))
    assert other.version(QUARANTINE) == version
    assert [*keys("TRUE")] == [["f"]] * 2
