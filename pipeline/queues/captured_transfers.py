"""When the messages that queue managers hand to one another (TCP 1801) were captured, by queue manager. No Spark.

A capture is of a queue manager if it has connections of the binary protocol that end at it. Two captures that follow
each other are one span of time if they overlap, or if one of these connections goes on from the one to the other
without a missing byte. Nothing else shows that no file is missing between them. Times are microseconds, UTC.

The spans are kept from run to run (``CapturedTransfers.updated``). Captures and connections change them from some time
on: what ended before that is not read again. All is read of queue managers that are new, or that are at other servers
than before, and where captures are gone or what changed is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import PRE_IMAGES
from pipeline.queues.queue_managers import QueueManagerNames, names_table
from schemas.bronze import CAPTURE_FILES, CONNECTIONS

Span: TypeAlias = Sequence[int]
"""Beginning and end."""
_AT: Final = pa.schema({"machine": pa.string(), "server": pa.string()})
_UNTIL: Final = pa.schema({"machine": pa.string(), "begins": pa.int64(), "ends": pa.int64()})
SPAN_INPUTS: Final = (CONNECTIONS, CAPTURE_FILES)
_IS_BEFORE: Final = f"_change_type IN {PRE_IMAGES}"
# The connections of the binary protocol, by the queue managers at their ends.
_ENDS: Final = """
ends AS (
  SELECT coalesce(named.name, sides.address) AS machine, server_address, unix_micros(first_packet_at) AS begins,
    unix_micros(last_packet_at) AS ends, missing_bytes = 0 AS whole
  FROM (
    SELECT *, explode(array(client_address, server_address)) AS address
    FROM {{connections}} WHERE kind = 'binary_protocol' AND first_packet_at IS NOT NULL AND {recent}
  ) AS sides LEFT JOIN {{names}} AS named ON named.address = sides.address
  WHERE coalesce(named.name, sides.address) IN {{machines}}
)"""
_SERVERS: Final = f"WITH {_ENDS.format(recent='TRUE')} SELECT DISTINCT machine, server_address AS server FROM ends"
# Which servers the queue managers at the ends of changed connections are at, and since when their spans may be others:
# a whole connection that goes on shows nothing new of the time up to where it ended before.
_CHANGED_CONNECTIONS: Final = f"""
WITH images AS (
  SELECT connection_id, client_address, server_address, unix_micros(first_packet_at) AS begins,
    coalesce(missing_bytes = 0, FALSE) AS whole,
    CASE WHEN {_IS_BEFORE} THEN unix_micros(last_packet_at) END AS ended,
    CASE WHEN NOT {_IS_BEFORE} THEN unix_micros(last_packet_at) END AS ends,
    NOT {_IS_BEFORE} AS is_after, _commit_version AS version
  FROM {{feed}} WHERE kind = 'binary_protocol' AND first_packet_at IS NOT NULL
)
SELECT client_address, server_address, bool_or(is_gone) AND NOT bool_or(stays) AS is_gone, min(since) AS since FROM (
  SELECT client_address, server_address, count(ended) > count(ends) AS is_gone, CASE
    WHEN NOT bool_or(whole) THEN NULL
    WHEN bool_and(whole) AND count(ended) = count(ends) AND min(begins) = max(begins) AND max(ended) <= min(ends)
      THEN min(ended)
    ELSE min(begins) END AS since, max_by(is_after, struct(version, is_after)) AS stays
  FROM images GROUP BY connection_id, client_address, server_address
) GROUP BY client_address, server_address"""
# The same of changed captures, by server; ``is_gone``: a part of their time is, too.
_CHANGED_CAPTURES: Final = f"""
WITH images AS (
  SELECT capture_id, explode(servers) AS server, {_IS_BEFORE} AS is_before, unix_micros(first_packet_at) AS begins,
    unix_micros(last_packet_at) AS ends
  FROM {{feed}} WHERE servers IS NOT NULL AND first_packet_at IS NOT NULL
), spans AS (
  SELECT server, min(begins) AS since, count_if(is_before) AS befores, count_if(NOT is_before) AS afters,
    max(CASE WHEN is_before THEN ends END) AS ended, min(CASE WHEN NOT is_before THEN ends END) AS ends,
    min(CASE WHEN is_before THEN begins END) AS began, max(CASE WHEN NOT is_before THEN begins END) AS begins
  FROM images GROUP BY capture_id, server
)
SELECT server, min(since) AS since,
  bool_or(befores > afters OR coalesce(ended > ends OR began < begins, FALSE)) AS is_gone
FROM spans WHERE befores <> afters OR ended <> ends OR began <> begins GROUP BY server"""
# Captures that overlap, joined; the last end of those before, in their order.
_OVERLAPPING: Final = """
captures AS (
  SELECT machine, files.begins, files.ends, max(files.ends) OVER (
    PARTITION BY machine ORDER BY files.begins, files.ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
  ) AS reach
  FROM (
    SELECT machine, begins, ends FROM {{kept}}
    UNION ALL SELECT machine, begins, ends FROM {{servers}} AS servers JOIN (
      SELECT explode(servers) AS server, unix_micros(first_packet_at) AS begins, unix_micros(last_packet_at) AS ends
      FROM {{captures}} WHERE servers IS NOT NULL AND first_packet_at IS NOT NULL AND {recent}
    ) AS captured ON captured.server = servers.server
  ) AS files
), overlapping AS (
  SELECT machine, min(begins) AS begins, max(ends) AS ends FROM (
    SELECT *, sum(CASE WHEN begins <= reach THEN 0 ELSE 1 END) OVER (
      PARTITION BY machine ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS place FROM captures
  ) AS placed GROUP BY machine, place
)"""
# Those between which a connection goes on, joined: the latest end of the whole connections that began up to their end.
_SPANS: Final = f"""
WITH {_ENDS}, {_OVERLAPPING}, reached AS (
  SELECT *, max(connection_ends) OVER (
    PARTITION BY machine ORDER BY moment, is_capture ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  ) AS reach
  FROM (
    SELECT machine, ends AS moment, 1 AS is_capture, begins, CAST(NULL AS bigint) AS connection_ends FROM overlapping
    UNION ALL SELECT machine, begins, 0, NULL, ends FROM ends WHERE whole
  ) AS events
), followed AS (
  SELECT machine, begins, moment AS ends, lag(reach) OVER (PARTITION BY machine ORDER BY begins) AS reach
  FROM reached WHERE is_capture = 1
)
SELECT machine, min(begins) AS begins, max(ends) AS ends FROM (
  SELECT *, sum(CASE WHEN begins <= reach THEN 0 ELSE 1 END) OVER (
    PARTITION BY machine ORDER BY begins ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
  ) AS place FROM followed
) AS placed WHERE machine IS NOT NULL GROUP BY machine, place ORDER BY machine, begins"""


@dataclass(frozen=True, slots=True)
class CapturedTransfers:
    """The spans of time in which each queue manager's transfers were captured: ascending, apart from each other.

    ``servers``: by queue manager those at whose connections it was ever an end, itself included.
    """

    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    servers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def cover(self, queue_manager: str | None, begin: int, end: int) -> bool:
        """Whether they were captured all the time from ``begin`` to ``end``."""
        spans = self.spans.get(queue_manager, ()) if queue_manager is not None else ()
        return any(first <= begin and end <= last for first, last in spans)

    def of(self, machines: Collection[str]) -> CapturedTransfers:
        """Return the same of those queue managers that are among some."""
        spans = {name: each for name, each in self.spans.items() if name in machines}
        return CapturedTransfers(spans, {name: each for name, each in self.servers.items() if name in machines})

    def updated(
        self, lake: Lake, feeds: ChangeFeeds, names: QueueManagerNames, machines: Collection[str]
    ) -> CapturedTransfers:
        """Return the same of some queue managers after changes of captures and connections."""
        connections = feeds.rows(CONNECTIONS, _CHANGED_CONNECTIONS)
        captures = feeds.rows(CAPTURE_FILES, _CHANGED_CAPTURES)
        if connections is None or captures is None:
            return read_captured_transfers(lake, names, machines)
        since, anew = list[int | None](), {*machines} - self.servers.keys()
        for row in connections:
            for address in (row["client_address"], row["server_address"]):
                if (machine := names.name_by_address.get(address, address)) in machines:
                    since.append(row["since"])
                    if row["is_gone"] or row["server_address"] not in self.servers.get(machine, ()):
                        anew.add(machine)
        for row in captures:
            if at_server := {name for name in machines if row["server"] in self.servers.get(name, ())}:
                since.append(row["since"])
                anew |= at_server if row["is_gone"] else set()
        found = read_captured_transfers(lake, names, anew)
        kept = self.of({*machines} - anew)
        if first := [at for at in since if at is not None]:
            kept = replace(kept, spans=_read_spans(lake, names, kept, min(first)))
        return CapturedTransfers({**found.spans, **kept.spans}, {**found.servers, **kept.servers})

    def changed_since(self, before: Mapping[str, Sequence[Span]]) -> dict[str, int]:
        """Return the queue managers whose spans were others before, and the time until which both are the same."""
        found = {}
        for name in self.spans.keys() | before.keys():
            now, then = [[*each] for each in self.spans.get(name, ())], [[*each] for each in before.get(name, ())]
            if now != then:
                alike = next((i for i, both in enumerate(zip(now, then, strict=False)) if both[0] != both[1]), None)
                place = min(len(now), len(then)) if alike is None else alike
                bounds = [each[place] for each in (now, then) if place < len(each)]
                begins, ends = zip(*bounds, strict=True)
                found[name] = min(ends) if len(bounds) > 1 and len({*begins}) == 1 else min(begins)
        return found


NOT_CAPTURED: Final = CapturedTransfers()
"""No transfers were captured."""


def read_captured_transfers(lake: Lake, names: QueueManagerNames, machines: Collection[str]) -> CapturedTransfers:
    """Return when transfers of some queue managers were captured, by their names in gold."""
    servers: dict[str, list[str]] = {machine: [] for machine in machines}
    inputs: dict[str, Any] = {"connections": CONNECTIONS, "machines": machines}
    inputs["names"] = names_table(names.name_by_address)
    rows = lake.query(_SERVERS, **inputs).to_pylist() if machines else []
    for row in rows:
        servers[row["machine"]].append(row["server"])
    found = CapturedTransfers(dict.fromkeys(machines, ()), {name: sorted(each) for name, each in servers.items()})
    return replace(found, spans=_read_spans(lake, names, found, None))


def _read_spans(
    lake: Lake, names: QueueManagerNames, kept: CapturedTransfers, since: int | None
) -> dict[str, list[Span]]:
    """Return the spans of the queue managers of ``kept``; its own up to a time, and what was captured then or later."""
    spans: dict[str, list[Span]] = {name: [] for name in kept.servers}
    servers = [{"machine": name, "server": server} for name, every in kept.servers.items() for server in every]
    before, recent = list[dict[str, Any]](), "TRUE"
    if since is not None:
        recent = f"last_packet_at >= timestamp_micros({since})"
        for name, every in kept.spans.items():
            before += [{"machine": name, "begins": at, "ends": min(end, since)} for at, end in every if at < since]
    if servers:
        found = lake.query(
            _SPANS.format(recent=recent), connections=CONNECTIONS, captures=CAPTURE_FILES, machines=spans.keys(),
            names=names_table(names.name_by_address), servers=pa.Table.from_pylist(servers, _AT),
            kept=pa.Table.from_pylist(before, _UNTIL),
        )  # fmt: skip
        for machine, *span in zip(*(column.to_pylist() for column in found.columns), strict=True):
            spans[machine].append(span)
    return spans
