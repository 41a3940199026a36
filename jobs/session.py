"""The Spark session of a job, and where the project's packages were loaded from.

Whoever starts the process decides the settings. Under ``spark-submit``, Databricks or Spark Connect they are made
before this code runs (``conf/spark.conf``, which set-up writes; the cluster), and nothing is added. Only a process
started as plain Python (``python -m jobs.run_all``, the tests) gets the local settings below. Delta's jars are local
files of the project's cache: resolving them by name would need the network at every start.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from jobs import shipping
from jobs.config import ConfigError
from jobs.python_daemon import collect_seldom
from jobs.shipping import PACKAGES
from pipeline.lake.codegen import INTERPRETED
from pipeline.lake.parquet_options import DISTINCT, GROUP_BYTES, GROUP_ROWS, STUBS

# How long a thread that computes keeps the interpreter from those that have an answer of Java or DuckDB: a commit asks
# Java some fifty times.
_TURN_S = 0.0005
PROJECT = Path(__file__).resolve().parents[1]
# With one compiler Java keeps only 48 MB for what it made; a long run fills them, and all that follows is interpreted.
ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# The collector without threads of its own, with room for what is new, and none of its passes for the sake of classes.
ONE_COLLECTOR = "-XX:+UseSerialGC -Xms1g -XX:NewSize=512m -XX:MetaspaceSize=256m"
CLASSES = PROJECT / ".cache" / "classes.jsa"  # what Java starts from; tools/archive_classes.py makes it
JARS_VARIABLE = "MSMQ_JARS"  # a folder with Delta's jars, for where the project's cache is not (an installed wheel)

# Each of these in the environment means that somebody else chose the session: spark-submit started this process,
# a Spark Connect server is named, or it is a Databricks cluster.
STARTED_BY_OTHERS = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "DATABRICKS_RUNTIME_VERSION")

# Classes of Java that PySpark asks for by name again and again, with what it asks these for most.
ASKED_FOR: Mapping[str, tuple[str, ...]] = {
    "functions": ("col", "lit"),
    "org.apache.spark.sql.functions": ("col", "lit"),
    "org.apache.spark.sql.classic.SparkSession": ("getActiveSession", "setActiveSession"),
    "PythonRDD": (),
    "PythonSQLUtils": (),
    "PythonUtils": ("toSeq",),
    "SerDeUtil": (),
    "SimplePythonFunction": (),
    "SparkSession": ("setActiveSession",),
}

# What Delta needs wherever it runs, and what makes small lakes on few cores quick. Shared by the local session and by
# the properties file of spark-submit.
SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": "16",  # adaptive execution joins small ones; 200 are slow on a laptop
    "spark.hadoop.parquet.block.row.count.limit": str(GROUP_ROWS),
    "spark.sql.parquet.pushdown.inFilterThreshold": "500",  # named values; each is a level of Java's stack
    "spark.hadoop.parquet.block.size": str(GROUP_BYTES),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 has no statistics, and is half as large again
    # Counted for each value, and used by nobody: how large values are, and which stub is the least and the greatest.
    "spark.hadoop.parquet.size.statistics.enabled": "false",
    **{f"spark.hadoop.parquet.column.statistics.enabled#{stub}": "false" for stub in STUBS},
    # Where in Python and in Java each column and frame was made, for messages of errors: thousands of questions.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.databricks.delta.snapshotPartitions": "1",  # 50 by default: seconds for each commit to a small table
    # Lakes in local folders: Hadoop keeps a file of checksums beside each file there, and starts a process for the
    # permissions of both, a tenth of a first load. Parquet's own checksums, of each page, are looked at instead.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Commits to them by the same file system: Delta's store for HDFS starts a process for each name, to see if it is a
    # link. Both exclude commits of one process alone; other processes are excluded by the lake's lease.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "spark.python.unix.domain.socket.enabled": "true",  # 10-30 % faster than TCP between Java and Python
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in DISTINCT},
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Local only: no name of this machine has to resolve, so that it starts without any network; and this project's
# packages are on the workers' path, as they are on the driver's.
LOCAL_SETTINGS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "jobs.python_daemon",
    # What a worker frees it uses again soon: the C library keeps it (up to so many bytes, and arrays up to its limit of
    # 32 MB) rather than have the system clear fresh pages for each block of packets: 5 % of a first load's time.
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    **INTERPRETED,  # until a run finds much to read
}


def session(app_name: str, overrides: Mapping[str, str] | None = None) -> SparkSession:
    """The session to work with: the one there is, or a local one when this process was started as plain Python.

    ``overrides`` go over the local settings (tests use them), never over those of somebody else's session.
    """
    builder = SparkSession.builder.appName(app_name)
    if started_as_plain_python():
        collect_seldom()  # rows of remainders and of gold are many small objects here too
        sys.setswitchinterval(_TURN_S)
        # Workers would otherwise be whichever python3 is first on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        for name, value in {**local_settings(), **(overrides or {})}.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    remember(spark)
    if shipping.is_connected(spark):
        shipping.send(spark, one_origin())
    return spark


def remember(spark: SparkSession) -> None:
    """Keep what PySpark asks Java for by name; nothing under Spark Connect, or where a platform lets nobody ask.

    Each use of ``F.col`` asks which class "functions" is, and Java looks for one of that bare name in all its archives
    first, each time. A run with little new asked 17,000 such questions, a tenth of its time.
    """
    java = getattr(spark, "_jvm", None)
    if java is None:
        return
    try:
        for name, members in ASKED_FOR.items():
            found = getattr(java, name)
            for member in members:
                setattr(found, member, getattr(found, member))
            setattr(java, name, found)
    except Py4JError:  # then it is asked each time, as ever
        return


def started_as_plain_python() -> bool:
    """True when nobody has chosen the session's settings: no launcher, no server, and no session in this process."""
    return not any(os.environ.get(name) for name in STARTED_BY_OTHERS) and SparkSession.getActiveSession() is None


def local_settings() -> dict[str, str]:
    """The settings of the local session; ConfigError when Delta's jars are not in the project's cache."""
    return {
        **SETTINGS,
        **LOCAL_SETTINGS,
        **java_settings(),
        "spark.jars": ",".join(str(jar) for jar in delta_jars()),
        "spark.sql.warehouse.dir": (PROJECT / ".cache" / "warehouse").as_uri(),
    }


def java_settings(classes: Path = CLASSES) -> dict[str, str]:
    """The driver's Java options: Spark's own log kept to errors, where the project's log settings are; few threads.

    A run of seconds is over before the optimising compiler has paid for itself; on two cores it competes with the
    work. Without it 200 MB of captures take three quarters of the time, and 1 GB no more than with it. The collector
    that works beside the program costs such a run two fifths of its CPU time. ``classes`` is an archive of loaded
    classes, used if it is there and fits this Java and these jars: it saves a third of the time of a run that finds
    nothing new.
    """
    path = PROJECT / "conf" / "log4j2.properties"
    logging = [f"-Dlog4j2.configurationFile={path.as_uri()}"] if path.exists() else []  # not with an installed wheel
    shared = [f'"-XX:SharedArchiveFile={classes}"', "-Xlog:cds*=off"] if classes.exists() else []
    return {"spark.driver.extraJavaOptions": " ".join([*logging, *shared, ONE_COMPILER, ONE_COLLECTOR])}


def delta_jars() -> list[Path]:
    """Delta's jars on this machine, sorted; ConfigError when there are none or they are of another version."""
    folder = Path(os.environ.get(JARS_VARIABLE) or PROJECT / ".cache" / "jars")
    jars = sorted(folder.glob("delta-*.jar"))
    try:
        wanted = version("delta-spark")
    except PackageNotFoundError as error:
        raise ConfigError("the package delta-spark is not installed: run 'make setup'") from error
    if not any(jar.name.startswith("delta-spark_") for jar in jars):
        raise ConfigError(
            f"Delta's jars are not in {folder}: run 'make setup', or name their folder in {JARS_VARIABLE}"
        )
    if others := [jar.name for jar in jars if not jar.stem.endswith(f"-{wanted}")]:
        raise ConfigError(f"{folder} holds {', '.join(others)}, but delta-spark is {wanted}: run 'make setup'")
    return jars


def one_origin() -> Path:
    """The folder or archive that holds all four packages; ConfigError when they come from different ones.

    The names are short, and other projects use them too: a stranger's ``schemas`` would be imported silently.
    """
    found: dict[str, Path] = {}
    for name in PACKAGES:
        file = import_module(name).__file__
        if file is None:
            raise ConfigError(f"the package {name} that is imported has no __init__.py: it is not this project's")
        found[name] = Path(file).parents[1]
    # Spark puts a copy of an archive given by --py-files before the original on the path when the session starts, so
    # that what is imported later comes from the copy: the same archive is the same origin.
    if len(set(found.values())) > 1 and len({_content(place) for place in found.values()}) > 1:
        places = ", ".join(f"{name} from {place}" for name, place in found.items())
        raise ConfigError(f"packages of different origin: {places}")
    return found["jobs"]


def _content(place: Path) -> str:
    """What tells origins apart: an archive's bytes, a folder's path."""
    return hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else str(place)
