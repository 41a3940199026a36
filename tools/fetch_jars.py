"""Fetch Delta's jars into the project's cache and verify them against conf/jars.sha256.

Spark's resolver (Ivy) fetches them by name, so that it uses the mirrors and proxies of the machine. Their dependencies
are not fetched, because Spark contains them.

    python -m tools.fetch_jars [--check]     --check: fetch nothing; exit with 1 if a jar is missing or wrong
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from jobs.command_line.pinned_jars import invalid_jars, pinned_jars

ROOT = Path(__file__).resolve().parents[1]
JAR_FOLDER = ROOT / ".cache" / "jars"
DELTA_GROUP = "io.delta"
# Groups of Delta's dependencies, which are not fetched.
EXCLUDED_GROUPS = ("com.*", "commons-*", "io.airlift", "io.unitycatalog", "jakarta.*", "javax.*", "org.*")
MAX_ATTEMPTS = 3


def fetch_jars() -> list[str]:
    """Fetch the pinned jars into the cache; return the names of those that are still missing or wrong."""
    names = [name.removesuffix(".jar").rpartition("-") for name in pinned_jars()]
    packages = ",".join(f"{DELTA_GROUP}:{artifact}:{version}" for artifact, _, version in names)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as work:
        empty_script = Path(work) / "empty.py"
        empty_script.write_text("", encoding="utf-8")
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[1]", "--conf", f"spark.jars.ivy={work}/ivy", "--packages", packages),
            *("--exclude-packages", ",".join(f"{group}:*" for group in EXCLUDED_GROUPS), str(empty_script)),
        ]
        # Without these, spark-submit looks for PySpark with the first python3 on the path, which may not have it.
        settings = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        for attempt in range(MAX_ATTEMPTS):
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
            fetched = {path.name.removeprefix(f"{DELTA_GROUP}_"): path for path in Path(work).rglob("jars/*.jar")}
            if done.returncode == 0 and pinned_jars().keys() <= fetched.keys():
                break
            print(f"attempt {attempt + 1} of {MAX_ATTEMPTS} failed", file=sys.stderr)
        else:
            print(done.stderr[-4000:], file=sys.stderr)
        JAR_FOLDER.mkdir(parents=True, exist_ok=True)
        for old_jar in JAR_FOLDER.glob("delta-*.jar"):
            old_jar.unlink()
        for name in pinned_jars().keys() & fetched.keys():
            shutil.copyfile(fetched[name], JAR_FOLDER / name)
    return invalid_jars(JAR_FOLDER)


def main() -> int:
    """Fetch or check the jars; return 0 if all pinned jars are in the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fetch nothing; exit with 1 if a jar is missing or wrong")
    if parser.parse_args().check:
        return int(bool(invalid_jars(JAR_FOLDER)))
    invalid = fetch_jars()
    for name in invalid:
        print(f"{name} is missing in {JAR_FOLDER}, or does not have the digest of conf/jars.sha256", file=sys.stderr)
    return int(bool(invalid))


if __name__ == "__main__":
    sys.exit(main())
