"""What starts the Python workers of a local session: PySpark's own daemon, made ready for short tasks.

- Spark puts its archives (``pyspark.zip``, Py4J, a jar) first on the workers' path, and before every task a worker
  calls ``importlib.invalidate_caches``. Before Python 3.12 that reads an archive's directory anew for each package
  imported from it, 0.15 s for every task: PySpark is taken from where it is installed instead.
- After every task a worker collects garbage, 0.03 s with all modules there are: they are imported before the workers
  are forked, shared among them, and kept out of the collector's sight.
- Rows are many small objects that are no garbage: the collector is to look through them a fiftieth as often.
- A worker that was idle for a minute is sent away by closing its socket; it then prints a traceback because it cannot
  say good-bye. That is no error, and is not shown.
"""

import gc
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any


def without_archives(path: Sequence[str], spark_home: str) -> list[str]:
    """Return a module path without Spark's own archives; the path as it is where PySpark is nowhere else."""
    home = Path(spark_home)
    rest = [entry for entry in path if not (Path(entry).is_relative_to(home) and Path(entry).is_file())]
    found = all(PathFinder.find_spec(name, rest) is not None for name in ("pyspark", "py4j"))
    return rest if found else list(path)


def collect_seldom() -> None:
    """Have the garbage collector look a fiftieth as often as Python's default: when so many objects are new."""
    gc.set_threshold(35_000)


def preload() -> None:
    """Import what the tasks need, and hide it from the garbage collector, before anything is forked."""
    for name in ("pipeline.bronze.capture_source", "pyspark.worker"):
        import_module(name)
    gc.collect()
    gc.freeze()
    collect_seldom()


def show_but_good_bye(show: Callable[..., None]) -> Callable[..., None]:
    """Return a ``traceback.print_exc`` that says nothing when nobody is there any more to be written to."""

    def print_exc(*args: Any, **options: Any) -> None:  # noqa: ANN401 - as the one that it stands for
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            show(*args, **options)

    return print_exc


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path, os.environ["SPARK_HOME"])
    sys.path_importer_cache.clear()  # which holds the archives already: they were searched for this module
    preload()
    traceback.print_exc = show_but_good_bye(traceback.print_exc)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
