"""Write an archive of the Java classes that a run loads (class data sharing), so that later runs start faster.

Loading and verifying the classes of Spark and Delta is a third of the cost of a run that finds nothing new. Classes in
an archive are mapped into memory instead. Java writes the archive when it exits, from the classes that the pipeline
loaded in three runs: a first run, one in which a capture has grown, and one with nothing new. Another Java version, or
other jars, ignore the archive.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from jobs import run_all
from jobs.session import PROJECT_ROOT, get_spark_session, java_options

_OPTIONS = "spark.driver.extraJavaOptions"
_CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")
_FIRST_BYTES = 24_000  # bytes of the first capture in the first run; they end inside a connection


def main() -> None:
    """Run the pipeline three times and write the archive to the path given on the command line."""
    archive = Path(sys.argv[1]).absolute()
    unfinished = archive.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    options = f'{java_options()[_OPTIONS]} "-XX:ArchiveClassesAtExit={unfinished}" -Xlog:cds*=off'
    spark = get_spark_session("archive of classes", {_OPTIONS: options, "spark.driver.memory": "1g"})
    with tempfile.TemporaryDirectory() as folder:
        captures = Path(folder) / "captures"
        captures.mkdir()
        for name in _CAPTURES:
            (captures / name).write_bytes((PROJECT_ROOT / "data" / "sample" / name).read_bytes())
        growing = captures / _CAPTURES[0]
        complete = growing.read_bytes()
        for content in (complete[:_FIRST_BYTES], complete, complete):
            growing.write_bytes(content)
            if code := run_all.main(["--captures", str(captures), "--lake", f"{folder}/lake"]):
                sys.exit(code)
    gateway = SparkContext._gateway  # noqa: SLF001 - the only access to the Java process
    spark.stop()
    if gateway is None:
        sys.exit("this process did not start Java itself")
    gateway.shutdown()
    gateway.proc.stdin.close()  # then Java exits and writes the archive
    gateway.proc.wait(timeout=120)
    unfinished.rename(archive)


if __name__ == "__main__":
    main()
