"""What ``bronze.runs`` says of a run of a job. No argument of the command line, no setting, and no text of an error."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import jobs
from jobs import cli
from pipeline.lake.run_notes import RunNote


def run_note(job_run: cli.JobRun, outcome: cli.Outcome) -> RunNote:
    """Return the note of a run; ``outcome`` has what it did when it ends."""
    begun = {
        "run_id": job_run.run_id,
        "command": job_run.job,
        "program_version": jobs.__version__,
        "began_at": job_run.started_at,
        "engine": job_run.config.run.engine,
    }

    def ended(error: BaseException | None) -> dict[str, Any]:
        seconds = round(time.monotonic() - job_run.began, 3)
        engine: dict[str, Any] = job_run.summary_fields["engine"]()
        return {
            "ended_at": job_run.started_at + timedelta(seconds=seconds),
            "seconds": seconds,
            "exit_code": int(outcome.exit_code if error is None else job_run.exit_code_of(error)),
            "stage_seconds": job_run.stages.seconds(),
            "master": _without_address(engine["master"]),
            **{name: engine[name] for name in ("executions", "jobs", "tasks")},
            "captures_read": outcome.captures_read,
            "snapshots_read": outcome.snapshots_read,
            "bytes_read": outcome.bytes_read,
            "packets": outcome.packets_read,
            "failures": outcome.failures,
            "rows_written": {name: counts.rows_out for name, counts in outcome.tables.items() if counts.rows_out},
            "restarts": len(job_run.conflicts),
        }

    return RunNote(begun, ended)


def _without_address(master: str | None) -> str | None:
    """Return Spark's master without the machine that it names."""
    return master and master.partition("://")[0]
