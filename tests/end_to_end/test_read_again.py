"""A connection that only another capture shows to be MSMQ: its captures are read again, and it is complete."""

import pyarrow.compute as pc
import pytest

from capture.merge.comparing import OF_FILES, OF_THE_RUN, PLACES, differences
from jobs import ingest_captures
from pcapgen import containers as c
from pcapgen import conversation as t
from pcapgen import rpc
from pcapgen.model import Dialogue, make_stub
from pipeline.bronze.ingest_captures import BRONZE_TABLES
from pipeline.lake.lake import Lake
from pipeline.quality import coverage
from pipeline.runs.recovery import RunMarkers
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.coverage import COVERAGE
from tests.support.lakes import versions_text
from udfs.capture.capture_reader import BRONZE_SCHEMAS, read_capture

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def captures():
    """A conversation on an unknown port: its bind in one file, more calls than are kept in the other."""
    dialogue = Dialogue(flow=t.Flow(server_port=49777))
    dialogue.bind(rpc.Context(0, rpc.REMOTE_READ))
    dialogue.call(2, make_stub(2, 64), make_stub(3, 20))
    for number in range(400):
        dialogue.call(7, make_stub(7, 56), make_stub(20 + number % 200, 9000), answer_cuts=(4000, 4000))
        dialogue.call(9, make_stub(9, 28), make_stub(10, 4))
    records = t.records(dialogue.flow, t.segments(dialogue.script))
    return [c.pcap(records[:40]).data, c.pcap(records[40:]).data], c.pcap(records).data


def tables(lake):
    found = {}
    for table in BRONZE_TABLES:
        if table.name not in OF_FILES:
            schema = BRONZE_SCHEMAS[table.name]
            found[table.name] = lake.select(table, "TRUE", schema.names).cast(schema)
    return found


@pytest.mark.long
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_connection_that_turns_out_to_be_msmq_is_cut_from_its_captures_again(spark, captures, tmp_path, capfd, order):
    pieces, whole = captures
    lake = Lake(spark, str(tmp_path / "lake"))
    (tmp_path / "ring").mkdir()
    for number in order:
        path = tmp_path / "ring" / f"{number}.pcap"
        path.write_bytes(pieces[number])
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
    expected = {name: rows for name, rows in read_capture(whole).items() if name not in OF_FILES}
    assert expected["rpc_calls"].num_rows == 801
    assert not (found := differences(tables(lake), expected, left_out=PLACES | OF_THE_RUN)), "\n".join(found)
    assert "reading 1 capture files again" in capfd.readouterr().err
    assert {row[0] and tuple(row[0]) for row in lake.read(CAPTURE_FILES).select("reread_endpoints").collect()} == {
        None, ("10.0.0.1|49777|RemoteRead",),
    }  # fmt: skip
    versions = versions_text(lake, *BRONZE_TABLES)
    assert ingest_captures.main(["--lake", lake.root, "--captures", str(tmp_path / "ring")]) == 0
    assert versions_text(lake, *BRONZE_TABLES) == versions


@pytest.mark.long
def test_where_the_capture_is_gone_that_is_said_and_the_rest_stays(spark, captures, tmp_path, capfd):
    pieces, whole = captures
    lake = Lake(spark, str(tmp_path / "lake"))
    for number in (1, 0):
        path = tmp_path / f"{number}.pcap"
        path.write_bytes(pieces[number])
        assert ingest_captures.main(["--lake", lake.root, "--captures", str(path)]) == 0
        path.unlink()
    assert "gone or changed since; connections that other captures identified are not read" in capfd.readouterr().err
    assert 8 < lake.read(RPC_CALLS).where("outcome = 'ok'").count() < 801
    assert RunMarkers.of(lake).captures_to_reread() == {}
    # What was not kept counts as lost, and coverage shows how much that is.
    (uncut,) = read_capture(whole)["connections"].to_pylist()
    (left,) = lake.read(CONNECTIONS).collect()
    assert left.missing_bytes == left.lost_by_capture_bytes > 1 << 20
    read = left.client_bytes + left.server_bytes
    assert read + left.missing_bytes == uncut["client_bytes"] + uncut["server_bytes"]
    coverage.update(lake)
    measures = {row.measure: row.value for row in lake.read(COVERAGE).where("layer = 'transport'").collect()}
    assert (measures["bytes"], measures["bytes_missing"]) == (read, left.missing_bytes)


@pytest.fixture(scope="module")
def named():
    """A client that asks for a port; and another client's reads on it, captured elsewhere without their beginning."""
    asking = Dialogue(flow=t.Flow())
    asking.bind(rpc.Context(0, rpc.REMOTE_READ))
    asking.call(0, b"", (49777).to_bytes(4, "little"))
    reading = Dialogue(flow=t.Flow(client="10.0.0.8", client_port=50001, server_port=49777))
    reading.bind(rpc.Context(0, rpc.REMOTE_READ))
    for _ in range(30):
        reading.call(7, make_stub(7, 56), make_stub(20, 9000), answer_cuts=(4000, 4000))
        reading.call(9, make_stub(9, 28), make_stub(10, 4))
    port_query, later = (t.records(each.flow, t.segments(each.script)) for each in (asking, reading))
    return [c.pcap(port_query).data, c.pcap(later[8:]).data], c.pcap([*port_query, *later[8:]]).data


@pytest.mark.long
@pytest.mark.parametrize("runs", [((1,), (0,)), ((0,), (1,)), ((0, 1),)])
def test_a_port_that_one_capture_names_reaches_the_others(spark, named, tmp_path, capfd, runs):
    pieces, whole = named
    lake = Lake(spark, str(tmp_path / "lake"))
    for number, piece in enumerate(pieces):
        (tmp_path / f"{number}.pcap").write_bytes(piece)
    for numbers in runs:
        paths = [str(tmp_path / f"{number}.pcap") for number in numbers]
        assert ingest_captures.main(["--lake", lake.root, "--captures", *paths]) == 0
    expected = {name: rows for name, rows in read_capture(whole).items() if name not in OF_FILES}
    assert expected["rpc_calls"].filter(pc.equal(expected["rpc_calls"]["server_port"], 49777)).num_rows >= 58
    assert not (found := differences(tables(lake), expected, left_out=PLACES | OF_THE_RUN)), "\n".join(found)
    assert "reading 1 capture files again" in capfd.readouterr().err
    endpoints = {
        (
            row.learned_endpoints and tuple(row.learned_endpoints),
            row.reread_endpoints and tuple(row.reread_endpoints),
        )
        for row in lake.read(CAPTURE_FILES).collect()
    }
    endpoint = ("10.0.0.1|49777|RemoteRead",)
    assert endpoints == {(endpoint, None), (None, endpoint)}
    versions = versions_text(lake, *BRONZE_TABLES)
    assert (
        ingest_captures.main(["--lake", lake.root, "--captures", *(str(tmp_path / f"{n}.pcap") for n in (0, 1))]) == 0
    )
    assert versions_text(lake, *BRONZE_TABLES) == versions
