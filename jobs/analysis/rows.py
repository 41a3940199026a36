"""Print or write the rows of any table or view of a lake: as text, CSV, JSON lines or Parquet."""

from __future__ import annotations

import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from jobs import cli
from jobs.analysis.row_formats import csv_parts, json_parts, text_parts, write_parquet
from jobs.command_line.answers import lake_views
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.lake.lake import Lake
from pipeline.lake.queries.conditions import ConditionError, RowCondition, parse_condition
from pipeline.reports.row_queries import Relation, SortColumn, UnknownNameError, find_relation, row_meanings

JOB: Final = "rows"
_FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_DESCENDING: Final = ":desc"
_INDENT: Final = "    "
_WIDTH: Final = 110  # of descriptions, where there is no terminal


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Give the rows, their number, or what the columns are; nothing is written to the lake."""
    arguments = job_run.arguments
    _check_arguments(arguments)
    lake = open_lake_with_data(job_run)
    if arguments.list:
        cli.write_output("".join(f"{name}: {meaning}\n" for name, meaning in row_meanings()))
        return cli.Outcome()
    try:
        relation = find_relation(lake_views(job_run.config, lake, arguments.as_of), arguments.relation)
        schema = relation.schema(arguments.columns)
        condition = None if arguments.where is None else parse_condition(arguments.where, relation.schema())
        order = [SortColumn(name.removesuffix(_DESCENDING), name.endswith(_DESCENDING)) for name in arguments.order]
        query = relation.select(schema.names, condition, order, arguments.limit + 1 if arguments.limit else None)
    except ConditionError as error:
        raise ConfigError(f"--where: {error}") from error
    except UnknownNameError as error:
        raise ConfigError(str(error)) from error
    if arguments.describe:
        cli.write_output("\n".join(_description(relation)) + "\n")
        return cli.Outcome(summary_fields={"relation": relation.name})
    if arguments.count:
        counted = _count(lake, relation, condition)
        cli.write_output(f"{counted}\n")
        return cli.Outcome(summary_fields={"relation": relation.name, "rows": counted})
    given = _Given(arguments.limit)
    with lake.read_batches(query.sql, **query.inputs) as batches:
        _write(job_run, lake, given.tables(batches, schema), schema)
    if given.has_more:
        cli.log_progress(f"{relation.name} has more rows: --limit 0 gives all")
    return cli.Outcome(summary_fields={"relation": relation.name, "rows": given.count, "more": given.has_more})


def _check_arguments(given: Namespace) -> None:
    """Raise ConfigError where options contradict each other."""
    if given.list == (given.relation is not None):
        raise ConfigError("give a table or a view, or --list alone")
    if given.limit < 0:
        raise ConfigError(f"--limit: must be at least 0, not {given.limit}")
    if len(set(given.columns)) < len(given.columns):
        raise ConfigError("--columns: a name twice")
    if _format(given) == "parquet" and given.out == cli.STANDARD_OUTPUT and cli.terminal_width():
        raise ConfigError("--format parquet: not to a terminal; give --out a file")


def _format(given: Namespace) -> str:
    return given.format or _FORMATS.get(Path(given.out).suffix.lower(), "text")


def _count(lake: Lake, relation: Relation, condition: RowCondition | None) -> int:
    query = relation.count(condition)
    return int(lake.query(query.sql, **query.inputs)["number"][0].as_py())


def _description(relation: Relation) -> Iterator[str]:
    """Yield lines on what a row and the columns of a table or view are."""
    width = cli.terminal_width() or _WIDTH
    yield from textwrap.wrap(f"{relation.name}: {relation.row_meaning}", width)
    if relation.key:
        yield f"key: {', '.join(relation.key)}"
    for column in relation.columns:
        yield f"{column.name}  {column.sql_type}"
        yield from textwrap.wrap(column.comment, width, initial_indent=_INDENT, subsequent_indent=_INDENT)


@dataclass(slots=True)
class _Given:
    """The rows that are given, at most ``limit`` (0: all): how many, and whether there are more."""

    limit: int
    count: int = 0
    has_more: bool = False

    def tables(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield rows, some at a time, with the types of ``schema``."""
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            if self.limit and rows.num_rows > self.limit - self.count:
                rows, self.has_more = rows.slice(0, self.limit - self.count), True
            self.count += rows.num_rows
            yield rows.cast(schema)


def _write(job_run: cli.JobRun, lake: Lake, rows: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write rows to the file that is asked for, or to standard output; what a terminal would obey is escaped."""
    arguments, is_printed = job_run.arguments, job_run.arguments.out == cli.STANDARD_OUTPUT
    width = cli.terminal_width() if is_printed else None
    form = _format(arguments)
    with cli.data_output() if is_printed else _file(job_run, lake, Path(arguments.out)) as out:
        if form == "parquet":
            write_parquet(rows, schema, out)
            return
        if form == "json":
            parts = json_parts(rows)
        elif form == "csv":
            parts = csv_parts(rows, schema.names, "\n" if is_printed else "\r\n")
        else:
            parts = text_parts(rows, schema.names, width)
        for part in parts:
            out.write(part.encode() if width is None else cli.bytes_for_terminal(part))


@contextmanager
def _file(job_run: cli.JobRun, lake: Lake, path: Path) -> Iterator[BinaryIO]:
    """Yield the file of --out; ConfigError if it cannot be written."""
    check_outputs(job_run, lake, [path])
    try:
        with replace_file(path) as out:
            yield out
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
