"""Ask queue managers about themselves and their queues, and land the answers as snapshot files (JSON lines)."""

from __future__ import annotations

import getpass
import os
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from jobs import cli
from jobs.config import CollectorConfig, ConfigError, Machine
from pipeline.collector.client import Credentials, Place
from pipeline.collector.plan import Wanted, check
from pipeline.collector.round import Patience
from pipeline.collector.scheduler import Collector, Schedule

JOB = "collect_snapshots"
PASSWORD_VARIABLE: Final = "MSMQ_COLLECTOR_PASSWORD"  # noqa: S105 - its name


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__, lake=False)
    made.add_argument("--out", metavar="FOLDER", required=True, type=Path, help="where the snapshot files land")
    return made


def credentials(config: CollectorConfig) -> Credentials:
    """Return who asks. The password is in the environment, in a file, or typed in; it stands in no setting."""
    if config.authentication == "none":
        if config.privacy:
            raise ConfigError("collector.privacy: needs collector.authentication ntlm or kerberos")
        return Credentials()
    if not config.user:
        raise ConfigError(f"collector.user: is needed for authentication {config.authentication}")
    # With Kerberos the ticket may lie in a cache, as kinit leaves it.
    has_ticket = config.authentication == "kerberos" and bool(os.environ.get("KRB5CCNAME"))
    return Credentials(
        config.authentication,
        config.user,
        config.domain,
        "" if has_ticket else _password(config),
        privacy=config.privacy,
        kdc=config.kdc,
    )


def _password(config: CollectorConfig) -> str:
    if (given := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return given
    if config.password_file is not None:
        path = Path(config.password_file)
        try:
            if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                cli.say(f"{JOB}: {path}: others may read this password (chmod 600)")
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"collector.password_file: {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"collector.password_file: {path}: not UTF-8 text") from error
        if not lines or not lines[0]:
            raise ConfigError(f"collector.password_file: {path}: its first line is empty")
        return lines[0]
    if sys.stdin.isatty():
        return getpass.getpass(f"Password of {config.domain}\\{config.user}: ")
    raise ConfigError(f"no password: set {PASSWORD_VARIABLE}, or collector.password_file, or start it at a terminal")


def wanted(machine: Machine, config: CollectorConfig) -> Wanted:
    """Return what is asked of a machine: its own settings, else the collector's; ConfigError for a wrong queue name."""
    found = Wanted(
        machine.name,
        Place(machine.address, machine.port, config.endpoint_mapper_port),
        machine.queues,
        config.discover if machine.discover is None else machine.discover,
        config.include if machine.include is None else machine.include,
        config.exclude if machine.exclude is None else machine.exclude,
        config.properties,
    )
    try:
        check(found)
    except ValueError as error:
        raise ConfigError(f"collector.machines: {machine.name}: {error}") from error
    return found


def collector(config: CollectorConfig, out: Path) -> Collector:
    """Return the collector that the settings describe."""
    if not config.machines:
        raise ConfigError("collector.machines: no machine to ask; list them in the file given by --conf")
    if not config.properties:
        raise ConfigError("collector.properties: at least one property has to be asked for")
    if config.rounds != 1 and not config.every:
        raise ConfigError("collector.every: several rounds need a time between them")
    machines = [wanted(machine, config) for machine in config.machines]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
    return Collector(
        machines,
        credentials(config),
        out,
        patience=Patience(config.timeout.total_seconds(), config.retries, config.backoff.total_seconds()),
        schedule=Schedule(config.every.total_seconds(), config.rounds),
        at_once=config.at_once,
    )


def run(this: cli.Run) -> cli.Outcome:
    """Collect until all rounds are over or a signal comes; exit code 3 where a machine never answered."""
    made = collector(this.config.collector, this.arguments.out)
    with _stopped_by_signals(made):
        return _collect(this, made)


@contextmanager
def _stopped_by_signals(made: Collector) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the collector cleanly."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: made.stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _collect(this: cli.Run, made: Collector) -> cli.Outcome:
    counts: Counter[str] = Counter()
    waited = busy = 0.0
    answered: dict[str, bool] = {}
    try:
        for landed in made.run():
            report = landed.report
            cli.say(report.line())
            counts.update(asked=report.asked, answered=report.answered, failed=report.failed, rounds=1)
            counts["files"] += landed.path is not None
            waited, busy = waited + report.waited_s, busy + report.seconds
            if report.asked and not report.stopped:
                answered[report.name] = answered.get(report.name, False) or report.reached
    except OSError as error:
        raise ConfigError(f"--out {this.arguments.out}: {error.strerror or error}") from error
    numbers = {name: counts[name] for name in ("rounds", "asked", "answered", "failed", "files")}
    return cli.Outcome(
        input_failed=not all(answered.values()),
        more={"snapshots": {**numbers, "waited_s": round(waited, 3), "busy_s": round(busy, 3)}},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
