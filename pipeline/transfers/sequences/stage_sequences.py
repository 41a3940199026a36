"""Rows of gold.transfer_sequences, computed by groups of sequences, in tasks where they are many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import QueryAnswers
from pipeline.lake.schema_enforcement import cast_to
from pipeline.lake.stage_groups import stage_groups
from pipeline.lake.staged_changes import stage_changes
from pipeline.lake.staging_files import StagingWriter
from pipeline.transfers.sequences.beginnings import FACTS_SCHEMA, Beginnings, find_beginnings, sequence_facts
from pipeline.transfers.sequences.sequence_context import SequenceContext
from pipeline.transfers.sequences.sequence_inputs import CURRENT, GroupedSequences
from pipeline.transfers.sequences.sequence_rows import sequence_rows
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.columns.arrays import one_array
from udfs.times import timedelta_to_us

_IS_NOW: Final = pa.field("is_now", pa.bool_())
_SUMMARY: Final = FACTS_SCHEMA.append(_IS_NOW)


class ChangedFacts(NamedTuple):
    """What beginnings are found from (``FACTS_SCHEMA``), of rows as they are now and as they were before."""

    now: pa.Table
    before: pa.Table


def stage_sequences(
    lake: Lake, folder: LakePath, sequences: GroupedSequences, context: SequenceContext
) -> ChangedFacts:
    """Stage in a folder the rows of some sequences that differ from the table's; return what beginnings are found from.

    The rows say how they began as the table's do. Where all sequences are recomputed, all rows are staged, and say how
    they began; nothing is returned.
    """
    queries = sequences.queries(timedelta_to_us(context.settings.wait))
    stage, summary = _SequencesOfGroup(context).stage, from_arrow_schema(_SUMMARY)
    found = stage_groups(lake, folder, queries, stage, summary, label=sequences.bounds[0], as_columns=True)
    is_now = found[_IS_NOW.name]
    facts = found.select(FACTS_SCHEMA.names).cast(FACTS_SCHEMA)
    return ChangedFacts(facts.filter(is_now), facts.filter(pc.invert(is_now)))


@dataclass(frozen=True, slots=True)
class _SequencesOfGroup:
    """The function of a group of sequences."""

    context: SequenceContext

    def stage(self, parts: QueryAnswers, staging: StagingWriter) -> pa.Table:
        """Stage the rows of a group; return facts of them and of those that there are."""
        given = {name: parts[name] for name in parts}
        rows = sequence_rows(given["sendings"], given["order_acks"], self.context)
        if CURRENT not in given:
            rows = find_beginnings(sequence_facts(rows), self.context.settings.wait).set(rows)
            staging.add_table(TRANSFER_SEQUENCES.name, rows)
            return _SUMMARY.empty_table()
        current = cast_to(TRANSFER_SEQUENCES, given[CURRENT])
        before = sequence_facts(current)
        rows = Beginnings(*(one_array(before[name]) for name in ("sequence_key", "previous", "began"))).set(rows)
        stage_changes(staging, TRANSFER_SEQUENCES, rows, current)
        return pa.concat_tables(
            facts.append_column(_IS_NOW, pa.repeat(pa.scalar(is_now), facts.num_rows))
            for facts, is_now in ((sequence_facts(rows), True), (before, False))
        )
