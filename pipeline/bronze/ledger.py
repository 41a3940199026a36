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
_OTHER_PATHS: Final = "(SELECT capture_id, explode(other_paths) AS path FROM {ledger}) AS others"
IS_SAME_FILE: Final = """known.path = files.path AND known.size_bytes = files.size
    AND coalesce(unix_micros(known.modified_at), -1) = coalesce(files.modified_us, -1)"""
"""SQL: whether a file (``files``, as ``files_to_table`` returns them) is as a ledger (``known``) noted it."""
# The files that are not, as they are, the content of a capture; with the captures that name their paths.
_UNKNOWN: Final = f"""
WITH same AS (
  SELECT files.position FROM {{files}} AS files JOIN {{ledger}} AS known
    ON {IS_SAME_FILE}
  WHERE NOT (known.status IS NOT DISTINCT FROM 'unreadable' AND known.damage IS NOT DISTINCT FROM 'unreadable')
), unknown AS (
  SELECT position, path FROM {{files}} WHERE position NOT IN (SELECT position FROM same)
), named AS (
  SELECT capture_id, path FROM {{ledger}}
  UNION ALL SELECT capture_id, path FROM {_OTHER_PATHS}
), found AS (
  SELECT unknown.position, named.capture_id FROM unknown LEFT JOIN named ON named.path = unknown.path
)
SELECT found.position, entries.* FROM found LEFT JOIN (SELECT {_COLUMNS} FROM {{ledger}}) AS entries
  ON entries.capture_id = found.capture_id
ORDER BY found.position"""
_NAMED: Final = f"""
capture_id IN {{name}} OR path IN {{name}}
  OR capture_id IN (SELECT capture_id FROM {_OTHER_PATHS} WHERE path IN {{name}})"""
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
        found = self.query(_UNKNOWN, files=files_to_table(files), ledger=self.rows)
        positions = dict.fromkeys(found["position"].to_pylist())
        rows = {row["capture_id"]: row for row in found.to_pylist() if row["capture_id"] is not None}
        return [files[position] for position in positions], [*map(LedgerEntry.from_row, rows.values())]

    def captures(self, ids: Collection[str], *, first_keys: Collection[str] = ()) -> list[LedgerEntry]:
        """Return the captures of these ids, and those that begin with one of these keys."""
        if not ids and not first_keys:
            return []
        return self._entries("capture_id IN {ids} OR first_key IN {keys}", ids=ids, keys=first_keys)

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

    def _entries(self, condition: str, **values: QueryInput) -> list[LedgerEntry]:
        found = self.query(f"SELECT {_COLUMNS} FROM {{ledger}} WHERE {condition}", ledger=self.rows, **values)
        return [*map(LedgerEntry.from_row, found.to_pylist())]
