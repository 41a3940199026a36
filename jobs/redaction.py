"""What jobs that read do where names are redacted (privacy.redact): the key, and where they work.

The key is any text of at least 16 bytes, best of a random source (``openssl rand -hex 32``): the content of
``--redact-key FILE``, of the file that MSMQ_REDACT_KEY_FILE names, or of MSMQ_REDACT_KEY. It is no setting and is never
kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from jobs import cli
from jobs.config import Config, ConfigError
from jobs.keys import read_secret
from pipeline.bronze.input_files import Listed
from pipeline.lake.lake import Lake
from pipeline.lake.lease import started
from pipeline.privacy.redaction import Pseudonyms, Redaction, RedactionError, claim, private_folder, refuse_plain

VARIABLE: Final = "MSMQ_REDACT_KEY"
FILE_VARIABLE: Final = "MSMQ_REDACT_KEY_FILE"
_LEAST_BYTES: Final = 16


def add_argument(parser: cli.Parser) -> None:
    """Add --redact-key to a job's command line."""
    parser.add_argument(
        "--redact-key",
        metavar="FILE",
        help=f"key of pseudonyms, for privacy.redact (default: the file that {FILE_VARIABLE} names, or {VARIABLE})",
    )


def pseudonyms(run: cli.Run) -> Pseudonyms | None:
    """Return what stands for names, None where none are redacted; ConfigError where there is no key, or a poor one."""
    kinds = run.config.privacy.redact
    if not kinds:
        return None
    named = getattr(run.arguments, "redact_key", None) or os.environ.get(FILE_VARIABLE)
    source = "--redact-key" if getattr(run.arguments, "redact_key", None) else FILE_VARIABLE
    if named:
        key = read_secret(named, source, cli.say).strip()
    elif (text := os.environ.get(VARIABLE)) is not None:
        source, key = VARIABLE, text.strip().encode("utf-8", "surrogateescape")
    else:
        raise ConfigError(f"privacy.redact needs a key: --redact-key FILE, {FILE_VARIABLE} or {VARIABLE}")
    if len(key) < _LEAST_BYTES:
        raise ConfigError(f"{source}: a key of fewer than {_LEAST_BYTES} bytes can be guessed: openssl rand -hex 32")
    return Pseudonyms(kinds, key)


def spool_folder(run: cli.Run, root: str) -> Path | None:
    """Return where standard input is kept while a run that redacts reads it; None where nothing is redacted."""
    if not run.config.privacy.redact:
        return None
    place = workplace(run, root)
    for left in place.parent.glob(f"{place.name}.spool-*"):
        number = left.name.rpartition("-")[2]
        if number.isdecimal() and started(int(number)) is None:  # the process is gone
            shutil.rmtree(left, ignore_errors=True)
    try:
        return run.ends.enter_context(private_folder(place.with_name(f"{place.name}.spool-{os.getpid()}")))
    except RedactionError as error:
        raise ConfigError(str(error)) from error


def workplace(run: cli.Run, root: str) -> Path:
    """Return the folder in which a run that redacts works: one for each lake and user."""
    folder = run.config.privacy.workplace or tempfile.gettempdir()
    return Path(folder) / f"msmq-{os.getuid()}-{hashlib.sha256(str(root).encode()).hexdigest()[:16]}"


@contextmanager
def apart(
    run: cli.Run, lake: Lake, by: Pseudonyms | None, snapshots: Sequence[Listed] = ()
) -> Iterator[Redaction | None]:
    """Make the place where a run that redacts works; None where nothing is redacted. Call it holding the lake.

    ``snapshots``: the snapshot files given, for the ledger does not have their names.
    """
    with agreed(run, lake, by):
        if by is None:
            yield None
            return
        with private_folder(workplace(run, lake.root)) as folder:
            yield Redaction.begin(lake, folder / "lake", by, [file.path for file in snapshots])


@contextmanager
def agreed(run: cli.Run, lake: Lake, by: Pseudonyms | None) -> Iterator[None]:
    """Work on a lake: ConfigError where what it holds is redacted otherwise than this run would."""
    try:
        if by is None:
            refuse_plain(lake)
        elif not getattr(run.arguments, "dry_run", False):
            claim(lake, by)
        yield
    except RedactionError as error:
        raise ConfigError(str(error)) from error


def redacted(config: Config, by: Pseudonyms | None) -> Config:
    """Return the settings with pseudonyms in the place of the names in them: those that tables are compared with."""
    if by is None:
        return config
    machines = tuple(
        replace(machine, name=by.host(machine.name), address=by.address(machine.address))
        for machine in config.collector.machines
    )
    quotas = tuple(replace(each, queue=by.name(each.queue)) for each in config.quotas.queues)
    aliases = tuple(tuple(by.name(name) for name in group) for group in config.queues.aliases)
    return replace(
        config,
        collector=replace(config.collector, machines=machines),
        quotas=replace(config.quotas, queues=quotas),
        queues=replace(config.queues, aliases=aliases),
        store=replace(config.store, stubs=False),
    )
