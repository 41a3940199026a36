"""Redaction in jobs that read input (``privacy.redact``): the key of the pseudonyms, and the scratch lake.

The key is text of at least 16 bytes, best from a random source (``openssl rand -hex 32``). It is the content of
``--redact-key FILE``, of the file named by MSMQ_REDACT_KEY_FILE, or the text of MSMQ_REDACT_KEY. It is not a setting
and is never stored.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from jobs import cli
from jobs.command_line.parsers import REDACT_KEY_FILE_VARIABLE, REDACT_KEY_VARIABLE
from jobs.command_line.private_folder import PRIVATE_FOLDER, remove_left_subfolders
from jobs.command_line.secret_files import read_secret
from jobs.config import Config, ConfigError
from jobs.session import started_as_plain_python
from pipeline.bronze.input_files import InputFile
from pipeline.lake.lake import Lake
from pipeline.privacy.redaction import (
    Pseudonymizer,
    RedactionError,
    RedactionRun,
    mark_redacted,
    remove_failure_values,
    require_unredacted,
    tasks_reach,
)
from pipeline.silver.declaration_file import DeclarationError
from pipeline.silver.declared_machines import load_declared_machines
from pipeline.silver.machine_names import DeclaredNames

_MIN_KEY_BYTES: Final = 16


def load_pseudonymizer(job_run: cli.JobRun) -> Pseudonymizer | None:
    """Return the pseudonymizer for ``privacy.redact``, None if nothing is redacted; ConfigError without a good key."""
    kinds = job_run.config.privacy.redact
    if not kinds:
        return None
    argument = getattr(job_run.arguments, "redact_key", None)
    key_file, source = (
        argument or os.environ.get(REDACT_KEY_FILE_VARIABLE),
        "--redact-key" if argument else REDACT_KEY_FILE_VARIABLE,
    )
    if key_file:
        key = read_secret(key_file, source, cli.log_progress).strip()
    elif (text := os.environ.get(REDACT_KEY_VARIABLE)) is not None:
        source, key = REDACT_KEY_VARIABLE, text.strip().encode("utf-8", "surrogateescape")
    else:
        raise ConfigError(
            f"privacy.redact needs a key: --redact-key FILE, {REDACT_KEY_FILE_VARIABLE} or {REDACT_KEY_VARIABLE}"
        )
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"{source}: a key needs {_MIN_KEY_BYTES} bytes or more; make one with: openssl rand -hex 32")
    return Pseudonymizer(kinds, key)


def loggable_error(job_run: cli.JobRun, text: str) -> str:
    """Return the text of an error as it may be logged: without values of the input in a redacting run."""
    return remove_failure_values(text) if job_run.config.privacy.redact else text


def scratch_lake_name(lake: Lake) -> str:
    """Return the name of the folder of a lake's scratch lake in private folders."""
    return f"lake-{hashlib.sha256(lake.root.encode()).hexdigest()[:16]}"


def remove_left_scratch_lakes(job_run: cli.JobRun, lake: Lake) -> None:
    """Remove the scratch lakes that killed runs on a lake left. The caller holds its lease."""
    remove_left_subfolders(job_run.config.privacy.scratch_folder, scratch_lake_name(lake))


@contextmanager
def open_scratch_lake(
    job_run: cli.JobRun, lake: Lake, pseudonymizer: Pseudonymizer | None, snapshots: Sequence[InputFile] = ()
) -> Iterator[RedactionRun | None]:
    """Open a scratch lake in which a redacting run reads and decodes; None if nothing is redacted.

    The caller holds the lease of ``lake``. ``snapshots`` are the snapshot files of the command line; the ledger of a
    redacted lake does not contain their names. ConfigError, before anything is read, if tasks do not reach its folder.
    """
    with check_redaction_matches(job_run, lake, pseudonymizer):
        if pseudonymizer is None:
            yield None
            return
        remove_left_scratch_lakes(job_run, lake)
        with PRIVATE_FOLDER.subfolder(job_run.config.privacy.scratch_folder, scratch_lake_name(lake)) as folder:
            _require_reachable(lake, folder)
            yield RedactionRun.create(lake, folder, pseudonymizer, [file.path for file in snapshots])


def _require_reachable(lake: Lake, folder: Path) -> None:
    """Raise ConfigError if Spark's tasks may run where the folder of the scratch lake is not."""
    if not started_as_plain_python() and not tasks_reach(lake.spark, folder):
        raise ConfigError(
            f"{folder}: Spark's tasks do not find what the driver writes there: set privacy.scratch_folder to a folder"
            " that all workers reach"
        )


@contextmanager
def check_redaction_matches(job_run: cli.JobRun, lake: Lake, pseudonymizer: Pseudonymizer | None) -> Iterator[None]:
    """Check that the lake is redacted in the same way as this run; ConfigError if not.

    A lake without tables is marked with the redaction of this run. A RedactionError in the body becomes a ConfigError.
    """
    try:
        if pseudonymizer is None:
            require_unredacted(lake)
        elif not getattr(job_run.arguments, "dry_run", False):
            mark_redacted(lake, pseudonymizer)
        yield
    except RedactionError as error:
        raise ConfigError(str(error)) from error


def load_names(config: Config, pseudonymizer: Pseudonymizer | None) -> DeclaredNames:
    """Return the names of the file of ``names.machines``, pseudonyms if names are redacted; ConfigError if invalid."""
    try:
        declared = load_declared_machines(config.names.machines)
    except DeclarationError as error:
        raise ConfigError(str(error)) from error
    if pseudonymizer is None:
        return declared
    return tuple(
        seen._replace(
            address=None if seen.address is None else pseudonymizer.address(seen.address),
            name=None if seen.name is None else pseudonymizer.host_name(seen.name),
        )
        for seen in declared
    )


def load_names_for(job_run: cli.JobRun, lake: Lake) -> DeclaredNames:
    """Return the same for a job that reads a lake; ConfigError where the lake is redacted in another way."""
    if job_run.config.names.machines is None:
        return ()
    pseudonymizer = load_pseudonymizer(job_run)
    with check_redaction_matches(job_run, lake, pseudonymizer):
        return load_names(job_run.config, pseudonymizer)


def redact_config(config: Config, pseudonymizer: Pseudonymizer | None) -> Config:
    """Replace the names in settings by pseudonyms, for settings that are compared with the tables."""
    if pseudonymizer is None:
        return config
    machines = tuple(
        replace(machine, name=pseudonymizer.host_name(machine.name), address=pseudonymizer.address(machine.address))
        for machine in config.collector.machines
    )
    quotas = tuple(replace(each, queue=pseudonymizer.queue_name(each.queue)) for each in config.quotas.queues)
    machine_quotas = tuple(
        replace(each, machine=pseudonymizer.host_name(each.machine)) for each in config.quotas.machines
    )
    aliases = tuple(tuple(pseudonymizer.queue_name(name) for name in group) for group in config.queues.aliases)
    return replace(
        config,
        collector=replace(config.collector, machines=machines),
        quotas=replace(config.quotas, queues=quotas, machines=machine_quotas),
        queues=replace(config.queues, aliases=aliases),
        store=replace(config.store, stubs=False),
    )
