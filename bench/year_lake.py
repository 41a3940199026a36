"""A lake as a year of captures leaves it, made of what a real run wrote of a small stretch of traffic.

The template is what the pipeline makes of a hundredth of the newest hour. Its rows are copied through the lake's own
commits: for the rest of that hour with other machines and at other times, and once for each day before it, with the
machines of the template. A copy has keys, messages and captures of its own; the key of an attempt is made of that of
its first call, as a run makes it. Names of queues, packets and stubs are those of the template. Then each table notes
that it rests on its inputs as they are now, and what it keeps of machines also of those of the copies, as after runs
that read all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.bronze import CAPTURE_FILES, PENDING, RPC_CALLS
from schemas.hosts import HOSTS
from schemas.queue_aliases import QUEUE_ALIASES
from schemas.table import Table
from udfs.keys import key

NEWEST_HOUR_COPIES: Final = 99  # beside the template
_COPIES_A_COMMIT: Final = 11
_SECONDS_APART: Final = 3600 // (NEWEST_HOUR_COPIES + 1)
_OPEN: Final = (PENDING,)  # what a run keeps of open connections does not grow with history
_OF_MACHINES: Final = (HOSTS, QUEUE_ALIASES)  # each day has the same
_MESSAGES_A_DAY: Final = 1 << 20  # by which the numbers of the messages of two days differ
_SEQUENCE_IDS: Final = ("sequence_id", "transaction_sequence_id")  # seconds since 1970, and a number of 32 bits
_KEYS_OF_ATTEMPTS: Final = ("attempt_key", "attempt_keys", "sighting_key")
_STARTED_BY: Final = "started by "  # and the key of a call: so the template names an attempt
_ADDRESS: Final = re.compile(r"10(\.\d+){3}$")
_GUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the template: of some days before it, or, with a number other than 0, of other machines earlier on."""

    days: int = 0
    machines: int = 0

    def macro(self) -> str:
        """Return the statement that makes the macro ``copied``: a text of the template as it is in the copy."""
        salt = f"'/{self.days}/{self.machines}'"
        guid = f"CAST(CAST(md5(v[:36] || {salt}) AS uuid) AS text)" if self.machines else "v[:36]"
        number = f"CAST(CAST(v[38:] AS bigint) + {_MESSAGES_A_DAY * self.days} AS text)"
        call_key = rf"'\x20\x00\x00\x00'::blob || md5(v[{len(_STARTED_BY) + 1}:] || {salt})::blob"  # udfs.keys
        cases = [
            f"WHEN regexp_full_match(v, '[0-9a-f]{{32}}') THEN md5(v || {salt})",
            f"WHEN starts_with(v, '{_STARTED_BY}') THEN sha256({call_key})[:32]",
            rf"WHEN regexp_full_match(v, '{_GUID}\\\d+') THEN {guid} || '\' || {number}",
        ]
        if self.machines:
            cases.append(f"WHEN regexp_full_match(v, '{_GUID}') THEN {guid}")
            cases.append(rf"WHEN regexp_full_match(v, '10(\.\d+){{3}}') THEN '{100 + self.machines}' || v[3:]")
        return f"CREATE OR REPLACE TEMP MACRO copied(v) AS CASE {' '.join(cases)} ELSE v END"

    @property
    def seconds(self) -> int:
        """How many seconds before the template it is, beside the days."""
        return _SECONDS_APART * self.machines

    def address(self, address: str) -> str:
        """Return the address of a machine in the copy."""
        return f"{100 + self.machines}{address[2:]}" if self.machines else address

    def kept(self, value: object) -> object:
        """Return what a table keeps of a machine of the copy: a number is a time, microseconds."""
        return value - self.seconds * 1_000_000 if isinstance(value, int) else value

    def column(self, field: pa.Field) -> str:
        """Return SQL for a column of the copy."""
        name = _quoted(field.name)
        if field.name == "association_group_id":
            return f"CASE WHEN {name} <> 0 THEN xor({name}, {self.days * 1_000 + self.machines}) ELSE {name} END"
        if field.name in _SEQUENCE_IDS:
            later = (self.days * 86_400 + self.seconds) << 32
            return f"CASE WHEN {name} >= {later} THEN {name} - {later} ELSE {name} END"
        if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
            is_date = pa.types.is_date(field.type)  # all of the hour are of one date
            seconds, kind = (0, "date") if is_date else (self.seconds, "timestamptz")
            return f"CAST({name} - INTERVAL {self.days} DAY - INTERVAL {seconds} SECOND AS {kind})"
        if pa.types.is_string(field.type):
            return f"copied({name})"
        if pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type):
            return f"list_transform({name}, lambda v: copied(v))"
        return name


def _with_first_calls(rows: pa.Table, first_calls: Mapping[str, str]) -> pa.Table:
    """Return rows that name attempts by their first calls instead of their keys; a value is a key, or several."""

    def named(value: Any) -> Any:
        return [*map(named, value)] if isinstance(value, list) else first_calls.get(value, value)

    for name in {*_KEYS_OF_ATTEMPTS} & {*rows.column_names}:
        values = pa.array(map(named, rows[name].to_pylist()), rows[name].type)
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), values)
    return rows


def _quoted(name: str) -> str:
    return f'"{name}"'


class YearLake:
    """A lake that a run has filled with the template, and that copies are added to."""

    def __init__(self, lake: Lake, *, files_a_day: int) -> None:
        """``files_a_day``: how many captures the ledger gets for each day."""
        self._lake, self._files_a_day = lake, files_a_day
        tables = (table for table in catalog.DATA_TABLES if table not in _OPEN and lake.exists(table))
        template = {table: lake.select(table, "TRUE") for table in tables}
        first_calls = {key(name): _STARTED_BY + name for name in template[RPC_CALLS]["call_key"].to_pylist()}
        self._template = {table: _with_first_calls(rows, first_calls) for table, rows in template.items()}
        self._duckdb = duckdb.connect()

    def rest_of_the_newest_hour(self) -> None:
        """Add what other machines sent in the hour before the end of the template."""
        copies = [Copy(machines=number) for number in range(NEWEST_HOUR_COPIES, 0, -1)]
        self._add(copies[at : at + _COPIES_A_COMMIT] for at in range(0, len(copies), _COPIES_A_COMMIT))

    def days_before(self, first: int, last: int) -> None:
        """Add days of history, the first and the last given by how many days they are before the newest."""
        self._add((Copy(days=days),) for days in range(first, last + 1))

    def _add(self, commits: Iterable[Sequence[Copy]]) -> None:
        with self._lake.hold_exclusive_access(lambda: None):
            rests_on = {table: self._lake.versions.provenance(table) for table in catalog.DATA_TABLES}
            machines: list[Copy] = []
            for copies in commits:
                machines += (copy for copy in copies if copy.machines)
                for table, rows in self._template.items():
                    wanted = [copy for copy in copies if not copy.days or table not in _OF_MACHINES]
                    if wanted and len(rows):
                        self._lake.append(table, pa.concat_tables(self._copied(table, rows, copy) for copy in wanted))
            for table, provenance in rests_on.items():
                if provenance:
                    self._lake.note_provenance(table, json.dumps(self._of_today(provenance, machines)))

    def _copied(self, table: Table, rows: pa.Table, copy: Copy) -> pa.Table:
        """Return the rows of a copy; of the ledger also those of further captures of the day."""
        names = {field.name: copy.column(field) for field in rows.schema}
        self._duckdb.execute(copy.macro())
        source = "rows"
        if table == CAPTURE_FILES:
            names["path"] = f"path || '/{copy.days}/{copy.machines}/' || repeated"
            for name in ("capture_id", "first_key"):
                names[name] = f"CASE repeated WHEN 0 THEN copied({name}) ELSE md5(copied({name}) || repeated) END"
            times = max(self._files_a_day // len(rows), 1) if copy.days else 1
            source = f"rows, range({times}) AS times(repeated)"
        sql = ", ".join(f"{column} AS {_quoted(name)}" for name, column in names.items())
        found: pa.Table = self._duckdb.sql(f"SELECT {sql} FROM {source}").to_arrow_table()
        return found.cast(rows.schema)

    def _of_today(self, provenance: dict[str, object], machines: Iterable[Copy]) -> dict[str, object]:
        """Return a provenance with the present versions of the tables that it names, and other machines."""
        tables = {str(table): table for table in catalog.ALL_TABLES}
        newest = {name: tables.get(name.rpartition(" ")[2]) for name in provenance}
        return {
            name: _of_machines_too(value, machines) if (table := newest[name]) is None else self._lake.version(table)
            for name, value in provenance.items()
        }


def _of_machines_too(kept: object, machines: Iterable[Copy]) -> object:
    """Return what a table keeps by address, with that of copies; anything else as it is."""
    if not isinstance(kept, dict):
        return kept
    known = {name: value for name, value in kept.items() if _ADDRESS.match(name)}
    return kept | {copy.address(name): copy.kept(value) for name, value in known.items() for copy in machines}
