"""The plan of an export: which pieces of connections to read from which captures, and the names of their machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from pipeline.lake.lake import Lake
from pipeline.reports.packet_export.evidence import ExportRequest, find_evidence
from pipeline.reports.packet_export.host_names import NamesAtTime, find_names
from pipeline.reports.packet_export.pieces import NO_TIME_US, Piece, find_pieces
from schemas.bronze import CAPTURE_FILES
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.rows import RowMapping

_CAPTURES_SQL: Final = """
SELECT capture_id, path, servers, unix_micros(first_packet_at) AS first_us, unix_micros(last_packet_at) AS last_us
FROM {captures}
WHERE capture_id IN {ids} OR first_packet_at IS NULL
  OR (unix_micros(first_packet_at) <= {until_us} AND unix_micros(last_packet_at) >= {since_us})
ORDER BY first_us NULLS FIRST, path"""


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What to read: pieces by the path of their capture, in the order of the captures' first packets.

    ``begins_us``: when each capture begins, before all times where that is not known. ``names``: of what has pieces;
    ``unknown``: of what the lake does not have; ``without_packets``: of what it has, while no packet is evidence of it.
    """

    pieces_by_path: dict[str, list[Piece]]
    begins_us: dict[str, int]
    names: set[str]
    unknown: list[str]
    without_packets: list[str]
    hosts: NamesAtTime


def plan_export(lake: Lake, request: ExportRequest) -> ExportPlan:
    """Find the captures, times and connections of what is asked for."""
    evidence = find_evidence(lake, request)
    pieces = find_pieces(lake, evidence, request.since, request.until)
    names = {name for piece in pieces for name in piece.names}
    keys = dict.fromkeys(name for own in evidence.names_by_key.values() for name in own)
    plan = ExportPlan(
        pieces_by_path={},
        begins_us={},
        names=names,
        unknown=[*evidence.unknown, *(name for name in keys if name not in names and name not in evidence.rows)],
        without_packets=[name for name in evidence.rows if name not in names],
        hosts=_find_hosts(lake, pieces),
    )
    for path, first_us, own in _pieces_by_capture(lake, pieces):
        plan.pieces_by_path.setdefault(path, []).extend(own)
        plan.begins_us[path] = min(first_us, plan.begins_us.get(path, AFTER_ALL))
    return plan


def _pieces_by_capture(lake: Lake, pieces: Sequence[Piece]) -> Iterator[tuple[str, int, list[Piece]]]:
    """Yield the path of each capture that may have exported packets, when it begins, and its pieces."""
    by_capture, by_end = defaultdict[str, list[Piece]](list), defaultdict[bytes, list[Piece]](list)
    for piece in pieces:
        for capture in piece.captures or ():
            by_capture[capture].append(piece)
        for address, _ in (piece.client, piece.server) if piece.captures is None else ():
            by_end[address].append(piece)
    searched = [piece for piece in pieces if piece.captures is None]
    since = min((piece.begin_us for piece in searched), default=AFTER_ALL)
    until = max((piece.end_us for piece in searched), default=BEFORE_ALL)
    sql = _CAPTURES_SQL.replace("{since_us}", str(since)).replace("{until_us}", str(until))
    captures = lake.query(sql, captures=CAPTURE_FILES, ids=by_capture.keys()) if pieces else None
    for row in [] if captures is None else captures.to_pylist():
        own = [
            *dict.fromkeys((*by_capture[row["capture_id"]], *_pieces_within(row, by_end)))
        ]  # both ends may be servers
        if any(piece.exported for piece in own):
            yield row["path"], BEFORE_ALL if row["first_us"] is None else row["first_us"], own


def _pieces_within(capture: RowMapping, by_end: dict[bytes, list[Piece]]) -> Iterator[Piece]:
    """Yield the pieces, by the addresses of their ends, whose servers and times a capture has."""
    for server in capture["servers"] or ():
        for piece in by_end.get(ip_address(server).packed, ()):
            if capture["first_us"] is None or (
                piece.begin_us <= capture["last_us"] and capture["first_us"] <= piece.end_us
            ):
                yield piece


def _find_hosts(lake: Lake, pieces: Sequence[Piece]) -> NamesAtTime:
    """Return the names of the machines in exported packets, at their time."""
    exported = [piece for piece in pieces if piece.exported]
    times = [each for piece in exported for each in (piece.begin_us, piece.end_us) if each != NO_TIME_US]
    addresses = {str(ip_address(end[0])) for piece in exported for end in (piece.client, piece.server)}
    return find_names(lake, addresses, min(times, default=BEFORE_ALL), max(times, default=AFTER_ALL))
