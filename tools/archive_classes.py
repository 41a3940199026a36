"""Write an archive of the Java classes that a run loads, for later runs to start from (class data sharing).

Loading and verifying Spark's and Delta's classes is a third of what a run with nothing new costs; from an archive they
are mapped into memory. Java makes it when it ends, of what the whole pipeline loaded over a few captures: a first run,
one in which a capture has grown, and one that finds nothing new. It is passed over by another Java, or with other jars.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext

from jobs import run_all
from jobs.session import PROJECT, java_settings, session

_OPTIONS = "spark.driver.extraJavaOptions"
_CAPTURES = ("01-remoteread-ndr.pcap", "04-qmmgmt.pcapng")
_GROWING = 24_000  # bytes of the first: in mid-connection


def main() -> None:
    """Write the archive to the file named on the command line."""
    archive = Path(sys.argv[1]).absolute()
    made = archive.with_suffix(".new")
    made.unlink(missing_ok=True)
    options = f'{java_settings()[_OPTIONS]} "-XX:ArchiveClassesAtExit={made}" -Xlog:cds*=off'
    spark = session("archive of classes", {_OPTIONS: options, "spark.driver.memory": "1g"})
    with tempfile.TemporaryDirectory() as folder:
        captures = Path(folder) / "captures"
        captures.mkdir()
        for name in _CAPTURES:
            (captures / name).write_bytes((PROJECT / "data" / "sample" / name).read_bytes())
        first = captures / _CAPTURES[0]
        whole = first.read_bytes()
        for content in (whole[:_GROWING], whole, whole):
            first.write_bytes(content)
            if code := run_all.main(["--captures", str(captures), "--lake", f"{folder}/lake"]):
                sys.exit(code)
    gateway = SparkContext._gateway  # noqa: SLF001 - Spark has no other way to tell which Java it started
    spark.stop()
    if gateway is None:
        sys.exit("no Java of our own was started")
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends then, and writes
    gateway.proc.wait(timeout=120)
    made.rename(archive)


if __name__ == "__main__":
    main()
