"""What the rows of all sequences of an update are made with: settings, clocks, and what sessions show of machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from pipeline.settings import Durations, PendingConfig, TransfersConfig
from pipeline.transfers.hops.missing_packets import HopHoles
from udfs.capture.clock_steps import NO_STEPS, ClockSteps


@dataclass(frozen=True, slots=True)
class SequenceSettings(Durations):
    """The settings transfers.stall_after, transfers.wait and pending.expire."""

    stall_after: timedelta = TransfersConfig.stall_after
    wait: timedelta = TransfersConfig.wait
    expire: timedelta = PendingConfig.expire


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """What is the same for all sequences of an update.

    ``capture_ends``: by server, microseconds. ``holes``: of sessions that exist within transfers.wait. ``handshakes``:
    of addresses at ends of which sessions show no queue manager. ``clones``: identifiers of queue managers that two
    machines have. ``steps``: where clocks were set.
    """

    settings: SequenceSettings
    run_id: str
    capture_ends: Mapping[str, int]
    holes: HopHoles
    handshakes: pa.Table
    clones: Collection[str] = ()
    steps: ClockSteps = NO_STEPS
