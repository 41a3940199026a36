"""``msmq JOB ...``: one command for all jobs, also ``python -m jobs JOB ...``."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from jobs import __path__ as packages


def jobs() -> dict[str, str]:
    """Each job's name and the first line of what it says of itself, without importing it: that takes Spark a second."""
    found = {}
    for module in pkgutil.iter_modules(packages):
        spec = find_spec(f"jobs.{module.name}")
        source = getattr(spec.loader, "get_source", lambda _: None)(spec.name) if spec is not None else None
        tree = ast.parse(source or "")
        names = {
            name.id
            for each in tree.body
            if isinstance(each, ast.Assign)
            for name in each.targets
            if isinstance(name, ast.Name)
        }
        if "JOB" in names:
            found[module.name] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def usage() -> str:
    """What is printed where no job is named."""
    known = jobs()
    width = max(map(len, known))
    lines = [f"  {name:{width}}  {about}" for name, about in sorted(known.items())]
    return "\n".join(["usage: msmq JOB [OPTION ...]", "", *lines, "", "msmq JOB --help tells of a job's options."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job that the first argument names with the others; the exit code."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in {"-h", "--help"}:
        sys.stdout.write(usage() + "\n")
        return 0
    name = name.replace("-", "_")
    if name not in jobs():
        sys.stderr.write(f"msmq: no such job: {name}; msmq --help lists them\n")
        return 2
    return int(import_module(f"jobs.{name}").main(arguments))


def task() -> None:
    """Run as a task of a Databricks job: it fails by what is raised, and an exit code of 0 would count as raised."""
    if code := main():
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
