"""Update of the findings of O08: reports of queue managers against exactly-once sequences on the wire.

A change of reports or sequences affects sequences by their id: these, and those that have such findings, are evaluated
again. So are those that queue managers with another name report. A sequence is found by its id and the machine that
reports it: clones count the same ids. Where several queues share an id at one machine, no report is evaluated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.arrow_rows import rows_to_table, table_to_rows, times_to_us
from pipeline.findings.evaluate import FINDINGS_SCHEMA, finding_row
from pipeline.findings.reported_sequences import NO_NUMBERS, HighestNumbers, ReportedSequence
from pipeline.findings.rules.registry import ALL_RULES, SEQUENCE_CHECKS
from pipeline.findings.rules.versions import SEQUENCE_RULES
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import QueryInput
from pipeline.queues.queue_managers import renamed_queue_managers
from pipeline.silver.machines import names_in_gold
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSIONS
from schemas.table import Table
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.columns.codes import row_codes
from udfs.rows import RowDict, RowMapping
from udfs.times import DAY_US

SEQUENCE_SCOPE: Final = "sequence"
_IS_REPORTED: Final = f"scope = '{SEQUENCE_SCOPE}'"
_INPUTS: Final = {
    EOD_TRANSFERS: "sequence_id",
    EOD_SOURCES: "sequence_id",
    TRANSFER_SEQUENCES: "transaction_sequence_id",
}
_FINDINGS: Final = DerivedTable(
    FINDINGS, tuple(_INPUTS), code_version=SEQUENCE_RULES, needs=(TRANSFER_SEQUENCES,), part="reported sequences",
    rows=_IS_REPORTED,
)  # fmt: skip
_SENDER_REPORTS: Final = """
SELECT snapshot_id, queue, queue_manager, observed_at, CAST(sequence_id AS string) AS id, next_number,
  first_unacked_number
FROM {rows} WHERE CAST(sequence_id AS string) IN {ids}"""
_RECEIVER_REPORTS: Final = """
SELECT snapshot_id, queue, queue_manager, observed_at, CAST(sequence_id AS string) AS id, last_number,
  sender_queue_manager
FROM {rows} WHERE CAST(sequence_id AS string) IN {ids}"""
_SEQUENCES: Final = """
SELECT DISTINCT CAST(transaction_sequence_id AS string) AS id, source_queue_manager, destination_queue, sender_address,
  receiver_address, sender_queue_manager
FROM {rows} WHERE CAST(transaction_sequence_id AS string) IN {ids}"""
_SENT: Final = """
SELECT CAST(m.transaction_sequence_id AS string) AS id, m.source_queue_manager AS source, s.sender_address AS address,
  m.transaction_number AS number, s.sent_at AS `at`, s.packet_key
FROM {messages} AS m JOIN {sendings} AS s ON s.packet_key = m.packet_key
WHERE CAST(m.transaction_sequence_id AS string) IN {ids} AND m.transaction_number IS NOT NULL
  AND s.sent_at IS NOT NULL"""
_ACKNOWLEDGED: Final = """
SELECT CAST(a.transaction_sequence_id AS string) AS id, a.acknowledged_queue_manager AS source,
  CASE WHEN a.sent_by = 'client' THEN a.client_address ELSE a.server_address END AS address,
  CASE WHEN a.sent_by = 'client' THEN a.server_address ELSE a.client_address END AS receiver_address,
  a.transaction_number AS number, a.sent_at AS `at`, a.packet_key,
  (a.session_number IS NOT NULL AND CASE WHEN a.sent_by = 'client' THEN s.client_unacknowledged
    ELSE s.server_unacknowledged END = 0) AS taken
FROM {acks} AS a LEFT JOIN {sessions} AS s ON s.connection_id = a.connection_id
WHERE a.kind = 'order_ack' AND CAST(a.transaction_sequence_id AS string) IN {ids} AND a.transaction_number IS NOT NULL
  AND a.sent_at IS NOT NULL"""


def update(lake: Lake, run_id: str) -> int:
    """Evaluate O08 on the sequences that changes affect; return how many findings are written. After other findings."""
    names = names_in_gold(lake)
    step = _FINDINGS.begin(lake, also={"names": names})
    if step is None or not step.exists(EOD_TRANSFERS, EOD_SOURCES):
        return 0
    current = lake.select(FINDINGS, _IS_REPORTED)  # few

    def find_affected() -> set[str]:
        snapshots = {name for evidence in current["evidence"].to_pylist() for name in evidence}
        renamed = {name for pair in renamed_queue_managers(step.provenance_before["names"], names) for name in pair}
        return (
            _changed_ids(step)
            | _ids_of_reports(lake, "snapshot_id", snapshots)
            | _ids_of_reports(lake, "queue_manager", renamed)
        )

    def evaluate(affected: set[str] | None) -> int:
        ids = _reported_ids(lake, affected)
        rows = rows_to_table([*_evaluate(lake, ids, names, run_id)] if ids else [], FINDINGS_SCHEMA)
        return step.replace_changed(rows, current)

    return step.recompute(find_affected, evaluate)


def _changed_ids(step: IncrementalUpdate) -> set[str]:
    """Return the ids of changed reports and sequences; UnknownChangesError."""
    found = step.all_changed_rows([(table, _ids_sql(table, "{feed}")) for table in _INPUTS])
    return set() if found is None else {*found["id"].to_pylist()}


def _reported_ids(lake: Lake, ids: Collection[str] | None) -> set[str]:
    """Return which sequences, of some or of all, were both reported and seen on the wire."""
    transfers, sources = _ids_sql(EOD_TRANSFERS, "{transfers}"), _ids_sql(EOD_SOURCES, "{sources}")
    seen = _ids_sql(TRANSFER_SEQUENCES, "{sequences}")
    sql = f"SELECT id FROM ({seen}) WHERE id IN (SELECT id FROM ({transfers} UNION {sources}))"
    inputs: dict[str, QueryInput] = {
        "transfers": EOD_TRANSFERS, "sources": EOD_SOURCES, "sequences": TRANSFER_SEQUENCES,
    }  # fmt: skip
    if ids is not None:
        sql, inputs = f"{sql} AND id IN {{ids}}", inputs | {"ids": ids}
    return {*lake.query(sql, **inputs)["id"].to_pylist()}


def _ids_sql(table: Table, rows: str) -> str:
    """Return a query for the ids of sequences in rows of a table."""
    column = _INPUTS[table]
    return f"SELECT DISTINCT CAST({column} AS string) AS id FROM {rows} WHERE {column} IS NOT NULL"


def _ids_of_reports(lake: Lake, column: str, values: Collection[str]) -> set[str]:
    sql = f"SELECT DISTINCT CAST(sequence_id AS string) AS id FROM {{rows}} WHERE {column} IN {{values}}"
    tables = (EOD_TRANSFERS, EOD_SOURCES) if values else ()
    return {name for each in tables for name in lake.query(sql, rows=each, values=values)["id"].to_pylist()} - {None}


def _evaluate(lake: Lake, ids: Collection[str], names: Mapping[str, str], run_id: str) -> Iterator[RowDict]:
    """Yield a finding for each sequence, end and UTC day whose reports contradict what was captured."""
    rule = ALL_RULES["O08"]
    for facts, queue in _reported_sequences(lake, ids, names):
        violations = [violation for check in SEQUENCE_CHECKS for violation in check.check(facts)]
        days: set[int] = set()
        for violation in sorted(violations, key=lambda each: (each.observed_at, each.evidence)):
            if violation.observed_at // DAY_US not in days:
                days.add(violation.observed_at // DAY_US)
                row = finding_row(
                    rule.rule_id, source=rule.source_for(), severity=rule.severity, subject=violation.subject, call={},
                    observed_at=violation.observed_at, expected=rule.requirement, actual=violation.actual,
                    evidence=list(violation.evidence), scope=SEQUENCE_SCOPE, queue=queue,
                )  # fmt: skip
                yield row | {"run_id": run_id}


def _reported_sequences(
    lake: Lake, ids: Collection[str], names: Mapping[str, str]
) -> Iterator[tuple[ReportedSequence, str | None]]:
    """Yield the facts of each sequence at each of its ends, and the queue that was reported."""

    def rows(sql: str, **tables: Any) -> list[RowDict]:  # noqa: ANN401 - inputs of a query
        return table_to_rows(lake.query(sql, ids=ids, **tables))

    sequences = rows(_SEQUENCES, rows=TRANSFER_SEQUENCES)
    queues: defaultdict[tuple[str, str | None], set[str | None]] = defaultdict(set)
    sources: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in sequences:
        queues[row["id"], row["source_queue_manager"]].add(row["destination_queue"])
        if row["sender_queue_manager"] is not None and row["sender_queue_manager"] == row["source_queue_manager"]:
            sources[row["id"], _name(names, row["sender_address"])].add(row["source_queue_manager"])
    sent = lake.query(_SENT, ids=ids, messages=MESSAGES, sendings=SENDINGS)
    acknowledged = lake.query(_ACKNOWLEDGED, ids=ids, acks=ORDER_ACKS, sessions=SESSIONS)
    by_sender = _by_end(names, sent, "address")
    by_receiver = _by_end(names, acknowledged, "address")
    taken = _by_end(names, acknowledged.filter(acknowledged["taken"]), "receiver_address")
    for (identifier, manager), reports in _reports(rows(_SENDER_REPORTS, rows=EOD_TRANSFERS), "queue_manager"):
        found = sources[identifier, manager]
        queue = _only_queue(reports)
        if len(found) != 1 or len(queues[identifier, min(found)]) != 1 or queue is None:
            continue
        name = (identifier, manager, min(found))
        subject = f"sequence {identifier} to {queue} at {manager}"
        yield ReportedSequence(subject, tuple(reports), sent=by_sender[name], taken=taken[name]), queue
    receivers = rows(_RECEIVER_REPORTS, rows=EOD_SOURCES)
    for (identifier, manager, sender), reports in _reports(receivers, "queue_manager", "sender_queue_manager"):
        queue = _only_queue(reports)
        if sender is None or len(queues[identifier, sender]) != 1 or queue is None:
            continue
        subject = f"sequence {identifier} of {sender} to {queue} at {manager}"
        acked = by_receiver[identifier, manager, sender]
        yield ReportedSequence(subject, receiver_reports=tuple(reports), acknowledged=acked), queue


def _name(names: Mapping[str, str], address: str) -> str:
    return names.get(address, address)


def _by_end(
    names: Mapping[str, str], packets: pa.Table, address: str
) -> defaultdict[tuple[str, str, str | None], HighestNumbers]:
    """Return the packets of each sequence by its id, the machine at one end, and the queue manager it is of."""
    out: defaultdict[tuple[str, str, str | None], HighestNumbers] = defaultdict(lambda: NO_NUMBERS)
    columns = ("id", "machine", "source")
    machines = [_name(names, each) for each in packets[address].to_pylist()]
    packets = packets.append_column("machine", pa.array(machines, pa.string()))
    codes = row_codes(packets.select(columns).columns)
    order = np.argsort(codes, kind="stable")
    bounds = np.flatnonzero(np.diff(codes[order])) + 1
    at, number = (
        np.asarray(column.combine_chunks(), np.int64) for column in (times_to_us(packets["at"]), packets["number"])
    )
    for rows in np.split(order, bounds) if len(order) else ():
        identifier, machine, source = (packets[name][int(rows[0])].as_py() for name in columns)
        keys = packets["packet_key"].take(pa.array(rows)).combine_chunks()
        out[identifier, machine, source] = HighestNumbers(at[rows], number[rows], keys)
    return out


def _reports(rows: Collection[RowMapping], *columns: str) -> list[tuple[tuple[Any, ...], list[RowMapping]]]:
    """Return reports by sequence id and some columns, in order."""
    groups: defaultdict[tuple[Any, ...], list[RowMapping]] = defaultdict(list)
    for row in sorted(rows, key=lambda each: (each["observed_at"], each["snapshot_id"])):
        groups[row["id"], *(row[column] for column in columns)].append(row)
    return sorted(groups.items(), key=lambda each: str(each[0]))


def _only_queue(reports: Collection[RowMapping]) -> str | None:
    """Return the queue that all reports are of; None where there are several."""
    found = {row["queue"] for row in reports}
    return found.pop() if len(found) == 1 else None
