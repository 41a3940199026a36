"""Delta's jars into the project's cache, once, each checked against conf/jars.sha256.

Spark's own resolver (Ivy) fetches them by name, so that whatever mirror or proxy the machine is set up for is used.
Of what they depend on nothing is fetched: Spark brings it.

    python tools/fetch_jars.py [--check]     --check: only say by the exit code whether they are all there
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "jars"
GROUP = "io.delta"
# The groups that Delta depends on; only Delta's own jars are wanted.
OTHERS = ("com.*", "commons-*", "io.airlift", "io.unitycatalog", "jakarta.*", "javax.*", "org.*")
ATTEMPTS = 3


def pinned() -> dict[str, str]:
    """{file name: SHA-256} of conf/jars.sha256."""
    lines = (ROOT / "conf" / "jars.sha256").read_text(encoding="utf-8").split("\n")
    return {name: digest for digest, name in (line.split() for line in lines if line)}


def wrong(folder: Path) -> list[str]:
    """The names of the pinned jars that are not in the folder, or not the bytes that were pinned."""
    return [name for name, digest in pinned().items() if _digest(folder / name) != digest]


def _digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def fetch() -> list[str]:
    """Fetch the jars into the cache; what is wrong afterwards."""
    names = [name.removesuffix(".jar").rpartition("-") for name in pinned()]
    packages = ",".join(f"{GROUP}:{artifact}:{version}" for artifact, _, version in names)
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as work:
        nothing = Path(work) / "nothing.py"
        nothing.write_text("", encoding="utf-8")
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", "local[1]", "--conf", f"spark.jars.ivy={work}/ivy", "--packages", packages),
            *("--exclude-packages", ",".join(f"{group}:*" for group in OTHERS), str(nothing)),
        ]
        # spark-submit looks for Spark with the python3 of the path, which may not have it: see README, Limits.
        settings = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        for attempt in range(ATTEMPTS):
            done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
            fetched = {path.name: path for path in Path(work).rglob("jars/*.jar")}
            if done.returncode == 0 and pinned().keys() <= {name.removeprefix(f"{GROUP}_") for name in fetched}:
                break
            print(f"attempt {attempt + 1} of {ATTEMPTS} failed", file=sys.stderr)
        else:
            print(done.stderr[-4000:], file=sys.stderr)
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob("delta-*.jar"):
            old.unlink()
        for name, path in fetched.items():
            if (plain := name.removeprefix(f"{GROUP}_")) in pinned():
                shutil.copyfile(path, CACHE / plain)
    return wrong(CACHE)


def main() -> int:
    """0 when every pinned jar is in the cache."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return int(bool(wrong(CACHE)))
    bad = fetch()
    for name in bad:
        print(f"{name} is missing in {CACHE}, or is not what conf/jars.sha256 pins", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
