"""Archive of the project's four packages, for ``spark-submit --py-files`` and for Spark Connect servers.

A Connect server runs the project's functions and its data source in its own Python workers, which import them by name.
So the client uploads its code to the session.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from itertools import chain
from pathlib import Path, PurePosixPath

from pyspark.sql import SparkSession

PACKAGES = ("jobs", "pipeline", "schemas", "udfs")
_WHEEL_DATA = {
    "conf/quality": "pipeline/suites",
    "conf/targets": "pipeline/targets",
    "conf/jars.sha256": "jobs/command_line/jars.sha256",
}  # as in pyproject.toml; an installed wheel has no conf folder
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_uploaded_sessions: set[str] = set()  # ids of Connect sessions that have the code


def build_code_archive(origin: Path) -> bytes:
    """Return a zip of the packages in a folder, or the bytes of an archive; equal sources give equal bytes."""
    if origin.is_file():
        return origin.read_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for member, path in source_files(origin).items():
            entry = zipfile.ZipInfo(member, _ZIP_EPOCH)
            entry.external_attr = 0o644 << 16
            packed.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()


def source_files(folder: Path) -> dict[str, Path]:
    """Return the files of the packages by their path in the archive, sorted; with the data files of the wheel."""
    folders = {package: package for package in PACKAGES} | _WHEEL_DATA
    found = {
        (PurePosixPath(target) / path.relative_to(folder / source).as_posix()).as_posix(): path
        for source, target in folders.items()
        for path in chain([folder / source], (folder / source).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return dict(sorted(found.items()))


def is_spark_connect(spark: SparkSession) -> bool:
    """Whether the session is connected to a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def upload_code(spark: SparkSession, origin: Path) -> None:
    """Upload the code to a Spark Connect server, once per session. Classic sessions and Databricks already have it."""
    if not is_spark_connect(spark) or "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return
    session_id: str = spark.session_id  # type: ignore[attr-defined]
    if session_id in _uploaded_sessions:
        return
    data = build_code_archive(origin)
    with tempfile.TemporaryDirectory() as folder:
        # The name contains a digest: a server keeps the first content that it gets under a name.
        path = Path(folder) / f"msmq-{hashlib.sha256(data).hexdigest()[:16]}.zip"
        path.write_bytes(data)
        spark.addArtifacts(str(path), pyfile=True)
    _uploaded_sessions.add(session_id)
