"""Two machines captured one conversation: through the jobs, its calls are one row each, and stay so when read again."""

import pytest

from capture.merge.comparing import OF_FILES, OF_THE_RUN, differences
from capture.merge.test_two_captures import MILLISECOND, shifted
from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen.scenarios import reads
from pipeline.bronze.ingest_captures import BRONZE
from pipeline.lake.lake import Lake
from schemas.bronze import RPC_CALLS
from udfs.capture.in_memory import read_together
from udfs.capture.reader import SCHEMAS

pytestmark = [pytest.mark.spark, pytest.mark.long]


def tables(lake):
    found = {}
    for table in BRONZE:
        if table.name not in OF_FILES:
            schema = SCHEMAS[table.name]
            found[table.name] = lake.read(table).select(*schema.names).toArrow().cast(schema)
    return found


def test_calls_that_two_captures_saw_are_one_row_each_also_when_one_is_read_again(spark, tmp_path):
    dialogue = reads(size=9000, cuts=(4000, 4000))
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    captures = [c.pcap(records, magic=c.NANOSECONDS).data, c.pcapng(shifted(records, 30 * MILLISECOND), tsresol=9).data]
    paths = [tmp_path / "one.pcap", tmp_path / "two.pcapng"]
    lake = Lake(spark, str(tmp_path / "lake"))
    for path, capture in zip(paths, captures, strict=True):
        path.write_bytes(capture)
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
    expected = {name: rows for name, rows in read_together([captures]).items() if name not in OF_FILES}
    assert not (found := differences(tables(lake), expected, left_out=OF_THE_RUN)), "\n".join(found)
    assert {row[0] for row in lake.read(RPC_CALLS).select("observations").collect()} == {2}
    for path in paths:
        assert ingest_captures.main(["--lake", lake.root, "--reprocess", f"capture={path}"]) == 0
        assert not (found := differences(tables(lake), expected, left_out=OF_THE_RUN)), "\n".join(found)
