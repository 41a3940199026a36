"""Answer operators' questions from the tables of a lake, and print the gaps in coverage."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from jobs import cli
from jobs.command_line.answers import Answer, csv_text, hours_text, json_lines, lake_views, lines_of, lines_on_coverage
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.bronze.event_time import newest_event_time
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import COVERAGE_VIEW, QUESTIONS, VIEWS_BY_NAME, LakeViews, views_of_question
from pipeline.reports.views.names import Names
from pipeline.reports.views.scope import Scope
from pipeline.reports.views.view import View
from pipeline.text import format_cell

JOB = "ask"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Answer the questions; only --define writes to the lake."""
    arguments = job_run.arguments
    requested = [view for text in arguments.questions for view in _resolve_question(text)]
    _check_arguments(job_run, requested)
    if not arguments.questions and not arguments.define:
        cli.write_output("\n".join(_list_questions()) + "\n")
        return cli.Outcome()
    lake = open_lake_with_data(job_run)
    views = lake_views(job_run.config, lake, arguments.until or arguments.as_of)
    defined: dict[str, Any] = {"defined": views.create_permanent()} if arguments.define else {}
    named = {
        "machine": None if arguments.machine is None else views.machines_called(arguments.machine),
        "queue": None if arguments.queue is None else views.queues_called(arguments.queue),
    }
    views = replace(views, scope=_scope(arguments, lake, named))
    quiet = cli.STANDARD_OUTPUT in (arguments.json, arguments.csv)
    for line in _lines_on_scope(arguments, views.scope, named) if requested else ():
        cli.log_progress(line) if quiet else cli.write_output(f"{line}\n")
    is_anything_meant = all(names is None or names.found for names in named.values())
    answers: list[Answer] = []
    with (
        _open_file(job_run, lake, arguments.json) as json_file,
        _open_file(job_run, lake, arguments.csv) as csv_file,
    ):
        for view in requested if is_anything_meant else ():
            answers.append(answer := _answer(views, view, arguments.rows))
            if arguments.json is not None:
                _write(json_file, json_lines(answer))
            if arguments.csv is not None:
                _write(csv_file, csv_text(answer))
            if not quiet:
                cli.write_output("\n".join(lines_of(answer, views.scope, arguments.machine)) + "\n\n")
    shown = {answer.view.name: answer.rows for answer in answers if answer.view.name != COVERAGE_VIEW}
    if shown and not quiet:
        cli.write_output("\n".join(lines_on_coverage(views, shown)) + "\n\n")
    not_seen = {answer.view.name: [kind.name for kind in answer.evidence.unseen] for answer in answers}
    counts = dict.fromkeys((view.name for view in requested), None) | {
        answer.view.name: len(answer.rows) for answer in answers if answer.is_known
    }
    fields = {
        "rows": counts,
        "cannot_be_known": [name for name, count in counts.items() if count is None],
        "not_seen": {name: kinds for name, kinds in not_seen.items() if kinds},
    }
    return cli.Outcome(summary_fields=fields | defined)


def _check_arguments(job_run: cli.JobRun, requested: Sequence[View]) -> None:
    """Raise ConfigError where options contradict each other, or a view cannot apply one of them."""
    given = job_run.arguments
    limits = {"--machine": given.machine, "--queue": given.queue, "--last": given.last, "--from": given.since,
              "--to": given.until}  # fmt: skip
    if given.define and job_run.config.lake.catalog is None:
        raise ConfigError(
            "--define: permanent views need a catalog (lake.catalog); a folder of tables cannot hold views"
        )
    if given.define and (options := [name for name, value in limits.items() if value is not None]):
        raise ConfigError(f"--define: permanent views are of the whole lake, without {', '.join(options)}")
    if given.rows < 0:
        raise ConfigError(f"--rows: must be at least 0, not {given.rows}")
    if given.last is not None and given.since is not None:
        raise ConfigError("--last: not with --from; give one of both")
    if given.until is not None and given.as_of is not None:
        raise ConfigError("--to: not with --as-of; --to is the time that counts as now")
    if given.since is not None and (end := given.until or given.as_of) is not None and given.since > end:
        raise ConfigError(f"--from: {given.since:%Y-%m-%dT%H:%M:%SZ} is later than {end:%Y-%m-%dT%H:%M:%SZ}")
    if given.csv is not None and len(requested) != 1:
        names = ", ".join(view.name for view in requested)
        raise ConfigError(f"--csv: has the rows of one view, not of {len(requested)}{f': {names}' if names else ''}")
    if given.csv == given.json == cli.STANDARD_OUTPUT:
        raise ConfigError("--csv: not - with --json -; give one of both a file")
    for option, columns in (("machine", "machines"), ("queue", "queues")):
        if getattr(given, option) == "":
            raise ConfigError(f"--{option}: is empty")
        refusing = [view for view in requested if not getattr(view.scope, columns)]
        if getattr(given, option) is not None and refusing:
            raise ConfigError(_refusal(option, columns, refusing))


def _refusal(option: str, columns: str, refusing: Sequence[View]) -> str:
    """Return that views cannot be limited to a machine or a queue, and which views of their questions can."""
    numbers = sorted({view.question_number for view in refusing})
    able = [each.name for number in numbers for each in views_of_question(number) if getattr(each.scope, columns)]
    others = f"; of the same question{'s' * (len(numbers) > 1)} these can: {', '.join(able)}" if able else (
        f"; no view of question {', '.join(map(str, numbers))} can"
    )  # fmt: skip
    return f"--{option}: {', '.join(view.name for view in refusing)} cannot be limited to a {option}{others}"


def _resolve_question(text: str) -> list[View]:
    """Return the views for the number of a question or the name of a view; ConfigError if there are none."""
    if text in VIEWS_BY_NAME:
        return [VIEWS_BY_NAME[text]]
    if text.isdecimal() and int(text) in QUESTIONS:
        return views_of_question(int(text))
    raise ConfigError(f"no such question: {text} (1 to {max(QUESTIONS)}, or {', '.join(VIEWS_BY_NAME)})")


def _list_questions() -> list[str]:
    lines = []
    for number, question in QUESTIONS.items():
        names = ", ".join(view.name for view in views_of_question(number))
        lines += [f"{number:>3}  {question.text}", f"     {names}"]
    return lines


def _scope(arguments: Namespace, lake: Lake, named: Mapping[str, Names | None]) -> Scope:
    """Return what the answers are about. Hours that begin at a time end at the one that counts as now."""
    since, until = arguments.since, arguments.until
    if arguments.last is not None:
        until = until or arguments.as_of
        if until is not None:
            since = until - arguments.last
        elif (newest := newest_event_time(lake)) is not None:
            since = newest - arguments.last
    elif since is not None:
        until = until or arguments.as_of
    found = {option: None if names is None else names.found for option, names in named.items()}
    return Scope(since, until, found["machine"], found["queue"])


def _lines_on_scope(arguments: Namespace, scope: Scope, named: Mapping[str, Names | None]) -> Iterator[str]:
    """Yield lines on what the answers are about: hours, and the names of machines and queues."""
    if hours := hours_text(scope):
        yield f"Hours asked for:{hours}"
    for option, names in named.items():
        text = format_cell(getattr(arguments, option))
        if names is not None and names.found:
            yield f"Asked for --{option} {text}: {format_cell(sorted(names.found))}"
        elif names is not None:
            near = f"; similar names are {format_cell(list(names.near))}" if names.near else ""
            yield f"Cannot be known: nothing in this lake is called {text} (--{option}){near}."
    if hours or any(names is not None for names in named.values()):
        yield ""


@contextmanager
def _open_file(job_run: cli.JobRun, lake: Lake, target: str | None) -> Iterator[BinaryIO | None]:
    """Yield the file of an option; None if there is none, or if it is standard output. ConfigError if it cannot be."""
    if target is None or target == cli.STANDARD_OUTPUT:
        yield None
        return
    check_outputs(job_run, lake, [Path(target)])
    with ExitStack() as stack:
        try:
            output = stack.enter_context(replace_file(Path(target)))
        except OSError as error:
            raise ConfigError(f"{target}: {error.strerror}") from error
        yield output


def _write(output: BinaryIO | None, text: str) -> None:
    """Write a text to a file; None: to standard output, whose lines end as lines of a terminal do."""
    if output is None:
        cli.write_output(text.replace("\r\n", "\n"))
    else:
        output.write(text.encode())


def _answer(views: LakeViews, view: View, max_rows: int) -> Answer:
    """Return the answer of a view with at most ``max_rows`` rows; 0 means all rows."""
    found = views.answer(view.name, max_rows + 1 if max_rows else None)
    rows = found.to_pylist()
    shown = rows[:max_rows] if max_rows else rows
    evidence = views.evidence(view.name)
    return Answer(view, found.column_names, shown, len(shown) < len(rows), evidence, bool(rows) or evidence.is_enough)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
