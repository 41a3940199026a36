"""How jobs open the lake and hold exclusive write access to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jobs import cli
from jobs.config import ConfigError
from jobs.session import one_origin, session
from pipeline.lake.lake import Lake
from pipeline.lake.lease import LeaseError, lease


def open_lake(run: cli.Run) -> Lake:
    """Return the lake that arguments and settings name, with a session for it."""
    one_origin()
    config = run.config.lake
    return Lake(session(run.job), run.arguments.lake, catalog=config.catalog, prefix=config.prefix)


@contextmanager
def alone(run: cli.Run, lake: Lake) -> Iterator[None]:
    """Hold the lake while it is written: a run that comes meanwhile waits, or gives up with one line and exit 2."""
    if getattr(run.arguments, "dry_run", False):
        yield
        return
    try:
        wait_s = run.config.lake.lease_wait.total_seconds()
        with lease(lake.root, run.run_id, wait_s=wait_s, say=cli.say) as mine, lake.held(mine.check):
            yield
    except LeaseError as error:
        raise ConfigError(str(error)) from error
