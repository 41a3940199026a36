"""Query queue managers for the state of their queues; write the answers to snapshot files."""

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
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from pipeline.collector.client import Credentials, ServerAddress
from pipeline.collector.round import RetryPolicy, RoundLimits
from pipeline.collector.scheduler import CollectionSchedule, Collector
from pipeline.collector.targets import CollectionTarget, validate_queues
from pipeline.settings import CollectorConfig, CollectorMachine

JOB = "collect_snapshots"
PASSWORD_VARIABLE: Final = "MSMQ_COLLECTOR_PASSWORD"  # noqa: S105 - its name


def load_credentials(config: CollectorConfig) -> Credentials:
    """Return the user to authenticate as, with the password.

    The password comes from the environment, from a file, or from the terminal. It is never a setting.
    """
    if config.authentication == "none":
        if config.privacy:
            raise ConfigError("collector.privacy: needs collector.authentication ntlm or kerberos")
        return Credentials()
    if not config.user:
        raise ConfigError(f"collector.user: is needed for authentication {config.authentication}")
    # With Kerberos, kinit may have put a ticket into a cache. Then no password is needed.
    has_ticket = config.authentication == "kerberos" and bool(os.environ.get("KRB5CCNAME"))
    password = "" if has_ticket else _read_password(config)
    if config.authentication == "ntlm":
        cli.log_progress(
            f"{JOB}: collector.authentication ntlm: whoever answers in a queue manager's place can use the logon "
            "elsewhere; with kerberos they cannot (SECURITY.md)"
        )
    return Credentials(
        config.authentication,
        config.user,
        config.domain,
        password,
        privacy=config.privacy,
        kdc=config.kdc,
    )


def _read_password(config: CollectorConfig) -> str:
    if (given := os.environ.get(PASSWORD_VARIABLE)) is not None:
        return given
    if config.password_file is not None:
        path = config.password_file
        try:
            if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
                cli.log_progress(f"{JOB}: {path}: other users can read this password file (chmod 600)")
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
    raise ConfigError(f"no password: set {PASSWORD_VARIABLE}, or collector.password_file, or run the job in a terminal")


def plan_machine(machine: CollectorMachine, config: CollectorConfig) -> CollectionTarget:
    """Return what to collect from a machine: its own settings, with the collector's as defaults.

    ConfigError for an invalid queue name.
    """
    target = CollectionTarget(
        machine.name,
        ServerAddress(machine.address, machine.port, config.endpoint_mapper_port),
        machine.queues,
        config.discover if machine.discover is None else machine.discover,
        config.include if machine.include is None else machine.include,
        config.exclude if machine.exclude is None else machine.exclude,
        config.properties,
    )
    try:
        validate_queues(target)
    except ValueError as error:
        raise ConfigError(f"collector.machines: {machine.name}: {error}") from error
    return target


def build_collector(config: CollectorConfig, out: Path) -> Collector:
    """Return a collector for the machines of the settings, which writes to the folder ``out``."""
    if not config.machines:
        raise ConfigError("collector.machines: no machine to query; list them in the file given by --conf")
    if not config.properties:
        raise ConfigError("collector.properties: at least one property is needed")
    if config.rounds != 1 and not config.interval:
        raise ConfigError("collector.interval: more than one round needs an interval above 0")
    targets = [plan_machine(machine, config) for machine in config.machines]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}") from error
    return Collector(
        targets,
        load_credentials(config),
        out,
        retry_policy=RetryPolicy(config.timeout.total_seconds(), config.retries, config.backoff.total_seconds()),
        schedule=CollectionSchedule(config.interval.total_seconds(), config.rounds),
        max_parallel=config.max_parallel,
        limits=RoundLimits(config.max_objects, int(config.max_bytes), config.max_time.total_seconds()),
    )


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Collect until all rounds are done or a signal arrives; exit code 3 if a machine never answered."""
    collector = build_collector(job_run.config.collector, Path(job_run.arguments.out))
    with _stop_on_signals(collector):
        return _collect(job_run, collector)


@contextmanager
def _stop_on_signals(collector: Collector) -> Iterator[None]:
    """Stop the collector cleanly on SIGTERM or SIGINT."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    previous = [signal.signal(number, lambda *_: collector.stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def _collect(job_run: cli.JobRun, collector: Collector) -> cli.Outcome:
    counts: Counter[str] = Counter()
    waited = busy = 0.0
    answered: dict[str, bool] = {}
    try:
        for landed in collector.run():
            report = landed.report
            cli.log_progress(report.format_line())
            counts.update(asked=report.requested, answered=report.answered, failed=report.failed, rounds=1)
            counts["files"] += len(landed.paths)
            waited, busy = waited + report.retry_wait_s, busy + report.seconds
            if report.requested and not report.stopped:
                answered[report.name] = answered.get(report.name, False) or report.reached
    except OSError as error:
        raise ConfigError(f"--out {job_run.arguments.out}: {error.strerror or error}") from error
    numbers = {name: counts[name] for name in ("rounds", "asked", "answered", "failed", "files")}
    return cli.Outcome(
        failures=sum(not each for each in answered.values()),
        summary_fields={"snapshots": {**numbers, "waited_s": round(waited, 3), "busy_s": round(busy, 3)}},
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
