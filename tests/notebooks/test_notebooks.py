"""The notebooks: their format, and their results on the lake of the sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import run_all
from notebooks.runner import cells, run

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
TOUR, MESSAGE, STUCK, COMQC, QUALITY = NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_explains_itself_and_is_short(path):
    parts = list(cells(path.read_text(encoding="utf-8")))
    texts = [content for is_text, content in parts if is_text]
    assert texts[0].startswith("# ")
    assert sum(len(text.split()) for text in texts) > 80
    assert sum(content.count("\n") for is_text, content in parts if not is_text) < 150
    for number, (is_text, content) in enumerate(parts):
        if not is_text:
            compile(content, f"{path.name}, cell {number}", "exec")


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """The lake of `make demo`."""
    root, data = tmp_path_factory.mktemp("lake"), FOLDER.parent / "data"
    arguments = ["--captures", str(data / "sample"), str(data / "estate" / "wire"), "--snapshots"]
    assert run_all.main(["--lake", str(root), *arguments, str(data / "estate" / "snapshots")]) == 0
    return str(root)


@pytest.mark.spark
@pytest.mark.long
class TestOnTheSample:
    def test_the_tour(self, spark, lake):
        output = run(TOUR, spark, lake=lake)
        files, calls, risks, packets, _ = output.tables
        assert len(files) > 10
        assert len(calls) == 20
        assert {row["loss_risk"] for row in risks} >= {"read_twice", "poison"}
        assert all(row["filter"].startswith("frame.number == ") for row in packets)
        assert len(packets) >= 6
        assert len(output.figures) == 2

    def test_the_message_that_was_handed_out_most(self, spark, lake):
        sightings, attempts, fates, packets = run(MESSAGE, spark, lake=lake).tables
        assert len(attempts) > 5
        assert len([row for row in attempts if row["outcome"] == "acked"]) > 1
        assert len(sightings) > 1
        assert fates[0]["loss_risk"] == "read_twice"
        assert all(row["path"] and row["request_packet"] for row in packets)

    def test_a_message_by_its_label(self, spark, lake):
        sightings, attempts, _, _ = run(MESSAGE, spark, lake=lake, message="order 701").tables
        assert {row["label"] for row in sightings} == {"order 701"}
        assert len(attempts) >= 1

    def test_a_message_that_is_not_there(self, spark, lake, capsys):
        output = run(MESSAGE, spark, lake=lake, message="no such label")
        assert "no message of that name" in capsys.readouterr().out
        assert output.tables == [[], [], [], []]

    def test_the_queue_that_stands_still(self, spark, lake, capsys):
        output = run(STUCK, spark, lake=lake)
        said = capsys.readouterr().out
        assert "Its transfer is stalled since" in said
        assert len(output.figures) == 3
        run(STUCK, spark, lake=lake, queue="growing")
        assert "24 messages" in capsys.readouterr().out

    def test_com_plus_calls_where_there_are_none(self, spark, lake, capsys):
        output = run(COMQC, spark, lake=lake)
        assert capsys.readouterr().out.startswith("0 calls in 0 sightings")
        assert all(rows == [] for rows in output.tables)

    def test_quality(self, spark, lake):
        output = run(QUALITY, spark, lake=lake)
        assert {row["rows"] for row in output.tables[0]} == {0}
        assert len(output.figures) == 1
