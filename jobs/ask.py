"""Answer questions of the people who run Message Queuing from a lake's tables, with what is not known beside it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from jobs import cli
from jobs.config import ConfigError
from jobs.lake_access import open_lake
from pipeline.alerts.update import is_there
from pipeline.reports.views.catalog import ALL, NOT_KNOWN, QUESTIONS, Views, of_question
from pipeline.reports.views.view import View
from pipeline.text import json_value, table

JOB = "ask"


def parser() -> cli.Parser:
    """Return the job's command line."""
    made = cli.parser(JOB, __doc__)
    made.add_argument(
        "questions",
        metavar="QUESTION",
        nargs="*",
        help="a question's number, or a view's name (docs/questions.md); without any they are listed",
    )
    made.add_argument("--rows", metavar="N", type=int, default=40, help="most rows of an answer (default: 40; 0: all)")
    made.add_argument(
        "--json", metavar="FILE", help="write the answers' rows to a file, one JSON object a line; - prints them"
    )
    made.add_argument(
        "--define", action="store_true", help="make all views permanent ones of the catalog (lake.catalog)"
    )
    return made


def run(this: cli.Run) -> cli.Outcome:
    """Answer the questions; nothing is written to the lake, but for --define."""
    if this.arguments.define and this.config.lake.catalog is None:
        raise ConfigError("--define: views need a catalog (lake.catalog); a folder of tables can hold none")
    if this.arguments.rows < 0:
        raise ConfigError(f"--rows: must be at least 0, not {this.arguments.rows}")
    asked = [view for text in this.arguments.questions for view in _asked(text)]
    numbers = [int(text) for text in this.arguments.questions if text.isdecimal()]
    if not this.arguments.questions and not this.arguments.define:
        sys.stdout.write("\n".join(_listed()) + "\n")
        return cli.Outcome()
    quotas = this.config.quotas
    lake = open_lake(this)
    if not is_there(lake):
        raise ConfigError(f"{this.arguments.lake}: nothing was read into this lake (jobs.run_all does that)")
    views = Views(
        lake,
        this.arguments.as_of,
        quotas.queue,
        quotas.journal,
        {each.queue.lower(): (each.messages, each.journal) for each in quotas.queues},
    )
    more: dict[str, Any] = {"defined": views.permanent()} if this.arguments.define else {}
    views.temporary(list(dict.fromkeys([*(view.name for view in asked), NOT_KNOWN])))
    target = this.arguments.json
    try:
        to = None if target is None else sys.stdout if target == "-" else open(target, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    except OSError as error:
        raise ConfigError(f"{target}: {error.strerror}") from error
    try:
        counts = {view.name: _answer(views, view, this.arguments.rows, to) for view in asked}
    finally:
        if to is not None and to is not sys.stdout:
            to.close()
    if to is not sys.stdout:
        for number in numbers:
            if QUESTIONS[number].needs:
                sys.stdout.write(f"Not told ({number}): {QUESTIONS[number].needs}\n")
    return cli.Outcome(more={"rows": counts, **more})


def _asked(text: str) -> list[View]:
    """Return the views that a question's number or a view's name means."""
    if text in ALL:
        return [ALL[text]]
    if text.isdecimal() and int(text) in QUESTIONS:
        return of_question(int(text))
    raise ConfigError(f"no such question: {text} (1 to {max(QUESTIONS)}, or {', '.join(ALL)})")


def _listed() -> list[str]:
    lines = []
    for number, question in QUESTIONS.items():
        names = (
            ", ".join(view.name for view in of_question(number)) or "no view: cannot be known from what was captured"
        )
        lines += [f"{number:>3}  {question.text}", f"     {names}"]
    return lines


def _answer(views: Views, view: View, most: int, to: TextIO | None) -> int:
    """Print a view's rows, or write them as JSON lines, with what is not known beside them; how many there are."""
    frame = views.answer(view.name)
    # By Arrow, whose times have their zone: rows that are collected have those of this machine's, and do not say so.
    rows = (frame.limit(most + 1) if most else frame).toArrow().to_pylist()
    shown = rows[:most] if most else rows
    if to is not None:
        to.writelines(f"{json.dumps({'view': view.name, **row}, default=json_value)}\n" for row in shown)
    if to is sys.stdout:
        return len(shown)
    lines = [f"{view.question}. {QUESTIONS[view.question].text}", f"{view.name}: one row is {view.row}", ""]
    lines += table(frame.columns, [[row[name] for name in frame.columns] for row in shown]) if rows else ["(no row)"]
    if most and len(rows) > most:
        lines.append(f"... and more: --rows 0, or the view {view.name}")
    lines += ["", f"What it cannot tell: {view.unknown}"]
    if view.name != NOT_KNOWN:
        beside = views.beside(view.name, shown)
        told = beside.toArrow().to_pylist()
        names = [name for name in beside.columns if name == "server_address" or any(row[name] for row in told)]
        lines += ["What was not seen (question 25), of these hours and servers:"]
        lines += table(names, [[row[name] for name in names] for row in told]) if told else ["(nothing was read)"]
    sys.stdout.write("\n".join(lines) + "\n\n")
    return len(shown)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    return cli.main(JOB, parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
