"""One run at a time on one lake: a queue of tickets in the folder ``_lease``, held by a heartbeat.

It asks little of the store, so that one way serves local folders and object stores: files are created, listed and
removed, none is renamed, and a listing shows every file that is there from its beginning to its end. This is
Lamport's bakery: a contender first shows that it is choosing, takes a number above all it sees, and then waits until
nobody is choosing and nobody has a smaller one. Names alone decide; no two contenders ever write one file.

* ``<token>.beat``: who it is, its processes, and a counter that goes up while it lives
* ``<token>.choosing``, then ``<number>-<token>.ticket``

A contender is dead when it is of this host and all its processes are gone (a driver's JVM may still be committing when
the driver is), or when its counter stood still for ``stale_s``, counted by the one who looks: clocks of two machines
are never compared. The dead one's files are removed by whoever finds it, ticket first; several may, to the same end.
A run that was only asleep finds its ticket gone: ``Lease.check`` tells it to stop.

Whatever else lies in the folder is a stranger's. Names that no contender gives are left alone. A contender whose sign
of life cannot be read may be alive: it is waited for like one of another machine, and then taken for dead.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final

import pyarrow.fs as pafs

from udfs.files.filesystems import resolve_filesystem

LEASE_FOLDER: Final = "_lease"
_OWN_NAME: Final = re.compile(r"(?!9{6})[0-9]{12}-[0-9A-Za-z]{1,64}\.ticket|[0-9A-Za-z]{1,64}\.(beat|choosing)")
_MAX_BEAT_BYTES: Final = 1 << 20  # with thousands of processes
_MAX_TEXT_CHARS: Final = 100  # of what a sign of life says, in a message
_MAX_STRANGERS: Final = 3  # to name in a message
_LOOKS: Final = 5  # at a file that is rewritten in its place, before it counts as empty
LogLine = Callable[[str], None]
Process = tuple[int, str]  # its id, and when it started: ids are used again


class LeaseError(Exception):
    """Another run works on the lake, or has taken this run's place; the message is one line."""


class _Folder:
    """The lease's folder on any file system of ``pyarrow.fs``; all but ``read`` and ``drop`` raise ``OSError``."""

    def __init__(self, lake_root: str) -> None:
        if "://" in lake_root or lake_root.startswith("file:"):
            self._filesystem, root = resolve_filesystem(lake_root)
        else:
            self._filesystem, root = pafs.LocalFileSystem(), str(Path(lake_root).absolute())
        self._root = f"{root.rstrip('/')}/{LEASE_FOLDER}"
        self._filesystem.create_dir(self._root, recursive=True)

    def names(self) -> set[str]:
        """Return the names of all files of contenders there."""
        return {name for name, is_file in self._entries() if is_file and _OWN_NAME.fullmatch(name)}

    def strangers(self) -> list[str]:
        """Return the names of all else that is there, sorted."""
        return sorted(name for name, is_file in self._entries() if not (is_file and _OWN_NAME.fullmatch(name)))

    def _entries(self) -> Iterator[tuple[str, bool]]:
        """Yield the name of each entry, and whether it is a file."""
        for info in self._filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True)):
            try:
                yield info.base_name, info.type == pafs.FileType.File
            except UnicodeDecodeError:
                yield "a name that is not UTF-8", False

    def put(self, name: str, data: bytes = b"") -> None:
        """Create or rewrite a file: readers may find it empty meanwhile."""
        with self._filesystem.open_output_stream(f"{self._root}/{name}") as stream:
            stream.write(data)

    def read(self, name: str) -> bytes | None:
        """Return a file's first bytes, as many as a sign of life has; None when it cannot be read."""
        path = f"{self._root}/{name}"
        try:
            if self._filesystem.get_file_info(path).type != pafs.FileType.File:  # a pipe would never end
                return None
            with self._filesystem.open_input_stream(path) as stream:
                data: bytes = stream.read(_MAX_BEAT_BYTES)
        except OSError:
            return None
        return data

    def drop(self, name: str) -> None:
        """Remove a file, if it is there and can be."""
        with suppress(OSError):
            self._filesystem.delete_file(f"{self._root}/{name}")


@dataclass(frozen=True, slots=True)
class _Heartbeat:
    """A contender's counter as this run sees it, and for how many seconds it has stood still while this one looked."""

    beat: bytes | None
    still_s: float
    looked_at: float


class Lease:
    """A contender for the lake; ``lease`` makes it, and the run asks it with ``check`` whether it still holds."""

    def __init__(
        self,
        lake_root: str,
        run_id: str,
        *,
        say: LogLine,
        beat_s: float = 5.0,
        stale_s: float = 60.0,
        poll_s: float = 0.5,
    ) -> None:
        """``beat_s``: between two beats; ``stale_s``: without one a run counts as dead; ``poll_s``: between looks."""
        self.token = uuid.uuid4().hex
        self._folder = _Folder(lake_root)
        self._lake, self._run_id, self._say = lake_root, run_id, say
        self._place = f"{lake_root.rstrip('/')}/{LEASE_FOLDER}"
        self._beat_s, self._stale_s, self._poll_s = beat_s, stale_s, poll_s
        self._ticket: str | None = None
        self._held = False
        self._lost = False
        self._beats = 0
        self._beating = Lock()
        self._about = {
            "run_id": run_id,
            "host": platform.node(),
            "machine": _machine(),
            "process": os.getpid(),
            "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        }
        self._beaten_at = _now()
        self._stop = Event()
        self._thread = Thread(target=self._live, name="lease", daemon=True)
        self._seen: dict[str, _Heartbeat] = {}
        self._fixed: set[str] = set()  # the dead whose files cannot be removed

    def check(self) -> None:
        """Raise ``LeaseError`` when the lease is lost, or may be: ask before what must not be done twice."""
        if not self._held:
            raise LeaseError(f"run {self._run_id} does not hold the lease of {self._lake}")
        with suppress(OSError):
            self._lost = self._lost or self._ticket not in self._folder.names()
        if self._lost:
            raise LeaseError(f"another run has taken the lease of {self._lake} over from run {self._run_id}")
        still = _now() - self._beaten_at
        if still > self._stale_s / 2 and not self._renewed():
            raise LeaseError(f"the lease of {self._lake} could not be renewed for {still:.0f} s by run {self._run_id}")

    def _renewed(self) -> bool:
        """Show a late sign of life, of a run that was asleep; whether the place is still its own.

        Who found it dead just before takes its ticket at once: after a while it is gone, or nobody did.
        """
        try:
            self._beat()
            time.sleep(4 * self._poll_s)
            return self._ticket in self._folder.names()
        except OSError:
            return False

    def acquire(self, wait_s: float) -> None:
        """Wait for the lease at most ``wait_s`` seconds; then raise ``LeaseError``, which says who holds it."""
        until = _now() + wait_s
        logged: str | None = None
        self._beat()
        self._thread.start()
        if strangers := self._folder.strangers():
            more = f" and {len(strangers) - _MAX_STRANGERS} more" if len(strangers) > _MAX_STRANGERS else ""
            self._say(
                f"{self._place}: {', '.join(strangers[:_MAX_STRANGERS])}{more}: no run made this; it is left alone, "
                "remove it if nobody needs it"
            )
        self._take_ticket()
        while True:
            choosing = {_token(name) for name in self._folder.names() if name.endswith(".choosing")} - {self.token}
            # Only now the tickets: whoever was choosing before and is not any more has one, or has gone.
            names = self._folder.names()
            if self._ticket not in names:
                self._take_ticket()  # held for dead: the place in the queue is lost
                continue
            first = sorted(name for name in names if name.endswith(".ticket") and name < self._ticket)
            waits_for = choosing | {_token(name) for name in first}
            if not waits_for:
                self._held = True
                self._sweep(names)
                return
            if self._bury(waits_for, names):
                continue
            holder = _token(first[0]) if first else min(choosing)
            if _now() >= until:
                raise LeaseError(f"{self._who(holder)} works on {self._lake}; waited {wait_s:.0f} s for it to end")
            if logged != holder:
                logged = holder
                self._say(f"{self._who(holder)} works on {self._lake}: waiting for it to end")
            time.sleep(self._poll_s)

    def release(self) -> None:
        """Leave the queue; does no harm when nothing is held."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._held = False
        if self._ticket is not None:
            self._folder.drop(self._ticket)
        self._remove(self.token, set())

    def _take_ticket(self) -> None:
        """Stand at the end of the queue."""
        while True:
            self._folder.put(f"{self.token}.choosing")
            numbers = [int(name.partition("-")[0]) for name in self._folder.names() if name.endswith(".ticket")]
            ticket = self._ticket = f"{max(numbers, default=0) + 1:012d}-{self.token}.ticket"
            self._folder.put(ticket)
            # Held for dead while choosing, others did not wait: the number may be too small.
            if f"{self.token}.choosing" in self._folder.names():
                self._folder.drop(f"{self.token}.choosing")
                return
            self._folder.drop(ticket)

    def _live(self) -> None:
        while not self._stop.wait(self._beat_s):
            with suppress(OSError):  # a store that is out of reach for a while: check() counts the time
                if self._held and self._ticket not in self._folder.names():
                    self._lost = True
                    return
                self._beat()

    def _beat(self) -> None:
        with self._beating:
            self._beats += 1
            begun = _now()
            said = {**self._about, "beat": self._beats, "processes": process_family()}
            self._folder.put(f"{self.token}.beat", json.dumps(said).encode())
            self._beaten_at = begun

    def _bury(self, tokens: set[str], names: set[str]) -> bool:
        """Take the dead among the contenders out of the queue; whether there was one that could be."""
        dead = []
        for token in sorted(tokens):
            beat = self._folder.read(f"{token}.beat")
            if self._still(token, beat) >= self._stale_s:
                dead.append((token, f"has shown no sign of life for {self._stale_s:.0f} s"))
            elif _gone(beat):
                dead.append((token, "is gone"))
        for token, why in dead:
            if token not in self._fixed:
                self._say(f"{self._who(token)} {why}: its place is taken over")
            self._remove(token, names)
        if not dead:
            return False
        left = {_token(name) for name in self._folder.names()}
        self._fixed = {token for token, _ in dead if token in left}
        return len(self._fixed) < len(dead)

    def _sweep(self, names: set[str]) -> None:
        """Remove what dead runs of this machine left that were not in the queue any more.

        A beat that is empty, or half there, was left by a run that was killed as it wrote it; or it is being written
        by a run that is about to queue: that one's next beat makes the file again, and until then it counts as alive.
        """
        queued = {_token(name) for name in names if name.endswith((".ticket", ".choosing"))}
        for token in sorted({_token(name) for name in names} - queued):
            beat = self._folder.read(f"{token}.beat")
            if _gone(beat) or (beat is not None and not _parsed(beat)):
                self._remove(token, set())

    def _still(self, token: str, beat: bytes | None) -> float:
        """For how long a contender's counter has stood still, seconds; time in which nobody looked does not count."""
        now = _now()
        before = self._seen.get(token)
        if before is None or before.beat != beat:
            self._seen[token] = _Heartbeat(beat, 0.0, now)
            return 0.0
        still = before.still_s + min(now - before.looked_at, 4 * self._poll_s)
        self._seen[token] = _Heartbeat(beat, still, now)
        return still

    def _remove(self, token: str, names: set[str]) -> None:
        """Remove a contender's files: what the queue goes by first."""
        for name in sorted(name for name in names if name.endswith(".ticket") and _token(name) == token):
            self._folder.drop(name)
        for kind in ("choosing", "beat"):
            self._folder.drop(f"{token}.{kind}")

    def _who(self, token: str) -> str:
        """Say who a contender is; what is not as it should be, where, and what to do about it."""
        about: dict[str, Any] = {}
        for _ in range(_LOOKS):
            about = _parsed(self._folder.read(f"{token}.beat"))
            if about:
                break
            time.sleep(self._poll_s / _LOOKS)  # it may just be written
        fixed = f" (dead; its files cannot be removed: remove {self._place}/*{token}*)" if token in self._fixed else ""
        if not about:
            return (
                f"another run{fixed}"
                if fixed
                else (
                    f"another run ({self._place}/{token}.beat is no sign of life that can be read: after "
                    f"{self._stale_s:.0f} s without a change it counts as dead; if no run is on this lake, remove it)"
                )
            )
        told = (str(about.get(name))[:_MAX_TEXT_CHARS] for name in ("run_id", "host", "process", "since"))
        return "run {} ({}, process {}, since {})".format(*told) + fixed


@contextmanager
def hold_lease(
    lake_root: str | Path,
    run_id: str,
    *,
    wait_s: float = 600.0,
    say: LogLine,
    beat_s: float = 5.0,
    stale_s: float = 60.0,
    poll_s: float = 0.5,
) -> Iterator[Lease]:
    """Hold the lake for a run: a local folder or a URI that ``pyarrow.fs`` knows.

    Waits at most ``wait_s`` seconds for a run that is there already. Raises ``LeaseError`` when it does not end, or
    when the lake cannot be written.
    """
    try:
        mine = Lease(str(lake_root), run_id, say=say, beat_s=beat_s, stale_s=stale_s, poll_s=poll_s)
    except (OSError, ValueError) as error:
        raise LeaseError(f"{lake_root}: no lease can be taken there: {error}") from error
    try:
        try:
            mine.acquire(wait_s)
        except OSError as error:
            raise LeaseError(f"{lake_root}: no lease can be taken there: {error}") from error
        yield mine
    finally:
        mine.release()


def _token(name: str) -> str:
    return name.rpartition(".")[0].rpartition("-")[2]


def _gone(beat: bytes | None) -> bool:
    """Whether a contender was of this machine and none of its processes is there any more."""
    said = _parsed(beat)
    processes = said.get("processes")
    if said.get("machine") != _machine() or not isinstance(processes, list) or not processes:
        return False
    if not all(isinstance(each, list) and list(map(type, each)) == [int, str] for each in processes):
        return False
    return not any(process_start_time(pid) == when for pid, when in processes)


def _parsed(data: bytes | None) -> dict[str, Any]:
    """A JSON object; empty when there is none, or only a part of it is written yet."""
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _now() -> float:
    """Seconds that also pass while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


# -- processes ---------------------------------------------------------------------------------------------------------

_PROC: Final = Path("/proc")


def _machine() -> str:
    """Where process ids mean the same: this boot of this machine, and this container."""
    boot, space = _PROC / "sys/kernel/random/boot_id", _PROC / "self/ns/pid"
    try:
        return f"{boot.read_text().strip()} {space.readlink()}"
    except OSError:
        return f"{platform.node()} {uuid.getnode():x}"


def process_start_time(pid: int) -> str | None:
    """Return when a process started, as a text to compare; None when it is gone, or dead and only not yet reaped."""
    found = _processes().get(pid) if not _PROC.joinpath("self/stat").exists() else _stat(pid)
    return None if found is None else found[1]


def process_family() -> list[Process]:
    """Return this process, all below it, and the JVM above it that ``spark-submit`` made."""
    everyone = _processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in everyone.items():
        children.setdefault(parent, []).append(pid)
    out: list[Process] = []
    if "PYSPARK_GATEWAY_PORT" in os.environ and os.getppid() in everyone:
        out.append((os.getppid(), everyone[os.getppid()][1]))
    todo = [os.getpid()]
    while todo:
        pid = todo.pop()
        if pid in everyone:
            out.append((pid, everyone[pid][1]))
        todo += children.get(pid, [])
    return sorted(out)


def _processes() -> dict[int, tuple[int, str]]:
    """The machine's living processes: each one's parent, and when it started."""
    if _PROC.joinpath("self/stat").exists():
        found = {int(path.name): _stat(int(path.name)) for path in _PROC.iterdir() if path.name.isdecimal()}
        return {pid: facts for pid, facts in found.items() if facts is not None}
    listed = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat=,lstart="],  # noqa: S607 - wherever the system has it
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split(maxsplit=3) for line in listed.splitlines()]
    return {int(row[0]): (int(row[1]), row[3]) for row in rows if len(row) == 4 and not row[2].startswith("Z")}


def _stat(pid: int) -> tuple[int, str] | None:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # State, parent, and ticks from the boot to its start (proc(5): fields 3, 4, 22).
    return None if fields[0] in {"Z", "X"} else (int(fields[1]), fields[19])
