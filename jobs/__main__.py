"""The ``msmq`` command: ``msmq JOB [OPTION ...]`` runs one job. ``python -m jobs JOB ...`` does the same."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import jobs


def list_jobs() -> dict[str, str]:
    """Return the name of each job and the first line of its module's docstring.

    A job is a module of this package that defines ``JOB``. Modules are parsed, not imported: importing Spark takes a
    second.
    """
    found = {}
    for module in pkgutil.iter_modules(jobs.__path__):
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


def usage_text() -> str:
    """Return the help text of ``msmq``: its usage and one line for each job."""
    descriptions = list_jobs()
    width = max(map(len, descriptions))
    lines = [f"  {name:{width}}  {description}" for name, description in sorted(descriptions.items())]
    return "\n".join(["usage: msmq JOB [OPTION ...]", "", *lines, "", "msmq JOB --help lists the options of a job."])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job named by the first argument with the remaining arguments; return its exit code."""
    name, *arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in {"-h", "--help"}:
        sys.stdout.write(usage_text() + "\n")
        return 0
    name = name.replace("-", "_")
    if name not in list_jobs():
        sys.stderr.write(f"msmq: no such job: {name}; msmq --help lists them\n")
        return 2
    return int(import_module(f"jobs.{name}").main(arguments))


def run_databricks_task() -> None:
    """Run a job as a Databricks wheel task: exit only with a code other than 0.

    Databricks counts every SystemExit as a failure, even one with code 0.
    """
    if code := main():
        sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
