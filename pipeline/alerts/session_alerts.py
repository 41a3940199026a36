"""Alerts from rows of silver.sessions and bronze.connections (questions 1, 12). No Spark.

Rows are dictionaries with times in microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pipeline.alerts.conditions import FAILURE_CAUSES, Thresholds
from pipeline.alerts.episodes import ERROR, INFO, WARNING, Alert, Ends, Episode, EventCount, episodes_from_events
from pipeline.text import format_count, format_time
from udfs.capture.openings import ANSWER_NOT_CAPTURED
from udfs.rows import RowDict
from udfs.times import HOUR_US, timedelta_to_us

SESSION_COLUMNS: Final = (
    "connection_id", "client_address", "server_address", "first_packet_at", "last_packet_at", "closed_at",
    "establish_requested_at", "outcome", "ended", "client_window_full_ms", "server_window_full_ms", "missing_bytes",
    "server_port", "not_established", "worked_until", "opened_before", "client_opened_before", "client_opened_after",
)  # fmt: skip
"""The columns that ``session_alerts`` needs: of silver.sessions and bronze.connections, and when others had opened.

``worked_until``: the last packet of connections between the two that had opened before; ``opened_before``: when one to
the same port had; ``client_opened_before`` and ``client_opened_after``: when the client had opened any, or did next.
"""

_REFUSED: Final = "refused"
_UNANSWERED: Final = "unanswered"
_ENDS: Final = ("client_address", "server_address")
_LASTING: Final = 3  # failures that may be an error


@dataclass(slots=True)
class _Failure:
    """A session or connection that failed, from its first to its last packet; ``kind``: outcome, or why not.

    ``is_scan``: one of very many of its client.
    """

    row: RowDict
    at: int
    last: int
    kind: str
    is_scan: bool = False

    def event(self) -> EventCount:
        """Return it as an event; what this capture cannot see is missing."""
        missing = (ANSWER_NOT_CAPTURED,) if self.kind == ANSWER_NOT_CAPTURED else ()
        return EventCount(self.at, self.last, 1, (self.row["connection_id"],), missing)


def session_alerts(
    rows: Iterable[Mapping[str, Any]], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    """Yield the alerts of sessions and connections that failed, and of windows that were full.

    Rows have ``SESSION_COLUMNS``, those of a client all together; ``names`` are the names of queue managers by address.
    """
    ordered = sorted(rows, key=lambda row: (*(row[name] or "" for name in _ENDS), _begun(row), row["connection_id"]))
    for client, of_client in groupby(ordered, key=itemgetter("client_address")):
        yield from _client_alerts(client, [dict(row) for row in of_client if _begun(row) <= now], limits, now, names)


def _client_alerts(
    client: str, rows: Sequence[RowDict], limits: Thresholds, now: int, names: Mapping[str, str]
) -> Iterator[Alert]:
    failures = [*_failures(rows)]
    for run in _scan_episodes(failures, client, limits, now):
        manager = names.get(client, client)
        yield Alert("sessions_refused", f"sessions from {client}", run, None, manager, ends=Ends(from_machine=client))
    for server, series in groupby(rows, key=itemgetter("server_address")):
        sessions = [*series]
        own = [each for each in failures if each.row["server_address"] == server and not each.is_scan]
        ends = f"from {client} to {server}"
        for run in _refused_episodes(own, ends, limits, now):
            subject, manager = f"sessions from {client} to {server}", names.get(server, server)
            cause = max((each for each in own if run.since <= each.at <= run.last_seen_at), key=_place).kind
            yield Alert("sessions_refused", subject, run, None, manager, ends=Ends(client, server), cause=cause)
        for sender, receiver, side in ((client, server, "client"), (server, client, "server")):
            for episode in _full_windows(sessions, f"{side}_window_full_ms", limits, now):
                subject, manager = f"session from {sender} to {receiver}", names.get(sender, sender)
                yield Alert("window_full", subject, episode, None, manager, ends=Ends(sender, receiver))


def _place(failure: _Failure) -> tuple[int, str]:
    return failure.at, failure.row["connection_id"]


def _begun(row: Mapping[str, Any]) -> int:
    at: int = row["first_packet_at"] or 0
    return at


def _failures(sessions: Iterable[RowDict]) -> Iterator[_Failure]:
    """Yield the sessions that were refused or not answered, and the connections that were not established.

    A session that is still open may yet be answered. Where bytes were not captured, one of them may be the answer.
    """
    for row in sessions:
        if row["not_established"] in FAILURE_CAUSES:
            yield _Failure(row, _begun(row), row["last_packet_at"] or _begun(row), row["not_established"])
            continue
        unanswered = row["outcome"] == _UNANSWERED and row["ended"] is not None and not row["missing_bytes"]
        if row["outcome"] == _REFUSED or unanswered:
            at = row["establish_requested_at"] or _begun(row)
            yield _Failure(row, at, at, row["outcome"])


def _refused_episodes(failures: Iterable[_Failure], ends: str, limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the episodes in which a machine did not let another open sessions or connections; ``ends`` names both."""
    ordered = sorted(failures, key=lambda each: each.at)
    events = [each.event() for each in ordered]
    for run in episodes_from_events(events, now, window=limits.failure_window, min_count=limits.refused_sessions):
        inside = [each for each in ordered if run.since <= each.at <= run.last_seen_at]
        run.message = f"{ends}: {', '.join(_describe_failures(inside))}"
        worked = max((each.row["worked_until"] or 0 for each in inside), default=0)
        if worked and worked >= run.since - timedelta_to_us(limits.failure_window):
            run.message += f"; a connection between them worked until {format_time(min(worked, run.last_seen_at))}"
        if _is_lasting(inside, limits):
            run.severity = ERROR
        yield run


def _describe_failures(failures: Iterable[_Failure]) -> Iterator[str]:
    """Yield how many failures there are of each kind, and where."""
    counts = Counter((each.kind, each.row["server_port"]) for each in failures)
    for kind, how in ((_REFUSED, "refused"), (_UNANSWERED, "not answered")):
        if number := sum(count for (each, _), count in counts.items() if each == kind):
            yield f"{format_count(number, 'session')} {how}"
    for kind, cause in FAILURE_CAUSES.items():
        ports = {port: count for (each, port), count in counts.items() if each == kind}
        if ports:
            where = ", ".join(str(port) for port in sorted(ports))
            yield f"{format_count(sum(ports.values()), 'connection')} to TCP {where} failed: {cause}"


def _is_lasting(failures: Iterable[_Failure], limits: Thresholds) -> bool:
    """Whether connections to one port failed for ``refused_for``, and none to it opened between."""
    runs: dict[Any, list[_Failure]] = {}
    for each in failures:
        run = runs.setdefault(each.row["server_port"], [])
        if run and (each.row["opened_before"] or 0) > run[0].at:
            run.clear()
        run.append(each)
        if len(run) >= _LASTING and each.last - run[0].at >= timedelta_to_us(limits.refused_for):
            return True
    return False


def _scan_episodes(failures: Sequence[_Failure], client: str, limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the episodes in which a client tried very many servers and reached none; set ``is_scan`` of these."""
    ordered = sorted(failures, key=lambda each: each.at)
    first, targets = 0, Counter[str]()
    marked = -1
    for place, each in enumerate(ordered):
        targets[each.row["server_address"]] += 1
        while each.at - ordered[first].at > HOUR_US:
            targets[ordered[first].row["server_address"]] -= 1
            first += 1
        if sum(count > 0 for count in targets.values()) > limits.scan_targets:
            inside = ordered[first : place + 1]
            if not any(_has_opened_near(one.row, one.at) for one in inside):
                for one in ordered[max(first, marked + 1) : place + 1]:
                    one.is_scan = True
                marked = place
    events = [each.event() for each in ordered if each.is_scan]
    for run in episodes_from_events(events, now, window=limits.failure_window):
        inside = [each for each in ordered if each.is_scan and run.since <= each.at <= run.last_seen_at]
        servers = len({each.row["server_address"] for each in inside})
        run.message = (
            f"{client} failed to connect to {format_count(servers, 'server')} and opened nothing (a scan, or its own "
            f"network): {', '.join(_describe_failures(inside))}"
        )
        run.severity = INFO
        yield run


def _has_opened_near(row: RowDict, at: int) -> bool:
    """Whether the client of a failure opened any connection within an hour of it."""
    before, after = row["client_opened_before"], row["client_opened_after"]
    return (before is not None and at - before <= HOUR_US) or (after is not None and after - at <= HOUR_US)


def _full_windows(sessions: Iterable[RowDict], column: str, limits: Thresholds, now: int) -> Iterator[Episode]:
    """Yield the sessions in which one side had to wait for acknowledgements too long in all."""
    for row in sessions:
        full_ms = row[column]
        if not full_ms or full_ms * 1000 < timedelta_to_us(limits.window_full_after):
            continue
        last = min(row["last_packet_at"], now)
        ended = row["closed_at"] if row["closed_at"] is not None else last if row["ended"] is not None else None
        until = ended if ended is not None and ended <= now else None
        message = f"the window was full of unacknowledged packets for {full_ms / 1000:.1f} s of the session"
        seen = last if until is None else min(last, until)  # packets may follow the end of both directions
        episode = Episode(_begun(row), seen, seen, WARNING, message, until)
        episode.add_evidence((row["connection_id"],), ())
        yield episode
