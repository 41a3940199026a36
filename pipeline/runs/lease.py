"""One run at a time on one lake: by a file lock in a folder, elsewhere by a record that is replaced as it was read.

The run that works on a lake has a record there: who it is, and a number that goes up as long as it works. Where the
record is (``LeaseLocation``), and who may write it:

* in a folder, ``_lease/holder.json``: who has locked the file ``_lease/lock``. The system frees it when the process
  ends, however it ends.
* on an object store, ``_lease/holder.json``: who has read the one that is there. A put names its ``e_tag``, or that
  there is none.
* in a catalog, the one row of a table: who has read it (``pipeline.runs.lease_table``).

A run that waits takes the place of another one whose record has not changed for ``stale_s``. The one who waits counts
that: clocks of two machines are never compared. In a folder it needs not wait so long for a run of its own machine,
whose lock is free. That of another machine tells nothing where the locks of a file system hold on one machine only.

Every run reads the record before each commit (``Lease.check``). Whatever went wrong, two runs that both believe to hold
a lake see one record, so at most one of them goes on. Only where a record takes seconds to read, it is enough to have
replaced it a short time ago, long before another run may count it as ended.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import obstore
from filelock import FileLock, Timeout
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from pipeline.lake.lake_path import LakePath, absolute_location
from udfs.files.filesystems import s3_endpoint_and_region, split_s3_uri

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import S3Config

LEASE_FOLDER: Final = "_lease"
_RECORD: Final = "holder.json"
_FREE: Final = b"{}"  # what a run leaves in place of its record
_NO_LOCKS: Final = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_REQUEST_TIMEOUT: Final = timedelta(seconds=10)
_RETRY_TIMEOUT: Final = timedelta(seconds=15)  # for a request that failed; shorter than half of stale_s
_MAX_ERROR_CHARS: Final = 300
_MAX_TEXT_CHARS: Final = 100  # of what a record says, in a message
LogLine = Callable[[str], None]


class LeaseError(Exception):
    """Another run works on the lake, or has taken this run's place; the message is one line."""


class Record(NamedTuple):
    """A record as it was read."""

    data: bytes
    e_tag: str | None = None

    @property
    def says(self) -> dict[str, Any]:
        """What is in it; empty where that is no JSON object."""
        try:
            found = json.loads(self.data)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class LeaseTimes(NamedTuple):
    """How long a run does what, in seconds."""

    beat_s: float = 5.0  # between two records of a run
    stale_s: float = 60.0  # without a new record, as the one who waits counts them, a run has ended
    poll_s: float = 0.5  # between two looks of a run that waits
    valid_s: float = 30.0  # from its last record on a run may commit; later only with another one


class LeaseLocation(ABC):
    """Where the record is, and who may write it. All functions raise ``OSError``."""

    times = LeaseTimes()
    tells_end = False  # of a run of this machine
    is_read_before_commits = True
    record: LakePath | str  # where it is, for messages

    def enter(self) -> bool:
        """Lock it, unless it is; whether nobody else has. Where there is nothing to lock, True."""
        return True

    @abstractmethod
    def read(self) -> Record | None:
        """Return the record; None without one."""

    @abstractmethod
    def put(self, data: bytes, before: Record | None) -> bool:
        """Write the record in place of one that was read, or of none; False where another one is there."""

    def leave(self) -> None:  # noqa: B027 - where there is nothing to unlock
        """Unlock it."""


class _Folder(LeaseLocation):
    """The record in a folder, and the lock, without which nobody writes it."""

    tells_end = True
    record: LakePath

    def __init__(self, folder: LakePath) -> None:
        folder.make_folder()
        self.record = folder / _RECORD
        self._lock = FileLock((folder / "lock").location, thread_local=False, fallback_to_soft=False)

    def enter(self) -> bool:
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise OSError(f"its file system cannot lock files ({error}); put the lake on one that can") from error
        return True

    def read(self) -> Record | None:
        try:
            return Record(Path(self.record.location).read_bytes())
        except FileNotFoundError:
            return None

    def put(self, data: bytes, before: Record | None) -> bool:  # noqa: ARG002 - the lock is what counts
        self.record.write_text(data.decode())
        return True

    def leave(self) -> None:
        self._lock.release(force=True)


class _ObjectStore(LeaseLocation):
    """The record on an object store."""

    def __init__(self, folder: LakePath) -> None:
        self.record = folder / _RECORD
        bucket, name = split_s3_uri(folder.location)
        endpoint, region = s3_endpoint_and_region(bucket)
        config: S3Config = {"region": region, "conditional_put": "etag"}
        if endpoint is not None:
            config["endpoint"] = endpoint
        self._store = S3Store(
            bucket,
            prefix=name.partition("/")[2],
            config=config,
            client_options={"allow_http": (endpoint or "").startswith("http://"), "timeout": _REQUEST_TIMEOUT},
            retry_config={"retry_timeout": _RETRY_TIMEOUT},
        )

    def read(self) -> Record | None:
        try:
            found = obstore.get(self._store, _RECORD)
            return Record(bytes(found.bytes()), found.meta["e_tag"])
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise OSError(str(error)) from error

    def put(self, data: bytes, before: Record | None) -> bool:
        try:
            mode: PutMode = "create" if before is None else {"e_tag": before.e_tag}
            obstore.put(self._store, _RECORD, data, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        except BaseError as error:
            raise OSError(str(error)) from error
        return True


class Lease:
    """The right of a run to write to a lake. ``hold_lease`` gives it, ``check`` tells whether it still holds."""

    def __init__(self, location: LeaseLocation, lake_root: str, run_id: str, times: LeaseTimes, say: LogLine) -> None:
        """Arguments: see ``hold_lease``."""
        self._location, self._times = location, times
        self._lake, self._run_id, self._say = lake_root, run_id, say
        self._about = {
            "run_id": run_id,
            "host": platform.node(),
            "process": os.getpid(),
            "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "token": uuid.uuid4().hex,
        }
        self._beat = 0
        self._renewed_at = _now()
        self._not_held = f"run {run_id} does not hold the lease of {lake_root}"
        self._trouble: str | None = self._not_held
        self._renewing = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._live, name="lease", daemon=True)

    def check(self) -> None:
        """Raise ``LeaseError`` when the lease is lost, or may be: ask before what must not be done twice."""
        if self._location.is_read_before_commits or self._is_late():
            with self._renewing, suppress(OSError):  # a place that is out of reach for a while
                self._look(renew=self._is_late())
        if self._trouble is not None:
            raise LeaseError(self._trouble)
        if self._is_late():
            late_s = _now() - self._renewed_at
            raise LeaseError(f"the lease of {self._lake} could not be renewed for {late_s:.0f} s by run {self._run_id}")

    def acquire(self, wait_s: float) -> None:
        """Wait for the lease at most ``wait_s`` seconds; ``LeaseError``, which says who has it, or ``OSError``."""
        until = _now() + wait_s
        still_s, before, told = 0.0, None, None
        while True:
            is_free = self._location.enter()
            found = self._location.read()
            still_s = still_s + self._times.poll_s if found == before else 0.0
            before = found
            if is_free and self._take(found, still_s):
                self._trouble = None
                self._thread.start()
                return
            who = self._who(found)
            if _now() >= until:
                raise LeaseError(f"{who} works on {self._lake}; waited {wait_s:.0f} s for it to end")
            is_named = found is not None and found.data != _FREE  # else it is coming or going just now, most likely
            if told != who and (is_named or still_s >= self._times.beat_s):
                told = who
                self._say(f"{who} works on {self._lake}: waiting for it to end")
            time.sleep(self._times.poll_s)

    def release(self) -> None:
        """Let the next run have the lake; does no harm when nothing is held."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._trouble = self._not_held
        with suppress(OSError):
            found = self._location.read()
            if self._is_own(found):
                self._location.put(_FREE, found)
        self._location.leave()

    def _take(self, found: Record | None, still_s: float) -> bool:
        """Write the record of this run, unless another run is at work; whether that was done."""
        if self._is_own(found):
            return True  # it was written, and then the connection broke
        if found is not None and found.data != _FREE:
            has_ended = self._location.tells_end and found.says.get("host") == platform.node()
            if not has_ended and still_s < self._times.stale_s:
                return False
            self._say(f"{self._who(found)} is gone: its place is taken over")
        return self._write(found)

    def _is_late(self) -> bool:
        return _now() - self._renewed_at > self._times.valid_s

    def _live(self) -> None:
        pause_s = self._times.beat_s
        while not self._stop.wait(pause_s):
            pause_s = self._times.poll_s  # until it is in reach again
            with self._renewing, suppress(OSError):
                self._look(renew=True)
                pause_s = self._times.beat_s

    def _look(self, *, renew: bool) -> None:
        """Look whether the lease is lost; if not, renew it. The caller holds ``_renewing``."""
        found = self._location.read()
        if self._trouble is None and not self._is_own(found):
            self._trouble = (
                f"run {self._run_id} has lost the lease of {self._lake}: {self._who(found)} has taken it over"
            )
        if self._trouble is None and renew:
            self._write(found)

    def _write(self, before: Record | None) -> bool:
        """Write this run's record in place of one that was read; whether that was still there."""
        self._beat += 1
        begun = _now()
        if not self._location.put(json.dumps({**self._about, "beat": self._beat}).encode(), before):
            return False
        self._renewed_at = begun
        return True

    def _is_own(self, found: Record | None) -> bool:
        return found is not None and found.says.get("token") == self._about["token"]

    def _who(self, found: Record | None) -> str:
        """Say who wrote a record."""
        if found is None or found.data == _FREE:
            return "another run"
        says = found.says
        if not says:
            return f"another run ({self._location.record} cannot be read: if none is at work, remove it)"
        told = (str(says.get(name))[:_MAX_TEXT_CHARS] for name in ("run_id", "host", "process", "since"))
        return "run {} ({}, process {}, since {})".format(*told)


@contextmanager
def hold_lease(
    lake_root: str | Path,
    run_id: str,
    *,
    location: LeaseLocation | None = None,
    wait_s: float = 600.0,
    say: LogLine,
    **times: float,
) -> Iterator[Lease]:
    """Hold a lake for a run; its root is a local folder, or a URI ``s3://BUCKET/...``.

    Waits at most ``wait_s`` seconds for a run that is there already. Raises ``LeaseError`` when it does not end, or
    when the lake cannot be written. ``location``: where the record is, by default below the root. ``times`` replace
    some of its (``LeaseTimes``).
    """
    with ExitStack() as held:
        try:
            location = location or _location_in(str(lake_root))
            mine = Lease(location, str(lake_root), run_id, location.times._replace(**times), say)
            held.callback(mine.release)
            mine.acquire(wait_s)
        except (OSError, ValueError) as error:
            raise LeaseError(f"{lake_root}: no lease can be taken there: {_one_line(error)}") from error
        yield mine


def _location_in(lake_root: str) -> LeaseLocation:
    """Return the place below a lake's root; ``OSError`` or ``ValueError`` where none can be."""
    folder = LakePath(absolute_location(lake_root)) / LEASE_FOLDER
    return _ObjectStore(folder) if folder.is_remote else _Folder(folder)


def _one_line(error: Exception) -> str:
    """Return what an error says: those of obstore have many lines, and more of them for its authors."""
    return " ".join(str(error).partition("Debug source")[0].split())[:_MAX_ERROR_CHARS]


def _now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
