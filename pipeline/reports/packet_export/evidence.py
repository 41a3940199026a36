"""What packets can be asked for, and the keys of calls, packets and connections that are evidence of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import LakeViews
from pipeline.text import format_cell
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS
from schemas.catalog import ALL_TABLES, GOLD
from schemas.coverage import COVERAGE
from schemas.messages import MESSAGES
from schemas.quality import QUALITY_RESULTS
from schemas.table import STRING, STRINGS, Table
from schemas.transfers import MESSAGE_TRANSFERS
from udfs.times import HOUR_US

_EVIDENCE: Final = "evidence"
_NAMING: Final = (_EVIDENCE, "call_key", "packet_key")
_CONNECTION: Final = "connection_id"  # what is exported of a row that names nothing smaller
_QUEUES: Final = ("queue", "destination_queue")
_QUEUE_TABLES: Final = tuple((each, name) for each in GOLD for name in _QUEUES if {name, _EVIDENCE} <= set(each.names))
_SIGHTINGS_SQL: Final = """
SELECT message_key, sighting_key, message_id, label, call_key, packet_key FROM {messages}
WHERE {where}"""
_OF_MESSAGES_SQL: Final = """
SELECT message_key, call_key AS named FROM {messages} WHERE message_key IN {keys}
UNION ALL SELECT message_key, packet_key FROM {messages} WHERE message_key IN {keys}
UNION ALL SELECT message_key, explode(evidence) FROM {receive_attempts} WHERE message_key IN {keys}
UNION ALL SELECT message_key, explode(evidence) FROM {message_transfers} WHERE message_key IN {keys}"""
_OF_QUEUES_SQL: Final = "SELECT DISTINCT named FROM ({parts}) AS every".replace(
    "{parts}",
    " UNION ALL ".join(
        f"SELECT explode(evidence) AS named FROM {{{each.name}}} WHERE {column} IN {{queues}}"
        for each, column in _QUEUE_TABLES
    ),
)
_HOURS_SQL: Final = f"""
SELECT v.coverage_key, c.connection_id, unix_micros(v.hour) AS hour_us
FROM {{coverage}} AS v LEFT JOIN {{connections}} AS c
  ON (v.server_address IS NULL OR c.server_address = v.server_address)
  AND (v.hour IS NULL OR unix_micros(c.last_packet_at) >= unix_micros(v.hour)
    AND unix_micros(c.first_packet_at) < unix_micros(v.hour) + {HOUR_US})
WHERE v.coverage_key IN {{keys}}"""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What packets are asked for: those of all that is given, from ``since`` until ``until``, both included.

    ``calls``, ``packets`` (of the binary protocol) and ``connections`` are keys of bronze, ``rows`` keys of tables
    (``TABLES_WITH_PACKETS``). ``messages``: message_key, sighting_key or message_id; ``label``: a part of the label of
    messages, whatever the case; ``queue``: a part of any name of queues.
    """

    calls: Collection[str] = ()
    packets: Collection[str] = ()
    connections: Collection[str] = ()
    rows: Mapping[Table, Collection[str]] = field(default_factory=dict)
    messages: Collection[str] = ()
    label: str | None = None
    queue: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(slots=True)
class Evidence:
    """Keys of calls, packets and connections, each with the names of what it is evidence of, as that was asked for.

    Keys of anything else may be among them: no packets are found by them. ``rows``: names of what is in the lake, of
    rows, messages and queues; ``unknown``: of what is not. ``hours``: of names that mean one hour its beginning, us.
    """

    names_by_key: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, None] = field(default_factory=dict)
    hours: dict[str, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    def add(self, name: str, keys: Iterable[str | None]) -> None:
        """Add the keys of what is evidence of something that is in the lake."""
        self.rows[name] = None
        for key in keys:
            if key is not None and name not in self.names_by_key[key]:
                self.names_by_key[key].append(name)


def find_evidence(lake: Lake, request: ExportRequest) -> Evidence:
    """Return the keys that are evidence of what is asked for."""
    found = Evidence()
    given = {"call": request.calls, "packet": request.packets, "connection": request.connections}
    for option, keys in given.items():
        for key in dict.fromkeys(keys):
            found.names_by_key[key].append(f"{option} {key}")
    for table, keys in request.rows.items():
        _add_rows(lake, found, table, {key: f"{table} {key}" for key in keys})
    if request.messages or request.label is not None:
        _add_messages(lake, found, request)
    if request.queue is not None:
        _add_queue(lake, found, request.queue)
    return found


def _evidence_columns(table: Table) -> list[str]:
    """Return the columns that name evidence of a row: its connection only where it names nothing smaller."""
    names = [each.name for each in table.columns if each.name in _NAMING and each.type in (STRING, STRINGS)]
    return names or [name for name in table.names if name == _CONNECTION]


TABLES_WITH_PACKETS: Final = {
    str(each): each
    for each in ALL_TABLES
    if len(each.key) == 1 and (_evidence_columns(each) or each in (COVERAGE, QUALITY_RESULTS))
}
"""The tables whose rows lead to packets, by ``layer.name``."""


def _add_rows(lake: Lake, found: Evidence, table: Table, names: Mapping[str, str]) -> None:
    """Add the evidence of rows of a table; ``names`` by their keys."""
    if not names:
        return
    if table is COVERAGE:
        _add_hours(lake, found, names)
    elif table is QUALITY_RESULTS:
        _add_failed_rows(lake, found, names)
    else:
        (key,) = table.key
        selected = f"FROM {{rows}} WHERE {key} IN {{keys}}"
        shown = (f"explode({each})" if each == _EVIDENCE else each for each in _evidence_columns(table))
        parts = [f"SELECT {key} AS row_key, {each} AS named {selected}" for each in ("CAST(NULL AS string)", *shown)]
        for row in lake.query(" UNION ALL ".join(parts), rows=table, keys=names.keys()).to_pylist():
            found.add(names[row["row_key"]], [row["named"]])
    found.unknown += [name for name in names.values() if name not in found.rows]


def _add_hours(lake: Lake, found: Evidence, names: Mapping[str, str]) -> None:
    """Add the connections of the servers and hours of rows of gold.coverage."""
    for row in lake.query(_HOURS_SQL, coverage=COVERAGE, connections=CONNECTIONS, keys=names.keys()).to_pylist():
        name = names[row["coverage_key"]]
        found.add(name, [row[_CONNECTION]])
        if row["hour_us"] is not None:
            found.hours[name] = row["hour_us"]


def _add_failed_rows(lake: Lake, found: Evidence, names: Mapping[str, str]) -> None:
    """Add the evidence of the rows that are named by results of quality checks."""
    columns = ("result_key", "table", "key_column", "failed_keys")
    for row in lake.select_by_values(QUALITY_RESULTS, names.keys(), columns=columns).to_pylist():
        name, table = names[row["result_key"]], TABLES_WITH_PACKETS.get(row["table"])
        found.add(name, ())
        if table is not None and table.key == (row["key_column"],):
            _add_rows(lake, found, table, dict.fromkeys(row["failed_keys"] or (), name))


def _add_messages(lake: Lake, found: Evidence, request: ExportRequest) -> None:
    """Add the sightings of messages, and the evidence of their receive attempts and transfers."""
    ids = {each: each.lower().strip("{}").replace("}\\", "\\") for each in request.messages}
    names = {f"message {each}": {each, ids[each]} for each in request.messages}
    where, label = "message_key IN {keys} OR sighting_key IN {keys} OR message_id IN {ids}", {}
    if request.label is not None:
        where, label = f"{where} OR contains(lower(label), lower({{label}}))", {"label": request.label}
    sql = _SIGHTINGS_SQL.replace("{where}", where)
    rows = lake.query(sql, messages=MESSAGES, keys=request.messages, ids=set(ids.values()), **label).to_pylist()
    by_message = defaultdict[str, set[str]](set)
    for row in rows:
        known_as = {row["message_key"], row["sighting_key"], row["message_id"]}
        own = {name for name, keys in names.items() if keys & known_as}
        if request.label is not None and request.label.lower() in (row["label"] or "").lower():
            own.add(f"label {request.label}")
        for name in own:
            found.add(name, [row["call_key"], row["packet_key"]])
        if row["message_key"] is not None:
            by_message[row["message_key"]] |= own
    tables = {each.name: each for each in (MESSAGES, RECEIVE_ATTEMPTS, MESSAGE_TRANSFERS)}
    for row in lake.query(_OF_MESSAGES_SQL, keys=by_message.keys(), **tables).to_pylist() if by_message else ():
        for name in by_message[row["message_key"]]:
            found.add(name, [row["named"]])
    wanted = [*names, *(f"label {each}" for each in label.values())]
    found.unknown += [name for name in wanted if name not in found.rows]


def _add_queue(lake: Lake, found: Evidence, text: str) -> None:
    """Add the evidence of all rows of gold about the queues that have a name with ``text`` in it."""
    names = LakeViews(lake).queues_called(text)
    if not names.found:
        similar = f" (similar are {format_cell(list(names.near))})" if names.near else ""
        found.unknown.append(f"queue {text}{similar}")
        return
    rows = lake.query(_OF_QUEUES_SQL, queues=names.found, **{each.name: each for each, _ in _QUEUE_TABLES})
    found.add(f"queue {text}", rows["named"].to_pylist())
