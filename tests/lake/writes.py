"""Commits of every kind to a table, for tests of what its log tells."""

from pathlib import Path

from schemas.bronze import QUARANTINE

COLUMNS = QUARANTINE.struct(without=("event_date",))


def rows(spark, *keys):
    return spark.createDataFrame([[key, *[None] * (len(COLUMNS) - 1)] for key in keys], COLUMNS)


def log_of(lake):
    return Path(lake.path(QUARANTINE)) / "_delta_log"


def writes(lake):
    """Commits of every kind, and more of them than Delta makes before it writes a checkpoint."""
    yield lambda: lake.create(QUARANTINE)
    yield lambda: lake.append(QUARANTINE, rows(lake.spark, "a", "b", "c"), provenance='{"a": 1}')
    yield lambda: lake.commit_provenance(QUARANTINE, "stamped, \u00fc\n\U0001f600")
    yield lambda: lake.delete_values(QUARANTINE, "quarantine_key", ["a"], dates=[None])
    yield lambda: lake.merge(QUARANTINE, rows(lake.spark, "b", "d"), dates=[None], provenance="[1, 2]")
    yield lambda: lake.replace(QUARANTINE, rows(lake.spark, "e"), provenance="replaced")
    yield lambda: lake.update(QUARANTINE, {"reason": "'other'"}, "TRUE")
    yield lambda: lake.restore(QUARANTINE, 1)
    for number in range(6):
        yield lambda number=number: lake.commit_provenance(QUARANTINE, f"{number}")
    yield lambda: lake.purge(QUARANTINE, "purged")
