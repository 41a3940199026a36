"""Decode the message packets of the binary protocol, and those that a run adds while they are written to bronze.

What writes ``bronze.session_packets`` has the bytes of packets in memory. So messages are decoded there, in tasks, to
staging files. Their numbers are known later, when the packets of a connection are in order: ``silver.messages`` takes
the rows from the staging files with their numbers, and no packet is read from bronze again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.engine.tasks import PartitionedRows
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.schema_enforcement import select_fields
from pipeline.lake.staging_files import Batches, StagingWriter, read_staged, staged_rows
from pipeline.runs.recovery import RunMarkers
from pipeline.silver.decode import (
    ALL_COLUMNS,
    DEFAULT_SETTINGS,
    BatchesByTable,
    DecodeSettings,
    WantedColumns,
    message_batches,
)
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.table import RUN_ID, Table
from udfs.keys import keys_of_texts
from udfs.messages.header_layouts import PROTOCOL_BINARY

USER_MESSAGE: Final = "user_message"  # bronze.session_packets.kind of a packet that is a message
PACKET_NUMBERS: Final = pa.schema(
    [("packet_key", pa.string()), ("session_number", pa.int64()), ("recoverable_number", pa.int64())]
)
"""The numbers of packets, which their connection gives them; null where not known."""
NUMBERS: Final = tuple(PACKET_NUMBERS.names[1:])
"""Those columns of ``silver.messages`` that packets do not say: all packets of a connection give them."""
_FOLDER_NAMES: Final = {str(table): table.name for table in (MESSAGES, COMQC_CALLS)}
_PACKET_KEY: Final = pa.schema([("packet_key", pa.string())])
_MESSAGE_KEYS: Final = select_fields(MESSAGES.schema(), ("packet_key", "connection_id", "seen_at"))


def message_packets(packets: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows of ``bronze.session_packets`` that are messages, as far as bytes of them were seen."""
    return packets.filter(pc.and_(pc.equal(packets["kind"], USER_MESSAGE), packets["packet"].is_valid()))


def decode_packets(
    packets: pa.Table, run_ids: pa.Array, settings: DecodeSettings = DEFAULT_SETTINGS,
    wanted: WantedColumns = ALL_COLUMNS, *, numbers: Mapping[str, pa.Array] | None = None,
) -> BatchesByTable:  # fmt: skip
    """Return batches of messages, and of the COM calls recorded in their bodies, by full table name.

    ``packets`` has these columns of ``bronze.session_packets``: packet, packet_key, connection_id, sent_at, sent_by,
    client_address, server_address. ``numbers``: ``session_number`` and ``recoverable_number``, null by default.
    """
    rows = packets.num_rows
    nulls = pa.nulls(rows, pa.string())
    by_client = pc.equal(packets["sent_by"], "client")
    sightings = {
        "sighting_key": pa.array(keys_of_texts(packets["packet_key"].to_pylist()), pa.string()),
        "seen_in": pa.repeat(pa.scalar(PROTOCOL_BINARY), rows),
        **dict.fromkeys(("call_key", "queue", "inferred_queue"), nulls),
        "connection_id": packets["connection_id"].combine_chunks(),
        "packet_key": packets["packet_key"].combine_chunks(),
        "seen_at": packets["sent_at"].combine_chunks(),
        "lookup_id": pa.nulls(rows, pa.decimal128(20, 0)),
        "arrived_at": pa.nulls(rows, pa.timestamp("us", tz="UTC")),
        "sender_address": pc.if_else(by_client, packets["client_address"], packets["server_address"]).combine_chunks(),
        **(numbers or dict.fromkeys(NUMBERS, pa.nulls(rows, pa.int64()))),
        RUN_ID: run_ids,
    }
    return message_batches(packets["packet"].combine_chunks(), sightings, settings, wanted)


@dataclass(frozen=True, slots=True)
class MessagePacketDecoder:
    """Decodes rows of ``bronze.session_packets`` to staging files ``<staging_folder>/<table>/*.parquet``.

    Each task writes one file for each table, named by its number, so that a repeated task overwrites its own files.
    """

    staging_folder: str
    settings: DecodeSettings = DEFAULT_SETTINGS

    @staticmethod
    def of(lake: Lake, settings: DecodeSettings = DEFAULT_SETTINGS) -> MessagePacketDecoder:
        """Return a decoder for a run; files of an earlier one are deleted."""
        folder = RunMarkers.of(lake).root / "decoded-packets"
        folder.remove_folder()
        return MessagePacketDecoder(str(folder), settings)

    def record_and_pass(self, batches: Batches, task: str) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged and decode their messages; ``task`` names the staging files."""
        staging = StagingWriter(self.staging_folder, task)
        for batch in batches:
            for name, rows in self._decode(message_packets(batch)).items():
                staging.add(_FOLDER_NAMES[name], rows)
            yield batch
        staging.close()

    def _decode(self, packets: pa.RecordBatch) -> BatchesByTable:
        """Decode messages; nothing of them where that fails: they are decoded from bronze later, and it fails there."""
        try:
            return decode_packets(pa.Table.from_batches([packets]), packets[RUN_ID], self.settings)
        except Exception:  # noqa: BLE001 - whatever it is, it must not end the writing of bronze
            return {}


@dataclass(frozen=True)
class DecodedPackets:
    """The messages that a decoder made of the rows that a run added to ``bronze.session_packets``.

    ``version``: of that table, after the run.
    """

    decoder: MessagePacketDecoder
    version: int

    @cached_property
    def messages(self) -> pa.Table:
        """The ``packet_key``, ``connection_id`` and ``seen_at`` of the messages that were decoded."""
        return read_staged(self._folder(MESSAGES), _MESSAGE_KEYS)

    def has_calls_of(self, keys: pa.ChunkedArray) -> bool:
        """Whether some of these messages recorded COM calls."""
        calls = read_staged(self._folder(COMQC_CALLS), _PACKET_KEY)["packet_key"]
        return bool(pc.any(pc.is_in(keys, calls.combine_chunks())).as_py())

    def rows(self, table: Table, numbers: LakePath) -> PartitionedRows:
        """Return the decoded rows of a table for the packets that have numbers, with these.

        ``numbers``: the folder of staging files with ``PACKET_NUMBERS``.
        """
        return staged_rows(self._folder(table), table, partial(_with_numbers, numbers))

    def remove(self) -> None:
        """Delete the staging files."""
        LakePath(self.decoder.staging_folder).remove_folder()

    def _folder(self, table: Table) -> LakePath:
        return LakePath(self.decoder.staging_folder) / table.name


def set_numbers(rows: pa.RecordBatch, numbers: pa.Table) -> pa.RecordBatch:
    """Return rows with the numbers that a table has of each, in those columns of ``NUMBERS`` that they have."""
    for name in set(NUMBERS).intersection(rows.schema.names):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), numbers[name].combine_chunks())
    return rows


def _with_numbers(folder: LakePath, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield the rows of packets that have an entry among the numbers in a folder; messages with their numbers."""
    numbers = read_staged(folder, PACKET_NUMBERS).combine_chunks()
    for batch in batches:
        place = pc.index_in(batch["packet_key"], numbers["packet_key"].combine_chunks())
        rows, place = batch.filter(place.is_valid()), place.drop_null()
        yield set_numbers(rows, numbers.take(place))
