"""What the ledger ``bronze.capture_files`` has of the files and captures that a plan is about: never all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pipeline.bronze.input_files import InputFile
from pipeline.bronze.ledger_entries import LEDGER_COLUMNS, LedgerEntry, ReprocessSelector
from pipeline.lake.queries.inputs import QueryInput
from schemas.bronze import CAPTURE_FILES

_COLUMNS: Final = ", ".join(LEDGER_COLUMNS)
# Few captures have some. Without the condition all of the column is made into rows.
_OTHER_PATHS: Final = "(SELECT capture_id, explode(other_paths) AS path FROM {ledger} WHERE other_paths IS NOT NULL)"
IS_SAME_FILE: Final = """known.path = files.path AND known.size_bytes = files.size
    AND coalesce(unix_micros(known.modified_at), -1) = coalesce(files.modified_us, -1)"""
"""SQL: whether a file (``files``, as ``files_to_table`` returns them) is as a ledger (``known``) noted it."""
# The files that are, as they are, the content of a capture; of the ledger only rows with a time of some file.
_SAME: Final = f"""
SELECT DISTINCT files.position FROM {{files}} AS files JOIN (SELECT * FROM {{ledger}} WHERE {{{{modified}}}}) AS known
  ON {IS_SAME_FILE}
WHERE NOT (known.status IS NOT DISTINCT FROM 'unreadable' AND known.damage IS NOT DISTINCT FROM 'unreadable')"""
_NAMED_OTHERWISE: Final = f"SELECT DISTINCT capture_id FROM {_OTHER_PATHS} AS others WHERE path IN {{paths}}"
_NAMED: Final = f"""
capture_id IN {{name}} OR path IN {{name}}
  OR capture_id IN (SELECT capture_id FROM {_OTHER_PATHS} AS others WHERE path IN {{name}})"""
_FILES: Final = pa.schema({"position": pa.int64(), "path": pa.string(), "size": pa.int64(), "modified_us": pa.int64()})


def files_to_table(files: Sequence[InputFile]) -> pa.Table:
    """Return files as the input of a query: with their ``position`` among the others, from 0."""
    columns = [range(len(files)), *([getattr(file, name) for file in files] for name in _FILES.names[1:])]
    return pa.table(columns, schema=_FILES)


@dataclass(frozen=True, slots=True)
class Ledger:
    """The ledger of a lake, or rows of one."""

    query: Callable[..., pa.Table]  # ``Lake.query``
    rows: QueryInput = CAPTURE_FILES

    def unknown_files(self, files: Sequence[InputFile]) -> tuple[list[InputFile], list[LedgerEntry]]:
        """Return the files that are not, unchanged, the content of a capture, and the captures that name their paths.

        A file that storage refused is unknown: that may change while the file stays as it is.
        """
        if not files:
            return [], []
        known = [file.modified_us for file in files if file.modified_us is not None]
        modified = ["modified_at IS NULL"] if len(known) < len(files) else []
        if known:
            modified.append(f"modified_at BETWEEN timestamp_micros({min(known)}) AND timestamp_micros({max(known)})")
        sql = _SAME.replace("{{modified}}", " OR ".join(modified))
        same = self.query(sql, files=files_to_table(files), ledger=self.rows)
        positions = {*same["position"].to_pylist()}
        unknown = [file for position, file in enumerate(files) if position not in positions]
        return unknown, self._with_paths({file.path for file in unknown}) if unknown else []

    def _with_paths(self, paths: Collection[str]) -> list[LedgerEntry]:
        """Return the captures that name these paths."""
        others = self.query(_NAMED_OTHERWISE, paths=paths, ledger=self.rows)["capture_id"].to_pylist()
        return self._few_entries("path IN {paths} OR capture_id IN {others}", paths=paths, others={*others})

    def captures(self, ids: Collection[str], *, first_keys: Collection[str] = ()) -> list[LedgerEntry]:
        """Return the captures of these ids, and those that begin with one of these keys."""
        if not ids and not first_keys:
            return []
        return self._few_entries("capture_id IN {ids} OR first_key IN {keys}", ids=ids, keys=first_keys)

    def selected(self, selector: ReprocessSelector) -> list[LedgerEntry]:
        """Return the captures that are to be read again."""
        if selector.captures is not None:
            return self.captures(selector.captures)
        if selector.capture is not None:
            return self._entries(_NAMED, name=selector.capture)
        if (days := selector.days) is not None:
            first, last = (f"CAST({end}_packet_at AS date)" for end in ("first", "last"))
            return self._entries(f"{first} <= DATE'{days.last}' AND {last} >= DATE'{days.first}'")
        if (version := selector.except_decoder_version) is not None:
            return self._entries("decoder_version IS NULL OR NOT (decoder_version IN {version})", version=version)
        return self._entries("TRUE")

    def learned_endpoints(self) -> set[str]:
        """Return the server endpoints that calls of captures named."""
        sql = "SELECT DISTINCT explode(learned_endpoints) AS endpoint FROM {ledger}"
        return set(self.query(sql, ledger=self.rows)["endpoint"].to_pylist())

    def _few_entries(self, condition: str, **values: QueryInput) -> list[LedgerEntry]:
        """Return captures by their keys first: all columns of a ledger are read only where there are some."""
        sql = f"SELECT capture_id FROM {{ledger}} WHERE {condition}"
        found = self.query(sql, ledger=self.rows, **values)["capture_id"].to_pylist()
        return self._entries("capture_id IN {found}", found=found) if found else []

    def _entries(self, condition: str, **values: QueryInput) -> list[LedgerEntry]:
        found = self.query(f"SELECT {_COLUMNS} FROM {{ledger}} WHERE {condition}", ledger=self.rows, **values)
        return [*map(LedgerEntry.from_row, found.to_pylist())]
