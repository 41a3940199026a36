"""Connections that never were: the client asked for one (SYN), and it never came to carry anything.

A capture notes of each connection how it opened (``OPENING_TYPE``, in ``bronze.pending``). What became of an attempt
may stand in several captures: a SYN that is repeated in the next file of a ring, an answer in another file. So
``find_attempt_outcomes`` looks at the notes of all captures together, whatever the order in which they were read.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

from schemas.bronze import PENDING
from udfs.columns.absent import NO_TIME
from udfs.dcerpc.interfaces import BINARY_PROTOCOL_PORT, EPM_PORT, MSMQ_RPC_PORTS
from udfs.rows import RowDict
from udfs.rpc.connection_identity import connection_id, four_tuple
from udfs.tcp.connections import ConnectionKind, StreamDirection, TcpConnection
from udfs.times import DAY_NS

OPENING_TYPE: Final = PENDING.column("opening").type
NO_ANSWER, RESET, ANSWER_NOT_CAPTURED, TOO_EARLY = "no_answer", "reset", "answer_not_captured", "too_early"
"""What became of an attempt (``not_established`` in ``bronze.connections`` and ``silver.sessions``)."""
FAILED: Final = (NO_ANSWER, RESET, ANSWER_NOT_CAPTURED)
"""Those that failed for certain."""
TRIED_PORTS: Final = frozenset({BINARY_PROTOCOL_PORT, 2103, 2105, 2107})
"""Ports that hardly anything but MSMQ asks for."""
ATTEMPT_PORTS: Final = frozenset({BINARY_PROTOCOL_PORT, EPM_PORT, *MSMQ_RPC_PORTS, *range(2107, 2107 + 11 * 100, 11)})
"""Ports of which attempts may be of MSMQ, beside those that calls name."""
MAX_RPC_ATTEMPTS: Final = 10_000  # of a capture that have rows; of TCP 1801 all have
OVER_LIMIT: Final = "of connections that were not established, over their limit"  # capture_files.packets_not_read
GIVEN_UP_AFTER_NS: Final = 21_000_000_000  # SYNs at 0, 3 and 9 s, and Windows gives up 12 s later
NEAR_NS: Final = 3_600_000_000_000  # how far apart what one capture shows of a client counts together
_REPEATED_AFTER_NS: Final = 200_000_000  # a SYN that comes sooner is a copy of the first; RFC 6298 waits 1 s


def opening_of(connection: TcpConnection, sides: Sequence[StreamDirection], *, client_heard: bool) -> RowDict:
    """Return how a capture saw a connection open (``OPENING_TYPE``). ``sides``: its directions, as they are to count.

    A side *spoke* if it sent anything but a SYN alone or an RST. ``client_heard``: whether the capture has any packet
    to the client within an hour of its SYNs.
    """
    client = connection.likely_client_side()
    ours, theirs = sides[client], sides[client ^ 1]
    return {
        "syn_ns": ours.first_syn_ns,
        "last_syn_ns": ours.last_syn_ns,
        "client_reset_ns": ours.reset_ns,
        "server_reset_ns": theirs.reset_ns,
        "client_spoke": ours.has_spoken,
        "server_spoke": theirs.has_spoken,
        "client_heard": client_heard,
    }


def is_attempt(opening: Mapping[str, Any]) -> bool:
    """Whether a capture shows SYNs of the client, and of both sides nothing but those and the server's RST."""
    return opening["syn_ns"] is not None and not _shows_more(opening)


def _shows_more(opening: Mapping[str, Any]) -> bool:
    return bool(opening["client_spoke"] or opening["server_spoke"] or opening["client_reset_ns"] is not None)


def find_heard_clients(
    connections: Iterable[TcpConnection], heard: Mapping[bytes, tuple[int, int]] | None = None
) -> set[int]:
    """Return the indexes of the attempts to whose client the capture has a packet within an hour of its SYNs.

    ``heard``: by packed address the times in ns of the first and last packet to it that is no TCP.
    """
    connections = list(connections)
    attempts: dict[bytes, list[TcpConnection]] = defaultdict(list)
    for one in connections:
        if one.client_side is None or one.directions[one.client_side].first_syn_ns is None:
            continue
        if not any(side.has_spoken for side in one.directions):
            attempts[one.endpoints[one.client_side][1]].append(one)
    spans: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for address in attempts.keys() & (heard or {}).keys():
        spans[address].append((heard or {})[address])
    for one in connections:
        for side in (0, 1):
            if one.directions[side ^ 1].last_sequence is not None and (address := one.endpoints[side][1]) in attempts:
                spans[address].append((one.first_time_ns, one.last_time_ns))
    found = set[int]()
    for address, several in attempts.items():
        firsts, lasts = sorted(first for first, _ in spans[address]), sorted(last for _, last in spans[address])
        for one in several:
            asked = one.directions[one.client_side or 0]
            first, last = asked.first_syn_ns or 0, asked.last_syn_ns or 0
            if bisect_right(firsts, last + NEAR_NS) > bisect_left(lasts, first - NEAR_NS):
                found.add(one.index)
    return found


class CaptureSpans:
    """When captures ran: by capture the times of its first and last packet, in ns."""

    def __init__(self, spans: Mapping[str, tuple[int, int]]) -> None:
        self._spans = spans
        self._ordered = sorted((first, last, name) for name, (first, last) in spans.items())

    def are_beside(self, one: str, other: str) -> bool:
        """Whether two captures ran side by side: files of a ring, which come one after the other, do not."""
        if one == other or one not in self._spans or other not in self._spans:
            return one == other
        (first, last), (begin, end) = self._spans[one], self._spans[other]
        overlap = min(last, end) - max(first, begin)
        return overlap >= 0 and 2 * overlap >= min(last - first, end - begin)

    def runs_until(self, own: Collection[str], enough: int) -> int:
        """Return until when some captures ran, with those that follow them like files of a ring; ``enough`` is late."""
        known = [self._spans[name] for name in own if name in self._spans]
        end = max((last for _, last in known), default=NO_TIME)
        if not known:
            return end
        begin = bisect_left(self._ordered, (min(first for first, _ in known),))
        for first, last, name in self._ordered[begin:] if end < enough else ():
            if first > end + GIVEN_UP_AFTER_NS or end >= enough:
                break
            if not any(self.are_beside(name, each) for each in own):
                end = max(end, last)
        return end


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else captures show, on which the meaning of an attempt rests.

    ``heard``: by the text of an address the captures with packets to it, each with the times of first and last, in ns.
    ``queue_managers``: addresses; ``endpoints``: (address, port) where calls say that MSMQ listens. ``tried``: by
    client and server the times, in ns and ascending, at which one asked the other for one of ``TRIED_PORTS``.
    """

    spans: CaptureSpans
    heard: Mapping[str, Sequence[tuple[str, int, int]]] = field(default_factory=dict)
    queue_managers: AbstractSet[str] = frozenset()
    endpoints: AbstractSet[tuple[str, int]] = frozenset()
    tried: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)


@dataclass(slots=True)
class AttemptOutcomes:
    """The attempts that have rows in ``bronze.connections``.

    ``codes``: by connection_id what became of them; ``rpc``: the remainders of those that are not of TCP 1801;
    ``left_out``: of those that have no row; ``over_limit``: by capture how many packets of the latter there are whose
    connections are over the limit.
    """

    codes: dict[str, str] = field(default_factory=dict)
    rpc: dict[str, list[RowDict]] = field(default_factory=dict)
    left_out: dict[str, list[RowDict]] = field(default_factory=dict)
    over_limit: Counter[str] = field(default_factory=Counter)


def find_attempt_outcomes(rows: Iterable[RowDict], around: Surroundings) -> AttemptOutcomes:
    """Find what became of the attempts among remainders: rows of ``bronze.pending``, all of each connection."""
    by_connection: dict[str, list[RowDict]] = defaultdict(list)
    for row in rows:
        by_connection[row["connection_id"]].append(row)
    found = AttemptOutcomes()
    for identity, remainders in by_connection.items():
        openings = _of_one_client(remainders)
        if not openings or any(map(_shows_more, openings)):
            continue
        if any(row["kind"] == "binary_protocol" for row in remainders):
            found.codes[identity] = _outcome(remainders, openings, around)
        elif _is_of_msmq(remainders, openings, around):
            found.codes[identity] = _outcome(remainders, openings, around)
            found.rpc[identity] = remainders
        else:
            found.left_out[identity] = remainders
    _limit(found)
    return found


def _of_one_client(remainders: Sequence[RowDict]) -> list[RowDict]:
    """Return the openings with the client's side as the one that sent SYNs: others guessed it. Empty without a SYN."""
    asked = next((row for row in remainders if row["opening"] and row["opening"]["syn_ns"] is not None), None)
    if asked is None:
        return []
    openings = []
    for row in remainders:
        one = row["opening"]
        if one is None:  # read before openings were noted
            return []
        if (row["client_address"], row["client_port"]) != (asked["client_address"], asked["client_port"]):
            one = {
                **one,
                "syn_ns": None,
                "last_syn_ns": None,
                "client_reset_ns": one["server_reset_ns"],
                "server_reset_ns": one["client_reset_ns"],
                "client_spoke": one["server_spoke"],
                "server_spoke": one["client_spoke"] or one["syn_ns"] is not None,
            }
        openings.append(one)
    return openings


def _outcome(remainders: Sequence[RowDict], openings: Sequence[RowDict], around: Surroundings) -> str:
    if any(each["server_reset_ns"] is not None for each in openings):
        return RESET
    asked: dict[str, tuple[int, int]] = {}
    for row, each in zip(remainders, openings, strict=True):
        if each["syn_ns"] is not None:
            first, last = asked.get(row["capture_id"], (each["syn_ns"], each["last_syn_ns"]))
            asked[row["capture_id"]] = min(first, each["syn_ns"]), max(last, each["last_syn_ns"])
    first, last = min(first for first, _ in asked.values()), max(last for _, last in asked.values())
    if first == NO_TIME:
        return TOO_EARLY
    given_up = first + GIVEN_UP_AFTER_NS
    if not _is_repeated(asked, around.spans) and around.spans.runs_until(asked, given_up) < given_up:
        return TOO_EARLY
    is_heard = any(each["client_heard"] for each in openings) or any(
        begin <= last + NEAR_NS and end >= first - NEAR_NS
        for name, begin, end in around.heard.get(_client_of(remainders, openings), ())
        if name in asked or not any(around.spans.are_beside(name, each) for each in asked)
    )
    return NO_ANSWER if is_heard else ANSWER_NOT_CAPTURED


def _client_of(remainders: Sequence[RowDict], openings: Sequence[RowDict]) -> str:
    address: str = next(
        row["client_address"] for row, each in zip(remainders, openings, strict=True) if each["syn_ns"] is not None
    )
    return address


def _is_repeated(asked: Mapping[str, tuple[int, int]], spans: CaptureSpans) -> bool:
    """Whether the SYN was sent again: in one capture, or in two of which one follows the other."""
    if any(last - first >= _REPEATED_AFTER_NS for first, last in asked.values()):
        return True
    return any(
        abs(asked[one][0] - asked[other][0]) >= _REPEATED_AFTER_NS and not spans.are_beside(one, other)
        for one, other in combinations(asked, 2)
    )


def _is_of_msmq(remainders: Sequence[RowDict], openings: Sequence[RowDict], around: Surroundings) -> bool:
    """Whether an attempt that is not of TCP 1801 was meant for MSMQ."""
    row, opening = next(
        (row, each) for row, each in zip(remainders, openings, strict=True) if each["syn_ns"] is not None
    )
    client, server, port = row["client_address"], row["server_address"], row["server_port"]
    if (server, port) in around.endpoints or (port in ATTEMPT_PORTS and server in around.queue_managers):
        return True
    tried = around.tried.get((client, server), ())
    first, last = opening["syn_ns"] - NEAR_NS, opening["last_syn_ns"] + NEAR_NS
    return port in ATTEMPT_PORTS and bisect_right(tried, last) > bisect_left(tried, first)


def _limit(found: AttemptOutcomes) -> None:
    """Drop the attempts over the limit of their capture: the latest ones."""
    by_capture: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for identity, remainders in found.rpc.items():
        for row in remainders:
            by_capture[row["capture_id"]].append((row["first_time_ns"], identity))
    if all(len(each) <= MAX_RPC_ATTEMPTS for each in by_capture.values()):
        return
    kept = {identity for each in by_capture.values() for _, identity in sorted(each)[:MAX_RPC_ATTEMPTS]}
    for identity in found.rpc.keys() - kept:
        found.left_out[identity] = found.rpc.pop(identity)
        for row in found.left_out[identity]:
            found.over_limit[row["capture_id"]] += row["packets"]
        del found.codes[identity]


def attempt_connection(identity: str, remainders: Sequence[RowDict], code: str) -> RowDict:
    """Return the row of ``bronze.connections`` of an attempt that is not of TCP 1801."""
    row = next(row for row in remainders if row["opening"]["syn_ns"] is not None)
    resets = [each["server_reset_ns"] for each in _of_one_client(remainders) if each["server_reset_ns"] is not None]
    first = min(row["first_time_ns"] for row in remainders)
    last = max(row["last_time_ns"] for row in remainders)
    counts = ("client_bytes", "server_bytes", "retransmitted_bytes", "conflicting_bytes", "missing_bytes", "calls",
              "lost_by_capture_bytes")  # fmt: skip
    names = ("client_address", "client_port", "server_address", "server_port", "tunnel_identifier")
    return {
        "connection_id": identity,
        **{name: row[name] for name in names},
        "kind": "rpc",
        "syn_seen": True,
        "first_packet_at": None if first == NO_TIME else first // 1000,
        "last_packet_at": None if last == NO_TIME else last // 1000,
        "closed_at": min(resets) // 1000 if resets and NO_TIME not in resets else None,
        "closed_by": "rst" if resets else None,
        **dict.fromkeys(counts, 0),
        "round_trip_ms": None,
        "association_group_id": None,
        "packets": sum(each["packets"] for each in remainders),
        "not_established": code,
        "event_date": None if first == NO_TIME else first // DAY_NS,
    }


def count_again(found: AttemptOutcomes) -> tuple[dict[str, str], dict[str, RowDict]]:
    """Return what counts the packets of attempts from now on, where that changes: those that have rows are used.

    By pending_key the column (``counted``), and by capture the change of its counts, as ``add_packet_counts`` takes it.
    """
    counted: dict[str, str] = {}
    packets, servers = Counter[str](), defaultdict[str, Counter[str]](Counter)
    for several, column in ((found.rpc, "packets_used"), (found.left_out, "packets_other")):
        sign = 1 if several is found.rpc else -1
        for row in (row for remainders in several.values() for row in remainders if row["counted"] != column):
            counted[row["pending_key"]] = column
            packets[row["capture_id"]] += sign * row["packets"]
            servers[row["capture_id"]][row["counted_server"] or ""] += sign
    changes = {
        name: {
            "packets_used": number,
            "packets_other": -number,
            "packets_binary_protocol": 0,
            "server_connections": [
                {"server_address": server, "connections": count}
                for server, count in sorted(servers[name].items())
                if server
            ],
            "learned_endpoints": [],
        }
        for name, number in packets.items()
    }
    return counted, changes


def heard_in(rows: Iterable[RowDict]) -> dict[str, list[tuple[str, int, int]]]:
    """Return ``Surroundings.heard`` as remainders show it."""
    found: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for row in rows:
        if (one := row["opening"]) is None:
            continue
        span = row["capture_id"], row["first_time_ns"], row["last_time_ns"]
        if one["client_heard"] or one["server_spoke"] or one["server_reset_ns"] is not None:
            found[row["client_address"]].append(span)
        if one["client_spoke"] or one["syn_ns"] is not None or one["client_reset_ns"] is not None:
            found[row["server_address"]].append(span)
    return found


def is_queue_manager(connection: Mapping[str, Any]) -> bool:
    """Whether a row of ``bronze.connections`` shows its server to be a queue manager: it answered as one."""
    is_endpoint_mapper = connection["kind"] == "rpc" and connection["server_port"] == EPM_PORT
    return bool(connection["server_bytes"]) and not is_endpoint_mapper


def attempts_of_capture(
    connections: Sequence[TcpConnection],
    capture_id: str,
    span: tuple[int, int],
    heard: AbstractSet[int],
    msmq_indexes: AbstractSet[int],
    learned: Collection[tuple[bytes, int]],
) -> tuple[dict[int, str], set[int], int]:
    """Find the attempts of one capture by what it alone shows.

    Returns by connection index what became of them, the indexes of those that are not of TCP 1801, and the number of
    packets over the limit. ``heard``: of ``find_heard_clients``; ``msmq_indexes``: of connections of MSMQ RPC.
    """
    endpoints = {(str(ipaddress.ip_address(address)), port) for address, port in learned}
    rows, indexes = [], dict[str, int]()
    tried: dict[tuple[str, str], list[int]] = defaultdict(list)
    managers = {address for address, _ in endpoints}
    for one in connections:
        server_side = one.likely_client_side() ^ 1
        _, octets, server_port = one.endpoints[server_side]
        binary = one.kind is ConnectionKind.BINARY
        is_ours = binary or one.index in msmq_indexes
        if not is_ours and server_port not in ATTEMPT_PORTS and (octets, server_port) not in learned:
            continue
        client, client_port, server, _ = four_tuple(one)
        opening = opening_of(one, one.directions, client_heard=one.index in heard)
        if server_port in TRIED_PORTS and (is_ours or is_attempt(opening)):
            tried[client, server].append(one.first_time_ns)
        if is_ours:
            kind, size = "binary_protocol" if binary else "rpc", one.directions[server_side].distinct_bytes
            if is_queue_manager({"kind": kind, "server_port": server_port, "server_bytes": size}):
                managers.add(server)
        if is_attempt(opening):
            identity = connection_id(one)
            indexes[identity] = one.index
            rows.append(
                {
                    "connection_id": identity, "capture_id": capture_id, "client_address": client,
                    "client_port": client_port, "server_address": server, "server_port": server_port,
                    "kind": "binary_protocol" if binary else "undecided", "first_time_ns": one.first_time_ns,
                    "packets": one.packet_count, "opening": opening,
                }
            )  # fmt: skip
    for times in tried.values():
        times.sort()
    around = Surroundings(CaptureSpans({capture_id: span}), {}, managers, endpoints, tried)
    found = find_attempt_outcomes(rows, around)
    codes = {indexes[identity]: code for identity, code in found.codes.items()}
    return codes, {indexes[identity] for identity in found.rpc}, found.over_limit[capture_id]


def packets_not_read(rows: Sequence[RowDict] | None, over_limit: int) -> list[RowDict] | None:
    """Return a value of ``capture_files.packets_not_read`` with the packets of attempts over the limit."""
    found = [row for row in rows or () if row["what"] != OVER_LIMIT]
    return found + ([{"what": OVER_LIMIT, "packets": over_limit}] if over_limit else []) or None
