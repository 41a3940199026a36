"""Run the whole pipeline: captures and snapshots to bronze, silver and gold, and a summary of what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from jobs import check_quality, cli, ingest_snapshots, publish_dashboards, redaction
from jobs.ingest_captures import captures, decode, decoder, ingest, keys_of
from jobs.lake_access import alone, open_lake
from jobs.step_settings import of_queues, states_settings, thresholds
from pipeline.alerts import update as alerts_update
from pipeline.attempts import update as attempts_update
from pipeline.bronze.decryption import Keys
from pipeline.bronze.input_files import Listed
from pipeline.findings import update as findings_update
from pipeline.lake.lake import Lake, beside
from pipeline.privacy.redaction import Redaction
from pipeline.quality import coverage
from pipeline.quality.suites import Suite
from pipeline.queues import update as queues_update
from pipeline.reports.queue_overview import queue_lines
from pipeline.reports.summary import console_summary
from pipeline.sequences.update import ack_sequences
from pipeline.silver import hosts
from pipeline.silver.decode_tasks import Decoded
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.alerts import ALERTS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.queue_history import QUEUE_HISTORY
from schemas.receive_attempts import RECEIVE_ATTEMPTS
from schemas.remote_read_calls import REMOTE_READ_CALLS
from schemas.table import Table

JOB = "run_all"

# What writes a table, named by it, and how many rows it wrote; or how many of each, where it writes several.
Steps = dict[Table, Callable[[Lake], int | Mapping[str, int]]]


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__, captures=True, snapshots=True)
    redaction.add_argument(made)
    made.add_argument("--pages", metavar="FOLDER", help="write the lake's pages there in the end (publish_dashboards)")
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Bring captures and snapshots through all layers and print what the lake holds."""
    keys, by = keys_of(this), redaction.pseudonyms(this)
    files = captures(this, this.arguments.lake)
    landed = ingest_snapshots.snapshot_files(this)
    suites = check_quality.suites_of(this) if this.config.quality.in_runs else ()
    lake = open_lake(this)
    outcome = cli.Outcome()
    with alone(this, lake):
        with redaction.apart(this, lake, by, landed) as own:
            hosts_say = _calls_and_snapshots(this, lake, own, files, landed, outcome, keys)
        if not this.arguments.dry_run:
            _answers(replace(this, config=redaction.redacted(this.config, by)), lake, outcome, hosts_say)
            lines = _quality(this, lake, suites, outcome) if suites else []
            sys.stdout.write("\n".join([console_summary(lake), *queue_lines(lake), *lines]) + "\n")
        if this.arguments.pages and not this.arguments.dry_run:
            published = publish_dashboards.publish(this, lake, Path(this.arguments.pages))
            outcome.more |= published.more
            sys.stdout.write("\n".join(publish_dashboards.worth_a_look(published)) + "\n")
    return outcome


def _calls_and_snapshots(
    this: cli.Run, lake: Lake, own: Redaction | None, files: list[Listed], landed: list[Listed], outcome: cli.Outcome,
    keys: Keys,
) -> Mapping[str, Any] | None:  # fmt: skip
    """Bring bronze up to date, and what is made of it call by call; returns what silver.hosts is to say, if anything.

    Where names are redacted that is done in the run's own lake, and brought to the lake from there.
    """
    place = lake if own is None else own.apart
    while_writing = decoder(this, place)
    done = ingest(this, place, files, outcome, keys, while_writing)
    if this.arguments.dry_run:
        return None
    if landed:
        ingest_snapshots.ingest(this, place, landed, outcome)
    keep_stubs = own is not None or this.config.store.stubs
    hosts_say = _silver(this, place, outcome, keep_stubs=keep_stubs, decoded=Decoded.of(while_writing, done.tapped))
    if own is not None:
        cli.say("replacing names")
        return own.bring(run_id=this.run_id, read={row["path"] for row in done.files})
    return hosts_say


def _silver(
    this: cli.Run, lake: Lake, outcome: cli.Outcome, *, keep_stubs: bool, decoded: Decoded | None = None
) -> Mapping[str, Any] | None:
    """Bring what is made call by call, and snapshot by snapshot, to what bronze holds."""
    cli.say("decoding calls")
    for table, rows in decode(this, lake, keep_stubs=keep_stubs, decoded=decoded).items():
        outcome.tables[table] = cli.TableCounts(rows_out=rows)
    written, hosts_say = hosts.collected_snapshots(lake)
    for table, rows in written.items():
        outcome.tables.setdefault(table, cli.TableCounts()).rows_out += rows
    outcome.tables[str(HOSTS)] = cli.TableCounts()
    return hosts_say


def derive_all(this: cli.Run, lake: Lake, outcome: cli.Outcome) -> None:
    """Bring silver and gold to what bronze holds, of a lake that nothing new was read into."""
    _answers(this, lake, outcome, _silver(this, lake, outcome, keep_stubs=this.config.store.stubs))


def _answers(this: cli.Run, lake: Lake, outcome: cli.Outcome, hosts_say: Mapping[str, Any] | None) -> None:
    """Bring what is made of silver up to date."""
    decoded = outcome.tables[str(REMOTE_READ_CALLS)].rows_out
    for steps in _steps(this, hosts_say):
        for answer, written_by in beside(lake, steps).items():
            for table, count in [(str(answer), written_by)] if isinstance(written_by, int) else written_by.items():
                outcome.tables[table] = cli.TableCounts(rows_out=count)
    for made in (RECEIVE_ATTEMPTS, FINDINGS):
        outcome.tables[str(made)].rows_in = decoded
    outcome.tables[str(ACK_SEQUENCES)].rows_in = outcome.tables[str(RECEIVE_ATTEMPTS)].rows_out


def _steps(this: cli.Run, hosts_say: Mapping[str, Any] | None) -> Iterator[Steps]:
    """Yield the steps from silver to gold, those together that do not rest on one another."""
    config, run_id = this.config, this.run_id
    cli.say("rebuilding attempts")
    first: Steps = {
        RECEIVE_ATTEMPTS: partial(attempts_update.gold, cleanup=config.timers.cleanup, declared=config.queues.aliases)
    }
    if hosts_say is not None:
        first[HOSTS] = partial(hosts.write, run_id=run_id, says=hosts_say)
    yield first
    cli.say("following messages and queues")
    reads = config.reads
    yield {
        ACK_SEQUENCES: partial(ack_sequences, lost_after=reads.lost_after, poison_after=reads.poison_after),
        QUEUE_HISTORY: partial(queues_update.gold, settings=states_settings(config), run_id=run_id),
    }
    limits = thresholds(config)
    cli.say("judging")
    yield {
        FINDINGS: partial(findings_update.gold, stubs=config.store.stubs, limits=of_queues(limits)),
        COVERAGE: partial(coverage.gold, run_id=run_id),
    }
    as_of = this.arguments.as_of
    yield {ALERTS: partial(alerts_update.gold, limits=limits, run_id=run_id, as_of=as_of)}


def _quality(this: cli.Run, lake: Lake, suites: Sequence[Suite], outcome: cli.Outcome) -> list[str]:
    """Ask of what changed what is expected of it; return what did not hold, as lines."""
    cli.say("checking quality")
    found = check_quality.checked(this, lake, suites)
    came = check_quality.outcome(found)
    outcome.quality_failed = came.quality_failed
    outcome.tables |= came.tables
    return found.lines()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
