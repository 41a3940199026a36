"""Files that a job writes where its user says: whole or not at all, and never over what jobs read."""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final, get_args

from jobs import cli
from jobs.config import ConfigError
from pipeline.bronze.input_files import file_identity
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOT_FILES
from schemas.table import Layer

_PART_SUFFIX: Final = ".msmq-part"
_OPTIONS_WITH_INPUTS: Final = ("conf", "keys", "redact_key")


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file whose contents take the place of ``path`` when the block ends without an exception.

    Until then ``path`` is what it was. A link stays a link, and what it leads to is replaced. A device or a pipe is
    written directly. Remains of runs that were killed are removed. OSError if the file cannot be written.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as out:
            yield out
        return
    target = path.resolve()
    _remove_remains(target)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_PART_SUFFIX}")
    with part.open("xb") as out:
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(out, fcntl.LOCK_EX)
            yield out
            out.flush()
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _remove_remains(target: Path) -> None:
    """Remove unfinished files of earlier runs for the same target; one that is being written is locked."""
    beside = target.parent.iterdir() if target.parent.is_dir() else ()
    for part in [each for each in beside if each.name.startswith(f".{target.name}.") and each.suffix == _PART_SUFFIX]:
        with suppress(OSError), part.open("rb") as remains:
            fcntl.flock(remains, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def check_outputs(job_run: cli.JobRun, lake: Lake, paths: Iterable[Path]) -> None:
    """Raise ConfigError if writing one of the files would destroy what a job reads.

    Refused are files in the lake's own folders, and files that are, by whatever name or link, an input: a capture or a
    snapshot file of the lake's ledgers, or a file that an option or a setting names.
    """
    existing: dict[tuple[int, int], Path] = {}
    root = None if LakePath(job_run.arguments.lake).is_remote else Path(job_run.arguments.lake).resolve()
    for path in paths:
        target = path.resolve()
        below = target.relative_to(root).parts if root is not None and target.is_relative_to(root) else ()
        if below and (below[0] in get_args(Layer) or below[0].startswith("_")):
            raise ConfigError(f"{path}: lies among the tables of the lake; choose another place")
        if target.is_file() and (identity := file_identity(str(target))) is not None:
            existing[identity] = path
    if not existing:
        return
    for used in chain(_named_files(job_run), _ledger_files(lake)):
        if (identity := file_identity(str(used))) is not None and (written := existing.get(identity)) is not None:
            raise ConfigError(f"{written}: is {used}, which jobs read; choose another name")


def _named_files(job_run: cli.JobRun) -> Iterator[str | Path]:
    """Yield the files that options and settings name."""
    for option in _OPTIONS_WITH_INPUTS:
        if (path := getattr(job_run.arguments, option, None)) is not None:
            yield path
    for section in fields(job_run.config):
        settings: Any = getattr(job_run.config, section.name)
        yield from (value for each in fields(settings) if isinstance(value := getattr(settings, each.name), Path))


def _ledger_files(lake: Lake) -> Iterator[str]:
    """Yield the files that were read into the lake."""
    for ledger in (CAPTURE_FILES, SNAPSHOT_FILES):
        yield from lake.query("SELECT path FROM {rows}", rows=ledger)["path"].to_pylist()
