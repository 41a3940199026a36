"""Captures that get new keys get them wherever rows name them, in sightings too; two may swap keys."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from engines import without_spark
from pipeline.bronze.ingest_clock import IngestClock
from pipeline.bronze.write_tables import BronzeWriter
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from schemas.bronze import RPC_CALLS
from schemas.sessions import SESSION_PACKETS

RENAMED = {"a": "b", "b": "a", "c": "d"}


@pytest.mark.parametrize("table", [RPC_CALLS, SESSION_PACKETS], ids=str)
def test_sightings_too(tmp_path, table):
    lake = Lake(without_spark(), str(tmp_path / "lake"))
    key, fields = table.key[0], table.struct()["sightings"].dataType.elementType.fieldNames()
    columns = [name for name in ("capture_id", "response_capture_id") if name in table.names]

    def row(number, capture, sightings, name):
        seen = sightings and [
            {field: name(each) if field in columns else None for field in fields} for each in sightings
        ]
        return {key: str(number), **dict.fromkeys(columns, name(capture)), "sightings": seen}

    given = [("a", "ab"), ("x", "xc"), ("x", "x"), ("c", None), ("x", None), ("b", [])]
    before, after = (
        pa.Table.from_pylist([row(n, *one, name) for n, one in enumerate(given)], table.schema())
        for name in (str, lambda each: RENAMED.get(each, each))
    )
    lake.append(table, before)
    plan = SimpleNamespace(renamed_captures=RENAMED)
    BronzeWriter(lake, "run", LakePath(str(tmp_path)), {}, plan, IngestClock()).rename_captures()
    found = lake.select(table, "TRUE").sort_by(key)
    assert found.to_pylist() == after.to_pylist()
