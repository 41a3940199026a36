"""Spark's tasks and this process compute the same rows, cell by cell."""

from __future__ import annotations

import json

import pytest

import pipeline.lake.lake as lake_module
from end_to_end.lakes import facts, tables
from jobs import run_all
from pipeline.lake.lake import Lake

pytestmark = pytest.mark.spark
SAMPLE = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")


@pytest.fixture
def computed(spark, project, tmp_path, monkeypatch, capsys):
    """Run all layers on a new lake; return its rows, and what the summary says of the engine."""

    def run(engine: str, *, rows_in_memory: int | None = None):
        root = str(tmp_path / f"{engine} {rows_in_memory}")
        captures = [str(project / "data" / "sample" / name) for name in SAMPLE]
        with monkeypatch.context() as patched:
            if rows_in_memory is not None:
                patched.setattr(lake_module, "MAX_ROWS_IN_MEMORY", rows_in_memory)
            assert run_all.main(["--lake", root, "--set", f"run.engine={engine}", "--captures", *captures]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]
        return {name: facts(rows) for name, rows in tables(Lake(spark, root)).items()}, said

    return run


def test_both_engines_compute_the_same_rows(computed):
    here, said = computed("local")
    assert sum(map(len, here.values())) > 1000
    assert (said["name"], said["started"], said["tasks"]) == ("local", False, 0)
    assert {"bronze", "attempts", "sequences", "findings"} <= {*said["in_driver"]}

    by_tasks_here, said = computed("local", rows_in_memory=-1)
    assert not said["started"]
    assert by_tasks_here == here

    in_spark, said = computed("spark")
    assert (said["name"], said["started"], said["master"]) == ("spark", True, "local[2]")
    assert said["tasks"] >= len(SAMPLE)
    assert "bronze" not in said["in_driver"]
    assert "attempts" in said["in_driver"]
    assert in_spark == here

    all_in_spark, all_said = computed("spark", rows_in_memory=-1)
    assert all_said["jobs"] > said["jobs"]
    assert not {"attempts", "findings"} & {*all_said["in_driver"]}
    assert all_in_spark == here
