"""What is made of connections, staged by groups of them: of those with a checkpoint from what is behind it.

Whether a checkpoint holds may turn out only when what is behind it is there. The function of a group leaves such
connections out and names them; they are staged once more, from all of their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.arrow_rows import distinct_texts
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery
from pipeline.lake.stage_groups import StageFunction, stage_groups
from pipeline.transfers.checkpoints import Checkpoint
from pipeline.transfers.session_rows import SessionSettings
from udfs.capture.clock_steps import ClockSteps

_LEFT_OUT: Final = StructType().add("connection_id", "string")

StagePlan: TypeAlias = Callable[[pa.Array, Mapping[str, Checkpoint]], tuple[Mapping[str, BoundQuery], StageFunction]]
"""Returns for connections, and the checkpoints of some, the queries for a group and its function (``left_out``)."""


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
    lake: Lake, folder: LakePath, names: pa.Array, checkpoints: Mapping[str, Checkpoint], plan: StagePlan
) -> None:
    """Stage in a folder what a plan makes of some connections."""
    for label in ("", "anew"):
        queries, stage = plan(names, checkpoints)
        found = stage_groups(lake, folder, queries, stage, _LEFT_OUT, label=label)
        names, checkpoints = distinct_texts(found["connection_id"]), {}
        if not len(names):
            return


def left_out(names: Collection[str]) -> pa.Table:
    """Return what the function of a group returns: the connections that it left out."""
    return pa.table({"connection_id": pa.array(sorted(names), pa.string())})
