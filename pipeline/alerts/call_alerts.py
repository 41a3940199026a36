"""Alerts of what calls, messages, findings and coverage show (questions 14, 19, 21, 22, 23, 25). No Spark.

Rows are plain, with times in microseconds; what happens often comes counted, minute by minute.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from pipeline.alerts.conditions import Thresholds
from pipeline.alerts.episodes import ERROR, WARNING, Alert, Event, Row, Spell, runs
from pipeline.lake.arrow_rows import us
from pipeline.text import clock, counted
from udfs.codes import FAILURE, FAULT, HRESULT, name_of
from udfs.stubs import methods

Names = Mapping[str, str]  # the names of queue managers, as in gold, by address
Ends = Mapping[str, int]  # the time at which what was captured of a server ends

ATTEMPTS: Final = (
    "queue", "inferred_queue", "server_address", "client_address", "returned_at", "ended_at", "outcome", "end_hresult",
    "lookup_id", "message_key", "ack_refused", "evidence", "missing",
)  # fmt: skip
"""What is read of gold.receive_attempts, of those that ``is_trouble``."""

_COUNTED: Final = ("at", "last", "count", "evidence")
NEGATIVE: Final = ("class_name", "source_queue_manager", "queue", "inferred_queue", *_COUNTED)
"""What is counted of negative acknowledgements in silver.messages, by the first four."""

FAILING: Final = ("server_address", "interface_name", "opnum", "result", "is_fault", *_COUNTED)
"""What is counted of calls that failed, by the first five."""

_HOUR_US: Final = 3_600_000_000
_MILLION: Final = 1_000_000
_DIFFERENCE: Final = re.compile(r"at least (\d+) s")  # of rule O02


def negative(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of negative acknowledgements, of rows that each tell of a minute: ``NEGATIVE``."""
    for place, series in _by(rows, *NEGATIVE[:4]):
        name, sender, queue, inferred = place
        for run in runs(_events(series), now, window=limits.window, least=limits.negative):
            run.message = (
                f"{counted(run.count, 'message')} of class {name} in {queue or inferred or 'an unknown queue'}"
            )
            if queue is None:
                run.missing.add("queue_unknown")
            subject = f"{name} from queue manager {sender} in {queue or inferred}"
            yield Alert("negative_acknowledgements", subject, run, queue, guessed=queue is None and bool(inferred))


def failing(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Names) -> Iterator[Alert]:
    """Yield the alerts of calls that fail, of rows that each tell of a minute: ``FAILING``."""
    for place, series in _by(rows, *FAILING[:5]):
        server, interface, opnum, result, is_fault = place
        if result in limits.ignored_results:
            continue
        known = methods.ALL.get(interface, {}).get(opnum)
        method = f"opnum {opnum}" if known is None else known.name
        text = name_of(FAULT if is_fault and result in FAULT else HRESULT, result)
        for run in runs(_events(series), now, window=limits.window, least=limits.failures):
            how = "faults with" if is_fault else "returns"
            run.message = f"{interface} {method} {how} {text}: {counted(run.count, 'call')}"
            subject = f"{interface} {method} at {server}: {text}"
            yield Alert("calls_failing", subject, run, None, names.get(server, server))


def receives(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Names, ends: Ends
) -> Iterator[Alert]:
    """Yield the alerts of receives that were not ended, and of those whose end was refused; by reader and queue."""
    for place, series in _by(rows, "server_address", "client_address", "queue", "inferred_queue"):
        server, client, queue, inferred = place
        subject = f"reader {client} of {queue or inferred or 'an unknown queue'} at {server}"
        last = min(ends.get(server, now), now)
        found = [("receives_not_ended", spell) for spell in _not_ended(series, limits, last, now)]
        found += [("ends_refused", spell) for spell in _refused(series, limits, now)]
        for condition, spell in found:
            if queue is None:
                spell.missing.add("queue_unknown")
            guessed = queue is None and bool(inferred)
            yield Alert(condition, subject, spell, queue, names.get(server, server), guessed)


def _not_ended(series: Iterable[Row], limits: Thresholds, last: int, now: int) -> Iterator[Spell]:
    """Yield when messages were held too long, or to their reader's end; ``last``: when the capture of the server ends.

    Those of one reader that touch are one spell.
    """
    held: list[tuple[int, int | None, Row]] = []
    for row in series:
        since, ended = row["returned_at"], row["ended_at"]
        if since is None or since > now or (row["outcome"] == "failed" and not _brought(row)):
            continue
        ended = ended if ended is None or ended <= now else None  # it was held still
        if row["outcome"] == "expired" and ended is None:
            ended = since + us(limits.cleanup)
        if row["outcome"] in ("expired", "rundown") or (last if ended is None else ended) - since >= us(
            limits.held_after
        ):
            held.append((since, ended if ended is None or ended <= now else None, row))
    out: list[Spell] = []
    for since, until, row in sorted(held, key=lambda each: (each[0], each[2]["evidence"] or [])):
        spell = out[-1] if out else None
        if spell is None or (spell.until is not None and since > spell.until + us(limits.rejoin)):
            spell = Spell(since, since, since, WARNING, until=until, count=0)
            out.append(spell)
        spell.until = None if spell.until is None or until is None else max(spell.until, until)
        spell.last_seen_at = max(spell.last_seen_at, last if until is None else until)
        spell.count += 1
        how = _HOW.get(row["outcome"], "held for {0:.0f} s").format(((last if until is None else until) - since) / 1e6)
        spell.message = f"{counted(spell.count, 'message')} got and not ended in time; the last one {how}"
        spell.add(row["evidence"] or (), row["missing"] or ())
    yield from out


_HOW: Final = {
    "rundown": "given back when the reader's connection was gone",
    "expired": "given back by the clean-up timer",
    "in_flight": "held for {0:.0f} s when it was last seen",
}


def _refused(series: Iterable[Row], limits: Thresholds, now: int) -> Iterator[Spell]:
    """Yield when ends of receives were refused that had brought a message."""
    refused = []
    results = []
    for row in sorted(series, key=lambda each: (each["returned_at"] or 0, list(each["evidence"] or ()))):
        ended = row["ended_at"] if row["ended_at"] is not None else row["returned_at"]
        failed = row["outcome"] == "failed" and (row["end_hresult"] or 0) >= FAILURE
        if ended is not None and (row["ack_refused"] or (failed and _brought(row))):
            refused.append(Event(ended, ended, 1, tuple(row["evidence"] or ()), tuple(row["missing"] or ())))
            results.append(row["end_hresult"])
    said = sorted({name_of(HRESULT, result) for result in results if result})
    for run in runs(refused, now, window=limits.window):
        run.severity = ERROR
        run.message = f"{counted(run.count, 'end')} of a receive refused: {', '.join(said) or 'fault'}"
        yield run


def _brought(row: Row) -> bool:
    """Tell whether a receive brought a message."""
    return row["lookup_id"] is not None or row["message_key"] is not None


def judged(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int) -> Iterator[Alert]:
    """Yield the alerts of findings O01 and O02: ``rule_id``, ``subject``, ``observed_at``, ``actual``, ``evidence``."""
    for (rule, subject), series in _by(rows, "rule_id", "subject"):
        seen = sorted((row for row in series if row["observed_at"] <= now), key=_seen)
        if rule == "O01":
            for row in seen[:1]:
                spell = Spell(
                    row["observed_at"], seen[-1]["observed_at"], now, ERROR, f"{subject}: {seen[-1]['actual']}"
                )
                spell.add(row["evidence"] or (), ())
                yield Alert("duplicate_queue_manager", subject, spell)
            continue
        apart = [row for row in seen if _difference(row) >= us(limits.clock_difference)]
        events = [Event(row["observed_at"], row["observed_at"], 1, tuple(row["evidence"] or ())) for row in apart]
        for run in runs(events, now, window=limits.slow_window):
            run.message = max(apart, key=lambda row: (_difference(row), row["actual"]))["actual"]
            yield Alert("clocks_differ", subject, run)


def _seen(row: Row) -> tuple[int, str]:
    return row["observed_at"], row["actual"]


def _difference(row: Mapping[str, Any]) -> int:
    found = _DIFFERENCE.search(row["actual"] or "")
    return int(found[1]) * _MILLION if found else 0


def lost(rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Names) -> Iterator[Alert]:
    """Yield the alerts of what captures lack: ``server_address``, ``hour``, ``bytes``, ``bytes_missing``."""
    for (server,), series in _by(rows, "server_address"):
        bad = []
        for row in sorted(series, key=lambda each: each["hour"]):
            whole = (row["bytes"] or 0) + (row["bytes_missing"] or 0)
            share = (row["bytes_missing"] or 0) / whole if whole else 0.0
            if row["bytes_missing"] and share >= limits.lost_share:
                lack = f"{row['bytes_missing']} of {whole} bytes ({share:.1%})"
                bad.append((row["hour"], f"in the hour from {clock(row['hour'])} captures lack {lack}"))
        for run in _hours(bad, now):
            yield Alert("capture_lost", f"server {server}", run, None, names.get(server, server))


def unanswered(rows: Iterable[Mapping[str, Any]], now: int) -> Iterator[Alert]:
    """Yield the alerts of snapshots that fail: ``queue_manager``, ``hour``, ``expected``, ``missing``, ``error``."""
    for (manager,), series in _by(rows, "queue_manager"):
        bad = []
        for row in sorted(series, key=lambda each: each["hour"]):
            if row["missing"] * 2 >= row["expected"]:
                lack = f"{row['missing']} of {counted(row['expected'], 'snapshot')} not answered ({row['error']})"
                bad.append((row["hour"], f"in the hour from {clock(row['hour'])} {lack}"))
        for run in _hours(bad, now):
            run.missing.add("no_snapshot")
            yield Alert("snapshots_missing", f"snapshots of {manager}", run, None, manager)


def _hours(bad: list[tuple[int, str]], now: int) -> Iterator[Spell]:
    """Yield the runs of hours that are not as they should be; what is said is of the last one of each."""
    events = [Event(hour, hour + _HOUR_US) for hour, _ in bad]
    for run in runs(events, now, window=timedelta(microseconds=_HOUR_US)):
        run.message = [message for hour, message in bad if hour <= run.last_seen_at and hour <= now][-1]
        yield run


def _by(rows: Iterable[Mapping[str, Any]], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Row]]]:
    """Yield rows together that are alike in some columns."""
    found: defaultdict[tuple[Hashable, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[tuple(row[name] for name in names)].append(dict(row))
    yield from found.items()


def _events(series: Iterable[Row]) -> Iterator[Event]:
    return (Event(row["at"], row["last"], row["count"], tuple(row["evidence"] or ())) for row in series)
