"""Very many calls are judged in files, a few columns at a time: as in memory, cell by cell."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from example_counts import one_in
from findings.facts import facts, plain, read
from findings.test_every_call import SAMPLE, varied
from pipeline.arrow_rows import encode_texts
from pipeline.findings import evaluate
from pipeline.findings.columns import call_columns, stored_calls
from pipeline.findings.columns.captured_rows import plain_columns, without_null_columns
from pipeline.findings.columns.stored_calls import StoredCalls

ROUNDS = 4


def in_files(rows, folder):
    stored = StoredCalls(folder, len(rows))
    for name in rows.column_names:
        stored[name] = rows[name]
    return stored


@pytest.fixture(autouse=True)
def few_calls_at_once(monkeypatch):
    monkeypatch.setattr(stored_calls, "_BATCH_ROWS", 7)
    monkeypatch.setattr("pipeline.findings.find_violations._CALLS_AT_ONCE", 10)
    monkeypatch.setattr(call_columns, "_MAX_SHARED_BYTES", 0)


@pytest.mark.parametrize("name", one_in(8, SAMPLE))
def test_calls_in_files_have_the_findings_of_calls_in_memory(project, tmp_path, name):
    sample, found = facts(read(project / "data" / "sample" / name)), 0
    for number in range(ROUNDS):
        given = varied(sample, random.Random(f"{name} {number}"))
        whole = plain(evaluate.evaluate_calls(given))
        folder = tmp_path / str(number)
        folder.mkdir()
        known = pc.is_in(given.calls["connection_id"], given.connections["connection_id"].combine_chunks())
        calls = plain_columns(without_null_columns(given.calls.filter(known), "call_key"))
        stored = in_files(encode_texts(calls, "call_key"), folder)
        assert plain(evaluate.evaluate_calls(given._replace(calls=stored))) == whole
        found += len(whole)
    assert found


def test_a_table_in_files_is_the_table(tmp_path):
    numbers = list(range(20))
    rows = pa.table({"number": numbers, "text": [f"text {number % 3}" for number in numbers],
                     "some": [None if number % 4 else [number] * number for number in numbers]})  # fmt: skip
    rows = encode_texts(rows)
    stored = in_files(rows, tmp_path)
    assert (stored.num_rows, stored.column_names) == (20, rows.column_names)
    assert stored.get("other") is None
    for name in rows.column_names:
        assert stored.column(name).to_pylist() == stored.get(name).to_pylist() == rows[name].to_pylist()
    assert stored.select(["some", "number"]).to_pylist() == rows.select(["some", "number"]).to_pylist()
    for begin, count in ((0, 20), (0, 7), (6, 2), (13, 100), (19, 1)):
        assert stored.slice(begin, count).to_pylist() == rows.slice(begin, count).to_pylist()
    places = pa.array(np.array([19, 0, 7, 7]))
    assert stored.take(places).to_pylist() == rows.take(places).to_pylist()
    first = stored.first(9)
    assert (first.num_rows, first.select(["number"]).to_pydict()) == (9, {"number": numbers[:9]})
    stored["number"] = pa.chunked_array([pc.add(rows["number"].combine_chunks(), 1)])
    assert stored["number"].to_pylist() == [number + 1 for number in numbers]
