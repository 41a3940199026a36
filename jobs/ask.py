"""Answer operators' questions from the tables of a lake, and print the gaps in coverage."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from jobs import cli
from jobs.command_line.output_files import check_outputs, replace_file
from jobs.command_line.parsers import build_parser
from jobs.config import ConfigError
from jobs.lake_access import open_lake_with_data
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import COVERAGE_VIEW, QUESTIONS, VIEWS_BY_NAME, LakeViews, views_of_question
from pipeline.reports.views.evidence import SeenEvidence
from pipeline.reports.views.view import View
from pipeline.text import format_table, json_default

JOB = "ask"


def run(job_run: cli.JobRun) -> cli.Outcome:
    """Answer the questions; only --define writes to the lake."""
    if job_run.arguments.define and job_run.config.lake.catalog is None:
        raise ConfigError(
            "--define: permanent views need a catalog (lake.catalog); a folder of tables cannot hold views"
        )
    if job_run.arguments.rows < 0:
        raise ConfigError(f"--rows: must be at least 0, not {job_run.arguments.rows}")
    requested = [view for text in job_run.arguments.questions for view in _resolve_question(text)]
    if not job_run.arguments.questions and not job_run.arguments.define:
        cli.write_output("\n".join(_list_questions()) + "\n")
        return cli.Outcome()
    quotas = job_run.config.quotas
    lake = open_lake_with_data(job_run)
    views = LakeViews(
        lake,
        job_run.arguments.as_of,
        quotas.queue,
        quotas.journal,
        {each.queue.lower(): (each.messages, each.journal) for each in quotas.queues},
        job_run.config.history.max_gap,
        quotas.machine,
        {each.machine: each.bytes for each in quotas.machines},
    )
    defined: dict[str, Any] = {"defined": views.create_permanent()} if job_run.arguments.define else {}
    target = job_run.arguments.json
    with _open_json_file(job_run, lake, target) as output:
        given = {
            view.name: _write_answer(views, view, job_run.arguments.rows, output, json_only=target == "-")
            for view in requested
        }
    unknown = [name for name, (count, _) in given.items() if count is None]
    not_seen = {name: [kind.name for kind in evidence.unseen] for name, (_, evidence) in given.items()}
    fields = {
        "rows": {name: count for name, (count, _) in given.items()},
        "cannot_be_known": unknown,
        "not_seen": {name: kinds for name, kinds in not_seen.items() if kinds},
    }
    return cli.Outcome(summary_fields=fields | defined)


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


@contextmanager
def _open_json_file(job_run: cli.JobRun, lake: Lake, target: str | None) -> Iterator[BinaryIO | None]:
    """Yield the file of ``--json``; None if there is none, or if it is standard output. ConfigError if it cannot be."""
    if target is None or target == "-":
        yield None
        return
    check_outputs(job_run, lake, [Path(target)])
    with ExitStack() as stack:
        try:
            output = stack.enter_context(replace_file(Path(target)))
        except OSError as error:
            raise ConfigError(f"{target}: {error.strerror}") from error
        yield output


def _write_answer(
    views: LakeViews, view: View, max_rows: int, output: BinaryIO | None, *, json_only: bool
) -> tuple[int | None, SeenEvidence]:
    """Print the rows of a view with its gaps in coverage, and write them as JSON lines.

    ``max_rows`` of 0 means all rows. ``output`` receives the JSON lines. ``json_only`` prints them, and nothing else.
    Returns the number of rows, None where the answer cannot be known: what the view needs was not seen; and what was.
    """
    answer = views.answer(view.name, max_rows + 1 if max_rows else None)
    rows = answer.to_pylist()
    shown = rows[:max_rows] if max_rows else rows
    evidence = views.evidence(view.name)
    is_known = bool(rows) or evidence.is_enough
    json_lines = "".join(f"{json.dumps({'view': view.name, **row}, default=json_default)}\n" for row in shown)
    if json_only:
        cli.write_output(json_lines)
        return len(shown) if is_known else None, evidence
    if output is not None:
        output.write(json_lines.encode())
    lines = [
        f"{view.question_number}. {QUESTIONS[view.question_number].text}",
        f"{view.name}: one row is {view.row_meaning}",
        "",
    ]
    if rows:
        lines += format_table(answer.column_names, [[*row.values()] for row in shown])
    lines += _lines_on_evidence(evidence, view, is_known=is_known, is_empty=not rows)
    if max_rows and len(rows) > max_rows:
        lines.append(f"... more rows: use --rows 0, or query the view {view.name}")
    lines += ["", f"Limitations: {view.limitations}"]
    if view.name != COVERAGE_VIEW:
        coverage = views.coverage_for(view.name, shown)
        gaps = coverage.to_pylist()
        names = [name for name in coverage.column_names if name == "server_address" or any(row[name] for row in gaps)]
        lines += ["Gaps in coverage (question 25) in these hours and of these servers:"]
        lines += (
            format_table(names, [[row[name] for name in names] for row in gaps]) if gaps else ["(nothing was read)"]
        )
    cli.write_output("\n".join(lines) + "\n\n")
    return len(shown) if is_known else None, evidence


def _lines_on_evidence(evidence: SeenEvidence, view: View, *, is_known: bool, is_empty: bool) -> Iterator[str]:
    """Yield lines on what an answer rests on: where it is empty what was seen, and what was not."""
    within = "" if view.needs.hours is None else f" in the {view.needs.hours} hours before now"
    if not is_known:
        lacking = [kind.name for kind in evidence.unseen if kind not in view.needs.beside]
        yield f"Cannot be known from what was captured: nothing was seen of {', '.join(lacking)}{within}."
        return
    if is_empty:
        yield f"(no row){within}"
        for kind, subjects, servers, first, last in evidence.sights:
            times = " ".join(f"{word} {at:%Y-%m-%d %H:%M:%S}" for word, at in (("from", first), ("until", last)) if at)
            yield f"Seen of {kind.name}: {subjects} {kind.subjects} at {servers} servers, {times or 'without times'}."
    if evidence.unseen:
        yield f"More cannot be known: nothing was seen of {', '.join(kind.name for kind in evidence.unseen)}{within}."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return cli.run_job(JOB, build_parser(JOB), run, argv)


if __name__ == "__main__":
    sys.exit(main())
