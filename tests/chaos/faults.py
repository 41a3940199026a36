"""Faults of the environment that disturb a run: kills, a full or read-only disk, growing or vanishing files, clocks.

A fault is a function of a ``Scene``, which has its own copy of a lake. It disturbs a run and returns a description of
what happened. Afterwards the environment is restored (disk space, permissions, files), and an ordinary run over all
captures must repair the lake.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from end_to_end.lakes import KILLED, Job

DAY_S = 86_400
POLL_S = 0.05


class NotRunError(Exception):
    """This machine cannot cause a fault; the message says what is missing."""


@dataclass
class Scene:
    """The setting of a fault: a lake after a first run, all captures, the job, and a random generator."""

    root: Path
    captures: Path
    job: str
    chance: random.Random
    watched: Job  # the same run without a fault
    kills: int = 0  # number of killed runs so far

    def start(self) -> Job:
        """Start a run over all captures."""
        return Job(self.root, [self.captures], self.job, engine="spark")

    def wait(self, job: Job, fraction: float) -> None:
        """Wait until a run has made about this fraction of its progress, or has ended."""
        file_count = self.watched.moment(fraction).file_count
        while job.running() and job.look() < file_count:
            time.sleep(POLL_S)


def killed(scene: Scene, many: int) -> str:
    """Kill (SIGKILL) the driver, Java, the Python workers or all of them at a random moment, up to ``many`` times.

    Each further kill is of the run that should repair the lake. The series ends with a run that completes, because it
    ended before its kill or could replace the killed process.
    """
    events: list[str] = []
    while len(events) < many:
        what, when = scene.chance.choice(KILLED), scene.chance.random()
        job, watched = scene.start(), scene.watched
        output = job.kill_after(watched.seconds(when), what) if events else job.kill(watched.moment(when), what)
        if output is None:
            break
        events.append(f"{what} at {when:.2f}: {output.splitlines()[0]}")
        scene.kills += 1
        if job.survived:
            break
    return "; ".join(events)


def full_disk(scene: Scene) -> str:
    """The disk of the lake has space for only a part of what the run writes."""
    used = sum(path.stat().st_size for path in scene.root.rglob("*") if path.is_file())
    more = scene.chance.randint(60, 1500) << 10
    with mounted(scene.root, used + (used >> 2) + more):
        code, output = scene.start().end()
        _mount("-o", "remount,size=2g", str(scene.root))
        _keep_contents(scene.root)
    return f"{more >> 10} KiB left: exit code {code}: {_last_line(output)}"


def read_only(scene: Scene) -> str:
    """The lake becomes read-only during the run, or before it starts."""
    when = scene.chance.choice([0.0, 0.3, 0.6, 0.9])
    with mounted(scene.root, 2 << 30):
        if not when:
            _cover_read_only(scene.root)
        job = scene.start()
        if when:
            scene.wait(job, when)
            _cover_read_only(scene.root)
        code, output = job.end()
        subprocess.run(["umount", str(scene.root)], check=True)
        _keep_contents(scene.root)
    return f"from {when} on: exit code {code}: {_last_line(output)}"


def _cover_read_only(folder: Path) -> None:
    """Mount a folder over itself, read-only: files that are open stay so, a lease's lock among them."""
    _mount("--bind", str(folder), str(folder))
    _mount("-o", "remount,bind,ro", str(folder))


def growing(scene: Scene) -> str:
    """A capture grows while it is read: first there is a part of it, then the rest is written in small pieces."""
    path = _largest(scene)
    whole = path.read_bytes()
    there = scene.chance.randrange(1, len(whole))
    path.write_bytes(whole[:there])
    job = scene.start()

    def write() -> None:
        with path.open("ab") as file:
            for at in range(there, len(whole), 997):
                file.write(whole[at : at + 997])
                file.flush()
                time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    code, output = job.end()
    writer.join()
    return f"{path.name} from byte {there}: exit code {code}: {_last_line(output)}"


def vanishing(scene: Scene) -> str:
    """A capture vanishes during the run, and exists again afterwards."""
    path, when = _largest(scene), scene.chance.random() / 2
    away = path.with_name("away")
    job = scene.start()
    scene.wait(job, when)
    path.rename(scene.root.parent / away.name)
    code, output = job.end()
    shutil.move(scene.root.parent / away.name, path)
    return f"{path.name} at {when:.2f}: exit code {code}: {_last_line(output)}"


def clock_set_back(scene: Scene) -> str:
    """All files of the lake and all captures have times a day in the future, as if the clock was set back by a day."""
    ahead = time.time() + DAY_S
    for folder in (scene.root, scene.captures):
        for path in folder.rglob("*"):
            if path.is_file() and path.name != "_delta_log":
                os.utime(path, (ahead, ahead))
    code, output = scene.start().end()
    return f"exit code {code}: {_last_line(output)}"


FAULTS: dict[str, Callable[[Scene], str]] = {
    "full_disk": full_disk,
    "read_only": read_only,
    "growing": growing,
    "vanishing": vanishing,
    "clock_set_back": clock_set_back,
}
FAULTS_THAT_CHANGE_FILE_TIMES = (growing, vanishing, clock_set_back)  # these change the times of files


@contextmanager
def mounted(folder: Path, size: int) -> Iterator[None]:
    """Mount a separate disk of ``size`` bytes over a folder, with the contents of the folder."""
    kept = folder.with_name(f"{folder.name}-kept")
    folder.rename(kept)
    folder.mkdir()
    try:
        _mount("-t", "tmpfs", "-o", f"size={size}", "chaos", str(folder))
    except NotRunError:
        folder.rmdir()
        kept.rename(folder)
        raise
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()
        (folder.with_name(f"{folder.name}-after") if _kept_folder(folder).exists() else kept).rename(folder)
        shutil.rmtree(kept, ignore_errors=True)


def _kept_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-after")


def _keep_contents(folder: Path) -> None:
    """Copy the contents of the disk, to be restored after it is unmounted."""
    shutil.copytree(folder, _kept_folder(folder))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotRunError(f"mount needs root, and a machine that lets it: {done.stderr.strip()}")


def _largest(scene: Scene) -> Path:
    return max((path for path in scene.captures.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def _last_line(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("\t", " "))]
    return lines[-1][:200] if lines else ""
