"""Staging files of the captures that a round reads, of which some are read again before anything is written.

Each pass over captures has a folder of its own, and of each capture its newest pass counts. So nothing is left of an
earlier one, where a later one gave no rows of a kind or cut the capture elsewhere, and what a task of an earlier pass
writes late is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from pipeline.bronze.ledger_entries import PlannedRead
from pipeline.lake.lake_path import LakePath, parquet_dataset
from pipeline.lake.staging_files import staged_files, staging_file_name
from udfs.capture.capture_reader import BRONZE_SCHEMAS


@dataclass(slots=True)
class StagedReads:
    """The staging files of a round. ``folder`` is that of the run."""

    folder: LakePath
    _pass_count: int = field(default=0, init=False)
    _newest: dict[str, tuple[LakePath, set[str]]] = field(default_factory=dict, init=False)  # by path of a capture

    def begin_pass(self, captures: Iterable[Sequence[PlannedRead]]) -> LakePath:
        """Return the folder to read captures into, each given by its parts; what was read of them before is void."""
        into = self.folder / f"read-{self._pass_count}"
        self._pass_count += 1
        for parts in captures:
            self._newest[parts[0].file.path] = into, {staging_file_name(part.name) for part in parts}
        return into

    def files(self, kind: str) -> dict[LakePath, int]:
        """Return the files with the rows of a table, or of another kind, and their bytes."""
        names: dict[LakePath, set[str]] = {}
        for folder, of_capture in self._newest.values():
            names.setdefault(folder, set()).update(of_capture)
        return {
            file: size
            for folder in sorted(names)
            for file, size in staged_files(folder / kind).items()
            if file.name in names[folder]
        }

    def rows(self, kind: str) -> pa.Table:
        """Return the rows of a table, or of another kind."""
        return parquet_dataset([*self.files(kind)], BRONZE_SCHEMAS[kind]).to_table()
