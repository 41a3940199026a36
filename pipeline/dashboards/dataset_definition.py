"""What a dashboard dataset is: the SQL of whole rows, and of aggregates over all rows where there are too many of them.

In the SQL, ``{name}`` stands for a table, ``{max_gap_s}`` for the setting history.max_gap in seconds and ``{step_us}``
for the length of a time bucket in microseconds. It is valid for Spark and for DuckDB (``Lake.query``). Aggregates have
the column names of the rows that they summarize, and ``n``, the number of these rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TIME_STEPS_S: Final = (1, 10, 60, 300, 900, 3600, 6 * 3600, 86_400, 7 * 86_400, 100 * 366 * 86_400)
MAX_EVIDENCE_KEYS: Final = 12  # evidence keys in a row of a dataset; ``evidence_count`` is the number of all
EVIDENCE_COLUMNS: Final = (
    f"confidence, missing, slice(evidence, 1, {MAX_EVIDENCE_KEYS}) AS evidence, size(evidence) AS evidence_count"
)


def log_bucket_midpoint_sql(number: str) -> str:
    """Return SQL for the middle of the class of a number: four classes per doubling, so accurate to 9 %."""
    return f"pow(2, (floor(log2(greatest({number}, 0.001)) * 4) + 0.5) / 4)"


@dataclass(frozen=True, slots=True)
class Dataset:
    """One dataset of the dashboard: the SQL of its rows, and of the selection and aggregates if there are too many.

    ``table`` is the table of the rows; without it, or without one of ``other_tables``, the dataset is not computed.
    A table ``beside`` these counts as empty if it does not exist.
    If there are too many rows, each group of ``partition_by`` keeps its first rows by ``order_by``, and ``selection``
    says so to the reader. The aggregates over all rows group by time buckets of ``time_column`` and by ``group_by``.
    Alternatively ``summary_sql`` is their whole query, and ``summary_size_sql`` estimates its number of rows.
    """

    name: str
    table: str
    rows_sql: str
    order_by: str
    selection: str
    partition_by: str = ""
    time_column: str = ""
    group_by: str = ""
    aggregates: str = ""
    summary_sql: str = ""
    summary_size_sql: str = ""
    other_tables: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def needed_tables(self) -> tuple[str, ...]:
        """The tables without which the dataset is not computed."""
        return (self.table, *self.other_tables)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables that the SQL reads."""
        return (*self.needed_tables, *self.beside)
