"""Open the lake that a job names, and hold its write lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from pyspark.sql import SparkSession

from jobs import cli
from jobs.command_line.engine_summary import EngineSummary
from jobs.command_line.private_folder import PRIVATE_FOLDER, remove_left_folders
from jobs.command_line.run_note import run_note
from jobs.config import ConfigError
from jobs.session import check_single_installation, check_spark_can_start, prepare_process, prepare_session
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from pipeline.lake.lake_path import LakePath
from pipeline.runs.lease import Lease, LeaseError, hold_lease
from pipeline.runs.lease_table import lease_location
from schemas.bronze import CAPTURE_FILES
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW


def open_lake(job_run: cli.JobRun) -> Lake:
    """Return the lake named by the arguments and settings, for a job that reads input. Removes what killed runs left.

    Its Spark session starts when a step first needs it. ConfigError, before anything is written, where that is
    foreseeably impossible.
    """
    lake = _open_lake(job_run)
    computes_in_spark = lake.session.engine == "spark" and not getattr(job_run.arguments, "dry_run", False)
    stores_in_spark = lake.store_name == "spark"
    if computes_in_spark or stores_in_spark:
        try:
            check_spark_can_start(needs_delta=stores_in_spark)
        except ConfigError as error:
            if stores_in_spark:
                raise
            raise ConfigError(f"{error}; or compute without Spark: --set run.engine=local") from error
    return lake


def _open_lake(job_run: cli.JobRun) -> Lake:
    check_single_installation()
    config, scratch_folder = job_run.config.lake, job_run.config.privacy.scratch_folder
    remove_left_folders(scratch_folder)
    prepare_process()
    start = prepare_session(job_run.job, scratch_folder=scratch_folder)
    engine, summary = job_run.config.run.engine, EngineSummary()

    def make() -> SparkSession:
        spark = start(needs_delta=lake.store_name == "spark")
        master = summary.has_started(spark)
        if engine == "spark":
            cli.log_progress(f"Spark computes: {master}")
        return spark

    session = LazySession(make, engine=engine)
    store = None if config.store == "auto" else config.store
    lake = Lake(
        session, job_run.arguments.lake, catalog=config.catalog, prefix=config.prefix, store=store,
        read_log=config.read_log, trusts_versions=not job_run.conflicts,
        overflow_folder=PRIVATE_FOLDER.path(scratch_folder),
    )  # fmt: skip
    job_run.summary_fields["engine"] = partial(summary.fields, session)
    job_run.summary_fields["store"] = lake.store_name
    return lake


def open_lake_with_data(job_run: cli.JobRun) -> Lake:
    """Return the lake of a job that reads what earlier runs wrote; ConfigError if no input was ever read into it.

    Nothing is made: no folder, no table.
    """
    location = job_run.arguments.lake
    if job_run.config.lake.catalog is not None or _is_folder(location):
        lake = _open_lake(job_run)
        lake.trust_watermarks()
        if any(map(lake.exists, (CAPTURE_FILES, SNAPSHOT_FILES, SNAPSHOTS_RAW))):
            return lake
    raise ConfigError(f"{location}: no captures or snapshots were read into this lake; run 'msmq run_all' first")


def _is_folder(location: str) -> bool:
    try:
        return LakePath(location).is_folder()
    except OSError as error:
        raise ConfigError(f"{location}: {' '.join(str(error).split())}") from error


@contextmanager
def lake_lease(job_run: cli.JobRun, lake: Lake, outcome: cli.Outcome) -> Iterator[None]:
    """Hold exclusive write access to the lake; with --dry-run, do nothing.

    Another run that holds the lease is waited for, at most ``lake.lease_wait``. ConfigError if it is still held then.
    ``bronze.runs`` takes from ``outcome`` what the run did: it is complete when the block ends.
    """
    if getattr(job_run.arguments, "dry_run", False):
        yield
        return
    cli.log_progress(f"the tables are stored by {lake.store_name}")
    if lake.session.engine == "local":
        cli.log_progress("this process computes (run.engine=local)")
    with (
        files_lease(job_run, lake) as mine,
        lake.hold_exclusive_access(mine.check, cli.log_progress, run_note(job_run, outcome)),
    ):
        yield


@contextmanager
def files_lease(job_run: cli.JobRun, lake: Lake) -> Iterator[Lease]:
    """Hold the lease of the lake, for what writes files and no table; ConfigError as ``lake_lease``."""
    try:
        wait_s, location = job_run.config.lake.lease_wait.total_seconds(), lease_location(lake)
        with hold_lease(lake.root, job_run.run_id, location=location, wait_s=wait_s, say=cli.log_progress) as mine:
            yield mine
    except LeaseError as error:
        raise ConfigError(str(error)) from error
