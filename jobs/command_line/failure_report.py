"""What a job says about an exception that nobody foresaw: short, without the stack frames of Java."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

from jobs.command_line.java_process import JAVA, remove_java_frames
from pipeline.text import cut_text

_PROJECT: Final = Path(__file__).resolve().parents[2]
_PACKAGES: Final = ("jobs", "pipeline", "schemas", "udfs")
_CAUSE: Final = "Caused by: "
_MAX_LINES: Final = 30
_MAX_JAVA_LINES: Final = 10
_MAX_CHARACTERS: Final = 1_000  # of a line


def summarize_exception(error: BaseException, *, values: bool = True) -> str:
    """Return an exception in one line: its type, the first line of its message, and the innermost cause in Java.

    Without ``values`` only the type, and what the system says of it: a message may hold values of the input.
    """
    system = [error.strerror] if isinstance(error, OSError) and error.strerror else []
    lines = _message_lines(error) if values else system
    causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
    first = [f"{type(error).__name__}: {lines[0]}"] if lines else [type(error).__name__]
    ended = f" (Spark's Java process has ended: {JAVA.exit_code})" if JAVA.exit_code is not None else ""
    return _shorten("; caused by ".join([*first, *causes[-1:]])) + ended


def report_lines(error: BaseException, *, values: bool = True) -> list[str]:
    """Return lines for standard error: what happened, what to do, where it was, and the rest of the message.

    Without ``values`` nothing of the message, and nothing that Java wrote.
    """
    frames = [
        f"  at {Path(frame.filename).relative_to(_PROJECT)}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_own(Path(frame.filename))
    ]
    message = [
        *_message_lines(error)[1:],
        *(line for note in getattr(error, "__notes__", ()) for line in note.splitlines()),
    ]
    rest = [f"  {_shorten(line)}" for line in message[:_MAX_LINES]]
    rest += [f"  Java: {_shorten(line)}" for line in JAVA.last_lines(_MAX_JAVA_LINES)]
    return [
        f"an error that was not foreseen ended the run: {summarize_exception(error, values=values)}",
        "run the same command again: it continues from what earlier runs completed. If it fails again, report this:",
        *frames[-_MAX_LINES:],
        *(rest if values else ["  the message is not shown, because names are redacted"]),
    ]


def _message_lines(error: BaseException) -> list[str]:
    """Return the lines of an exception's message that say something."""
    lines = [line.removeprefix(": ") for line in remove_java_frames(str(error))]
    return [line for line in lines if not line.startswith("An error occurred while calling")]


def _is_own(path: Path) -> bool:
    return path.is_relative_to(_PROJECT) and path.relative_to(_PROJECT).parts[0] in _PACKAGES


def _shorten(line: str) -> str:
    return cut_text(line, _MAX_CHARACTERS)
