"""What the rows of all messages of an update are made with: settings, clocks, and what sessions show of machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from pipeline.settings import AlertsConfig, Durations, PendingConfig, TransfersConfig
from pipeline.transfers.packet_order import PacketOrder


@dataclass(frozen=True, slots=True)
class TransferSettings(Durations):
    """The settings transfers.wait, pending.expire and alerts.max_clock_difference."""

    wait: timedelta = TransfersConfig.wait
    expire: timedelta = PendingConfig.expire
    max_clock_difference: timedelta = AlertsConfig.max_clock_difference


@dataclass(frozen=True, slots=True)
class TransferContext:
    """What is the same for all messages of an update.

    ``clones``: identifiers of queue managers that two machines have. ``handshakes``: of addresses at ends of which
    sessions show no queue manager. ``overlaps``: connections with the pairs of captures that saw them side by side, and
    whether their clocks are known to differ. ``holes``: of sessions that exist within transfers.wait. ``clocks``: least
    transits of the messages' sources, by day. ``capture_ends``: by server, microseconds. ``steps``: between which times
    clocks were set (``ClockSteps.spans``). ``set_by``: by server how far clocks were set, microseconds. ``order``:
    which was sent first, of the sendings of a message on a hop whose times are of several captures, or of one whose
    clock was set.
    """

    settings: TransferSettings
    run_id: str
    clones: Collection[str]
    handshakes: pa.Table
    overlaps: pa.Table
    holes: pa.Table
    clocks: pa.Table
    capture_ends: Mapping[str, int]
    steps: Sequence[tuple[str, int, int]] = ()
    set_by: Mapping[str, int] = field(default_factory=dict)
    order: PacketOrder = field(default_factory=PacketOrder)
