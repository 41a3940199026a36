"""Derived tables: when nothing, some rows or all are recomputed, and what their provenance keeps."""

import json
from dataclasses import dataclass, replace

import pytest

from engines import without_spark
from pipeline.arrow_rows import rows_to_table
from pipeline.lake.incremental import CODE_VERSION, DerivedTable, KeptState, UnknownChangesError
from pipeline.lake.lake import Lake
from queue_states.in_memory_update import row
from schemas.bronze import PENDING, QUARANTINE
from schemas.coverage import COVERAGE

TABLE = DerivedTable(COVERAGE, (QUARANTINE, PENDING), code_version="1", needs=(QUARANTINE,))
PART = replace(TABLE, part="of another update")
CHANGED = "SELECT quarantine_key FROM {feed}"


@pytest.fixture
def lake(tmp_path):
    return Lake(without_spark(), str(tmp_path / "lake"))


def add(lake, *keys):
    lake.append(QUARANTINE, rows_to_table([row(QUARANTINE, quarantine_key=key) for key in keys], QUARANTINE.schema()))


class Update:
    """Updates of the table, of which each notes what it recomputes: keys of changed rows, or "all"."""

    def __init__(self, lake, table=TABLE):
        self.lake, self.table = lake, table
        self.settings, self.also, self.error, self.stops_early = {"minutes": 5}, {}, None, False
        self.recomputed = []

    def run(self):
        self.recomputed = []
        step = self.table.begin(self.lake, self.settings, self.also)
        return None if step is None else step.recompute(lambda: self.find(step), lambda keys: self.write(step, keys))

    def find(self, step):
        if self.error is not None:
            raise self.error
        return {each["quarantine_key"] for each in step.changes(QUARANTINE, CHANGED)}

    def write(self, step, keys):
        self.recomputed.append("all" if keys is None else sorted(keys))
        if self.stops_early and keys is not None:
            raise UnknownChangesError
        every = self.lake.select(QUARANTINE, "TRUE")["quarantine_key"].to_pylist()
        rows = rows_to_table([row(COVERAGE, coverage_key=key) for key in every], COVERAGE.schema())
        return step.replace_changed(rows, self.lake.select(COVERAGE, "TRUE"))


def after(update, *keys):
    add(update.lake, *keys)
    update.run()
    return update.recomputed


def test_nothing_then_all_then_what_changed(lake):
    update = Update(lake)
    assert update.run() is None  # no input exists
    add(lake, "a", "b")
    assert (update.run(), update.recomputed) == (2, ["all"])
    assert (update.run(), update.recomputed) == (None, [])
    assert after(update, "c") == [["c"]]
    lake.create(PENDING)  # another input without a change that affects anything
    assert (update.run(), update.recomputed) == (0, [])
    assert update.run() is None


@pytest.mark.parametrize(
    "change",
    [
        lambda update: setattr(update, "error", UnknownChangesError()),
        lambda update: setattr(update, "settings", {"minutes": 6}),
        lambda update: setattr(update, "table", replace(TABLE, code_version="2")),
    ],
    ids=["unknown", "settings", "code"],
)
def test_all_rows_are_recomputed_where_those_of_before_cannot_be_kept(lake, change):
    update = Update(lake)
    add(lake, "a")
    update.run()
    change(update)
    assert after(update, "b") == ["all"]
    assert lake.select(COVERAGE, "TRUE").num_rows == 2
    assert update.run() is None


def test_what_turns_out_to_be_too_much_while_it_is_recomputed_is_all(lake):
    update = Update(lake)
    add(lake, "a")
    update.run()
    update.stops_early = True
    assert after(update, "b") == [["b"], "all"]


def test_another_value_that_is_no_setting_is_for_the_table_to_find(lake):
    update = Update(lake)
    update.also = {"names": {"10.0.0.1": "one"}}
    add(lake, "a")
    update.run()
    update.also = {"names": {"10.0.0.1": "two"}}
    assert (update.run(), update.recomputed) == (0, [])  # it is asked, and finds nothing
    assert update.run() is None


def test_rows_of_a_lake_of_before_are_recomputed_exactly_once(lake):
    update = Update(lake)
    add(lake, "a")
    update.run()
    before = lake.versions.provenance(COVERAGE)
    version = before.pop(CODE_VERSION)
    lake.note_provenance(COVERAGE, json.dumps(before | {"counted": version, "session rules": "5"}))
    assert (update.run(), update.recomputed) == (0, ["all"])
    assert lake.versions.provenance(COVERAGE) == before | {CODE_VERSION: version}
    assert update.run() is None
    assert after(update, "b") == [["b"]]


def test_what_changed_in_several_inputs_is_one_answer(lake):
    add(lake, "a")
    Update(lake).run()
    upper = "SELECT upper(quarantine_key) AS quarantine_key FROM {feed}"
    queries = [(QUARANTINE, CHANGED), (PENDING, "SELECT pending_key FROM {feed}"), (QUARANTINE, upper)]
    assert TABLE.compare(lake).all_changed_rows(queries) is None
    add(lake, "b")
    (found,) = TABLE.compare(lake).all_changed_rows(queries).columns
    assert sorted(found.to_pylist()) == ["B", "b"]  # the other input does not exist
    lake.append(PENDING, rows_to_table([row(PENDING, pending_key="p")], PENDING.schema()))
    with pytest.raises(UnknownChangesError):  # what it had before is not known
        TABLE.compare(lake).all_changed_rows(queries)


def test_what_several_updates_ask_of_a_change_feed_is_asked_once_between_two_versions(lake, monkeypatch):
    add(lake, "a")
    Update(lake).run()
    Update(lake, PART).run()
    asked, real = [], lake._log.changes
    monkeypatch.setattr(lake._log, "changes", lambda *feed: asked.append(feed) or real(*feed))

    def changed(table):
        rows = table.compare(lake).shared_changed_rows(QUARANTINE, CHANGED)
        return None if rows is None else rows["quarantine_key"].to_pylist()

    assert [changed(TABLE), changed(PART), len(asked)] == [None, None, 0]
    add(lake, "b")
    assert [changed(TABLE), changed(PART), len(asked)] == [["b"], ["b"], 1]
    Update(lake).run()
    add(lake, "c")
    asked.clear()
    assert [changed(TABLE), sorted(changed(PART)), len(asked)] == [["c"], ["b", "c"], 2]


def test_parts_of_a_provenance_are_carried_on(lake):
    first, second = Update(lake), Update(lake, PART)
    add(lake, "a")
    for update in (first, second):
        update.run()
        assert update.recomputed == ["all"]
    for update in (first, second, first):
        update.run()
        assert update.recomputed == []
    add(lake, "b")
    for update in (second, first):
        update.run()
        assert update.recomputed == [["b"]]
    assert TABLE.provenance(lake) == PART.provenance(lake)
    found = lake.versions.provenance(COVERAGE)
    assert found[f"{PART.part} {QUARANTINE}"] == found[str(QUARANTINE)]  # as maintenance finds versions of tables


@pytest.mark.parametrize("store", ["delta-rs", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_part_replaces_its_own_rows_alone(tmp_path, store, request):
    """The rows of a run, computed by two updates: each makes all of its rows anew."""
    engine = without_spark() if store == "delta-rs" else request.getfixturevalue("spark")
    lake = Lake(engine, str(tmp_path / "lake"), store=store)
    add(lake, "a")
    for number, names in enumerate((("1", "2"), ("2",), ("3", "4"))):
        for kind in ("x", "y"):
            table = replace(TABLE, part=kind, code_version=str(number), rows=f"coverage_key LIKE '{kind}%'")
            rows = [row(COVERAGE, coverage_key=kind + name) for name in names]
            written = table.begin(lake).replace_all(rows_to_table(rows, COVERAGE.schema()))
            assert written == len(names)
            assert table.begin(lake) is None
        found = lake.select(COVERAGE, "TRUE")["coverage_key"].to_pylist()
        assert sorted(found) == sorted(kind + name for kind in "xy" for name in names)


@dataclass(frozen=True, slots=True)
class _State(KeptState):
    ends: dict[str, int]
    clock: str | None


def test_a_state_is_kept_whole_or_not_at_all(lake):
    add(lake, "a")
    step = TABLE.begin(lake)
    with pytest.raises(UnknownChangesError):
        step.kept(_State)
    step.keep(_State({"10.0.0.1": 5}, None))
    step.replace_all(COVERAGE.schema().empty_table())
    add(lake, "b")
    assert TABLE.begin(lake).kept(_State) == _State({"10.0.0.1": 5}, None)
    assert _State.of({"ends": {}}) is None
