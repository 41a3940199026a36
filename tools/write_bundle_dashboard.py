"""Generate the part of the bundle that is its dashboard: the definition, over the tables of the bundle's schemas."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.dashboards.databricks import dashboard_json
from schemas.table import Table, quoted

_RESOURCE = """\
# Written by "make dashboard". The dashboard of the bundle; the CLI fills in the catalog and the schemas of the target.
resources:
  dashboards:
    msmq:
      display_name: Message Queuing
      warehouse_id: ${var.warehouse}
      serialized_dashboard: |
"""


class BundleTableNames:
    """Names tables by the references of the bundle to its catalog and its schemas."""

    def sql_name(self, table: Table) -> str:
        """Return the quoted SQL name of a table."""
        schema = f"${{resources.schemas.{table.layer}.name}}"
        return ".".join(map(quoted, ("${var.catalog}", schema, table.name)))


def bundle_dashboard() -> str:
    """Return the text of ``conf/dashboard.yml``, which ``databricks.yml`` includes."""
    lines = dashboard_json(BundleTableNames()).splitlines(keepends=True)
    return _RESOURCE + "".join(f"        {line}" for line in lines)


def main() -> None:
    """Write the dashboard to a file (first argument)."""
    (target,) = sys.argv[1:]
    Path(target).write_text(bundle_dashboard(), encoding="utf-8")
    print(target)


if __name__ == "__main__":
    main()
