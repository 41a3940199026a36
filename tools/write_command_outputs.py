"""Write what commands print into the pages of docs/, on lakes of the recordings in data/.

A marker stands between a code block with commands and the block that gets their output. It names the recordings::

    <!-- output, lake of data/transfers/08-stall.pcap.gz: `make outputs-doc` writes it -->

The lake of a command is called ``/data/lake`` in pages. The JSON summary of a command is left out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent, indent
from typing import Final
from unittest.mock import patch

from jobs import __main__ as command
from jobs.cli import ExitCode

ROOT: Final = Path(__file__).resolve().parents[1]
LAKE: Final = "/data/lake"
_COLUMNS: Final = "110"  # of the terminal
_MARKER: Final = "<!-- output, lake of "
_BLOCK: Final = re.compile(
    r"^(?P<indent> *)```\n(?P<commands>(?:(?! *```).*\n)+) *```\n\n"
    r" *<!-- output, lake of (?P<recordings>[^:]*): `make outputs-doc` writes it -->\n"
    r" *```text\n(?P<output>(?:(?! *```).*\n)*) *```$",
    re.MULTILINE,
)
_FAILURES: Final = (ExitCode.USAGE_ERROR, ExitCode.INPUT_UNREADABLE, ExitCode.UNFORESEEN_ERROR)

MakeLake = Callable[[str], Path]
"""Returns the lake of recordings, named by their paths in the repository, with spaces between them."""


class _Terminal(TextIOWrapper):
    def isatty(self) -> bool:
        return True


def marked_pages() -> list[Path]:
    """Return the pages that have a marker."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if _MARKER in page.read_text(encoding="utf-8")]


def lakes_below(folder: Path) -> MakeLake:
    """Return a function that makes lakes in a folder, each once."""

    @cache
    def make(recordings: str) -> Path:
        lake = folder / str(len(list(folder.iterdir())))
        captures = [str(ROOT / name) for name in recordings.split()]
        printed(["run_all", "--set", "run.engine=local", "--lake", str(lake), "--captures", *captures])
        return lake

    return make


def page_with_outputs(page: str, make_lake: MakeLake) -> str:
    """Return a page with what its commands print now; SystemExit for a marker that is not between two blocks."""

    def block(found: re.Match[str]) -> str:
        output = output_of(dedent(found["commands"]), make_lake(found["recordings"]))
        begin, end = found.span("output")
        return found[0][: begin - found.start()] + indent(output, found["indent"]) + found[0][end - found.start() :]

    if len(_BLOCK.findall(page)) != page.count(_MARKER):
        raise SystemExit(f"each marker ({_MARKER}...) stands between a block with a command and a ```text block")
    return _BLOCK.sub(block, page)


def output_of(commands: str, lake: Path) -> str:
    """Return the lines that commands print, each first to standard output; SystemExit if one fails."""
    said = ""
    with TemporaryDirectory() as folder, chdir(folder):
        for command_line in commands.replace("\\\n", " ").splitlines():
            program, *arguments = shlex.split(command_line)
            if program != "msmq":
                raise SystemExit(f"not a command of msmq: {command_line}")
            said += printed([argument.replace(LAKE, str(lake)) for argument in arguments])
    lines = [line.rstrip() for line in said.splitlines() if not line.startswith('{"job": ')]
    return "\n".join(lines).strip("\n").replace(str(lake), LAKE).replace(f"{ROOT}/", "") + "\n"


def printed(arguments: list[str]) -> str:
    """Return what a command prints, at a terminal; SystemExit if it fails."""
    terminal = patch.dict(os.environ, {"COLUMNS": _COLUMNS})
    with redirect_stdout(_Terminal(BytesIO(), "utf-8")) as out, redirect_stderr(StringIO()) as err, terminal:
        code = command.main(arguments)
    if code in _FAILURES:
        raise SystemExit(f"msmq {shlex.join(arguments)}: exit code {code}\n{err.getvalue()}")
    out.seek(0)
    return out.read() + err.getvalue()


def main() -> None:
    """Write all pages."""
    with TemporaryDirectory() as folder:
        make_lake = lakes_below(Path(folder))
        for path in marked_pages():
            path.write_text(page_with_outputs(path.read_text(encoding="utf-8"), make_lake), encoding="utf-8")


if __name__ == "__main__":
    main()
