"""Rows of gold.message_transfers, computed by groups of messages, in tasks where they are many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import QueryAnswers
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.messages.message_inputs import CURRENT, GroupedMessages, TransferInputs
from pipeline.transfers.messages.message_rows import message_transfer_rows
from pipeline.transfers.messages.transfer_context import TransferContext
from schemas.transfers import MESSAGE_TRANSFERS

_COUNT: Final = StructType().add("rows", "long")


def stage_transfers(
    lake: Lake, folder: LakePath, messages: GroupedMessages, context: TransferContext, label: str, *, replaced: bool
) -> None:
    """Stage in a folder the rows of some messages: those that differ from the table's, or all where none is replaced.

    ``label``: of the files, beside those of other messages.
    """
    queries = messages.queries(replaced=replaced, captures_of_calls=context.overlaps.num_rows > 0)
    stage_groups(lake, folder, queries, _TransfersOfGroup(context).stage, _COUNT, label=label, as_columns=True)


@dataclass(frozen=True, slots=True)
class _TransfersOfGroup:
    """The function of a group of messages."""

    context: TransferContext

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the rows of a group; return how many there are."""
        given = {name: parts[name] for name in parts}
        rows = message_transfer_rows(TransferInputs.of(given), self.context)
        if CURRENT in given:
            stage_changes(staging, MESSAGE_TRANSFERS, rows, cast_to(MESSAGE_TRANSFERS, given[CURRENT]))
        else:
            staging.add_table(MESSAGE_TRANSFERS.name, rows)
        return pa.table({"rows": pa.array([rows.num_rows], pa.int64())})
