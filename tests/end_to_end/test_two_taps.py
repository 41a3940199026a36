"""Two machines captured one conversation: each call is one row, also after one capture is read again."""

import pytest

from capture.in_memory import read_captures
from capture.merge.comparing import OF_FILES, OF_THE_RUN, differences
from capture.merge.test_two_captures import MILLISECOND, shifted
from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import remote_read_dialogue
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.lake.lake import Lake
from schemas.bronze import RPC_CALLS
from udfs.capture.capture_reader import BRONZE_SCHEMAS

pytestmark = [pytest.mark.spark, pytest.mark.long]


def tables(lake):
    found = {}
    for table in BRONZE_TABLES:
        if table.name not in OF_FILES:
            schema = BRONZE_SCHEMAS[table.name]
            found[table.name] = lake.select(table, "TRUE", schema.names).cast(schema)
    return found


def test_calls_that_two_captures_saw_are_one_row_each_also_when_one_is_read_again(spark, tmp_path):
    dialogue = remote_read_dialogue(size=9000, cuts=(4000, 4000))
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    captures = [c.pcap(records, magic=c.NANOSECONDS).data, c.pcapng(shifted(records, 30 * MILLISECOND), tsresol=9).data]
    paths = [tmp_path / "one.pcap", tmp_path / "two.pcapng"]
    lake = Lake(spark, str(tmp_path / "lake"))
    for path, capture in zip(paths, captures, strict=True):
        path.write_bytes(capture)
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
    expected = {name: rows for name, rows in read_captures([captures]).items() if name not in OF_FILES}
    assert not (found := differences(tables(lake), expected, left_out=OF_THE_RUN)), "\n".join(found)
    assert {row[0] for row in lake.read(RPC_CALLS).select("observations").collect()} == {2}
    for path in paths:
        assert ingest_captures.main(["--lake", lake.root, "--reprocess", f"capture={path}"]) == 0
        assert not (found := differences(tables(lake), expected, left_out=OF_THE_RUN)), "\n".join(found)
