"""Rows in Arrow: each key once, and texts that come often."""

import pyarrow as pa

from pipeline.arrow_rows import encode_texts, unique_rows


def test_of_rows_with_one_key_the_first_stays_in_its_place():
    rows = pa.table({"key": ["b", None, "a", "b", None, "c"], "place": range(6)})
    assert unique_rows(rows, "key")["place"].to_pylist() == [0, 1, 2, 5]
    once = rows.slice(1, 3)
    assert unique_rows(once, "key") is once
    assert unique_rows(rows.slice(0, 0), "key").num_rows == 0


def test_texts_but_for_keys_are_dictionaries_of_the_same_values():
    chunks = pa.chunked_array([["x", None], ["y", "x"]])
    rows = pa.table({"key": ["1", "2", "3", "4"], "text": chunks, "number": [1, 2, 3, 4], "many": [["x"]] * 4})
    found = encode_texts(rows, "key")
    assert found.to_pylist() == rows.to_pylist()
    assert found.drop_columns("text").equals(rows.drop_columns("text"))
    assert found["text"].type == pa.dictionary(pa.int32(), pa.string())
    assert found["text"].chunk(0).dictionary.to_pylist() == ["x", "y"]
    assert encode_texts(found, "key").equals(found)
