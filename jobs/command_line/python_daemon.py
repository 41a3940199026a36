"""Start the Python workers of a local session: PySpark's worker daemon, tuned for short tasks.

- Spark puts its archives (``pyspark.zip``, Py4J, a jar) first on the workers' module path. Before every task a worker
  calls ``importlib.invalidate_caches``. Before Python 3.12 this reads the directory of an archive again for each
  package imported from it, 0.15 s per task. So the workers import PySpark from where it is installed.
- After every task a worker collects garbage, 0.03 s with all modules loaded. So the modules are imported before the
  workers are forked, shared among them, and hidden from the collector.
- Rows are many small objects that are not garbage. So the collector runs a fiftieth as often.
- Spark ends a worker that was idle for a minute by closing its socket. The worker then prints a traceback, because its
  last message cannot be sent. This is not an error, and is not printed.
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

# Workers soon reuse the memory that they free. So the C library keeps it (up to 128 MiB, arrays of up to 32 MiB)
# instead of taking cleared pages from the system for each block of packets: 5 % of the time of a first load.
WORKER_ENVIRONMENT = {"MALLOC_TRIM_THRESHOLD_": str(128 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


def remove_spark_archives(path: Sequence[str], spark_home: str) -> list[str]:
    """Return a module path without Spark's archives; unchanged if PySpark is not installed elsewhere."""
    home = Path(spark_home)
    rest = [entry for entry in path if not (Path(entry).is_relative_to(home) and Path(entry).is_file())]
    found = all(PathFinder.find_spec(name, rest) is not None for name in ("pyspark", "py4j"))
    return rest if found else list(path)


def reduce_garbage_collection() -> None:
    """Run the garbage collector a fiftieth as often as by default: after 35,000 new objects instead of 700."""
    gc.set_threshold(35_000)


def preload_modules(*names: str) -> None:
    """Import modules and hide them from the garbage collector, which would look at all of them again and again."""
    gc.disable()
    try:
        for name in names:
            import_module(name)
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()


def ignore_broken_pipe(print_traceback: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``traceback.print_exc`` so that it prints nothing for a BrokenPipeError."""

    def print_exc(*args: Any, **options: Any) -> None:  # noqa: ANN401 - the signature of print_exc
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            print_traceback(*args, **options)

    return print_exc


if __name__ == "__main__":
    sys.path[:] = remove_spark_archives(sys.path, os.environ["SPARK_HOME"])
    sys.path_importer_cache.clear()  # it has entries of the archives, which were searched for this module
    preload_modules("pipeline.bronze.capture_tasks", "pyspark.worker")  # before workers are forked
    reduce_garbage_collection()
    traceback.print_exc = ignore_broken_pipe(traceback.print_exc)
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
