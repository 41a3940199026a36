"""Which file system a path or URI is of, and the name there: local files, S3, and what else ``pyarrow.fs`` knows.

What reaches an object store comes from the environment of the process alone, the driver's and the workers': AWS_*
variables (ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN, PROFILE, REGION, ENDPOINT_URL, ENDPOINT_URL_S3 and those
of roles), as for every tool of that store. A URI never carries them: it is a row of the ledger, and a line of a log.

The key of an S3 object is what stands behind the bucket's name, byte for byte: spaces, ``?``, ``#`` and ``%`` are
parts of it, not of a URI's grammar.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Final

import pyarrow.fs as pafs

_S3: Final = re.compile(r"s3[an]?://(?P<name>(?P<bucket>[^/]+).*)", re.DOTALL)
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONNECT_S: Final = 10.0
_REQUEST_S: Final = 60.0
_ATTEMPTS: Final = 5


class StoreError(OSError):
    """A place that cannot be used as it is written; the message is one line and says what to do."""


def is_remote(location: str) -> bool:
    """Whether a path or URI is none of this machine's own files."""
    return "://" in location and not location.startswith("file:")


def canonical(location: str) -> str:
    """One spelling for what is one place: Hadoop's ``s3a://`` and ``s3n://`` are S3."""
    found = _S3.fullmatch(location)
    return location if found is None else f"s3://{found['name']}"


def place(location: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the name there; raises ``OSError`` or ``ValueError``."""
    if "://" not in location and not location.startswith("file:"):
        return pafs.LocalFileSystem(), location
    found = _S3.fullmatch(location)
    if found is None:
        if location.startswith(("s3:", "s3a:", "s3n:")):
            raise StoreError("no bucket: expected s3://BUCKET/...")
        filesystem, name = pafs.FileSystem.from_uri(location)
        return filesystem, name
    if "@" in found["bucket"]:
        raise StoreError(
            "credentials do not belong in a URI: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
        )
    if not _BUCKET.fullmatch(found["bucket"]):
        raise StoreError("a bucket is named by letters, digits, dots and hyphens, and is no pattern")
    return _s3(found["bucket"], *_settings()), found["name"].rstrip("/")


def _settings() -> tuple[str | None, str | None]:
    """Where the environment says that the store is, and its region."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    return endpoint, os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


@lru_cache(maxsize=64)
def _s3(bucket: str, endpoint: str | None, region: str | None) -> Any:  # noqa: ANN401 - a file system of pyarrow
    """One client for each bucket and process: making one reads credentials, and asks where the bucket is."""
    if region is None:
        region = "us-east-1" if endpoint else pafs.resolve_s3_region(bucket)
    return pafs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_S,
        request_timeout=_REQUEST_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
    )
