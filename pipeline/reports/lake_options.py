"""What a lake is called: its name for people, and the options of a command that name it, to be copied."""

from __future__ import annotations

import shlex

from pipeline.lake.lake import Lake


def lake_name(lake: Lake) -> str:
    """Return where the tables are: the folder, or the catalog with the prefix of its schemas."""
    return lake.root if lake.catalog is None else f"{lake.catalog}.{lake.prefix}"


def lake_options(lake: Lake, place: str | None = None) -> str:
    """Return the options, quoted for a shell: the folder, and the catalog and prefix if tables are in a catalog.

    ``place`` is the folder as ``--lake`` was given; without it its whole location.
    """
    options = ["--lake", lake.root if place is None else place]
    if lake.catalog is not None:
        options += ["--set", f"lake.catalog={lake.catalog}"]
        options += ["--set", f"lake.prefix={lake.prefix}"] if lake.prefix else []
    return shlex.join(options)
