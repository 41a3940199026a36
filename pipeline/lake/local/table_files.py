"""A table's files, and what its commits brought and took, as the table's log tells.

The log has a line for each action (protocol of Delta: Actions, Action Reconciliation, Checkpoints, Change Data Files).
Where it lies in a folder of this machine that is a fraction of what asking Delta costs, which makes the table's state
anew by a query after each commit. Tables that need more of a reader than deletion vectors are left to Delta.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.lake.local.commits import commit_file, last_checkpoint
from pipeline.lake.local.deletion_vectors import Ints, Vector, rows_gone

File = dict[str, Any]  # what ``add`` says of it
Files = dict[tuple[Any, ...], File]

READ: Final = frozenset({"deletionVectors"})  # features of tables that readers must know, of those that are known
_TOLD: Final = (
    "path", "partitionValues", "size", "modificationTime", "tags", "stats", "deletionVector", "baseRowId",
    "defaultRowCommitVersion", "clusteringProvider",
)  # fmt: skip
_VECTOR: Final = ("storageType", "pathOrInlineDv", "offset")  # what is named so are the same rows that are gone
_MALFORMED: Final = (OSError, ValueError, LookupError, TypeError, AttributeError)


class Listing(NamedTuple):
    """A table's version: its files, by path and vector of rows that are gone, and what was said of the table.

    ``metadata`` and ``protocol`` are the actions of these names.
    """

    version: int
    files: Files
    metadata: dict[str, Any]
    protocol: dict[str, Any]

    @property
    def is_plain(self) -> bool:
        """Whether its rows are those of its files, without those that vectors say are gone, and nothing else."""
        features = set(self.protocol.get("readerFeatures") or ())
        mapped = (self.metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none") != "none"
        return features <= READ and not mapped and not self.metadata.get("partitionColumns")


def listing(log: Path, version: int | None = None, known: Listing | None = None) -> Listing | None:
    """Return what the log tells of a version, the newest by default, going on from an earlier one where that is known.

    None where the log does not tell.
    """
    if known is None or (version is not None and known.version > version):
        known = _of_checkpoint(log, version)
    if known is None:
        return None
    number, files = known.version, known.files
    told = {"metaData": known.metadata, "protocol": known.protocol}
    try:
        while number != version and (version is not None or commit_file(log, number + 1).is_file()):
            if files is known.files:
                files = dict(files)
            number += 1
            for action in _actions(log, number):
                _replay(files, action)
                told |= {name: _known(action[name]) for name in told if name in action}
    except _MALFORMED:
        return None
    if number < 0:
        return None
    return known if number == known.version else Listing(number, files, told["metaData"], told["protocol"])


def _actions(log: Path, version: int) -> Iterator[dict[str, Any]]:
    with commit_file(log, version).open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _replay(files: Files, action: dict[str, Any]) -> None:
    if (gone := action.get("remove")) is not None:
        files.pop(_name(gone), None)
    elif (there := action.get("add")) is not None:
        files[_name(there)] = {name: there[name] for name in _TOLD if there.get(name) is not None}


def _name(action: dict[str, Any]) -> tuple[Any, ...]:
    vector = action.get("deletionVector") or {}
    return action["path"], *(vector.get(part) for part in _VECTOR)


def _of_checkpoint(log: Path, version: int | None) -> Listing | None:
    """Return what the newest checkpoint, of one file, tells; of nothing where there is no checkpoint."""
    newest = last_checkpoint(log)
    if not newest:
        return Listing(-1, {}, {}, {})
    if version is not None and newest > version:
        return None
    try:
        told = pq.read_table(log / f"{newest:020}.checkpoint.parquet", columns=["add", "metaData", "protocol"])
    except (OSError, pa.ArrowException):
        return None
    files: Files = {}
    for there in told["add"].drop_null().to_pylist(maps_as_pydicts="strict"):
        _replay(files, {"add": there})
    said = [told[name].drop_null().to_pylist(maps_as_pydicts="strict") for name in ("metaData", "protocol")]
    return Listing(newest, files, _known(*said[0]), _known(*said[1])) if len(said[0]) == len(said[1]) == 1 else None


def _known(action: dict[str, Any]) -> dict[str, Any]:
    """Return what an action says; a checkpoint has columns too for what it does not."""
    return {name: value for name, value in action.items() if value is not None}


class Rows(NamedTuple):
    """Rows of a file: all, all but those of some numbers (``without``), or those alone (``only``)."""

    path: Path
    without: Ints | None = None
    only: Ints | None = None


def rows_of(folder: Path, files: Sequence[File]) -> list[Rows]:
    """Return the rows of files of a table; ValueError or OSError where it cannot be told which are gone."""
    return [_all_but(folder, file) for file in files]


class Change(NamedTuple):
    """Rows that a commit brought or took: ``kind`` is ``insert`` or ``delete``, None where a column of theirs says."""

    version: int
    kind: Literal["insert", "delete"] | None
    rows: list[Rows]


def changes(folder: Path, since: int, until: int) -> list[Change]:
    """Return what the commits after a version, up to another, brought and took, of files that are there.

    ValueError where the log does not tell, or a file is there no more.
    """
    found: list[Change] = []
    try:
        for version in range(since + 1, until + 1):
            found += _changes(folder, version, list(_actions(folder / "_delta_log", version)))
    except _MALFORMED as error:
        raise ValueError(f"{folder}: what changed after version {since} is not told: {error}") from error
    gone = {str(rows.path) for change in found for rows in change.rows if not rows.path.is_file()}
    if gone:
        raise ValueError(f"{folder}: gone are {', '.join(sorted(gone))}")
    return found


def _changes(folder: Path, version: int, actions: Sequence[dict[str, Any]]) -> Iterator[Change]:
    told = [action["cdc"] for action in actions if action.get("cdc") is not None]
    if told:  # then these alone tell
        yield Change(version, None, [Rows(path_of(folder, file)) for file in told])
        return
    came, went = ({each["path"]: each for each in _data(actions, name)} for name in ("add", "remove"))
    both = came.keys() & went.keys()
    rows: Mapping[str, list[Rows]] = defaultdict(list)
    for kind, files in (("insert", came), ("delete", went)):
        rows[kind].extend(_all_but(folder, file) for path, file in files.items() if path not in both)
    for path in sorted(both):
        was, now = (rows_gone(files[path].get("deletionVector"), folder) for files in (went, came))
        for kind, numbers in (("insert", np.setdiff1d(was, now)), ("delete", np.setdiff1d(now, was))):
            if len(numbers):
                rows[kind].append(Rows(path_of(folder, came[path]), only=numbers))
    if rows["insert"]:
        yield Change(version, "insert", rows["insert"])
    if rows["delete"]:
        yield Change(version, "delete", rows["delete"])


def _data(actions: Sequence[dict[str, Any]], name: str) -> Iterator[File]:
    """Yield the files of actions that change data: others move it only."""
    return (action[name] for action in actions if action.get(name) is not None and action[name].get("dataChange", True))


def _all_but(folder: Path, file: File) -> Rows:
    vector: Vector | None = file.get("deletionVector")
    return Rows(path_of(folder, file), rows_gone(vector, folder) if vector else None)


def path_of(folder: Path, file: Mapping[str, Any]) -> Path:
    """Return where a file is: its path is a URI, most often one relative to the table's folder."""
    named = urlparse(file["path"])
    return folder / unquote(named.path)
