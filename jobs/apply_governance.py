"""Tag private columns in Unity Catalog, make views without them, grant who may read what, set owners.

What is in effect already is not done again. Nothing is revoked, and no table of Delta changes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from jobs import cli
from jobs.command_line.parsers import build_parser
from jobs.config import Config, ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.lake.lake import Lake
from pipeline.privacy.governance import Effect, Governance
from pipeline.text import is_utf8
from schemas.catalog import ALL_TABLES

JOB = "apply_governance"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Execute the statements that are not in effect; with --dry-run, print those for all tables, without Spark."""
    governance = configured_governance(job_run.config)
    if job_run.arguments.dry_run:
        statements = [*governance.statements({table: table.names for table in ALL_TABLES})]
        cli.write_output("".join(f"{statement.sql};\n" for statement in statements))
        return cli.Outcome(summary_fields={"statements": len(statements)})
    return cli.Outcome(summary_fields=apply_governance(open_lake_with_data(job_run), governance))


def configured_governance(config: Config) -> Governance:
    """Return what the settings ask for; ConfigError without a catalog, and for names that Spark would not take."""
    lake, governance = config.lake, config.governance
    if lake.catalog is None:
        raise ConfigError("tags, views and grants need a catalog (lake.catalog); files have permissions instead")
    view_schema = f"{lake.prefix}shared" if governance.view_schema is None else governance.view_schema
    layers = {table.layer for table in ALL_TABLES}
    if view_schema.lower() in {f"{lake.prefix}{layer}".lower() for layer in layers}:
        raise ConfigError(f"governance.view_schema: {view_schema} holds tables, which readers of views may not read")
    names = {
        "lake.catalog": [lake.catalog],
        "lake.prefix": [lake.prefix] if lake.prefix else [],
        "governance.view_schema": [view_schema],
        "governance.tag": [governance.tag],
        "governance.owner": [] if governance.owner is None else [governance.owner],
        "governance.readers": governance.readers,
        "governance.view_readers": governance.view_readers,
    }
    for setting, values in names.items():
        for name in values:
            if "${" in name or not is_utf8(name) or not name.isprintable() or not name.strip():
                raise ConfigError(f"{setting}: {name!r}: must be printable text, not empty, without ${{")
    return Governance(
        lake.catalog, lake.prefix, view_schema, frozenset(governance.views_without), governance.tag, governance.owner,
        governance.readers, governance.view_readers,
    )  # fmt: skip


def apply_governance(lake: Lake, governance: Governance) -> dict[str, Any]:
    """Execute what is not in effect for the tables that exist; return fields of the summary.

    ConfigError for a statement that the catalog does not take; those before it have been executed.
    """
    spark = lake.spark
    tables = {table: spark.table(lake.sql_name(table)).columns for table in ALL_TABLES if lake.exists(table)}
    statements = [*governance.statements(tables)]
    in_effect = _read_in_effect(spark, governance.in_effect_queries({table.layer for table in tables}))
    if in_effect is None:
        cli.log_progress("the catalog does not say what is in effect (information_schema): all statements are executed")
    needed = [statement for statement in statements if not statement.effects <= (in_effect or set())]
    for statement in needed:
        try:
            spark.sql(statement.sql)
        except PySparkException as error:
            reason = " ".join(str(error).strip().partition("\n\n")[0].split())  # without the SQL and Java's stack
            raise ConfigError(f"not executed: {statement.sql.partition(' (')[0]}: {reason}") from error
    cli.write_output(f"{len(needed)} statements executed; {len(statements) - len(needed)} were in effect\n")
    return {"statements": len(statements), "executed": len(needed)}


def _read_in_effect(spark: SparkSession, queries: Sequence[str]) -> set[Effect] | None:
    """Return what is in effect in the catalog; None if it has no information schema, as Spark's own."""
    try:
        return {tuple(row) for query in queries for row in spark.sql(query).collect()}
    except AnalysisException:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
