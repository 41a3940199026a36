"""Rows that a function makes of groups of rows and writes to staging files, in tasks where they are many.

For rows that are needed twice, or that several tables get: they are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.lake.queries.inputs import BoundQuery, GroupedQuery, QueryAnswers
from pipeline.lake.staging_files import StagingWriter
from udfs.columns.codes import dictionary_codes
from udfs.columns.groups import is_group_start

BUCKET: Final = "bucket"

StageFunction: TypeAlias = Callable[[QueryAnswers, StagingWriter], pa.Table]
"""Adds what it makes of the answers to queries to a task's staging files; returns what is to be known of it."""


def bucket_sql(key: str, digits: int = 2) -> str:
    """Return the SQL of the column ``bucket``: the group of the rows that have the same text as key.

    It is so many ``digits``, so that there are 256 groups with 2.
    """
    return f"left(md5({key}), {digits}) AS {BUCKET}"


def each_once(rows: pa.Table, key: str) -> pa.Table:
    """Return rows, each once, that answers may have for several groups; they are sorted so that equals are together."""
    return rows.filter(pa.array(is_group_start(dictionary_codes(rows[key]))))


def stage_groups(
    lake: Lake, folder: LakePath, queries: Mapping[str, BoundQuery], stage: StageFunction, summary: StructType,
    *, keys: Sequence[str] = (BUCKET,), label: str = "", distinct_texts: Collection[str] | None = None,
    as_columns: bool = False,
) -> pa.Table:  # fmt: skip
    """Write what a function makes of the answers to queries to staging files; return the summaries that it returns.

    The answers have the columns ``keys``; rows of one group are in one call, as for ``Lake.map_groups``. A task names
    its files by the first of its groups, so that a repeated task overwrites its own files. ``label``: of files beside
    others in the same folder; ``distinct_texts`` and ``as_columns`` as for ``GroupedQuery``.
    """
    location = str(folder)

    @wraps(stage)
    def stage_parts(parts: QueryAnswers) -> Iterator[pa.Table]:
        firsts = (_first_group(parts.select(name, keys)) for name in parts)
        staging = StagingWriter(location, label + min(filter(None, firsts), default=""))
        found = stage(parts, staging)
        staging.close()
        yield found

    return lake.map_few_groups(GroupedQuery(queries, keys, stage_parts, summary, distinct_texts, as_columns=as_columns))


def _first_group(keys: pa.Table) -> str | None:
    """Return the first group of rows, as a text; None without rows."""
    texts = (pc.fill_null(column.cast(pa.string()), "") for column in keys.columns)
    first: str | None = pc.min(pc.binary_join_element_wise(*texts, "|")).as_py()
    return first
