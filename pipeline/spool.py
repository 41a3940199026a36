"""Standard input and named pipes -> a file, which is then a capture like any other."""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext
from pathlib import Path

from pipeline.bronze.input_files import InputError

_CHUNK = 1 << 20


def spool(uri: str, folder: Path, limit: int) -> Path:
    """Copy a pipe to a file in the folder and return it; at most ``limit`` bytes, else ``InputError``.

    The file is named by its content, so that the same bytes piped again are the same file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".spooling-{'stdin' if uri == '-' else Path(uri).name}"
    digest, size = hashlib.sha256(), 0
    opened = nullcontext(sys.stdin.buffer) if uri == "-" else Path(uri).open("rb")  # noqa: SIM115
    try:
        with opened as stream, temporary.open("wb") as out:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > limit:
                    break
                digest.update(chunk)
                out.write(chunk)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if size > limit:
        temporary.unlink()
        raise InputError(f"{uri}: more than {limit} bytes (capture.spool_bytes)")
    target = folder / f"{digest.hexdigest()[:32]}.capture"
    if target.exists():
        temporary.unlink()  # the ledger knows this file with its time
    else:
        temporary.replace(target)
    return target
