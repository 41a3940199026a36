"""Whatever stores the tables, whoever computes and whoever reads the logs: the same rows, cell by cell."""

from __future__ import annotations

import json

import pytest

import pipeline.lake.lake as lake_module
from end_to_end.lakes import facts, tables
from jobs import run_all
from pipeline.lake.lake import Lake

pytestmark = pytest.mark.spark
SAMPLE = ("03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")
ADDED = "01-remoteread-ndr.pcap"
LAKES = {
    "folder, local": ("delta-rs", "local", "auto"),
    "folder, spark": ("delta-rs", "spark", "auto"),
    "spark, local": ("spark", "local", "auto"),
    "spark, spark": ("spark", "spark", "auto"),
    "spark, spark, asked for logs": ("spark", "spark", "spark"),
}

NAMES = [*LAKES]


def run(capsys, root, lake, *captures):
    """Run all layers; return what the summary says of the engine."""
    store, engine, read_log = lake
    settings = (f"lake.store={store}", f"run.engine={engine}", f"lake.read_log={read_log}")
    given = [argument for setting in settings for argument in ("--set", setting)]
    assert run_all.main(["--lake", str(root), *given, "--captures", *map(str, captures)]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])["engine"]


def rows_of(spark, root):
    return {name: facts(rows) for name, rows in tables(Lake(spark, str(root))).items()}


@pytest.mark.parametrize(
    "names",
    [
        [NAMES[0], NAMES[3]],
        *(pytest.param([NAMES[0], other], marks=pytest.mark.long) for other in (NAMES[1], NAMES[2], NAMES[4])),
    ],
)
def test_all_lakes_have_the_same_rows(spark, project, tmp_path, capsys, names):
    """Of some captures, and of one more: the last lake in two runs, those before in one; then nothing.

    A run that has nothing new changes no table.
    """
    data = project / "data"
    captures = [*(data / "sample" / name for name in SAMPLE), data / "transfers" / "03-transactions.pcapng"]
    every, expected = [*captures, data / "sample" / ADDED], {}
    for name in names:
        root, lake = tmp_path / name, LAKES[name]
        for given in (captures, every) if name == names[-1] else (every,):
            said = run(capsys, root, lake, *given)
            rows = rows_of(spark, root)
            assert sum(map(len, rows.values())) > 700
            assert rows == expected.setdefault(len(given), rows), name
            assert said["name"] == lake[1]
            assert said["started"] == ("spark" in lake)
            assert ("bronze" in said["in_driver"]) == (lake[1] == "local")
        versions = {str(table): Lake(spark, str(root)).version(table) for table in lake_module.ALL_TABLES}
        said = run(capsys, root, lake, *every)
        assert said["started"] == (lake[2] == "spark")
        assert (said["jobs"], said["executions"]) == (0, 0) or lake[2] == "spark"
        assert {str(table): Lake(spark, str(root)).version(table) for table in lake_module.ALL_TABLES} == versions


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_tasks_compute_what_the_driver_does(spark, project, tmp_path, monkeypatch, capsys, engine):
    captures = [project / "data" / "sample" / name for name in (*SAMPLE, ADDED)]
    run(capsys, tmp_path / "driver", ("delta-rs", "local", "auto"), *captures)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", -1)
    said = run(capsys, tmp_path / "tasks", ("delta-rs", engine, "auto"), *captures)
    assert rows_of(spark, tmp_path / "tasks") == rows_of(spark, tmp_path / "driver")
    if engine == "spark":
        assert said["jobs"] > 5
        assert not {"attempts", "findings"} & {*said["in_driver"]}
    else:
        assert not said["started"]
