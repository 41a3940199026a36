"""Update of silver.sessions, order_acks, sendings and the messages of the binary protocol from bronze.session_packets.

A change affects connections: those of changed packets, those whose row of bronze.connections changed, and open ones at
servers whose captures end at another time; those in captures whose clocks are known to have been set elsewhere than
before. Of an affected connection all packets are numbered again, without their
bytes; of a long session those behind its checkpoint, while nothing up to it changed. Only new or changed messages are
decoded, and of the others only numbers that came out differently are written. The commit of silver.sessions comes last:
its provenance stands for all. Checkpoints are committed before it, so none outlives a change that it does not know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.arrow_rows import is_in
from pipeline.lake.incremental import DerivedTable, IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.schema_enforcement import changed_keys
from pipeline.settings import StoreConfig
from pipeline.silver.decode import DECODER_VERSIONS, DEFAULT_SETTINGS, BatchesByTable, DecodeSettings
from pipeline.silver.decode_packets import USER_MESSAGE, DecodedPackets, decode_packets
from pipeline.silver.update import STUBS_EMPTIED_PROVENANCE
from pipeline.transfers.changed_connections import CONNECTION_INPUTS, CaptureState, changed_connections
from pipeline.transfers.checkpoint_cuts import latest_checkpoints
from pipeline.transfers.checkpoint_use import ChangedPackets, outdated_checkpoints, usable_checkpoints
from pipeline.transfers.checkpoints import Checkpoint, write_checkpoints
from pipeline.transfers.connection_packets import ConnectionPackets
from pipeline.transfers.inputs import (
    BINARY_PROTOCOL,
    count_packets,
    group_connections,
    read_capture_begins,
    read_decoded_messages,
    read_packets,
    select_after_checkpoint,
)
from pipeline.transfers.sending_rows import sending_rows
from pipeline.transfers.session_rows import (
    CONNECTION_COLUMNS,
    SessionSettings,
    captures_of_unbegun,
    order_ack_rows,
    session_rows,
)
from pipeline.transfers.side_losses import LOSS_COLUMNS, gaps_are_holes
from schemas.bronze import CONNECTIONS
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_CHECKPOINTS, SESSION_PACKETS, SESSIONS
from schemas.table import EVENT_DATE, Table
from udfs.array_types import Bools, Ints
from udfs.columns.absent import NO_TIME
from udfs.columns.arrays import to_flags
from udfs.prefetch import prefetch
from udfs.sessions.packet_layouts import DECODER_VERSION
from udfs.times import timedelta_to_us, us_to_datetime

_SESSIONS: Final = DerivedTable(
    SESSIONS, CONNECTION_INPUTS, code_version="9", needs=(SESSION_PACKETS, SESSIONS, CONNECTIONS)
)
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

    names: list[str]
    within: str
    batches: BatchesByTable


@dataclass(slots=True)
class _SessionsUpdate:
    """One update.

    ``changed``: keys of changed packets, None for all; ``changes``: where they are; ``packets``: how many each affected
    connection has; ``now``: capture ends and clocks; ``stepped``: connections in captures of which other
    places are known than before where their clocks were set. ``decoded_before``: what was decoded already; ``taken``:
    the numbers of the messages that are taken from it.
    """

    step: IncrementalUpdate
    now: CaptureState
    settings: SessionSettings
    messages: DecodeSettings
    run_id: str
    decoded_before: DecodedPackets | None = None
    taken: list[pa.Table] = field(default_factory=list)
    changed: pa.Array | None = None
    changes: ChangedPackets | None = None
    packets: dict[str, int] = field(default_factory=dict)
    stepped: set[str] = field(default_factory=set)
    written: dict[str, int] = field(default_factory=lambda: {str(each): 0 for each in (MESSAGES, ORDER_ACKS, SENDINGS)})

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.step.lake

    def run(self) -> dict[str, int]:
        """Recompute the affected connections, group by group."""
        self.step.keep(self.now)
        self.written[str(SESSIONS)] = self.step.recompute(self._affected_connections, self._recompute)
        return self.written

    def _recompute(self, affected: set[str] | None) -> int:
        if affected is None:
            affected = self._all_connections()
        if not affected:
            return self.step.note_provenance()
        self.packets = count_packets(self.lake, affected)
        rows = [self._recompute_group(names) for names in group_connections(self.packets, affected)]
        self._add_decoded()
        current = self.lake.select(SESSIONS, "connection_id IN {names}", names=affected)
        return self.step.replace_changed(pa.concat_tables(rows), current)

    # What changed

    def _affected_connections(self) -> set[str]:
        """Return the connections to recompute; UnknownChangesError."""
        found = changed_connections(self.step, self.now)
        packets, self.changes, self.stepped = found.packets, found.changes, found.stepped
        self.changed = (
            packets.filter(packets["present"])["packet_key"].combine_chunks() if len(packets) else pa.array([])
        )
        return found.names

    def _all_connections(self) -> set[str]:
        sql = f"SELECT connection_id FROM {{rows}} WHERE kind = '{BINARY_PROTOCOL}'"
        found = {*self.lake.query(sql, rows=CONNECTIONS)["connection_id"].to_pylist()}
        if self.lake.exists(SESSIONS):
            found |= {*self.lake.query("SELECT connection_id FROM {rows}", rows=SESSIONS)["connection_id"].to_pylist()}
        return found

    # One group of connections

    def _recompute_group(self, names: list[str]) -> pa.Table:
        """Recompute some connections; write what is made of them, and return their sessions."""
        before = self.lake.select(SESSIONS, "connection_id IN {names}", names=names)
        checkpoints = {}
        if self.changes is not None:
            going_on = [name for name in names if name not in self.stepped]
            checkpoints = usable_checkpoints(self.lake, SESSION_CHECKPOINTS, going_on, self.changes)
        decoded, found, connections, sessions = self._compute(names, checkpoints)
        outdated = outdated_checkpoints(found, connections, sessions, before, self.packets)
        if outdated:
            checkpoints = {name: each for name, each in checkpoints.items() if name not in outdated}
            decoded, found, connections, sessions = self._compute(names, checkpoints)
        self._replace(ORDER_ACKS, names, order_ack_rows(found, sessions, self.run_id), checkpoints)
        self._replace(SENDINGS, names, sending_rows(found, connections, sessions, self.run_id), checkpoints)
        self._set_stored(found)
        self._write_messages(found, decoded)
        self._write_checkpoints(names, found, connections)
        for table in (MESSAGES, COMQC_CALLS, ORDER_ACKS, SENDINGS):
            self.lake.create(table)
        return sessions

    def _compute(
        self, names: list[str], checkpoints: Mapping[str, Checkpoint]
    ) -> tuple[pa.Table, ConnectionPackets, pa.Table, pa.Table]:
        """Return the messages, packets, connections and new sessions of some connections."""
        decoded = read_decoded_messages(self.lake, names, checkpoints)
        expire = timedelta_to_us(self.settings.expire)
        found, connections = read_packets(self.lake, names, decoded, CONNECTION_COLUMNS, expire, checkpoints)
        begins = read_capture_begins(self.lake, captures_of_unbegun(connections, found))
        sessions = session_rows(connections, found, self.now.capture_ends, begins, self.settings, self.run_id)
        return decoded, found, connections, sessions

    def _replace(
        self, table: Table, names: Collection[str], rows: pa.Table, checkpoints: Mapping[str, Checkpoint]
    ) -> None:
        """Replace the rows of some connections in a table, behind their checkpoints, as far as they differ."""
        current = select_after_checkpoint(self.lake, table, names, checkpoints, "sent_at")
        dates = {*pc.unique(rows[EVENT_DATE]).to_pylist(), *pc.unique(current[EVENT_DATE]).to_pylist()}
        self.written[str(table)] += self.lake.replace_changed(table, rows, current, dates=dates)

    def _set_stored(self, found: ConnectionPackets) -> None:
        """Write when messages up to checkpoints were stored, as far as a packet behind tells."""
        every = [each for side in found.now_stored.values() for each in side]
        if not every:
            return
        carriers = found.table.take(pa.array([each.carrier for each in every]))
        columns = {
            "packet_key": pa.array([each.packet.packet_key for each in every]),
            "stored_at": carriers["sent_at"],
            "stored_by": carriers["packet_key"],
            "stored_in": carriers["capture_id"],
        }
        dates = {us_to_datetime(each.packet.sent_at_us).date() for each in every}
        keys = columns["packet_key"].to_pylist()
        there = self.lake.select_by_values(SENDINGS, keys, dates=dates, columns=tuple(columns))
        new = pa.table(columns).cast(there.schema)
        fresh, _ = changed_keys(new, there, "packet_key")
        new = new.filter(is_in(new, "packet_key", {*fresh} & {*there["packet_key"].to_pylist()}))
        if new.num_rows:
            self.lake.update_columns(
                SENDINGS, new, dates=dates, provenance=self.lake.versions.provenance_json(SENDINGS)
            )
            self.written[str(SENDINGS)] += new.num_rows

    def _write_checkpoints(self, names: Collection[str], found: ConnectionPackets, connections: pa.Table) -> None:
        losses = {row["connection_id"]: row for row in connections.select(LOSS_COLUMNS).to_pylist()}
        holes = {name: gaps_are_holes(found, place, losses[name]) for place, name in enumerate(found.connection_ids)}
        write_checkpoints(self.lake, SESSION_CHECKPOINTS, names, latest_checkpoints(found, holes), self.run_id)

    def _write_messages(self, found: ConnectionPackets, decoded: pa.Table) -> None:
        """Decode new and changed messages and replace their rows; set changed numbers in the rows of others."""
        table = found.table
        message = found.is_kind(USER_MESSAGE) & ~found.kept
        old = np.asarray(pc.is_in(table["packet_key"], decoded["packet_key"].combine_chunks()).combine_chunks())
        bare = np.asarray(table["bare"].combine_chunks())
        if self.changed is None:
            again = ~bare
        else:
            again = ~bare & np.asarray(pc.is_in(table["packet_key"], self.changed.cast(pa.string())).combine_chunks())
        decode = np.flatnonzero(message & (again | (~old & ~bare)))
        decode = self._take_decoded(found, decode, ~old[decode])
        decode = decode[np.argsort(found.packets.sent_at[decode], kind="stable")]  # as they lie in bronze
        gone = decoded.filter(pc.invert(is_in(decoded, "packet_key", set(table["packet_key"].to_pylist()))))
        self._delete_messages(gone)
        for messages in prefetch(self._decode(found, rows) for rows in _slices(decode, found)):
            self._replace_messages(messages)
        kept = message & old
        kept[decode] = False
        self._set_numbers(found, np.flatnonzero(kept), decoded)

    def _take_decoded(self, found: ConnectionPackets, rows: Ints, is_new: Bools) -> Ints:
        """Note the new messages among some rows that were decoded already; return the rows of the others."""
        if self.decoded_before is None:
            return rows
        keys = found.table["packet_key"].take(pa.array(rows))
        taken = is_new & to_flags(pc.is_in(keys, self.decoded_before.message_keys))
        self.taken.append(found.numbers_of(rows[taken]))
        return rows[~taken]

    def _add_decoded(self) -> None:
        """Add to the tables the messages that were decoded already."""
        if self.decoded_before is None or not (numbers := pa.concat_tables(self.taken)).num_rows:
            return
        self.decoded_before.note_numbers(numbers)
        has_calls = self.decoded_before.has_calls_of(numbers["packet_key"])
        for table in (MESSAGES, COMQC_CALLS) if has_calls else (MESSAGES,):
            provenance = self.lake.versions.provenance_json(table)
            self.lake.append(table, self.decoded_before.rows(table), provenance=provenance)
        self.written[str(MESSAGES)] += numbers.num_rows

    def _delete_messages(self, gone: pa.Table) -> None:
        if gone.num_rows:
            keys, dates = {*gone["sighting_key"].to_pylist()}, {*gone[EVENT_DATE].to_pylist()}
            for table in (MESSAGES, COMQC_CALLS):
                if self.lake.exists(table):
                    provenance = self.lake.versions.provenance_json(table)
                    self.lake.delete_values(table, "sighting_key", keys, dates=dates, provenance=provenance)

    def _decode(self, found: ConnectionPackets, rows: Ints) -> _DecodedMessages:
        """Decode the messages of some rows."""
        table = found.table.drop_columns("packet").take(pa.array(rows))
        keys = table["packet_key"].to_pylist()
        sent_at = found.shown_at[rows]
        sql = f"SELECT packet_key, packet FROM {{rows}} WHERE packet_key IN {{keys}} AND {_within('sent_at', sent_at)}"
        bytes_of = self.lake.query(sql, rows=SESSION_PACKETS, keys=keys)
        place = pc.index_in(table["packet_key"], bytes_of["packet_key"].combine_chunks())
        packets = table.append_column("packet", bytes_of["packet"].take(place))
        run_ids = pa.repeat(pa.scalar(self.run_id, pa.string()), len(rows))
        batches = decode_packets(packets, run_ids, self.messages, numbers=found.number_columns(rows))
        names = batches[str(MESSAGES)]["sighting_key"].to_pylist()
        return _DecodedMessages(names, _within("seen_at", sent_at), batches)

    def _replace_messages(self, messages: _DecodedMessages) -> None:
        """Replace what the tables have of some messages."""
        for written, schema in ((MESSAGES, _MESSAGES_SCHEMA), (COMQC_CALLS, _COMQC_SCHEMA)):
            new = pa.Table.from_batches([messages.batches[str(written)]], schema)
            where = f"sighting_key IN {{names}} AND {messages.within}"
            current = self.lake.select(written, where, names=messages.names)
            if not new.num_rows and not current.num_rows:
                continue
            dates = {*new[EVENT_DATE].to_pylist(), *current[EVENT_DATE].to_pylist()}
            provenance = self.lake.versions.provenance_json(written)
            if written is MESSAGES:
                self.written[str(MESSAGES)] += self.lake.replace_changed(
                    written, new, current, dates=dates, provenance=provenance, previous_provenance=provenance
                )
            else:  # several rows have one sighting_key
                gone = {*current["sighting_key"].to_pylist()}
                self.lake.delete_and_insert(
                    written,
                    "sighting_key",
                    gone,
                    new,
                    dates=dates,
                    provenance=provenance,
                    previous_provenance=provenance,
                )

    def _set_numbers(self, found: ConnectionPackets, rows: Ints, decoded: pa.Table) -> None:
        """Write the numbers of messages that are not decoded again, where they differ."""
        place = pc.index_in(found.table["packet_key"].take(pa.array(rows)), decoded["packet_key"].combine_chunks())
        before, now = decoded.take(place.combine_chunks()), found.number_columns(rows)
        differs = np.zeros(len(rows), np.bool_)
        for name, column in now.items():
            was = np.asarray(pc.fill_null(before[name], 0).combine_chunks())
            differs |= was != np.asarray(pc.fill_null(column, 0))
        chosen = pa.array(np.flatnonzero(differs))
        if len(chosen):
            columns = {name: column.take(chosen) for name, column in now.items()}
            columns = {"sighting_key": before["sighting_key"].take(chosen)} | columns
            dates = {*before[EVENT_DATE].take(chosen).to_pylist()}
            provenance = self.lake.versions.provenance_json(MESSAGES)
            self.lake.update_columns(MESSAGES, pa.table(columns), dates=dates, provenance=provenance)
            self.written[str(MESSAGES)] += len(chosen)


def _within(column: str, sent_at: Ints) -> str:
    """Return the SQL condition of rows that may be those of packets, by their times: files of others are not read."""
    if sent_at.min() == NO_TIME:
        return "TRUE"
    return f"{column} BETWEEN timestamp_micros({sent_at.min()}) AND timestamp_micros({sent_at.max()})"


def _slices(rows: Ints, found: ConnectionPackets) -> Iterator[Ints]:
    """Yield rows in parts of at most ``_MAX_DECODED_BYTES``."""
    sizes = np.asarray(pc.fill_null(found.table["packet_bytes"], 0).combine_chunks(), np.int64)[rows]
    part = np.cumsum(sizes) // _MAX_DECODED_BYTES
    bounds = np.flatnonzero(np.diff(part)) + 1
    yield from (each for each in np.split(rows, bounds) if len(each))
