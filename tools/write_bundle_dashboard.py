"""Write the dashboard that databricks.yml deploys: the tables by schema and name, for the bundle says the catalog."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.dashboards.databricks import dashboard
from schemas.table import Table, quoted


class InSchemas:
    """Tables by ``<prefix><layer>.<table>``, of whatever catalog a query is asked in."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def sql_name(self, table: Table) -> str:
        """The table as it stands in SQL, quoted."""
        return f"{quoted(self.prefix + table.layer)}.{quoted(table.name)}"


def main() -> None:
    """Write it to the file named first on the command line, for the schema named second."""
    target, schema = sys.argv[1:]
    Path(target).write_text(dashboard(InSchemas(f"{schema}_")), encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
