"""Run the whole pipeline: captures and snapshots to bronze, silver and gold, and a summary of what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from jobs import cli, ingest_snapshots
from jobs.config import Config
from jobs.ingest_captures import alone, captures, ingest, open_lake
from pipeline import derive, derive_silver, derive_states, hosts
from pipeline.lake import Lake, beside
from pipeline.listing import Listed
from pipeline.queue_state import queue_lines
from pipeline.states import Settings
from pipeline.summary import console_summary
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.hosts import HOSTS
from schemas.silver import REMOTE_READ_CALLS
from schemas.table import Table

JOB = "run_all"


def parser() -> cli.Parser:
    """Return the job's command line."""
    return cli.parser(JOB, __doc__, captures=True, snapshots=True)


def run(this: cli.Run) -> cli.Outcome:
    """Bring captures and snapshots through all layers and print what the lake holds."""
    files = captures(this, this.arguments.lake)
    landed = ingest_snapshots.snapshot_files(this)
    lake = open_lake(this)
    outcome = cli.Outcome()
    with alone(this, lake):
        _layers(this, lake, files, landed, outcome)
        if not this.arguments.dry_run:
            sys.stdout.write("\n".join([console_summary(lake), *queue_lines(lake)]) + "\n")
    return outcome


def _layers(this: cli.Run, lake: Lake, files: list[Listed], landed: list[Listed], outcome: cli.Outcome) -> None:
    """Bring bronze up to date, then what is made of it."""
    ingest(this, lake, files, outcome)
    if this.arguments.dry_run:
        return
    if landed:
        ingest_snapshots.ingest(this, lake, landed, outcome)
    cli.say("decoding calls")
    store = this.config.store
    decoded = derive_silver.silver(lake, keep_packets=store.packets, keep_bodies=store.bodies, keep_stubs=store.stubs)
    for table, rows in decoded.items():
        outcome.tables[table] = cli.TableCounts(rows_out=rows)
    written, hosts_say = hosts.collected_snapshots(lake)
    for table, rows in written.items():
        outcome.tables.setdefault(table, cli.TableCounts()).rows_out += rows
    cli.say("rebuilding attempts")
    steps: dict[Table, Callable[[Lake], int]] = {
        RECEIVE_ATTEMPTS: partial(derive.gold, cleanup=this.config.timers.cleanup, declared=this.config.queues.aliases)
    }
    outcome.tables[str(HOSTS)] = cli.TableCounts()
    if hosts_say is not None:
        steps[HOSTS] = partial(hosts.write, run_id=this.run_id, says=hosts_say)
    for answer, rows in beside(lake, steps).items():
        outcome.tables[str(answer)] = cli.TableCounts(rows_out=rows)
    outcome.tables[str(RECEIVE_ATTEMPTS)].rows_in = decoded[str(REMOTE_READ_CALLS)]
    cli.say("following queues")
    for table, rows in derive_states.gold(lake, states_settings(this.config), this.run_id).items():
        outcome.tables[table] = cli.TableCounts(rows_out=rows)


def states_settings(config: Config) -> Settings:
    """Return the settings that histories and transfers of queues rest on."""
    return Settings(
        max_gap=config.history.max_gap,
        resend_rise=config.eod.resend_rise,
        ladder=config.eod.resend_ladder,
        cleanup=config.timers.cleanup,
        declared={machine.address: machine.name for machine in config.collector.machines},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
