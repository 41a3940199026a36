"""What must have been seen for a view to answer: kinds of evidence, and conditions over them.

A view that finds no row does not say "none" unless what would show a row was captured or reported, at the hours that it
is about. ``LakeViews.evidence`` looks for it in the lake.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from pipeline.queues.history import DEAD_LETTER_QUEUES_SQL
from pipeline.reports.views.scope import ScopeColumns
from schemas.table import literal
from udfs.call_results import QMMGMT_SUCCEEDED_SQL


@dataclass(frozen=True, slots=True)
class EvidenceKind:
    """A kind of evidence. ``name`` says what was seen, ``subjects`` what is counted of it.

    ``sql`` selects what was seen: ``server``, ``client``, ``subject``, ``first_at`` and ``last_at``. It names tables as
    ``layer.name``.
    """

    name: str
    subjects: str
    sql: str


EVIDENCE_SCOPE: Final = ScopeColumns("first_at", "last_at", ("server", "client"), everywhere=True)
"""Evidence of hours and machines: of both ends of what they say to each other, and what is of no machine."""
_NO_CLIENT: Final = "CAST(NULL AS STRING) AS client"

SESSIONS_SEEN: Final = EvidenceKind(
    "TCP 1801",
    "connections",
    "SELECT server_address AS server, client_address AS client, connection_id AS subject, "
    "first_packet_at AS first_at, last_packet_at AS last_at FROM bronze.connections WHERE kind = 'binary_protocol'",
)
CALLS: Final = EvidenceKind(
    "RPC calls that can be read",
    "calls",
    "SELECT server_address AS server, client_address AS client, call_key AS subject, "
    "coalesce(request_at, response_at) AS first_at, coalesce(response_at, request_at) AS last_at FROM bronze.rpc_calls "
    "WHERE outcome NOT IN ('encrypted', 'unbound', 'no_request')",
)
READS: Final = EvidenceKind(
    "remote reads that can be read",
    "calls",
    "SELECT server_address AS server, client_address AS client, call_key AS subject, "
    "coalesce(requested_at, responded_at) AS first_at, coalesce(responded_at, requested_at) AS last_at "
    "FROM silver.remote_read_calls WHERE size(errors) = 0",
)


def _reports(name: str, where: str = "TRUE") -> EvidenceKind:
    sql = (
        f"SELECT queue_manager AS server, {_NO_CLIENT}, coalesce(queue, queue_format_name) AS subject, "
        "observed_at AS first_at, observed_at AS last_at FROM silver.queue_snapshots "
        f"WHERE {QMMGMT_SUCCEEDED_SQL} AND {where}"
    )
    return EvidenceKind(name, "queues", sql)


def _asked(column: str) -> str:
    """Return SQL of whether a property of a queue was asked for, by its column in ``silver.queue_snapshots``."""
    return f"coalesce(array_contains(map_keys(property_states), {literal(column)}), FALSE)"


QUEUE_REPORTS: Final = _reports("reports of queues")
TRANSFER_REPORTS: Final = _reports("reports of outgoing transfers", _asked("eod_first_non_ack"))
RECEIVER_REPORTS: Final = _reports("reports of incoming sequences", _asked("eod_source_info"))
JOURNAL_REPORTS: Final = _reports(
    "reports of journals", f"({_asked('journal_message_count')} OR coalesce(queue LIKE '%;journal', FALSE))"
)
DEAD_LETTER_REPORTS: Final = _reports("reports of dead-letter queues", f"regexp_like(queue, {DEAD_LETTER_QUEUES_SQL})")
MACHINE_REPORTS: Final = EvidenceKind(
    "reports of queue managers",
    "queue managers",
    f"SELECT queue_manager AS server, {_NO_CLIENT}, queue_manager AS subject, observed_at AS first_at, "
    f"observed_at AS last_at FROM silver.machine_snapshots WHERE {QMMGMT_SUCCEEDED_SQL}",
)
PACKETS: Final = EvidenceKind(
    "packets",
    "captures",
    f"SELECT CAST(NULL AS STRING) AS server, {_NO_CLIENT}, capture_id AS subject, first_packet_at AS first_at, "
    "last_packet_at AS last_at FROM bronze.capture_files WHERE packets > 0",
)


@dataclass(frozen=True, slots=True)
class EvidenceNeeds:
    """What must have been seen: each of ``needs``, by any one of its kinds of evidence.

    Without it nothing is known. Where it is met, kinds that were not seen, and those of ``beside``, would have shown
    more rows or columns. ``hours`` limits it to so many hours before now, for views that are about these alone.
    """

    needs: tuple[tuple[EvidenceKind, ...], ...]
    beside: tuple[EvidenceKind, ...] = ()
    hours: int | None = None

    @property
    def kinds(self) -> tuple[EvidenceKind, ...]:
        """All kinds of evidence that it names, each once."""
        return tuple(dict.fromkeys((*(kind for need in self.needs for kind in need), *self.beside)))


def all_of(*kinds: EvidenceKind, beside: tuple[EvidenceKind, ...] = (), hours: int | None = None) -> EvidenceNeeds:
    """Return the condition that each kind of evidence was seen."""
    return EvidenceNeeds(tuple((kind,) for kind in kinds), beside, hours)


def any_of(*kinds: EvidenceKind, beside: tuple[EvidenceKind, ...] = ()) -> EvidenceNeeds:
    """Return the condition that a kind of evidence was seen: each shows rows of its own."""
    return EvidenceNeeds((kinds,), beside)


class Sight(NamedTuple):
    """What was seen of a kind of evidence: how many subjects, at how many servers, from when until when."""

    kind: EvidenceKind
    subjects: int
    servers: int
    first_at: datetime | None
    last_at: datetime | None


class SeenEvidence(NamedTuple):
    """What was seen of the evidence that a view needs, and the kinds of which nothing was.

    ``is_enough``: the view's condition is met, so that an empty answer means "none" of what was seen.
    """

    is_enough: bool
    sights: tuple[Sight, ...]
    unseen: tuple[EvidenceKind, ...]
