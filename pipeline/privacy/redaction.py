"""Redaction: a run reads into a lake of its own first, and what it found goes to the lake with pseudonyms for names.

Captures are full of names, and finding them takes reading and decoding: so both are done in a folder outside the lake
that only this user may read and that is gone when the run ends, by the very code that does it otherwise. It begins with
the lake's ledgers, so that nothing is read twice. The rows of bronze and of what silver makes call by call are then
written to the lake as ``redacted_columns`` says; all that rests on them is made of these.

Stubs and unfinished halves are not kept, so that a run sees no bytes of another: what a run's captures do not finish
stays unfinished, keys do not open what earlier runs left closed, and a capture that has grown is read anew.

The ledgers are written last. A run that was killed is done again, and puts its rows in the place of those it had
written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from pipeline.bronze.retention_cutoff import Horizon
from pipeline.lake.concurrency import gather
from pipeline.lake.frames import frame
from pipeline.lake.lake import Lake
from pipeline.lake.queries import MOST_NAMED
from pipeline.lake.recovery import Runs
from pipeline.lake.settings import short_batches
from pipeline.privacy.redacted_columns import redact
from pipeline.silver import collected_snapshots
from pipeline.silver.decode import TABLES, VERSION
from pipeline.silver.hosts import DECODER_VERSION as HOSTS_VERSION
from pipeline.silver.update import LAST
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, PENDING, QUARANTINE, RPC_BINDS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOT_FILES, SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.hosts import HOSTS
from schemas.queue_snapshots import PROPERTIES
from schemas.table import RUN_ID, Table, literal
from udfs.pseudonyms import Pseudonyms

__all__ = ["Pseudonyms", "Redaction", "RedactionError", "claim", "marked", "private_folder", "refuse_plain"]

_LEDGERS: Final = (CAPTURE_FILES, SNAPSHOT_FILES)
_OF_CAPTURES: Final = (RPC_CALLS, RPC_BINDS, QUARANTINE, PENDING)  # whose rows name their capture
_OF_BRONZE: Final = (*_OF_CAPTURES, CONNECTIONS, SNAPSHOTS_RAW)
_ROWS_OF: Final[Mapping[Table, str]] = {
    PROPERTIES: "snapshot_id",
    COMQC_CALLS: "sighting_key",
}  # of one thing, together
_MARK: Final = "_redaction.json"


class RedactionError(Exception):
    """A lake that is not redacted as this run would; the message says what to do."""


def marked(lake: Lake) -> bool:
    """Whether names in a lake are redacted."""
    return (Path(lake.root) / _MARK).exists()


def refuse_plain(lake: Lake) -> None:
    """RedactionError where names in the lake are redacted, and a run would add some that are not."""
    if marked(lake):
        raise RedactionError(
            f"{lake.root}: names in this lake are redacted; set privacy.redact as before and give --redact-key"
        )


def claim(lake: Lake, by: Pseudonyms) -> None:
    """Note in a lake that is still empty what is redacted in it; RedactionError where it is another thing, or nothing.

    Of the key a check is noted, as good for guessing a key as any pseudonym is: a key has to be a random one.
    """
    mark = Path(lake.root) / _MARK
    wanted = {"kinds": sorted(by.kinds), "check": by.check()}
    if mark.exists():
        found = json.loads(mark.read_text(encoding="utf-8"))
        if found != wanted:
            raise RedactionError(
                f"{lake.root}: names in this lake are redacted with another key, or of other kinds "
                f"({', '.join(found['kinds'])}): what this run would write would not agree with them"
            )
        return
    if any(lake.exists(table) for table in (*_LEDGERS, RPC_CALLS)):
        raise RedactionError(
            f"{lake.root}: this lake was filled without redaction; take another folder for --lake and read all again"
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    temporary = mark.with_name(f".{_MARK}")
    temporary.write_text(json.dumps(wanted), encoding="utf-8")
    temporary.replace(mark)


@contextmanager
def private_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that only this user may read, without what a run that was killed left in it; it goes in the end.

    RedactionError where it cannot be made: somebody else's stands there, or it is nobody's place to write.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise RedactionError(f"{folder}: {error.strerror}; set privacy.workplace to a folder of your own") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class Redaction:
    """One run's redaction: the lake, its own lake beside it, and what the ledgers held when it began."""

    lake: Lake
    apart: Lake
    by: Pseudonyms
    known: frozenset[str] = field(default_factory=frozenset)  # captures

    @classmethod
    def begin(cls, lake: Lake, folder: Path, by: Pseudonyms, snapshots: Iterable[str] = ()) -> Redaction:
        """Make the run's own lake, in a folder, with the ledgers of the lake; ``snapshots``: paths of files given."""
        apart = Lake(lake.spark, str(folder))
        horizon = Horizon.of(Runs.of(lake))
        if horizon is not None:  # what was forgotten does not come back by this road either
            horizon.note(Runs.of(apart))
        if lake.exists(CAPTURE_FILES):
            apart.append(CAPTURE_FILES, lake.read(CAPTURE_FILES))
        if lake.exists(SNAPSHOT_FILES):
            given = {by.snapshot_file(path): path for path in snapshots}
            known = lake.read(SNAPSHOT_FILES).toArrow()
            paths = pa.array([given.get(path, path) for path in known.column("path").to_pylist()], pa.string())
            known = known.set_column(known.schema.get_field_index("path"), "path", paths)
            apart.append(SNAPSHOT_FILES, frame(lake.spark, known))
        known = frozenset(row[0] for row in apart.read(CAPTURE_FILES).select("capture_id").collect())
        return cls(lake, apart, by, known)

    def bring(self, *, run_id: str, read: Collection[str]) -> dict[str, Any] | None:
        """Bring to the lake what its own lake holds; returns what silver.hosts is then made of, None if it is already.

        ``read``: paths of the captures that were read; their earlier rows go.
        """
        ledger = self.apart.read(CAPTURE_FILES).select("capture_id", "path").collect()
        now = {row["capture_id"]: row["path"] for row in ledger}
        self._forget({name for name, path in now.items() if path in read} & self.known | (self.known - now.keys()))
        came = [table for table in (*_OF_BRONZE, *TABLES) if self.apart.exists(table)]
        with short_batches(self.lake.spark):
            gather({table: partial(self._bring, table, self.apart.read(table)) for table in came})
        says = self._say(came)
        for table in _LEDGERS:
            fresh = self.apart.read(table).where(f"startswith({RUN_ID}, {literal(run_id)})")
            if not fresh.isEmpty():
                self._bring(table, fresh)
        return None if self.lake.made(HOSTS).items() >= says.items() else says

    def _forget(self, captures: Collection[str]) -> None:
        """Take out the rows of captures: they are read again, or a part of others now."""
        lake = self.lake
        if not captures or not lake.exists(RPC_CALLS):
            return
        named = ", ".join(literal(name) for name in sorted(captures))
        calls = lake.read(RPC_CALLS).where(f"capture_id IN ({named})").select("call_key").distinct()
        for table in TABLES:
            if lake.exists(table):
                lake.remove(table, "call_key", calls, dates=None)
        for table in _OF_CAPTURES:
            lake.delete(table, f"capture_id IN ({named})")
        lake.delete(CAPTURE_FILES, f"capture_id IN ({named})")

    def _bring(self, table: Table, rows: DataFrame) -> None:
        """Put rows in the place of those of the same calls, connections, snapshots or files; add the others."""
        lake, by = self.lake, self.by

        def redacted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return (redact(table, batch, by) for batch in batches)

        told = rows.mapInArrow(redacted, table.struct())
        if lake.exists(table):
            column = _ROWS_OF.get(table, table.key[0])
            lake.remove(table, column, _few(told.select(column).distinct()), dates=None)
        lake.append(table, told)

    def _say(self, came: Collection[Table]) -> dict[str, Any]:
        """Say in the lake how far silver has come: to all calls and snapshots that there are."""
        lake = self.lake
        calls = lake.version(RPC_CALLS)
        says = {str(RPC_CALLS): calls, "decoder": VERSION}
        if calls is not None and (came or not lake.exists(LAST)):
            lake.stamp(LAST, json.dumps({**says, "emptied": True}))
        return {collected_snapshots.RAW: lake.version(SNAPSHOTS_RAW), **says, "hosts": HOSTS_VERSION}


def _few(keys: DataFrame) -> Collection[str] | DataFrame:
    """Return keys by name where they are few."""
    found = [row[0] for row in keys.limit(MOST_NAMED + 1).collect()]
    return keys if len(found) > MOST_NAMED else [name for name in found if name is not None]
