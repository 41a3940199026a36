"""Spark session of a job, and a check that the project's packages come from one installation.

The launcher of the process chooses the Spark settings. Under ``spark-submit``, Databricks or Spark Connect they are set
before this code runs (``conf/spark.conf``, which set-up writes, or the cluster), and stay. Only a process started as
plain Python (``msmq run_all``, the tests) gets the local settings below. Where ``spark-submit`` starts Spark in the
driver's own process (a master that begins with ``local``), those are added that only such a Spark may have: workers of
other machines do not have the project's folder. Delta's jars are local files of the project's cache, because resolving
them by name would need the network at every start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from jobs.cli import log_progress
from jobs.command_line import code_archive
from jobs.command_line.code_archive import PACKAGES
from jobs.command_line.java_process import JAVA
from jobs.command_line.pinned_jars import invalid_jars, pinned_jars
from jobs.command_line.private_folder import LOCAL_FOLDERS_VARIABLE, PRIVATE_FOLDER
from jobs.command_line.python_daemon import WORKER_ENVIRONMENT, reduce_garbage_collection
from jobs.config import ConfigError
from pipeline.lake.engine import codegen, session_settings
from pipeline.lake.engine.sessions import REMOTE_VARIABLES
from pipeline.lake.storage.parquet import DISTINCT_VALUED_COLUMNS, GROUP_BYTES, MAX_ROW_GROUP_ROWS, STUB_COLUMNS

# Longest time that a computing thread keeps the interpreter lock from threads with a response from Java or DuckDB. One
# commit calls Java about fifty times.
_SWITCH_INTERVAL_S = 0.0005
PROJECT_ROOT = Path(__file__).resolve().parents[1]
# With one compiler Java reserves only 48 MB for compiled code. A long run fills them; then new code is interpreted.
C1_COMPILER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Garbage collector without its own threads, with a large young generation, and without collections to unload classes.
SERIAL_GC_OPTIONS = "-XX:+UseSerialGC -Xms1g -XX:NewSize=512m -XX:MetaspaceSize=256m"
JAVA_CLASS_ARCHIVE = PROJECT_ROOT / ".cache" / "classes.jsa"  # class data sharing; made by tools/archive_classes.py
_CLASS_ARCHIVE_LOG = ("-Xlog:cds*=off", "-Xlog:cds*=warning:stderr")  # says why the archive is not used
_CLASS_ARCHIVE_REFUSED = re.compile(r"\[[\d.]+s\]\[(warning|error) *\]\[cds")
_START_LINES = 100  # of Java's output, at most
JARS_VARIABLE = "MSMQ_JARS"  # folder with Delta's jars, for an installed wheel, which has no project cache

# Environment variables that a launcher sets: spark-submit, a Spark Connect client, or a Databricks cluster. If one is
# set, the launcher has chosen the settings of the session.
LAUNCHER_VARIABLES = ("PYSPARK_GATEWAY_PORT", *REMOTE_VARIABLES)

# Environment variables that configure other Sparks and Hadoops: left by a profile, they would break a local session.
OTHER_SPARKS = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")  # prefixes
KEPT_VARIABLES = (LOCAL_FOLDERS_VARIABLE,)  # where Spark's temporary files are
_MAX_SOCKET_FOLDER = 60  # characters: a socket's path has at most 103 on some systems, and its name has 42

_MIN_JAVA: Final = 17
_NO_ESCAPES = "spark.sql.parser.escapedStringLiterals"  # a setting by which SQL is as in Spark 1

# Java classes that PySpark looks up by name for each call, with their most used members.
CACHED_JAVA_MEMBERS: Mapping[str, tuple[str, ...]] = {
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

_HADOOP_UMASK = "spark.hadoop.fs.permissions.umask-mode"  # Hadoop sets permissions, whatever the process's umask is

# Settings that name classes of Delta's jars.
DELTA_SETTINGS: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}

# Settings that Delta needs, and settings that make small lakes on few cores fast. The local session and the properties
# file of spark-submit share them.
SPARK_SETTINGS: Mapping[str, str] = {
    **DELTA_SETTINGS,
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.shuffle.partitions": "16",  # adaptive execution merges small ones; 200 are slow on a laptop
    "spark.hadoop.parquet.block.row.count.limit": str(MAX_ROW_GROUP_ROWS),
    "spark.sql.parquet.pushdown.inFilterThreshold": "500",  # literals of an IN list; each takes a level of Java's stack
    "spark.hadoop.parquet.block.size": str(GROUP_BYTES),
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # INT96 is larger and has no statistics
    # Statistics that no query uses: sizes of values, and minimum and maximum of stubs.
    "spark.hadoop.parquet.size.statistics.enabled": "false",
    **{f"spark.hadoop.parquet.column.statistics.enabled#{stub}": "false" for stub in STUB_COLUMNS},
    # Call sites of columns and frames, for error messages: they cost thousands of calls to Java.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.databricks.delta.stats.limitPushdown.enabled": "false",  # a query more for each table that is read whole
    "spark.databricks.delta.snapshotPartitions": "1",  # the default, 50, costs seconds per commit to a small table
    # For lakes in local folders. By default Hadoop writes a checksum file beside each file and starts a process to set
    # the permissions of both, a tenth of the time of a first load. Parquet's page checksums are verified instead.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Commits use the same file system: Delta's log store for HDFS starts a process for each name to check for links.
    # Both stores only exclude concurrent commits of one process. The lake's lease excludes other processes.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    "spark.python.unix.domain.socket.enabled": "true",  # 10 to 30 % faster than TCP between Java and Python
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in DISTINCT_VALUED_COLUMNS},
    _HADOOP_UMASK: "077",  # of the files of a lake; the local session has that of the process
    "spark.hadoop.fs.defaultFS": "file:///",  # a path is one of this machine, whatever HADOOP_CONF_DIR says
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Settings of the local session only. It starts without a network, because no host name has to be resolved.
LOCAL_SPARK_SETTINGS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

# Settings of each Spark whose workers are processes of this machine, also of one that spark-submit has started.
LOCAL_WORKER_SETTINGS: Mapping[str, str] = {
    "spark.python.daemon.module": "jobs.command_line.python_daemon",
    **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
    **codegen.OFF_SETTINGS,  # until a run has much to read
}


class StartSession(Protocol):
    """Makes the Spark session of this process, in whatever thread."""

    def __call__(self, *, needs_delta: bool = True) -> SparkSession:
        """``needs_delta``: whether Spark stores tables; if not, a local session does without Delta's jars."""


def get_spark_session(
    app_name: str, overrides: Mapping[str, str] | None = None, *, scratch_folder: Path | None = None
) -> SparkSession:
    """Return the Spark session: the existing one, or a local one if this process was started as plain Python.

    ``overrides`` replace local settings (for tests). They do not apply to a session that a launcher has set up. The
    temporary files of a local session are in the process's private folder in ``scratch_folder``. A Spark Connect
    session also receives the project's code.
    """
    return prepare_session(app_name, overrides, scratch_folder=scratch_folder)()


def prepare_session(
    app_name: str, overrides: Mapping[str, str] | None = None, *, scratch_folder: Path | None = None
) -> StartSession:
    """Return what ``get_spark_session`` does, to be done later and in another thread.

    Who started this process, its environment and its umask are looked at and set now: other threads do not see the
    session of this one, and disturb this one where they change what all share.
    """
    is_plain, umask = started_as_plain_python(), f"{_umask():03o}"
    if is_plain:
        set_local_environment()

    def start(*, needs_delta: bool = True) -> SparkSession:
        builder = SparkSession.builder.appName(app_name)
        if is_plain:
            settings = {"spark.app.name": app_name, **local_spark_settings(needs_delta=needs_delta)}
            settings |= overrides or {}
            settings |= _temporary_file_settings(PRIVATE_FOLDER.path(scratch_folder), settings)
            settings[_HADOOP_UMASK] = umask
            for name, value in settings.items():
                builder = builder.config(name, value)
            with _keep_interrupt_handler():
                start_java(settings)
                spark = builder.getOrCreate()
        else:
            for name, value in _submitted_local_settings().items():
                builder = builder.config(name, value)
            spark = builder.getOrCreate()
        _require_escapes(spark)
        cache_java_members(spark)
        if code_archive.is_spark_connect(spark):
            code_archive.upload_code(spark, check_single_installation())
        return spark

    return start


def _submitted_local_settings() -> dict[str, str]:
    """Return what is added to the settings of spark-submit: with a local master, what the local workers need.

    Nothing where there is a session already, or where somebody else has set it.
    """
    if not os.environ.get("PYSPARK_GATEWAY_PORT") or SparkContext._active_spark_context is not None:  # noqa: SLF001
        return {}
    SparkContext._ensure_initialized()  # noqa: SLF001 - connects to spark-submit's Java
    conf = SparkConf()
    if not (conf.get("spark.master") or "").startswith("local"):
        return {}
    return {name: value for name, value in local_worker_settings().items() if not conf.contains(name)}


def prepare_process() -> None:
    """Prepare a process that was started as plain Python for much work with rows."""
    if started_as_plain_python():
        reduce_garbage_collection()  # of small objects: rows of bronze.pending and of gold
        sys.setswitchinterval(_SWITCH_INTERVAL_S)


def _require_escapes(spark: SparkSession) -> None:
    """Raise ConfigError if the session takes backslashes in SQL as they are: they escape what texts hold."""
    if session_settings.read(spark, _NO_ESCAPES) == "true":
        raise ConfigError(f"{_NO_ESCAPES} is true in this session: set it to false")


def set_local_environment() -> None:
    """Set the environment of a local session: this Python and its Spark, whatever a profile says about others."""
    for name in [name for name in os.environ if name.startswith(OTHER_SPARKS) and name not in KEPT_VARIABLES]:
        del os.environ[name]
    # Otherwise the workers would run the first python3 on the path.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    home = Path(pyspark.__file__).parent
    if (home / "bin" / "spark-submit").exists():  # else PySpark belongs to a Spark beside it, and looks there
        os.environ["SPARK_HOME"] = str(home)


def _umask() -> int:
    """Return the umask of this process, which only setting one tells."""
    current = os.umask(0o077)
    os.umask(current)
    return current


def _temporary_file_settings(folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which Spark, Java and its Python workers have their temporary files in a folder."""
    options = f'{settings["spark.driver.extraJavaOptions"]} "-Djava.io.tmpdir={folder}"'
    sockets = len(str(folder)) <= _MAX_SOCKET_FOLDER
    return {
        "spark.local.dir": str(folder),
        "spark.driver.extraJavaOptions": options,
        "spark.executorEnv.TMPDIR": str(folder),
        **({} if sockets else {"spark.python.unix.domain.socket.enabled": "false"}),
    }


@contextmanager
def _keep_interrupt_handler() -> Iterator[None]:
    """Keep the handler of Ctrl-C. Spark sets one that waits for Java, which may be busy with the call in progress."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def find_java() -> str:
    """Return the path of the Java that Spark starts; ConfigError if there is none, or one that is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the PATH"
        raise ConfigError(f"{where}: Spark needs Java {_MIN_JAVA} or later; install it, or set JAVA_HOME")
    found = _java_version(java)
    if found is not None and found < _MIN_JAVA:
        wanted = f"Spark needs Java {_MIN_JAVA} or later; install it, or set JAVA_HOME"
        raise ConfigError(f"{java} is Java {found}: {wanted}")
    return java


def _java_version(java: str) -> int | None:
    """Return the version of a Java, without starting it where a file beside it says so; None if it does not say."""
    try:
        text = (Path(java).resolve().parents[1] / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603
    found = re.search(r'(?:\bJAVA_VERSION=| version )"(?:1\.)?(\d+)', text)
    return None if found is None else int(found[1])


def check_spark_can_start(*, needs_delta: bool) -> None:
    """Raise ConfigError if this process would have to start Spark and cannot: without Java, or Delta's jars."""
    if started_as_plain_python():
        find_java()
        if needs_delta:
            delta_jars()


def start_java(settings: Mapping[str, str]) -> None:
    """Start Spark in a Java process whose output is not shown, if there is none yet; ConfigError if it does not start.

    A Java that is too old ends at once.
    """
    java, conf = find_java(), SparkConf().setAll(list(settings.items()))
    if SparkContext._gateway is None:  # noqa: SLF001 - the process stays when a session is stopped
        try:
            with _java_is_known():
                gateway = java_gateway.launch_gateway(  # type: ignore[no-untyped-call]
                    conf,
                    {
                        "stdout": JAVA.output, "stderr": JAVA.output, "pass_fds": PRIVATE_FOLDER.locks,
                        "process_group": 0,  # scripts start it: all are ended together
                    },
                )  # fmt: skip
        except PySparkRuntimeError as error:
            raise ConfigError(
                f"Spark did not start with {java}: it needs Java {_MIN_JAVA} or later. {'; '.join(JAVA.last_lines(3))}"
            ) from error
        logging.getLogger().addFilter(lambda _: False)  # py4j logs there, with tracebacks, what it also raises
        SparkContext(conf=conf, gateway=gateway)
        if notice := _class_archive_notice():
            log_progress(notice)
        JAVA.skip_output()


class _JavaPopen(subprocess.Popen[bytes]):
    """Java's process, which can be ended from the moment on at which it begins: PySpark tells of it seconds later."""

    def __init__(self, command: list[str], *, env: Mapping[str, str], **options: Any) -> None:  # noqa: ANN401
        # The variable would replace spark.local.dir.
        variables = {name: value for name, value in env.items() if name != LOCAL_FOLDERS_VARIABLE}
        super().__init__(command, env=variables, **options)
        JAVA.has_begun(self)


def _class_archive_notice() -> str | None:
    """Return why Java starts slower than it could, if it has no archive of classes; None in a wheel, which has none."""
    if not JAVA_CLASS_ARCHIVE.exists():
        is_checkout = (PROJECT_ROOT / "tools" / "archive_classes.py").exists()
        return f"Java starts slower: there is no {JAVA_CLASS_ARCHIVE}; run 'make setup'" if is_checkout else None
    if why := [line for line in JAVA.last_lines(_START_LINES) if _CLASS_ARCHIVE_REFUSED.match(line)]:
        return f"Java starts slower: it does not take {JAVA_CLASS_ARCHIVE}; run 'make setup' ({why[0]})"
    return None


@contextmanager
def _java_is_known() -> Iterator[None]:
    """Have PySpark start Java as ``_JavaPopen`` within the block."""
    usual = java_gateway.Popen  # type: ignore[attr-defined]
    java_gateway.Popen = _JavaPopen  # type: ignore[assignment, attr-defined]
    try:
        yield
    finally:
        java_gateway.Popen = usual  # type: ignore[attr-defined]


def cache_java_members(spark: SparkSession) -> None:
    """Cache the Java classes and members that PySpark looks up by name; do nothing if Java is not accessible.

    Each use of ``F.col`` looks up the class "functions", and Java first searches all its archives for that name. A run
    with little new input made 17,000 such lookups, a tenth of its time. There is no Java under Spark Connect, and some
    platforms forbid the access.
    """
    java = getattr(spark, "_jvm", None)
    if java is None:
        return
    try:
        for name, members in CACHED_JAVA_MEMBERS.items():
            found = getattr(java, name)
            for member in members:
                setattr(found, member, getattr(found, member))
            setattr(java, name, found)
    except Py4JError:  # access is forbidden: PySpark looks up each name as usual
        return


def started_as_plain_python() -> bool:
    """Whether no launcher has set up Spark: no launcher variable is set, and this process has no active session."""
    return not any(os.environ.get(name) for name in LAUNCHER_VARIABLES) and SparkSession.getActiveSession() is None


def local_spark_settings(*, needs_delta: bool = True) -> dict[str, str]:
    """Return the settings of the local session, with Delta's jars. ConfigError if they are not there and needed."""
    settings = {
        **SPARK_SETTINGS,
        **LOCAL_SPARK_SETTINGS,
        **local_worker_settings(),
        **java_options(),
        "spark.sql.warehouse.dir": (PROJECT_ROOT / ".cache" / "warehouse").as_uri(),
    }
    try:
        # Not spark.jars: Java's archive of classes cannot serve the loader that takes them.
        return {**settings, "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in delta_jars())}
    except ConfigError:
        if needs_delta:
            raise
        return {name: value for name, value in settings.items() if name not in DELTA_SETTINGS}


def local_worker_settings() -> dict[str, str]:
    """Return the settings of workers of this machine; they find the project in its folder or archive, if it has one."""
    installed = str(PROJECT_ROOT) in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return {**LOCAL_WORKER_SETTINGS, **({} if installed else {"spark.executorEnv.PYTHONPATH": str(PROJECT_ROOT)})}


def java_options(class_archive: Path | None = JAVA_CLASS_ARCHIVE) -> dict[str, str]:
    """Return the Java options of the driver: log settings, the archive of classes, one compiler, serial collector.

    Short runs end before the optimising compiler pays off, and on two cores it competes with the work. Without it, 200
    MB of captures take three quarters of the time, and 1 GB takes no more than with it. A concurrent garbage collector
    costs a short run two fifths of its CPU time. ``class_archive`` holds loaded classes (class data sharing). It is
    used if it exists and fits this Java and these jars, and saves a third of the time of a run that finds nothing new.
    """
    path = PROJECT_ROOT / "conf" / "log4j2.properties"
    logging = [f"-Dlog4j2.configurationFile={path.as_uri()}"] if path.exists() else []  # not with an installed wheel
    is_there = class_archive is not None and class_archive.exists()
    shared = [f'"-XX:SharedArchiveFile={class_archive}"', *_CLASS_ARCHIVE_LOG] if is_there else []
    return {"spark.driver.extraJavaOptions": " ".join([*logging, *shared, C1_COMPILER_OPTIONS, SERIAL_GC_OPTIONS])}


def delta_jars() -> list[Path]:
    """Return the paths of Delta's jars, sorted; ConfigError unless they are those that this version was tested with."""
    folder = Path(os.environ.get(JARS_VARIABLE) or PROJECT_ROOT / ".cache" / "jars")
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
    unknown = {jar.name for jar in jars} - pinned_jars().keys()
    if changed := sorted({*unknown, *invalid_jars(folder)}):
        raise ConfigError(
            f"{folder}: {', '.join(changed)}: missing, or not the bytes of conf/jars.sha256: run 'make setup'"
        )
    return jars


def check_single_installation() -> Path:
    """Return the folder or archive that holds all four packages; ConfigError if they come from different ones.

    The package names are short, and other projects use them too: another ``schemas`` would be imported silently.
    """
    found: dict[str, Path] = {}
    for name in PACKAGES:
        file = import_module(name).__file__
        if file is None:
            raise ConfigError(f"the imported package {name} has no __init__.py, so it is not part of this project")
        found[name] = Path(file).parents[1]
    # When a session starts, Spark puts a copy of the --py-files archive on the path, before the original. Modules that
    # are imported later come from the copy. So origins are equal if the archives are.
    if len(set(found.values())) > 1 and len({_origin_identity(place) for place in found.values()}) > 1:
        places = ", ".join(f"{name} from {place}" for name, place in found.items())
        raise ConfigError(f"packages of different origin: {places}")
    return found["jobs"]


def _origin_identity(place: Path) -> str:
    """Return what identifies an origin: the digest of an archive, or the path of a folder."""
    return hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else str(place)
