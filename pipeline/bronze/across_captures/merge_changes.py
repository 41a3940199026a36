"""What merging across captures changes: rows that one capture made alone give way to merged ones.

The merged rows are in staging files, in a folder for each table. Those that take another step before they are written
have a folder of their own: calls, and connections, that several captures saw at the same time
(``overlapping_calls``), packets of sessions of which several captures have the same bytes (``shared_packets``). So do
the packets that two captures have in common (``shared_steps``).
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, no_texts
from pipeline.bronze.across_captures.four_tuples import FOUR_TUPLE
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import RowsOfFiles
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.staging_files import read_staged, staged_files
from udfs.capture.capture_reader import BRONZE_SCHEMAS, InterfaceEndpoint
from udfs.capture.clock_steps import NO_STEPS, ClockSteps
from udfs.capture.clocks.tap_steps import COMMON_PACKETS_SCHEMA
from udfs.capture.merged_remainders import (
    CONNECTION_LABELS_SCHEMA,
    PACKET_COUNTS_SCHEMA,
    PRESENTATION_CONTEXTS_SCHEMA,
)
from udfs.capture.taps import TAPS_SCHEMA
from udfs.rows import RowDict
from udfs.sessions.packet_sightings import COVERAGE_SCHEMA, PACKET_MOVES_SCHEMA
from udfs.tcp.time_limits import DEFAULT_TIME_LIMITS, TimeLimits

Dates = set[dt.date | None]
CALLS_OF_TAPS: Final = "calls_of_taps"
MERGED_CALLS: Final = "merged_calls"
CONNECTIONS_OF_TAPS: Final = "connections_of_taps"
TAPS: Final = "taps"
JOINT_PACKETS: Final = "joint_packets"
COVERAGE: Final = "coverage"
COMMON_PACKETS: Final = "common_packets"
_OF_FOUR_TUPLE: Final = pa.field(FOUR_TUPLE, pa.string())
_SCHEMAS: Final = {
    **BRONZE_SCHEMAS,
    CALLS_OF_TAPS: BRONZE_SCHEMAS["rpc_calls"],
    MERGED_CALLS: BRONZE_SCHEMAS["rpc_calls"],
    CONNECTIONS_OF_TAPS: BRONZE_SCHEMAS["connections"],
    JOINT_PACKETS: BRONZE_SCHEMAS["session_packets"],
    TAPS: TAPS_SCHEMA.append(_OF_FOUR_TUPLE),
    COVERAGE: COVERAGE_SCHEMA.append(_OF_FOUR_TUPLE),
    COMMON_PACKETS: COMMON_PACKETS_SCHEMA,
}
CHANGES_STORED: Final = "changes_stored"
"""Of labels, meanings and moves: whether stored rows of the capture and its previous connection change by them."""
LABELS_SCHEMA, MEANINGS_SCHEMA, MOVES_SCHEMA = (
    schema.append(pa.field(CHANGES_STORED, pa.bool_()))
    for schema in (CONNECTION_LABELS_SCHEMA, PRESENTATION_CONTEXTS_SCHEMA, PACKET_MOVES_SCHEMA)
)
REBUILT_CALLS_SCHEMA, REBUILT_PACKETS_SCHEMA = (
    pa.schema([_OF_FOUR_TUPLE, pa.field("capture_id", pa.string()), pa.field(key, pa.string())])
    for key in ("call_key", "packet_key")
)
_SAME_FOR_ALL: Final = {"folder", "limits", "steps"}


@dataclass(slots=True)
class MergeChanges:
    """What merging changes in the tables and in the staging files of a run.

    ``folder`` has the merged rows in staging files; None: there are none. ``limits``, ``steps``: what they were merged
    with; where the clocks of captures were set.

    Rows that leave, from both: those of connections under their ``previous_connection_ids``; calls made of remainders
    (``rebuilt_calls``: capture and key; ``replaced_call_keys``: keys of the stored ones that are not merged as
    overlapping); quarantined bytes made of remainders (``replaced_quarantine_keys``). In a ring of files every edge
    cuts the calls of all open connections, and each new file rebuilds them: stored calls that come out equal
    (``unchanged_call_keys``) stay.

    Calls that a capture finished alone stay and are updated by ``labels`` (their connection) and ``meanings`` (what
    their contexts mean). ``updated_remainders`` are the keys of those that are new or changed. ``packet_counts`` are
    to be added to the counts of captures, several rows for one. ``overlapping_connections`` were seen by several
    captures at the same time: their calls are merged call by call, with what each tap shows of them.
    ``affects_stored_rows`` is whether the tables hold any of this, ``dates`` on which dates.

    Packets of the binary protocol likewise: ``rebuilt_packets`` (capture and key) were made of remainders,
    ``replaced_packet_keys`` are the keys of the stored ones. Those that a capture cut alone are moved to their
    connection by ``moves``. Of ``shared_sessions`` several captures have the same bytes: one row is left of each
    packet.

    ``failures``, by capture, say why merging it failed. Its calls stay as it shows them alone. ``unmergeable`` are the
    keys of the remainders: they leave ``bronze.pending``, so that merging with later captures does not fail again.
    """

    folder: LakePath | None = None
    limits: TimeLimits = DEFAULT_TIME_LIMITS
    steps: ClockSteps = NO_STEPS
    labels: pa.Table = field(default_factory=LABELS_SCHEMA.empty_table)
    meanings: pa.Table = field(default_factory=MEANINGS_SCHEMA.empty_table)
    moves: pa.Table = field(default_factory=MOVES_SCHEMA.empty_table)
    rebuilt_calls: pa.Table = field(default_factory=REBUILT_CALLS_SCHEMA.empty_table)
    rebuilt_packets: pa.Table = field(default_factory=REBUILT_PACKETS_SCHEMA.empty_table)
    packet_counts: pa.Table = field(default_factory=PACKET_COUNTS_SCHEMA.empty_table)
    previous_connection_ids: pa.Array = field(default_factory=no_texts)
    replaced_call_keys: pa.Array = field(default_factory=no_texts)
    unchanged_call_keys: pa.Array = field(default_factory=no_texts)
    replaced_quarantine_keys: pa.Array = field(default_factory=no_texts)
    replaced_packet_keys: pa.Array = field(default_factory=no_texts)
    overlapping_connections: pa.Array = field(default_factory=no_texts)
    shared_sessions: pa.Array = field(default_factory=no_texts)
    updated_remainders: pa.Array = field(default_factory=no_texts)
    unmergeable: pa.Array = field(default_factory=no_texts)
    dates: Dates = field(default_factory=set)
    affects_stored_rows: bool = False
    failures: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether any connection was merged."""
        return len(self.previous_connection_ids) > 0

    def add(self, others: Iterable[MergeChanges]) -> None:
        """Add the changes of other four-tuples, whose merged rows are in the same folder."""
        every = [self, *others]
        for each in fields(self):
            if each.name not in _SAME_FOR_ALL:
                setattr(self, each.name, _joined([getattr(changes, each.name) for changes in every]))

    def captures_to_reread(self) -> dict[str, set[str]]:
        """Return captures that hold more of MSMQ connections than was kept, with the endpoints of these connections."""
        found: dict[str, set[str]] = defaultdict(set)
        for label in self.labels.filter(pc.is_valid(self.labels["again"])).to_pylist():
            for interface in label["again"]:
                endpoint = InterfaceEndpoint(label["server_address"], label["server_port"], interface)
                found[label["capture_id"]].add(endpoint.text)
        return found

    def count_corrections(self) -> dict[str, list[RowDict]]:
        """Return ``packet_counts`` by capture."""
        found: dict[str, list[RowDict]] = defaultdict(list)
        for row in self.packet_counts.to_pylist():
            found[row.pop("capture_id")].append(row)
        return found

    def new_rows(self, kind: str, columns: Sequence[str] = ()) -> pa.Table:
        """Return columns, all by default, of the merged rows of a table or of another kind."""
        schema = select_fields(_SCHEMAS[kind], columns or _SCHEMAS[kind].names)
        return schema.empty_table() if self.folder is None else read_staged(self.folder / kind, schema)

    def files(self, kind: str) -> RowsOfFiles:
        """Return the merged rows of a table or of another kind as an input of queries."""
        return RowsOfFiles(_SCHEMAS[kind], {} if self.folder is None else staged_files(self.folder / kind))


def packet_dates(row: RowDict) -> Iterator[dt.date | None]:
    """Yield each date from a remainder's first packet to its last, and None, for rows of packets without a time."""
    first, last = row["first_packet_at"], row["last_packet_at"]
    yield None
    if first is None or last is None:
        return
    for number in range((last.date() - first.date()).days + 1):
        yield first.date() + dt.timedelta(days=number)


def _joined(parts: Sequence[Any]) -> Any:  # noqa: ANN401 - values of one field
    """Return tables one after the other, keys each once, and all of sets and dictionaries; whether any is true."""
    if isinstance(parts[0], pa.Table):
        return pa.concat_tables(parts)
    return distinct_texts(*parts) if isinstance(parts[0], pa.Array) else reduce(or_, parts)
