"""Generate the dashboard that databricks.yml deploys. It names tables by schema; the bundle sets the catalog."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.dashboards.databricks import dashboard_json
from schemas.table import Table, quoted


class SchemaTableNames:
    """Names tables as ``<prefix><layer>.<table>``, relative to the current catalog of a query."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def sql_name(self, table: Table) -> str:
        """Return the quoted SQL name of a table."""
        return f"{quoted(self.prefix + table.layer)}.{quoted(table.name)}"


def main() -> None:
    """Write the dashboard to a file (first argument) for a schema name (second argument)."""
    target, schema = sys.argv[1:]
    Path(target).write_text(dashboard_json(SchemaTableNames(f"{schema}_")), encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
