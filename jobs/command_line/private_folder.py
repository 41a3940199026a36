"""The private folder of this process: scratch lakes, spooled input, temporary files of tasks, Spark and Java. No Spark.

All of these may hold what was captured, so only this user may read the folder. It is removed when the process ends. A
process that was killed leaves it, and the next run on the same machine with the same ``privacy.scratch_folder`` removes
it. A lock tells whether a folder is in use: the process and the Java process that it starts hold it, and the system
releases it when both have ended.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from jobs.config import ConfigError

LOCAL_FOLDERS_VARIABLE: Final = "SPARK_LOCAL_DIRS"
_USER_PREFIX: Final = f"msmq-{os.getuid()}-"
_MACHINE_PREFIX: Final = f"{_USER_PREFIX}{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"
_LOCK_FILE: Final = "lock"
_OPEN_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class PrivateFolder:
    """The private folder of this process at each place that is asked for; normally there is one place."""

    def __init__(self) -> None:
        self._by_location: dict[Path, Path] = {}
        self.locks: list[int] = []  # file descriptors

    def path(self, location: Path | None) -> Path:
        """Return the folder below a place, made when first asked for; ConfigError if it cannot be made.

        The place is the setting privacy.scratch_folder. None: the folder that SPARK_LOCAL_DIRS names first, else the
        system's folder for temporary files.
        """
        location = location or _default_location()
        if location not in self._by_location:
            try:
                location.mkdir(parents=True, exist_ok=True)
                self._by_location[location] = self._make(location)
            except OSError as error:
                raise ConfigError(
                    f"{location}: {error.strerror}; set privacy.scratch_folder to a folder of your own"
                ) from error
        return self._by_location[location]

    @contextmanager
    def subfolder(self, location: Path | None, name: str) -> Iterator[Path]:
        """Make a folder in the private one, and remove it at the end."""
        folder = self.path(location) / name
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self, location: Path) -> Path:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=_MACHINE_PREFIX, dir=location))
            lock = os.open(folder / _LOCK_FILE, _OPEN_LOCK, 0o600)
            with suppress(OSError):  # a store without locks: see remove_left_subfolders
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:  # else another run found it without a lock, and removed it
                break
            os.close(lock)
        self.locks.append(lock)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


PRIVATE_FOLDER: Final = PrivateFolder()


def remove_left_folders(location: Path | None) -> None:
    """Remove the private folders at a place whose processes have ended, of this machine: locks may not reach others."""
    for folder in (location or _default_location()).glob(f"{_MACHINE_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder / _LOCK_FILE, _OPEN_LOCK, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def remove_left_subfolders(location: Path | None, name: str) -> None:
    """Remove a subfolder from all private folders at a place but the own one, also of other machines.

    Only if no other run uses it. On a store without locks this is all that removes it.
    """
    own = PRIVATE_FOLDER.path(location)
    for folder in own.parent.glob(f"{_USER_PREFIX}*/{name}"):
        if folder.parent != own:
            shutil.rmtree(folder, ignore_errors=True)


def _default_location() -> Path:
    return Path((os.environ.get(LOCAL_FOLDERS_VARIABLE) or tempfile.gettempdir()).partition(",")[0])
