"""Update of silver.sessions, order_acks, sendings and the messages of the binary protocol from bronze.session_packets.

A change affects connections: those of changed packets, those whose row of bronze.connections changed, and open ones at
servers whose captures end at another time; those in captures whose clocks are known to have been set elsewhere than
before. Of an affected connection all packets are numbered again, without their
bytes; of a long session those behind its checkpoint, while nothing up to it changed. Only new or changed messages are
decoded, and of the others only numbers that came out differently are written. Connections are computed in tasks where
they are many (``stage_sessions.py``); then each table is written in one commit. That of silver.sessions comes last: its
provenance stands for all. Checkpoints are committed before it, so none outlives a change that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import distinct_texts, is_in
from pipeline.bronze.across_captures.clock_steps import read_clock_steps
from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.lake.staged_changes import write_changes
from pipeline.runs.recovery import RunMarkers
from pipeline.settings import StoreConfig
from pipeline.silver.decode import DECODER_VERSIONS, DEFAULT_SETTINGS, BatchesByTable, DecodeSettings
from pipeline.silver.decode_packets import NUMBERS, USER_MESSAGE, DecodedPackets, decode_packets
from pipeline.silver.update import STUBS_EMPTIED_PROVENANCE
from pipeline.transfers.changed_connections import (
    CONNECTION_INPUTS,
    CaptureState,
    ChangedConnections,
    changed_connections,
)
from pipeline.transfers.checkpoint_use import usable_checkpoints
from pipeline.transfers.checkpoints import Checkpoint
from pipeline.transfers.inputs import BINARY_PROTOCOL
from pipeline.transfers.session_rows import SessionSettings
from pipeline.transfers.stage_connections import SessionContext
from pipeline.transfers.stage_sessions import CHANGED, DECODED_BEFORE, SessionStaging
from pipeline.transfers.staged_messages import DECODE, GONE, NOW_STORED, RENUMBERED, TAKEN, read_messages
from schemas.bronze import CONNECTIONS
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSION_PACKETS, SESSIONS
from schemas.table import EVENT_DATE
from udfs.columns.arrays import to_ints, to_times
from udfs.prefetch import prefetch
from udfs.sessions.packet_layouts import DECODER_VERSION
from udfs.times import timedelta_to_us

_SESSIONS: Final = DerivedTable(
    SESSIONS, CONNECTION_INPUTS, code_version="9", needs=(SESSION_PACKETS, SESSIONS, CONNECTIONS)
)
_EVERY: Final = f"""
SELECT connection_id FROM {{connections}} WHERE kind = '{BINARY_PROTOCOL}'
UNION SELECT connection_id FROM {{sessions}}"""
_MAX_DECODED_BYTES: Final = 64 << 20  # of messages that are decoded together
_MESSAGES_SCHEMA: Final = MESSAGES.schema()
_COMQC_SCHEMA: Final = COMQC_CALLS.schema()


def update(
    lake: Lake, run_id: str, sessions: SessionSettings | None = None, messages: DecodeSettings = DEFAULT_SETTINGS,
    decoded: DecodedPackets | None = None, *, keep_stubs: bool = StoreConfig.stubs,
) -> dict[str, int]:  # fmt: skip
    """Update sessions, order acks, sendings and messages; return how many rows of each table are written.

    Call it when silver is up to date with ``bronze.rpc_calls``. Without ``keep_stubs`` the packets of messages are
    emptied afterwards, since they hold bodies. ``decoded``: the messages that were decoded already, with the same
    settings; the caller removes their staging files.
    """
    sessions = sessions or SessionSettings()
    written = {str(table): 0 for table in (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES)}
    settings = {
        **sessions.as_provenance(),
        "decoder": f"{DECODER_VERSIONS}, sessions {DECODER_VERSION}",
        "declarations": messages.declarations.fingerprint(),
    }
    step = _SESSIONS.begin(lake, settings)
    if step is None or not (step.exists(SESSION_PACKETS, SESSIONS) or _has_connections(lake)):
        return written
    if decoded is not None and decoded.version != step.provenance_now[str(SESSION_PACKETS)]:
        decoded = None  # other rows came since
    written |= _SessionsUpdate(step, CaptureState.read(lake), sessions, messages, run_id, decoded).run()
    if not keep_stubs:
        _empty_packets(lake, timedelta_to_us(sessions.expire))
    return written


def _has_connections(lake: Lake) -> bool:
    """Whether there are connections of the binary protocol; they may be without a packet of it."""
    sql = f"SELECT connection_id FROM {{rows}} WHERE kind = '{BINARY_PROTOCOL}' LIMIT 1"
    return bool(lake.query(sql, rows=CONNECTIONS).num_rows)


def _empty_packets(lake: Lake, expire_us: int) -> None:
    """Empty the packets of messages in bronze; those that lack bytes are kept until no capture can fill them."""
    newest = lake.query("SELECT unix_micros(max(sent_at)) AS at FROM {rows}", rows=SESSION_PACKETS)["at"][0].as_py()
    old = f"sent_at < timestamp_micros({(newest or 0) - expire_us})"
    condition = f"kind = '{USER_MESSAGE}' AND packet IS NOT NULL AND (complete OR {old})"
    if lake.query(f"SELECT packet_key FROM {{rows}} WHERE {condition} LIMIT 1", rows=SESSION_PACKETS).num_rows:
        lake.update(SESSION_PACKETS, {"packet": "NULL"}, condition, provenance=STUBS_EMPTIED_PROVENANCE)


class _DecodedMessages(NamedTuple):
    """Rows of decoded messages by table; the sighting keys of the messages, and a condition of when they were seen."""

    names: pa.Array
    within: str
    batches: BatchesByTable


@dataclass(slots=True)
class _SessionsUpdate:
    """One update.

    ``changed``: what changed, None for all; ``now``: capture ends and clocks; ``decoded_before``: what was decoded
    already.
    """

    step: IncrementalUpdate
    now: CaptureState
    settings: SessionSettings
    messages: DecodeSettings
    run_id: str
    decoded_before: DecodedPackets | None = None
    changed: ChangedConnections | None = None
    written: dict[str, int] = field(default_factory=lambda: {str(each): 0 for each in (MESSAGES, ORDER_ACKS, SENDINGS)})

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    def run(self) -> dict[str, int]:
        """Recompute the affected connections."""
        self.step.keep(self.now)
        self.written[str(SESSIONS)] = self.step.recompute(self._affected_connections, self._recompute)
        return self.written

    def _recompute(self, affected: pa.Array | None) -> int:
        if affected is None:
            affected = self._all_connections()
        if not len(affected):
            return self.step.note_provenance()
        with RunMarkers.of(self.lake).staging_folder("sessions") as folder:
            self._stage(folder, affected)
            return self._write(folder)

    # What changed

    def _affected_connections(self) -> pa.Array:
        """Return the connections to recompute; UnknownChangesError."""
        self.changed = changed_connections(self.step, self.now)
        return self.changed.names

    def _all_connections(self) -> pa.Array:
        found = self.lake.query(_EVERY, connections=CONNECTIONS, sessions=SESSIONS)
        return distinct_texts(found["connection_id"])

    # What is made of it

    def _stage(self, folder: LakePath, names: pa.Array) -> None:
        """Compute some connections to staging files."""
        checkpoints, keys = dict[str, Checkpoint](), dict[str, pa.Table]()
        if self.changed is not None:
            packets, going_on = self.changed.packets, self.changed.going_on
            checkpoints = usable_checkpoints(self.lake, SESSION_CHECKPOINTS, going_on, packets)
            keys[CHANGED] = packets.filter(packets["present"])
        if self.decoded_before is not None:
            keys[DECODED_BEFORE] = self.decoded_before.messages
        steps = read_clock_steps(self.lake)
        context = SessionContext(self.now.capture_ends, steps, self.settings, self.run_id)
        SessionStaging(folder, context, keys).stage(self.lake, names, checkpoints)

    def _write(self, folder: LakePath) -> int:
        """Write what was staged; return how many sessions are written."""
        for table in (ORDER_ACKS, SENDINGS):
            self.written[str(table)] += write_changes(self.lake, folder, table)
        self._set_stored(read_messages(folder, NOW_STORED))
        self._write_messages(folder)
        write_changes(self.lake, folder, SESSION_CHECKPOINTS)
        for table in (MESSAGES, COMQC_CALLS, ORDER_ACKS, SENDINGS):
            self.lake.create(table)
        return self.step.write_changes(folder)

    def _set_stored(self, new: pa.Table) -> None:
        """Write when messages up to checkpoints were stored, as far as a packet behind tells."""
        if not new.num_rows:
            return
        dates, new = distinct_dates(new), new.drop_columns([EVENT_DATE])
        keys = distinct_texts(new["packet_key"])
        there = self.lake.select_by_values(SENDINGS, keys, dates=dates, columns=new.column_names)
        new = new.filter(is_in(new, "packet_key", distinct_texts(there["packet_key"])))
        new = new.filter(is_in(new, "packet_key", changed_keys(new, there, "packet_key")[0]))
        if new.num_rows:
            self.lake.update_columns(
                SENDINGS, new, dates=dates, provenance=self.lake.versions.provenance_json(SENDINGS)
            )
            self.written[str(SENDINGS)] += new.num_rows

    def _write_messages(self, folder: LakePath) -> None:
        """Delete messages, decode others and replace their rows, and write the numbers of those that stay."""
        self._delete_messages(read_messages(folder, GONE))
        decode = read_messages(folder, DECODE).sort_by("sent_at")  # as they lie in bronze
        for messages in prefetch(self._decode(packets) for packets in _slices(decode)):
            self._replace_messages(messages)
        self._set_numbers(read_messages(folder, RENUMBERED))
        self._add_decoded(folder)

    def _add_decoded(self, folder: LakePath) -> None:
        """Add to the tables the messages that were decoded already."""
        if self.decoded_before is None or not (numbers := read_messages(folder, TAKEN)).num_rows:
            return
        has_calls = self.decoded_before.has_calls_of(numbers["packet_key"])
        for table in (MESSAGES, COMQC_CALLS) if has_calls else (MESSAGES,):
            provenance = self.lake.versions.provenance_json(table)
            self.lake.append(table, self.decoded_before.rows(table, folder / TAKEN), provenance=provenance)
        self.written[str(MESSAGES)] += numbers.num_rows

    def _delete_messages(self, gone: pa.Table) -> None:
        if gone.num_rows:
            keys, dates = distinct_texts(gone["sighting_key"]), distinct_dates(gone)
            for table in (MESSAGES, COMQC_CALLS):
                if self.lake.exists(table):
                    provenance = self.lake.versions.provenance_json(table)
                    self.lake.delete_values(table, "sighting_key", keys, dates=dates, provenance=provenance)

    def _decode(self, rows: pa.Table) -> _DecodedMessages:
        """Decode messages; ``rows`` as ``DECODE``."""
        keys, within = distinct_texts(rows["packet_key"]), partial(_within, rows["sent_at"])
        sql = f"SELECT packet_key, packet FROM {{rows}} WHERE packet_key IN {{keys}} AND {within('sent_at')}"
        bytes_of = self.lake.query(sql, rows=SESSION_PACKETS, keys=keys)
        place = pc.index_in(rows["packet_key"], bytes_of["packet_key"].combine_chunks())
        packets = rows.append_column("packet", bytes_of["packet"].take(place))
        run_ids = pa.repeat(pa.scalar(self.run_id, pa.string()), len(rows))
        numbers = {name: rows[name].combine_chunks() for name in NUMBERS}
        batches = decode_packets(packets, run_ids, self.messages, numbers=numbers)
        names = distinct_texts(batches[str(MESSAGES)]["sighting_key"])
        return _DecodedMessages(names, within("seen_at"), batches)

    def _replace_messages(self, messages: _DecodedMessages) -> None:
        """Replace what the tables have of some messages."""
        for written, schema in ((MESSAGES, _MESSAGES_SCHEMA), (COMQC_CALLS, _COMQC_SCHEMA)):
            new = pa.Table.from_batches([messages.batches[str(written)]], schema)
            where = f"sighting_key IN {{names}} AND {messages.within}"
            current = self.lake.select(written, where, names=messages.names)
            if not new.num_rows and not current.num_rows:
                continue
            dates = distinct_dates(new, current)
            provenance = self.lake.versions.provenance_json(written)
            if written is MESSAGES:
                self.written[str(MESSAGES)] += self.lake.replace_changed(
                    written, new, current, dates=dates, provenance=provenance, previous_provenance=provenance
                )
            else:  # several rows have one sighting_key
                self.lake.delete_and_insert(
                    written, "sighting_key", distinct_texts(current["sighting_key"]), new,
                    dates=dates, provenance=provenance, previous_provenance=provenance,
                )  # fmt: skip

    def _set_numbers(self, rows: pa.Table) -> None:
        """Write other numbers of messages that are not decoded again."""
        if rows.num_rows:
            dates, provenance = distinct_dates(rows), self.lake.versions.provenance_json(MESSAGES)
            columns = rows.drop_columns([EVENT_DATE])
            self.lake.update_columns(MESSAGES, columns, dates=dates, provenance=provenance)
            self.written[str(MESSAGES)] += rows.num_rows


def _within(times: pa.ChunkedArray, column: str) -> str:
    """Return the SQL condition of rows that may be those of packets, by their times: files of others are not read."""
    if times.null_count:
        return "TRUE"
    bounds = to_times(pa.chunked_array([[*pc.min_max(times).values()]], times.type))
    return f"{column} BETWEEN timestamp_micros({bounds[0]}) AND timestamp_micros({bounds[1]})"


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in parts of at most ``_MAX_DECODED_BYTES``, about."""
    part = np.cumsum(to_ints(rows["packet_bytes"])) // _MAX_DECODED_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), rows.num_rows]
    yield from (rows.slice(begin, end - begin) for begin, end in pairwise(bounds) if end > begin)
