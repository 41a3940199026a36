"""Write the dissector for Wireshark and tshark, msmq.lua: to its personal plugins, to a file, or to standard output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from jobs import cli
from jobs.command_line.output_files import replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError

JOB = "wireshark"
FILE_NAME: Final = "msmq.lua"
_PLUGIN_FOLDERS: Final = ("Personal Lua Plugins", "Personal Plugins")  # as tshark names them, the better one first
_ANSWERS_WITHIN_S: Final = 30


def dissector_text() -> str:
    """Return the text of msmq.lua."""
    return (resources.files("jobs.analysis") / FILE_NAME).read_text(encoding="ascii")


def plugin_folder() -> Path:
    """Return the folder of Wireshark's personal plugins: as tshark says, else as its documentation does."""
    tshark = shutil.which("tshark")
    if tshark is not None:
        done = subprocess.run(  # noqa: S603 - a program of the path, without arguments of others
            [tshark, "-G", "folders"], capture_output=True, text=True, check=False, timeout=_ANSWERS_WITHIN_S
        )
        folders = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
        for name in _PLUGIN_FOLDERS:
            if name in folders:
                return Path(folders[name].strip())
    if sys.platform == "win32":
        return Path(os.environ["APPDATA"]) / "Wireshark" / "plugins"
    return Path.home() / ".local" / "lib" / "wireshark" / "plugins"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Write the dissector where it is asked for; say where it went."""
    text, out = dissector_text(), job_run.arguments.out
    if out == cli.STANDARD_OUTPUT:
        cli.write_output(text)
        return cli.Outcome()
    target = plugin_folder() / FILE_NAME if out is None else Path(out)
    _write(target, text)
    cli.log_progress(f"{target}: written; Wireshark reads its plugins when it starts, or with Ctrl+Shift+L")
    return cli.Outcome(summary_fields={"written": str(target)})


def _write(target: Path, text: str) -> None:
    """Write the dissector; ConfigError if the file is another one, or cannot be written."""
    own = text.partition("\n")[0].encode("ascii")
    try:
        if target.is_file() and target.stat().st_size:
            with target.open("rb") as existing:
                if existing.readline(len(own) + 1).rstrip() != own:
                    raise ConfigError(f"{target}: is not a dissector of this project; remove it, or give --out FILE")
        target.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(target) as out:
            out.write(text.encode("ascii"))
    except OSError as error:
        raise ConfigError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
