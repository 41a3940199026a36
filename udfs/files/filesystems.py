"""Resolve paths and URIs to file systems: local files, S3, and the other schemes of ``pyarrow.fs``.

Credentials and endpoints of S3 come only from the environment of the driver and of the workers, in the usual AWS_*
variables: ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN, PROFILE, REGION, ENDPOINT_URL, ENDPOINT_URL_S3 and those of
roles. A URI must not contain credentials, because it is written to tables and logs.

The key of an S3 object is everything behind the bucket's name, byte for byte. Spaces, ``?``, ``#`` and ``%`` belong to
the key; they are not parsed as a URI.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import Any, Final

import pyarrow.fs as pafs

_S3_SCHEMES: Final = ("s3:", "s3a:", "s3n:")
_S3_URI: Final = re.compile(r"s3[an]?://(?P<name>(?P<bucket>[^/]+).*)", re.DOTALL)
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONNECT_TIMEOUT_S: Final = 10.0
_REQUEST_TIMEOUT_S: Final = 60.0
_MAX_ATTEMPTS: Final = 5


_UNSHOWN: Final = re.compile(r"[\x00-\x1f\x7f\udc80-\udcff]|\\x[0-9a-f]{2}")  # in a file name
_ESCAPED_BYTE: Final = re.compile(rb"\\x([0-9a-f]{2})")


def escape_path(path: str) -> str:
    r"""Return a local path as text that tables, files and terminals can hold: as it is, if possible.

    Bytes that are not UTF-8 and control characters become ``\xNN``, and then backslashes become ``\x5c``, so that
    different names stay different.
    """
    if os.name == "nt" or _UNSHOWN.search(path) is None:
        return path
    return re.sub(r"[\x00-\x1f\x7f\udc80-\udcff\\]", lambda found: f"\\x{os.fsencode(found[0])[0]:02x}", path)


def unescape_path(path: str) -> str:
    """Return the local path that ``escape_path`` returned as this text, for the functions that open files."""
    if os.name == "nt" or "\\x" not in path:
        return path
    return os.fsdecode(_ESCAPED_BYTE.sub(lambda found: bytes([int(found[1], 16)]), os.fsencode(path)))


class StorageLocationError(OSError):
    """A path or URI is not usable as written. The message is one line and says what to change."""


def is_remote_location(location: str) -> bool:
    """Whether a path or URI refers to a remote store, not to a file of this machine."""
    return "://" in location and not location.startswith("file:")


def canonical_location(location: str) -> str:
    """Return a path or URI with Hadoop's schemes ``s3a://`` and ``s3n://`` replaced by ``s3://``."""
    found = _S3_URI.fullmatch(location)
    return location if found is None else f"s3://{found['name']}"


def resolve_filesystem(location: str) -> tuple[Any, str]:
    """Return the ``pyarrow.fs`` file system and the name in it. Raises ``OSError`` or ``ValueError``."""
    if "://" not in location and not location.startswith("file:"):
        return pafs.LocalFileSystem(), location
    if not location.startswith(_S3_SCHEMES):
        filesystem, name = pafs.FileSystem.from_uri(location)
        return filesystem, name
    bucket, name = split_s3_uri(location)
    return _s3_client(*s3_endpoint_and_region(bucket)), name.rstrip("/")


def split_s3_uri(location: str) -> tuple[str, str]:
    """Return the bucket of an S3 URI, and bucket and key; StorageLocationError if it is not usable."""
    found = _S3_URI.fullmatch(location)
    if found is None:
        raise StorageLocationError("no bucket: expected s3://BUCKET/...")
    if "@" in found["bucket"]:
        raise StorageLocationError(
            "credentials do not belong in a URI: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
        )
    if not _BUCKET_NAME.fullmatch(found["bucket"]):
        raise StorageLocationError("a bucket is named by letters, digits, dots and hyphens, and is no pattern")
    return found["bucket"], found["name"]


def s3_endpoint_and_region(bucket: str) -> tuple[str | None, str]:
    """Return the S3 endpoint, None for Amazon's, and the region: from the environment, else the bucket's."""
    endpoint, region = _endpoint_and_region()
    return endpoint, region or ("us-east-1" if endpoint else _bucket_region(bucket))


def _endpoint_and_region() -> tuple[str | None, str | None]:
    """Return the S3 endpoint and region from the environment; None where not set."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
    return endpoint, os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or None


@lru_cache(maxsize=64)
def _bucket_region(bucket: str) -> str:
    """Return the region of a bucket, for which Amazon is asked."""
    return str(pafs.resolve_s3_region(bucket))


@lru_cache(maxsize=64)
def _s3_client(endpoint: str | None, region: str) -> Any:  # noqa: ANN401 - a file system of pyarrow
    """Return an S3 client. Cached, because creating one reads credentials."""
    return pafs.S3FileSystem(
        region=region,
        endpoint_override=endpoint,
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_MAX_ATTEMPTS),
    )
