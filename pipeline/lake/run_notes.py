"""Runs that write to a lake: what ``bronze.runs`` says of them, and which of them have not ended.

From its first commit until its end a run is in a file of the lake. At its end it appends its row, as the last commit,
and removes the file. A run that was killed leaves the file, and so does one that an error ended, which notes how: the
next run that holds the lake appends the row. No watermark tells of the table, and nothing is computed from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from pipeline.lake.lake_path import LakePath
from schemas.bronze import RUNS
from schemas.table import EVENT_DATE, RUN_ID, TIMESTAMP
from udfs.rows import RowDict


class RunNote(NamedTuple):
    """What a run says of itself, as values of ``bronze.runs``: as it begins, and more when it has ended.

    ``ended`` takes the exception that ended it, if one did.
    """

    begun: Mapping[str, Any]
    ended: Callable[[BaseException | None], Mapping[str, Any]]

    @property
    def run_id(self) -> Any:  # noqa: ANN401 - as a row has it
        """The run's identifier."""
        return self.begun[RUN_ID]


class UnfinishedRuns:
    """The file ``_runs/unfinished``: the runs that have written to a lake and are not in ``bronze.runs``, as JSON.

    But for ``is_any``, only while holding the lake's lease. Threads of a run may share it.
    """

    def __init__(self, folder: LakePath) -> None:
        self._file, self._lock = folder / "_runs" / "unfinished", Lock()
        self._own: RunNote | None = None
        self._is_noted = False
        self.others: list[RowDict] = []
        """The rows of earlier runs."""

    def is_any(self) -> bool:
        """Whether a run is at work, or one did not get to its end."""
        return self._file.exists()

    def begin(self, own: RunNote | None) -> bool:
        """Read the file for a run that begins; whether there is one: then the run before did not get to its end.

        A run that begins again, since somebody else changed a table, is no earlier run.
        """
        self._own, self._is_noted, self.others = own, False, []
        try:
            rows: list[RowDict] = json.loads(self._file.read_text())
        except FileNotFoundError:
            return False
        except ValueError:  # somebody else wrote it: that a run did not get to its end is true all the same
            return True
        self.others = [_parsed(row) for row in rows if own is None or row[RUN_ID] != own.run_id]
        return True

    def note_commit(self) -> None:
        """Write that the run is at work, if that is not written yet: call it before a table changes."""
        with self._lock:
            if not self._is_noted:
                self._is_noted = True
                self._write()

    def forget_others(self) -> None:
        """Take the others out of the file: they are in the table."""
        with self._lock:
            self.others = []
            self._write()

    def note_end(self, error: BaseException, check: Callable[[], None]) -> None:
        """Write how a run ended that an exception ended, if it is at work and ``check`` still lets it write."""
        if self._own is not None and self._is_noted:
            with suppress(Exception):  # the exception that ended the run counts
                check()
                self._write(self._own.ended(error))

    def remove(self) -> None:
        """Remove the file: the run has ended."""
        self._file.remove_file()

    def _write(self, ended: Mapping[str, Any] = MappingProxyType({})) -> None:
        own = [{**self._own.begun, **ended}] if self._own is not None and self._is_noted else []
        self._file.write_text(json.dumps([*self.others, *own], default=datetime.isoformat))


def run_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows of ``bronze.runs`` as an Arrow table; columns that a row does not have are null."""
    schema = pa.schema([field for field in RUNS.schema() if field.name != EVENT_DATE])
    values = ({name: _arrow_value(row.get(name)) for name in schema.names} for row in rows)
    return pa.Table.from_pylist(list(values), schema)


def _arrow_value(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    return list(value.items()) if isinstance(value, Mapping) else value


def _parsed(row: RowDict) -> RowDict:
    """Return a row with its times, which JSON has as texts."""
    times = {column.name for column in RUNS.columns if column.type == TIMESTAMP}
    return {name: datetime.fromisoformat(value) if name in times and value else value for name, value in row.items()}
