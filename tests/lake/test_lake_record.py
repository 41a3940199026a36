"""What stores a lake is chosen when it is made, recorded, and holds."""

import json
from pathlib import Path

import pytest

from jobs import run_all
from pipeline.lake.errors import StoreError
from pipeline.lake.lake_path import LakePath
from pipeline.lake.lake_record import choose_store, record_store


def choose(root, wanted=None, *, in_catalog=False):
    return choose_store(
        LakePath(str(root)), wanted=wanted, default="spark" if in_catalog else "delta-rs", in_catalog=in_catalog
    )


def test_a_new_lake_has_what_is_wanted_and_keeps_it(tmp_path):
    assert (choose(tmp_path), choose(tmp_path, in_catalog=True), choose(tmp_path, "spark")) == (
        "delta-rs", "spark", "spark",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == []  # only making a table makes a lake
    lake = tmp_path / "lake"
    record_store(LakePath(str(lake)), "spark")
    record_store(LakePath(str(lake)), "delta-rs")
    assert json.loads((lake / "_lake.json").read_text()) == {"form": 1, "store": "spark"}
    assert (choose(lake), choose(lake, "spark")) == ("spark", "spark")
    with pytest.raises(StoreError, match=r"stored by spark, not by delta-rs: set lake\.store to spark"):
        choose(lake, "delta-rs")
    with pytest.raises(StoreError, match="delta-rs stores no tables of a catalog"):
        choose(tmp_path, "delta-rs", in_catalog=True)


@pytest.mark.parametrize(
    "text", ['{"form": 2, "store": "delta-rs"}', '{"form": 1, "store": "iceberg"}', "{", "[]", "\xff"]
)
def test_a_record_that_this_version_does_not_know_is_refused(tmp_path, text):
    (tmp_path / "_lake.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StoreError, match="made by another version of this program"):
        choose(tmp_path)


def test_a_lake_of_an_earlier_form_is_refused_in_one_line(tmp_path, project, capsys):
    Path(tmp_path, "bronze", "capture_files", "_delta_log").mkdir(parents=True)
    captures = str(project / "data" / "sample" / "08-endpoint-mapper.pcap")
    assert run_all.main(["--lake", str(tmp_path), "--captures", captures]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err == (
        f"run_all: {tmp_path}: made by an earlier version of this program: have run_all make a new lake\n"
    )
