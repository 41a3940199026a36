"""Write the documentation pages of the questions, from the views that answer them, and of the alerts."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from jobs.config import settings
from pipeline.alerts.conditions import CONDITIONS
from pipeline.reports.views.catalog import ALL, QUESTIONS, of_question
from pipeline.reports.views.view import View

HEAD = """\
# Questions

Made by `make questions-doc` from `pipeline/views*.py`; change it there. What the people who run Message Queuing
ask, and the SQL that answers it: each is a view, tested on traffic or state in which the answer is known.

```
.venv/bin/python -m jobs.ask --lake /data/lake                       # lists the questions
.venv/bin/python -m jobs.ask --lake /data/lake 4 oldest_unread       # answers: by number, or by the name of a view
.venv/bin/python -m jobs.ask --lake /data/lake 18 --json answer.jsonl --rows 0
```

Each answer is printed with what it cannot tell, and with what was not seen of its hours and servers (question 25,
the view `not_known`): an answer says something of what was captured, and nothing of the rest. An empty answer with
a gap beside it is no "none". Where a catalog is configured (`lake.catalog`), `--define` makes the views permanent
ones in gold's schema. In a session of one's own:

```python
from pipeline.lake import Lake
from pipeline.views import Views

Views(Lake(spark, "/data/lake")).temporary()
spark.table("response_times").where("p99_ms > 1000")
```

*From* says which evidence can answer: **R** RPC captures, **S** snapshots of queue managers (collected, or seen on
the wire), **T** captures of the binary protocol on TCP 1801, which are counted and not decoded. In the SQL
`setting.now` is the time of the newest packet or snapshot (`--as-of` gives another) and `setting.quotas` what
`quotas.*` of the configuration say.

| # | Question | From | Views |
| --- | --- | --- | --- |
"""

ALERTS_HEAD = """\
# Alerts

Made by `make questions-doc` from `pipeline/alerts/conditions.py` and `jobs/config.py`; change it there.
`gold.alerts` has a row for each condition and subject, and each time that it held; `jobs.run_all` brings it up to date.

```
.venv/bin/python -m jobs.alerts --lake /data/lake                          # those that hold; exit code 1 with an error
.venv/bin/python -m jobs.alerts --lake /data/lake --ended --json alerts.jsonl --fail-on warning
.venv/bin/python -m jobs.alerts --lake /data/lake --as-of 2024-05-01T12:00:00Z --set alerts.stuck_after=1h
```

The job writes nothing to the lake. With other thresholds, or as of another time than the last run's, it works the
alerts out anew. `--fail-on` is `error` unless given; `never` is the way to print alone.

**Since and until.** `since` is when what was seen first showed the condition, `until` when it no longer did;
`until` is null while it holds, and an alert that ended keeps its row. "Now" is the time of the newest packet or
snapshot, never the machine's clock. A condition that must hold for some time is told of when it was *seen* to hold
for so long: at both ends, and nothing between that says otherwise. What nobody looks at ends no alert, for it is
not known to be over: such a row says `no_snapshot` in `missing`, and `last_seen_at` says how old the last sign of
it is. Things that happen (failures, negative acknowledgements, lost bytes) are over when none came for
`alerts.window`. What begins again within `alerts.rejoin` is the same alert.

**Severity** is the gravest that an alert came to. Nothing that clean traffic does is an error.

**Where they come from.** Gold and silver alone, with their whole history: the rows are the same whatever the order
and the number of runs. A run reads anew what a change can touch: since the alerts that still hold began, and the
day of the change less the longest threshold.

| Condition | Question | Holds when | What to do |
| --- | --- | --- | --- |
"""


def questions() -> str:
    """The page of the questions."""
    lines = [HEAD]
    for number, question in QUESTIONS.items():
        names = ", ".join(f"[`{view.name}`](#{view.name})" for view in of_question(number)) or "-"
        lines.append(f"| {number} | {question.text} | {question.evidence} | {names} |\n")
    for number, question in QUESTIONS.items():
        lines.append(f"\n## {number}. {question.text}\n")
        if question.needs:
            lines.append(f"\n{_wrapped(f'**What evidence would be needed.** {question.needs}')}\n")
        lines += [_view(view) for view in ALL.values() if view.question == number]
    return "".join(lines)


def _view(view: View) -> str:
    parts = (
        f"One row is {view.row}.",
        f"**How to read it.** {view.read}",
        f"**What it cannot tell.** {view.unknown}",
    )
    text = "\n\n".join(map(_wrapped, parts))
    return f"\n### {view.name}\n\n{text}\n\n```sql\n{textwrap.dedent(view.sql).strip()}\n```\n"


def alerts() -> str:
    """The page of the alerts."""
    lines = [ALERTS_HEAD]
    for name, condition in CONDITIONS.items():
        cells = (f"`{name}`", str(condition.question), condition.meaning, condition.suggestion)
        lines.append(f"| {' | '.join(map(_cell, cells))} |\n")
    lines.append(
        "\n## Settings\n\n`conf/local.yml` has them with their defaults.\n\n| Setting | Meaning |\n| --- | --- |\n"
    )
    lines += [
        f"| `{key}` | {_cell(setting.meaning)} |\n"
        for key, setting in settings().items()
        if key.startswith(("alerts.", "quotas."))
    ]
    return "".join(lines)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "questions.md").write_text(questions(), encoding="utf-8")
    (folder / "alerts.md").write_text(alerts(), encoding="utf-8")
