"""Decoders of calls and packets while a run writes them to bronze, and what they decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from pipeline.bronze.row_observers import ObservedWrite, RowObserver
from pipeline.lake.lake import Lake
from pipeline.silver.decode import DEFAULT_SETTINGS, DecodeSettings
from pipeline.silver.decode_packets import DecodedPackets, MessagePacketDecoder
from pipeline.silver.decode_tasks import CallDecoder, DecodedWrite
from schemas.bronze import RPC_CALLS
from schemas.sessions import SESSION_PACKETS
from schemas.table import Table


class Decoded(NamedTuple):
    """The calls and the messages of packets that a run decoded while it wrote them; None where they are not all."""

    calls: DecodedWrite | None = None
    packets: DecodedPackets | None = None


NOTHING_DECODED: Final = Decoded()


class InlineDecoders(NamedTuple):
    """The decoders of one run."""

    calls: CallDecoder
    packets: MessagePacketDecoder

    @staticmethod
    def of(lake: Lake, settings: DecodeSettings = DEFAULT_SETTINGS) -> InlineDecoders:
        """Return decoders for a run; files of an earlier one are deleted."""
        return InlineDecoders(CallDecoder.of(lake, settings), MessagePacketDecoder.of(lake, settings))

    def observers(self) -> dict[Table, RowObserver]:
        """Return what ``ingest_captures`` passes rows through, by table."""
        return {RPC_CALLS: self.calls, SESSION_PACKETS: self.packets}

    def decoded(self, writes: Mapping[Table, ObservedWrite]) -> Decoded:
        """Return what was decoded, by the writes that were observed."""
        calls, packets = writes.get(RPC_CALLS), writes.get(SESSION_PACKETS)
        return Decoded(
            None if calls is None else DecodedWrite(self.calls, calls),
            None if packets is None else DecodedPackets(self.packets, packets.to_version),
        )
