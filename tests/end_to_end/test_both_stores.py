"""The whole sample through both stores: every table has the same rows, cell by cell, and others can read them."""

from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from end_to_end.lakes import facts, tables
from jobs import run_all
from pipeline.attempts import server_slices
from pipeline.attempts import update as attempts_update
from pipeline.dashboards.dashboard_data import to_json_value
from pipeline.dashboards.datasets import DATASETS
from pipeline.dashboards.read_datasets import RowLimits, read_dashboard_data
from pipeline.findings import sliced_inputs
from pipeline.findings import update as findings_update
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryAnswers
from schemas import catalog

pytestmark = pytest.mark.spark

AS_OF = "2026-12-01T00:00:00Z"


def run(lake, project, store):
    data = project / "data"
    assert run_all.main([
        "--lake", lake.root, "--captures", str(data / "sample"), "--as-of", AS_OF, "--set", f"lake.store={store}",
        "--snapshots", str(data / "estate" / "snapshots"),
    ]) == 0  # fmt: skip


class Lakes(dict):
    """The same input in a lake of each store, which is made when a test first asks for it."""

    def __init__(self, spark, project, tmp_path_factory):
        super().__init__()
        self.spark, self.project, self.tmp_path_factory = spark, project, tmp_path_factory

    def __missing__(self, store):
        with pytest.MonkeyPatch.context() as patch:  # without the report at the end of a run
            patch.setattr(run_all, "console_summary", lambda _lake: "")
            patch.setattr(run_all, "queue_lines", lambda _lake, _as_of: [])
            self[store] = Lake(self.spark, str(self.tmp_path_factory.mktemp(store)), store=store)
            run(self[store], self.project, store)
        return self[store]


@pytest.fixture(scope="module")
def lakes(spark, project, tmp_path_factory):
    return Lakes(spark, project, tmp_path_factory)


@pytest.mark.long
def test_both_stores_hold_the_same_rows(lakes):
    one, other = (tables(lakes[store]) for store in ("delta-rs", "spark"))
    for name in one:
        assert facts(one[name]) == facts(other[name]), name
    assert sum(rows.num_rows for rows in one.values()) > 5_000


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta-rs", "spark"])
def test_slices_of_servers_change_no_finding(lakes, store, monkeypatch):
    """In tasks, as of many calls, and of slices of a few: the same findings as of whole servers."""
    lake = lakes[store]
    update = findings_update._FindingsUpdate(SimpleNamespace(lake=lake), stubs=True, queues=None)
    whole = lake.map_few_groups(update._findings_of_calls(None)).sort_by("finding_key").to_pylist()
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    monkeypatch.setattr(sliced_inputs, "slice_digits", lambda _calls: 1)
    found = lake.map_few_groups(update._findings_of_calls(None)).sort_by("finding_key").to_pylist()
    assert found == whole
    assert len(whole) > 100
    monkeypatch.setattr(findings_update, "_MAX_CALLS_IN_TASK", 0)
    grouped = update._findings_of_calls(None)
    parts = {name: lake.query(part.sql, **part.inputs) for name, part in grouped.parts.items()}
    made = pa.concat_tables(grouped.function(QueryAnswers(parts))).sort_by("finding_key")
    names = ("finding_key", "rule_id", "subject", "actual", "evidence", "severity", "scope")
    assert made.select(names).to_pylist() == [{name: row[name] for name in names} for row in whole]
    query = sliced_inputs.SlicedInputs.of(lake).connections()
    distinct = query.wrap("SELECT DISTINCT server_address, slice, is_first FROM {answer}")
    places = lake.query(distinct.sql, **distinct.inputs)
    assert places.num_rows > len({*places["server_address"].to_pylist()})
    firsts = places.filter(places["is_first"])["server_address"].to_pylist()
    assert sorted(firsts, key=str) == sorted({*places["server_address"].to_pylist()}, key=str)


@pytest.mark.long
@pytest.mark.parametrize("store", ["delta-rs", "spark"])
def test_slices_of_conversations_change_no_attempt(lakes, store, monkeypatch):
    """Of slices of one call, so that conversations are cut too: the same attempts as of whole servers."""
    lake = lakes[store]
    ends = {server: last for server, (last, _) in attempts_update._read_servers(lake).items()}
    update = attempts_update._AttemptsUpdate(SimpleNamespace(lake=lake), 300, (), ends)
    whole = lake.map_few_groups(update._attempts(None)).sort_by("attempt_key").to_pylist()
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    monkeypatch.setattr(server_slices, "_CALLS_IN_ONE_SLICE", 1)
    monkeypatch.setattr(server_slices, "_CALLS_PER_SLICE", 1)
    queries = server_slices.attempt_queries(lake, None, ends)
    assert queries["calls"].inputs["large"].num_rows > 10
    assert lake.map_few_groups(update._attempts(None)).sort_by("attempt_key").to_pylist() == whole
    assert len(whole) > 200


@pytest.mark.long
def test_both_stores_give_pages_the_same_rows(lakes):
    """Whole datasets; and what is cut of them, where no choice is left among equals."""
    moment = datetime(2026, 12, 1, tzinfo=UTC)
    for limits in (RowLimits(), RowLimits(dataset_rows=20, summary_rows=500)):
        one, other = (
            read_dashboard_data(lakes[store], limits=limits, published_at=moment).datasets
            for store in ("delta-rs", "spark")
        )
        assert one.keys() == other.keys()
        chosen = one if limits == RowLimits() else [dataset.name for dataset in DATASETS]  # not what rows refer to
        for name in chosen:
            found, there = one[name], other[name]
            assert (found.total_rows, found.note) == (there.total_rows, there.note), name
            assert found.rows is None or found.rows.column_names == there.rows.column_names
            if found.rows is not None and not found.truncated:
                assert alike(found.rows) == alike(there.rows), name
            if found.summary is not None and found.summary_step_s == there.summary_step_s:
                assert alike(found.summary) == alike(there.summary), name


def alike(rows):
    """Return how often each row occurs, as a page holds it: numbers are numbers, whatever their type or last digit."""

    def shown(value):
        return float(f"{value:.9g}") if isinstance(value, float) else to_json_value(value)

    columns = [map(shown, rows[name].to_pylist()) for name in rows.column_names]
    return Counter(map(repr, zip(*columns, strict=True)))


def test_anybody_reads_the_tables(lakes):
    lake = lakes["delta-rs"]
    for table in catalog.DATA_TABLES:
        if lake.exists(table):
            path, count = lake.path(table), lake.read(table).count()
            delta = DeltaTable(path)
            assert len(delta.to_pandas()) == count
            assert pl.read_delta(path).height == count
            files = [f"{path}/{name}" for name in delta.get_add_actions().column("path").to_pylist()]
            if files:
                assert duckdb.read_parquet(files, union_by_name=True).count("*").fetchall() == [(count,)]
