"""Commits of every kind to a table, for tests of what its log tells."""

from pathlib import Path

from deltalake import DeltaTable

from pipeline.lake.storage.log import NO_PROVENANCE
from schemas.bronze import QUARANTINE

NO_COMMIT = object()
COLUMNS = QUARANTINE.struct(without=("event_date",))


def rows(spark, *keys):
    return spark.createDataFrame([[key, *[None] * (len(COLUMNS) - 1)] for key in keys], COLUMNS)


def clean_log(lake, table):
    """Leave only what is newer than a checkpoint, and one entry that changes nothing."""
    delta = DeltaTable(lake.location(table))
    delta.create_checkpoint()
    delta.alter.set_table_properties({"another.day": "x"}, raise_if_not_exists=False)
    for path in sorted(Path(lake.path(table), "_delta_log").glob("*.json"))[:-1]:
        path.unlink()


def log_of(lake):
    return Path(lake.path(QUARANTINE)) / "_delta_log"


def writes(lake):
    """Commits of every kind, each with the provenance that it has and the rows that it writes, where that is told.

    ``NO_COMMIT``: what the table rests on is noted, and no commit tells it.
    """
    spark = lake.spark
    said = "stamped, \u00fc\n\U0001f600"
    yield lambda: lake.create(QUARANTINE), None, 0
    yield lambda: lake.append(QUARANTINE, rows(spark, "a", "b", "c"), provenance='{"a": 1}'), '{"a": 1}', 3
    yield lambda: lake.note_provenance(QUARANTINE, said), said, NO_COMMIT
    yield lambda: lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None]), NO_PROVENANCE, None
    yield (
        lambda: lake.update(QUARANTINE, {"reason": "'one'"}, "quarantine_key = 'b'", provenance="[1, 2]"),
        "[1, 2]",
        None,
    )
    yield lambda: lake.replace(QUARANTINE, rows(spark, "e"), provenance="replaced"), "replaced", 1
    yield lambda: lake.update(QUARANTINE, {"reason": "'other'"}, "TRUE"), NO_PROVENANCE, None
    yield lambda: lake.restore(QUARANTINE, 1), NO_PROVENANCE, None
    for number in range(2):
        yield lambda number=number: lake.note_provenance(QUARANTINE, f"{number}"), f"{number}", NO_COMMIT
    yield lambda: lake.purge(QUARANTINE, "purged"), "purged", 0
