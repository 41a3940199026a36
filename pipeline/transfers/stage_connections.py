"""What is made of connections, staged by groups of them, in rounds: of those with a checkpoint from what is behind it.

A connection with very many packets is read in several rounds (``connection_rounds``); each makes a checkpoint, and
stages what that counts; the last one stages the rest. All others are done in the first round.

Whether a checkpoint of a table holds may turn out only when what is behind it is there. The function of a group leaves
such connections out and names them; they are staged anew, from all of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery
from pipeline.lake.stage_groups import StageFunction, stage_groups
from pipeline.transfers.checkpoints import Checkpoint, checkpoint_rows, checkpoints_by_connection
from pipeline.transfers.connection_parts import ConnectionsToRead
from pipeline.transfers.connection_rounds import plan_rounds
from pipeline.transfers.session_rows import SessionSettings
from schemas.table import Table
from udfs.capture.clock_steps import ClockSteps

StagePlan: TypeAlias = Callable[[ConnectionsToRead], tuple[Mapping[str, BoundQuery], StageFunction]]
"""Returns for connections the queries for a group and its function, which returns ``stage_summary``."""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What is the same for all sessions of a run.

    ``capture_ends``: by server, microseconds; ``steps``: where clocks of captures were set.
    """

    capture_ends: Mapping[str, int]
    steps: ClockSteps
    settings: SessionSettings
    run_id: str


def stage_connections(
    lake: Lake, folder: LakePath, read: ConnectionsToRead, table: Table, steps: ClockSteps, plan: StagePlan
) -> None:
    """Stage in a folder what a plan makes of some connections; ``table``: of their checkpoints."""
    rounds = plan_rounds(lake, read.names, read.stored, steps)
    for number in count():
        read = read.up_to({name: each.later for name, each in rounds.items() if each.later is not None})
        queries, stage = plan(read)
        found = stage_groups(lake, folder, queries, stage, table.struct(), label=f"{number}-")
        is_checkpoint = found["counted_until"].is_valid()
        made = checkpoints_by_connection(found.filter(is_checkpoint))
        anew = found.filter(pc.invert(is_checkpoint))["connection_id"].to_pylist()
        going_on = {name: rounds[name].next_round(has_new_checkpoint=name in made) for name in {*read.later} - {*anew}}
        read = read.behind({*going_on, *anew}, made, anew)
        if not len(read.names):
            return
        rounds = going_on | plan_rounds(lake, pa.array(anew, pa.string()), {}, steps)


def stage_summary(table: Table, left_out: Collection[str], made: Collection[Checkpoint], run_id: str) -> pa.Table:
    """Return what the function of a group returns: rows of a table of checkpoints.

    ``left_out``: connections, of which there is no more than their name; ``made``: the new checkpoints of those with
    later packets.
    """
    names = pa.table({"connection_id": pa.array(sorted(left_out), pa.string())})
    return pa.concat_tables([checkpoint_rows(table, made, run_id), names], promote_options="default")
