"""Generate docs/reference/questions.md from the views and questions, and alerts.md from the alert conditions."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from jobs.config import list_settings
from pipeline.alerts.conditions import CLOCK_CONDITIONS, CONDITIONS
from pipeline.reports.views.catalog import QUESTIONS, VIEWS_BY_NAME, views_of_question
from pipeline.reports.views.evidence import EvidenceNeeds
from pipeline.reports.views.scope import ScopeColumns, without_scope
from pipeline.reports.views.view import View

QUESTIONS_HEAD = """\
# Questions

Made by `make questions-doc` from `pipeline/reports/views`; change it there. These are the questions of people who
operate Message Queuing, with the SQL that answers them. Each is a view, tested on traffic whose answer is known. The
words are explained in the [glossary](../start/glossary.md).

```
msmq ask --lake /data/lake                       # lists the questions
msmq ask --lake /data/lake 4 oldest_unread       # answers, by number or by the name of a view
msmq ask --lake /data/lake 18 --json answer.jsonl --rows 0
msmq ask --lake /data/lake depth_over_time --csv depth.csv --rows 0
msmq ask --lake /data/lake 4 1 --last 1d --machine shop1
msmq ask --lake /data/lake failures --queue orders --from 2024-05-01T08:00 --to 2024-05-01T12:00
```

**Hours.** `--last 1d` asks for the day before now, `--from` and `--to` for the hours between two times, both included.
`--to` counts as now, in place of `--as-of`; where hours begin at a time, they end at `--as-of` if it is given. A row
belongs to the hours that it overlaps: a period that began before them has its true beginning, and one that is known to
last belongs to all hours since. Rows that sum up many events sum up those of the hours. A connection or a message
counts whole. What contradicts or explains a row counts whenever it came. What has no time belongs to no hours.

**Machines and queues.** `--machine` takes an IP address, or a part of a host name or of the GUID of a queue manager;
`--queue` takes a part of a queue's name. Case does not matter. All names of the same machine (`silver.hosts`) and of
the same queue (`silver.queue_aliases`) count, and are printed. A row belongs to a machine that it names at any end.
Where nothing in the lake has such a name, the command says which names are similar, and the answer cannot be known.
"Options" below says what each view can be limited to; a command that asks for more is refused.

A table that is wider than the terminal goes on below, with the numbers of its rows. `--csv` writes the rows of one view
as RFC 4180 says: nothing for null, times as ISO 8601, lists and structures as JSON.

Each answer is printed with its limitations. Below all answers stands what was not seen in their hours at their servers
(question 25, the view `not_known`). An answer describes what was captured and says nothing about the rest: an empty
answer beside a gap does not mean "none". Where nothing was seen of what a view needs ("Must have been seen"), until
now, within the hours that it is about, and at the machines asked for, the answer is "Cannot be known", and the view's
name is in `cannot_be_known` of the job's summary. An empty answer says of what it is one, from which and until when.
Where only a part was seen, one line says of what nothing was; it is in `not_seen` of the summary.

Where several kinds of evidence answer a question, `source` (or `sources`) says which did: `transfers` (the sessions of
TCP 1801), `reads` (messages read or peeked remotely by RPC), `wire` and `collector` (snapshots of queue managers, seen
in captures or collected).

With a catalog (`lake.catalog`), `--define` creates the views permanently in gold's schema. In a Spark session of your
own:

```python
from pipeline.lake.lake import Lake
from pipeline.reports.views.catalog import LakeViews

LakeViews(Lake(spark, "/data/lake")).create_temporary()
spark.table("response_times").where("p99_ms > 1000")
```

The column *From* says which evidence can answer a question: **R** RPC captures, **S** snapshots of queue managers
(collected, or captured), **T** captures of the binary protocol on TCP 1801. In the SQL, `setting.now` is the time of
the newest packet or snapshot (`--as-of` overrides it), `setting.quotas` and `setting.machine_quotas` are the settings
`quotas.*`, and `setting.since` is the beginning of the hours asked for, else null. The SQL is that of all hours,
machines and queues.

| # | Question | From | Views |
| --- | --- | --- | --- |
"""

ALERTS_HEAD = """\
# Alerts

Made by `make questions-doc` from `pipeline/alerts/conditions.py` and `pipeline/settings.py`; change it there.
`gold.alerts` has one row per condition, subject and [episode](../start/glossary.md#episode). `msmq run_all` keeps it up
to date.

```
msmq alerts --lake /data/lake                          # alerts that hold; exit code 1 if one is an error
msmq alerts --lake /data/lake --ended --json alerts.jsonl --fail-on warning
msmq alerts --lake /data/lake --as-of 2024-05-01T12:00:00Z --set alerts.stuck_after=1h
msmq alerts --lake /data/lake --since 1d               # what changed in alerts, queues, machines and flows
```

The job writes nothing to the lake, unless it tells [targets](../guides/operations.md#being-told) or keeps what they are
not to be told. With other thresholds, or another `--as-of` than the last run's, it computes the
alerts again. `--fail-on` is `error` by default; with `never` it only prints. `--task-value NAME` tells the next tasks
of a [job of Databricks](../guides/databricks.md#jobs) the severity of the worst active alert.

**Since and until.** `since` is the first observation that showed the condition, `until` the first that no longer
did. `until` is null while the condition holds. An alert that ended keeps its row, except `sequence_refused`: where the
receiver takes the number after all, `order_acks_stalled` has the time. "Now" of `gold.alerts` is the time of the newest
packet or snapshot, not the clock: its rows depend on evidence only. [By the clock](#by-the-clock) says what the command
adds to them.

**Duration.** A condition that must hold for some time is reported when it was *observed* to hold for so long: at both
ends, and nothing between says otherwise.

**Silence ends no alert.** If nobody observes the subject any more, the alert stays open: `missing` contains
`no_snapshot`, and `last_seen_at` says how old the last observation is. Events (failures, negative acknowledgements,
lost bytes) have ended if none came for `alerts.failure_window`.

**Causes.** Alerts that have one cause stand together: first the one that says most of it, then "also" what follows from
it, such as queues that wait because connections to a machine fail. In JSON, `leading_alert` is the `alert_key` of the
first. `from_machine`, `to_machine` and `cause` say between which machines, and what the evidence shows of the cause.

**Being told.** `--notify` tells targets (PagerDuty, Alertmanager, Slack, Teams, mail, a webhook, a command) what began,
worsened and ended, once for each cause: [Being told](../guides/operations.md#being-told). In JSON, `notice_key` is the
key of condition and subject, the same for all episodes.

**Merging.** A condition that begins again within `alerts.merge_within` continues the same alert.

**Severity** is the highest that the alert reached. Normal traffic never causes an error.

**Source.** Alerts are computed from gold and silver with their whole history: the rows are the same whatever the order
and number of runs. A run reads only what a change can affect: rows since the oldest alert that still holds began, and
since the day of the change less the longest threshold.

**What is printed.** Each entry has the first keys of its evidence, and the next command: the verdict for its queue;
without a queue the export of the packets of its evidence, or the question that the condition answers. The last line is
the age of the newest evidence. In JSON, `evidence` has all keys, and `next_command`, `not_observed_since`, `first_read`
and `newest_evidence_at` the rest. The summary counts `evidence_stopped`, `not_observed` and `first_read`, and has
`evidence_age_s`.

**Runbooks.** [Runbooks](../runbooks/README.md) say what to do on Windows, what it costs, and how to see that it worked.

| Condition | Question | Holds when | What to do |
| --- | --- | --- | --- |
"""
CLOCK_SECTION = """
## By the clock

When alerts are printed, the clock of the machine that prints them counts too. `--as-of` takes its place.

**Evidence that stopped** (`evidence_stopped`, an error). A source is a folder of captures, or a collected queue
manager. What one run first reads of it is one arrival, however many files it has: a source that was filled once, by a
backfill of a hundred old files too, has no rhythm. With five arrivals or more it has one, the median of the intervals
between them. If the last arrival is older than `alerts.silence_after`, by default three such intervals and at least
an hour, the source is an alert. `since` is when the next arrival was due.

* An arrival counts if its newest packet (answered snapshot) is later than all before, and was at most seven days old
  when it was read. So old files that are read in many runs are no arrivals either.
* An arrival comes when it is read; where `--as-of` is before that, at the time of its newest packet. A clock of a
  capturing machine that is wrong by some hours does not matter.
* Folders whose names are only digits, `-` and `_`, or have such text behind `day=`, are one source: `/data/2024-05-01`
  and `/data/2024-05-02` are `/data/*`.
* A capture that grows arrives once, when it was last read. Record into a
  [ring](../guides/capturing.md#linux-or-a-mirror-port) of files.
* The last 20 arrivals count. A source that brought nothing for 180 days is not expected any more.

**Not observed any more.** An active alert stands apart, "not observed since" its `last_seen_at`, if that is longer ago
than evidence of a source with a rhythm may be: its `alerts.silence_after`, and how old its evidence is when it is read.
Of several sources the longest time counts; without any it is an hour, or the setting. Whether it still holds is not
known. Such alerts count for the exit code like others.

**Single events** (`ends_refused`, `containers_rejected`). One of them is an error, but its alert ends after
`alerts.failure_window`, which may be over when the event is read. Until it is older than `alerts.event_hold` it is
printed, and counts for the exit code, in the calls that follow the run which first read it: until another run reads
captures. What was first read is in the lake (`ingested_at` of the evidence in bronze), since `alerts` writes nothing.
Call it after each run.

## What changed

`--since 1d`, or a time, prints what changed since then in place of the alerts, one line each; `--json` has the same
lines. The exit code stays that of the alerts. Things that are again as they were then have not changed.

* `alert` (`gold.alerts`): `began`, `worsened`, `ended`, compared with the alerts as of that time, by today's evidence.
  One that worsened, or began again, has the time when it was last seen.
* `queue` (`gold.queue_history`): `appeared`; `state`, another than then; `emptied`, `filled`. Time without a report is
  no change.
* `machine` (`silver.hosts`, `silver.machine_snapshots`): `new`; `silent`, seen in as long a time before, and not since;
  `address`, one that it did not have; `version`, another than in as long a time before.
* `flow`, messages from one machine to another for one queue (`gold.message_transfers`): `new`, not sent in the 30 days
  before; `stopped`, sent in as long a time before, and not since.

Of each kind the newest 40 are printed; JSON has all.
"""
RUNBOOKS = Path(__file__).resolve().parents[1] / "docs" / "runbooks"
_TRANSFER_SETTINGS = ("transfers.stall_after", "transfers.window_full_after", "transfers.slow_after")


def questions_page() -> str:
    """Return the text of questions.md."""
    lines = [QUESTIONS_HEAD]
    for number, question in QUESTIONS.items():
        names = ", ".join(f"[`{view.name}`](#{view.name})" for view in views_of_question(number))
        lines.append(f"| {number} | {question.text} | {question.evidence} | {names} |\n")
    for number, question in QUESTIONS.items():
        lines.append(f"\n## {number}. {question.text}\n")
        lines += [_view_section(view) for view in VIEWS_BY_NAME.values() if view.question_number == number]
    return "".join(lines)


def _view_section(view: View) -> str:
    parts = (
        f"One row is {view.row_meaning}.",
        f"**How to read it.** {view.how_to_read}",
        f"**Limitations.** {view.limitations}",
        f"**Must have been seen.** {_needs_text(view.needs)}",
        f"**Options.** {_options_text(view.scope)}",
    )
    text = "\n\n".join(map(_wrap, parts))
    return f"\n### {view.name}\n\n{text}\n\n```sql\n{textwrap.dedent(without_scope(view.sql)).strip()}\n```\n"


def _options_text(scope: ScopeColumns) -> str:
    """Return the options that limit a view, as a sentence."""
    options = ["`--last`", "`--from`", "`--to`"]
    options += ["`--machine`"] * bool(scope.machines) + ["`--queue`"] * bool(scope.queues)
    return f"{', '.join(options)}."


def _needs_text(condition: EvidenceNeeds) -> str:
    """Return what a view needs, as a sentence."""
    needs = " and ".join(" or ".join(kind.name for kind in need) for need in condition.needs)
    beside = ", ".join(kind.name for kind in condition.beside)
    within = f", of the {condition.hours} hours before now" if condition.hours else ""
    return f"{needs[0].upper()}{needs[1:]}{within}.{f' Some columns need {beside} too.' if beside else ''}"


def runbooks() -> dict[str, str]:
    """Return the runbook of each condition that has one, as the table of docs/runbooks/README.md says."""
    rows = re.findall(
        r"^\| \[[^\]]*\]\(([\w-]+\.md)\) \| ([^|]*) \|",
        (RUNBOOKS / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return {name: page for page, names in rows for name in re.findall(r"`(\w+)`", names)}


def alerts_page() -> str:
    """Return the text of alerts.md."""
    lines = [ALERTS_HEAD]
    pages = runbooks()
    for name, condition in (CONDITIONS | CLOCK_CONDITIONS).items():
        runbook = f" [Runbook](../runbooks/{pages[name]})." if name in pages else ""
        cells = (f"`{name}`", str(condition.question), condition.meaning, f"{condition.suggestion}{runbook}")
        lines.append(f"| {' | '.join(map(_table_cell, cells))} |\n")
    lines.append(CLOCK_SECTION)
    lines.append(
        "\n## Settings\n\n[Configuration](configuration.md#alerts) has their types and defaults.\n\n"
        "| Setting | Meaning |\n| --- | --- |\n"
    )
    lines += [
        f"| `{key}` | {_table_cell(setting.meaning)} |\n"
        for key, setting in list_settings().items()
        if key.startswith(("alerts.", "quotas.")) or key in _TRANSFER_SETTINGS
    ]
    return "".join(lines)


def _wrap(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _table_cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "questions.md").write_text(questions_page(), encoding="utf-8")
    (folder / "alerts.md").write_text(alerts_page(), encoding="utf-8")
