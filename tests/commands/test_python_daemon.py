"""Daemon of the Python workers: Spark's archives are not on the path if PySpark is installed; modules are preloaded."""

from __future__ import annotations

import gc
import traceback
import zipfile
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import functions as F

from jobs.command_line.python_daemon import ignore_broken_pipe, preload_modules, remove_spark_archives

THRESHOLD = 700  # Python's default: new objects that start a garbage collection
SITE = str(Path(pyspark.__file__).parents[1])


@pytest.fixture
def home(tmp_path):
    lib = tmp_path / "python" / "lib"
    lib.mkdir(parents=True)
    for name in ("pyspark.zip", "py4j-0.10-src.zip"):
        with zipfile.ZipFile(lib / name, "w") as archive:
            archive.writestr("nothing.py", "")
    return tmp_path


def test_spark_s_archives_go_where_pyspark_is_installed_too(home, tmp_path):
    ours = str(tmp_path / "python")  # folders below the home stay, and archives of others
    path = [
        "",
        str(home / "python/lib/pyspark.zip"),
        str(home / "python/lib/py4j-0.10-src.zip"),
        ours,
        "/x/y.zip",
        SITE,
    ]
    assert remove_spark_archives(path, str(home)) == ["", ours, "/x/y.zip", SITE]


def test_the_path_stays_where_pyspark_comes_from_its_archive_alone(home):
    path = [str(home / "python/lib/pyspark.zip"), "/nowhere"]
    assert remove_spark_archives(path, str(home)) == path


def test_the_garbage_collector_does_not_look_at_preloaded_modules_and_is_on_again_after_them():
    before = gc.get_freeze_count()
    try:
        preload_modules("colorsys")
        assert gc.get_freeze_count() > before
        with pytest.raises(ModuleNotFoundError):
            preload_modules("no_such_module")
        assert gc.isenabled()
    finally:
        gc.unfreeze()


@pytest.mark.spark
def test_workers_start_with_the_reader_loaded_and_without_archives(spark):
    @F.udf("string")
    def seen(_row):
        import sys  # noqa: PLC0415 - of the worker

        archives = [entry for entry in sys.path if entry.endswith("pyspark.zip")]
        return f"{'udfs.capture.capture_reader' in sys.modules} {archives}"

    assert spark.range(1).select(seen("id")).first()[0] == "True []"


@pytest.mark.spark
def test_workers_keep_the_memory_they_freed_and_seldom_look_for_garbage(spark):
    @F.udf("string")
    def seen(_row):
        import gc  # noqa: PLC0415 - of the worker
        import os  # noqa: PLC0415

        kept = [os.environ.get(f"MALLOC_{name}_THRESHOLD_") for name in ("TRIM", "MMAP")]
        return f"{gc.isenabled()} {gc.get_threshold()[0] // THRESHOLD} {kept}"

    assert spark.range(1).select(seen("id")).first()[0] == f"True 50 {[str(128 << 20), str(32 << 20)]}"


def test_a_worker_that_cannot_say_good_bye_is_no_error_and_all_else_is_shown(capsys):
    show = ignore_broken_pipe(traceback.print_exc)
    for error in (BrokenPipeError("the worker was idle"), OSError("the disk is full")):
        try:
            raise error
        except OSError:
            show()
    said = capsys.readouterr().err
    assert "the disk is full" in said
    assert "idle" not in said
