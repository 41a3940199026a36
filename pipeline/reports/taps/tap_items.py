"""What the reader finds in one capture: calls, packets of TCP 1801 and messages, by what tells them on the wire.

Addresses, ports and TCP sequence numbers are the same in captures of all places that a packet passes; times are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.silver.decode import CALL_INPUT_COLUMNS, OPTIONAL_INPUT_COLUMNS, DecodeFailure, decode_calls_safely
from pipeline.silver.decode_packets import decode_packets, message_packets
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import SESSION_PACKETS
from schemas.table import RUN_ID
from udfs.capture.capture_reader import VOID, ReadOptions, read_capture_batches
from udfs.capture.connection_merge import merge_connections
from udfs.files.file_source import FileSource
from udfs.rows import RowDict
from udfs.times import datetime_to_us

Kind: TypeAlias = Literal["call", "packet", "message"]
KINDS: Final[tuple[Kind, ...]] = ("call", "packet", "message")
_CALL_COLUMNS: Final = (
    "call_key", "client_address", "client_port", "server_address", "server_port", "call_id", "interface_name", "opnum",
    "request_at", "response_at", "request_sequence", "response_sequence",
)  # fmt: skip
_PACKET_COLUMNS: Final = (
    "packet_key", "client_address", "client_port", "server_address", "server_port", "sent_by", "tcp_sequence",
    "length_bytes", "sent_at", "kind", "complete",
)  # fmt: skip
_MESSAGE_COLUMNS: Final = ("message_id", "call_key", "packet_key", "class_name", "label", "seen_at")


class End(NamedTuple):
    """One end of a TCP connection."""

    address: str
    port: int


class Direction(NamedTuple):
    """What one end of a TCP connection sends to the other one."""

    source: End
    target: End

    @property
    def back(self) -> Direction:
        """The other direction."""
        return Direction(self.target, self.source)


class Place(NamedTuple):
    """Where something is: bytes of a direction from a TCP sequence number on, and when in us; None: not known."""

    direction: Direction
    sequence: int
    length: int
    at_us: int | None


class Item(NamedTuple):
    """A half of a call, a packet of TCP 1801 or a message: what it is in words, where it is, and whether whole."""

    kind: Kind
    text: str
    place: Place
    is_whole: bool = True


Key: TypeAlias = tuple[object, ...]


@dataclass(slots=True)
class TapItems:
    """What one capture has, by what tells it from others, and the reader's row on the file."""

    file: RowDict = field(default_factory=dict)
    directions: set[Direction] = field(default_factory=set)
    items: dict[Kind, dict[Key, Item]] = field(default_factory=lambda: {kind: {} for kind in KINDS})


def read_items(source: FileSource, options: ReadOptions) -> TapItems:
    """Return what a capture has; bad input never raises: ``file`` says what could not be read."""
    found = _Reading()
    for kind, batch in read_capture_batches(source, options):
        if kind == VOID:
            found = _Reading()
        else:
            found.add(kind, batch)
    return found.finished(options)


class _Reading:
    """Collects what the reader yields."""

    def __init__(self) -> None:
        self._found = TapItems()
        self._carriers: dict[str, Place] = {}  # of messages: by the key of a call or packet
        self._messages: list[RowDict] = []
        self._pending: list[RowDict] = []

    def add(self, kind: str, batch: pa.RecordBatch) -> None:
        if kind == RPC_CALLS.name:
            self._add_calls(batch)
        elif kind == SESSION_PACKETS.name:
            self._add_packets(batch)
        elif kind == CONNECTIONS.name:
            for row in batch.select(["client_address", "client_port", "server_address", "server_port"]).to_pylist():
                toward = _toward_server(row)
                self._found.directions |= {toward, toward.back}
        elif kind == PENDING.name:
            self._pending += batch.to_pylist()
        elif kind == CAPTURE_FILES.name:
            (self._found.file,) = batch.to_pylist()

    def finished(self, options: ReadOptions) -> TapItems:
        """Return what was found, also of connections that were open at the end; a message is where its carrier is."""
        for kind, batch in merge_connections(self._pending, options.limits).tables.items():
            self.add(kind, batch)
        for row in self._messages:
            place = self._carriers.get(row["call_key"] or row["packet_key"])
            if place is not None and row["message_id"] is not None:
                text = f"{row['class_name']} {row['message_id']} {row['label'] or ''}".rstrip()
                item = Item("message", text, place._replace(at_us=datetime_to_us(row["seen_at"])))
                self._found.items["message"].setdefault((row["message_id"], row["class_name"]), item)
        return self._found

    def _add_calls(self, calls: pa.RecordBatch) -> None:
        sizes = {half: pc.binary_length(calls[f"{half}_stub"]).to_pylist() for half in ("request", "response")}
        for number, row in enumerate(calls.select(_CALL_COLUMNS).to_pylist()):
            toward = _toward_server(row)
            for half, direction in (("request", toward), ("response", toward.back)):
                if (sequence := row[f"{half}_sequence"]) is None:
                    continue
                place = Place(direction, sequence, sizes[half][number] or 1, datetime_to_us(row[f"{half}_at"]))
                text = f"{half} {row['interface_name'] or '?'} opnum {row['opnum']} call {row['call_id']}"
                self._found.items["call"][half, direction, row["call_id"], sequence] = Item("call", text, place)
                self._carriers[row["call_key"]] = place
        names = [name for name in (*CALL_INPUT_COLUMNS, *OPTIONAL_INPUT_COLUMNS) if name != RUN_ID]
        given = calls.select(names).append_column(RUN_ID, pa.nulls(calls.num_rows, pa.string()))
        failures: list[DecodeFailure] = []  # such calls give no message
        for decoded in decode_calls_safely(given, failures, wanted=_WANTED):
            self._messages += decoded[str(MESSAGES)].select(_MESSAGE_COLUMNS).to_pylist()

    def _add_packets(self, packets: pa.RecordBatch) -> None:
        for row in packets.select(_PACKET_COLUMNS).to_pylist():
            toward = _toward_server(row)
            direction = toward if row["sent_by"] == "client" else toward.back
            place = Place(direction, row["tcp_sequence"], row["length_bytes"] or 1, datetime_to_us(row["sent_at"]))
            self._carriers[row["packet_key"]] = place
            item = Item("packet", row["kind"], place, bool(row["complete"]))
            self._found.items["packet"][direction, row["tcp_sequence"]] = item
        given = pa.Table.from_batches([message_packets(packets)])
        decoded = decode_packets(given, pa.nulls(given.num_rows, pa.string()), wanted=_WANTED)
        self._messages += decoded[str(MESSAGES)].select(_MESSAGE_COLUMNS).to_pylist()


_WANTED: Final[Mapping[str, tuple[str, ...]]] = {str(MESSAGES): _MESSAGE_COLUMNS}


def _toward_server(row: RowDict) -> Direction:
    client, server = (End(row[f"{side}_address"], row[f"{side}_port"]) for side in ("client", "server"))
    return Direction(client, server)


def items_of(found: TapItems) -> Iterator[tuple[Kind, Key, Item]]:
    """Yield everything that a capture has."""
    for kind, items in found.items.items():
        yield from ((kind, key, item) for key, item in items.items())
