"""The project's four packages as one archive: for ``spark-submit --py-files``, and sent to Spark Connect servers.

A Connect server runs the project's functions and its data source in Python workers of its own, which know them by name
alone. They get the code that the client runs, with the session.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from pyspark.sql import SparkSession

PACKAGES = ("jobs", "pipeline", "schemas", "udfs")
_IN_THE_WHEEL = {"conf/quality": "pipeline/suites"}  # as pyproject.toml says; an installed one has no conf
_EPOCH = (1980, 1, 1, 0, 0, 0)
_sent: set[str] = set()  # sessions that have it


def archive(origin: Path) -> bytes:
    """A zip of the packages in a folder, or the archive itself; the same sources give the same bytes."""
    if origin.is_file():
        return origin.read_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for place, path in sources(origin).items():
            member = zipfile.ZipInfo(place, _EPOCH)
            member.external_attr = 0o644 << 16
            packed.writestr(member, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def sources(folder: Path) -> dict[str, Path]:
    """Every file of the packages but caches, by its place in them, in order; with what the wheel has in them too."""
    folders = {name: name for name in PACKAGES} | _IN_THE_WHEEL
    found = {
        (PurePosixPath(place) / path.relative_to(folder / name).as_posix()).as_posix(): path
        for name, place in folders.items()
        for path in (folder / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    return dict(sorted(found.items()))


def is_connected(spark: SparkSession) -> bool:
    """Whether a session is one with a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def send(spark: SparkSession, origin: Path) -> None:
    """Give a Connect server the code, once for each session; a classic session, and Databricks, have it already."""
    if not is_connected(spark) or "DATABRICKS_RUNTIME_VERSION" in os.environ or spark.session_id in _sent:  # type: ignore[attr-defined]
        return
    data = archive(origin)
    with tempfile.TemporaryDirectory() as folder:
        # Named by its content: a server keeps what it has under a name.
        place = Path(folder) / f"msmq-{hashlib.sha256(data).hexdigest()[:16]}.zip"
        place.write_bytes(data)
        spark.addArtifacts(str(place), pyfile=True)
    _sent.add(spark.session_id)  # type: ignore[attr-defined]
