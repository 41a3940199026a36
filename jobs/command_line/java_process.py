"""The Java process of a local session: its output, which is shown only if a run fails, and its end on Ctrl-C. No Spark.

Java writes three lines at each start, and pages of stack frames for an error that Python reports anyway. So its output
goes to a file without a name, which is gone when the run ends.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from contextlib import suppress
from subprocess import Popen
from typing import IO, Final

_FRAME: Final = re.compile(r"\s*(at [\w.$/<>]+\(|\.\.\. \d+ more)")
_TAIL_BYTES: Final = 100_000


class JavaProcess:
    """The process that a session runs in, once there is one, and what it has written."""

    def __init__(self) -> None:
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process
        self.process: Popen[bytes] | None = None
        self._is_killed = False
        self._skipped_bytes = 0

    def has_begun(self, process: Popen[bytes]) -> None:
        """Note the process, the first of a process group; end it if it was to be killed meanwhile."""
        self.process = process
        if self._is_killed:
            self.kill()

    def skip_output(self) -> None:
        """Forget what was written until now: the lines of a start without errors."""
        self._skipped_bytes = self.output.seek(0, os.SEEK_END)

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None if it runs, or if there is none."""
        return None if self.process is None else self.process.poll()

    def kill(self) -> None:
        """End the process, and those that start it, if there is one; else as soon as one begins."""
        self._is_killed = True
        if self.process is not None and self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that Java wrote, without stack frames."""
        end = self.output.seek(0, os.SEEK_END)
        self.output.seek(max(self._skipped_bytes, end - _TAIL_BYTES))
        return remove_java_frames(self.output.read().decode("utf-8", "replace"))[-count:]


def remove_java_frames(text: str) -> list[str]:
    """Return the lines of a text that say something: no stack frames of Java, no empty lines."""
    return [line.strip() for line in text.splitlines() if line.strip() and not _FRAME.match(line)]


JAVA: Final = JavaProcess()
