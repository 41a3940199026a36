"""Whether a packet that was not captured may have been sent between two machines: the one place that decides. No Spark.

A hole may hold a packet that travels in its direction, is not larger, and was sent in its time. Rows of gold ask for
the packets that would make them conclude otherwise: a row is complete only where no hole may hold one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.incremental import IncrementalUpdate
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, BoundQuery
from pipeline.transfers.hops.session_spans import TimeSpan
from pipeline.transfers.side_losses import UNLIMITED
from schemas.sessions import SESSIONS
from schemas.table import Table
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.columns.arrays import one_array, to_flags, to_ints, to_times
from udfs.columns.codes import row_codes_of_both
from udfs.times import timedelta_to_us

_ENDS_OF_HOP: Final = ("address", "queue_manager")


def _holes_sql(*more: str) -> str:
    """Return SQL over rows of ``silver.sessions``: their holes, by direction, and more columns of the sessions."""
    names = ", ".join((
        "client_address", "server_address", "initiator_queue_manager", "acceptor_queue_manager", "uncaptured_side",
        *more,
    ))  # fmt: skip
    of_hole = "hole.since", "hole.until", "hole.size_bytes", *more
    return " UNION ALL ".join(
        f"""
SELECT {sender}_address AS sender_address, {receiver}_address AS receiver_address,
  {managers[0]}_queue_manager AS sender_queue_manager, {managers[1]}_queue_manager AS receiver_queue_manager,
  coalesce(uncaptured_side = '{sender}', FALSE) AS one_sided, {", ".join(of_hole)}
FROM (SELECT {names}, explode({sender}_holes) AS hole FROM {{rows}} WHERE {sender}_holes IS NOT NULL)"""
        for sender, receiver, managers in (
            ("client", "server", ("initiator", "acceptor")), ("server", "client", ("acceptor", "initiator"))
        )
    )  # fmt: skip


HOLES_SQL: Final = _holes_sql()
"""SQL over rows of ``silver.sessions``: their holes, by direction."""
_HOLES_OF_FEED: Final = _holes_sql("connection_id", "_change_type").replace("{rows}", "{feed}")
_CHANGED_HOLES: Final = " UNION ALL ".join(
    f"""
SELECT '{end}' AS shown, sender, receiver, min(coalesce(unix_micros(since), {BEFORE_ALL})) AS since,
  max(coalesce(unix_micros(until), {AFTER_ALL})) AS until, max(more) > 0 AS came, min(more) < 0 AS went
FROM (
  SELECT sender_{end} AS sender, receiver_{end} AS receiver, since, until, {MORE_ROWS_SQL} AS more
  FROM ({_HOLES_OF_FEED})
  GROUP BY connection_id, sender_{end}, receiver_{end}, one_sided, since, until, size_bytes
  HAVING {MORE_ROWS_SQL} <> 0
) GROUP BY sender, receiver"""
    for end in _ENDS_OF_HOP
)
_AFFECTED_SQL: Final = tuple(
    " UNION ".join(
        f"""
SELECT g.{{column}} AS id FROM {{rows}} AS g JOIN {{holes}} AS h
  ON g.sender_{end} = h.{sender} AND g.receiver_{end} = h.{receiver}
WHERE {{since}} <= h.until AND unix_micros(g.{{last}}) >= h.since - {{wait}} AND g.{{last}} >= {{earliest}}"""
        for sender, receiver in (("sender", "receiver"), ("receiver", "sender"))
    )
    for end in _ENDS_OF_HOP
)
_ENDS: Final = (("sender", "receiver"), ("receiver", "sender"))


@dataclass(frozen=True, slots=True)
class MissingPackets:
    """Holes of sessions (``HOLES_SQL``): by direction, in which packets may be missing."""

    senders: pa.Array
    receivers: pa.Array
    since: Ints
    until: Ints
    sizes: Ints
    one_sided: Bools

    @staticmethod
    def of(holes: pa.Table) -> MissingPackets:
        """``holes`` is the answer to ``HOLES_SQL``."""
        since, until = to_times(holes["since"], BEFORE_ALL), to_times(holes["until"], AFTER_ALL)
        senders, receivers = (one_array(holes[f"{end}_address"]) for end in ("sender", "receiver"))
        sizes, one_sided = to_ints(holes["size_bytes"]), to_flags(holes["one_sided"])
        return MissingPackets(senders, receivers, since, until, sizes, one_sided)

    def of_one_side(self) -> MissingPackets:
        """Return the holes of sides of which no packet was captured."""
        return self._select(self.one_sided)

    def of_lost_bytes(self) -> MissingPackets:
        """Return the holes in which bytes are known to be missing: a session may have been idle when captures began."""
        return self._select(self.one_sided | (self.sizes != UNLIMITED))

    def _select(self, some: Bools) -> MissingPackets:
        rows = pa.array(np.flatnonzero(some))
        return MissingPackets(
            self.senders.take(rows), self.receivers.take(rows), self.since[some], self.until[some], self.sizes[some],
            self.one_sided[some],
        )  # fmt: skip

    def may_hold(
        self, hop: tuple[pa.Array, pa.Array] | None, sizes: Ints, since: Ints, until: Ints
    ) -> Bools:  # fmt: skip
        """Return for each row whether a packet may be missing.

        It has ``sizes`` bytes at least, was sent from ``since`` to ``until``, microseconds, and goes from the first to
        the second address of ``hop``; without that, between any machines.
        """
        out = np.zeros(len(since), np.bool_)
        if not len(self.since):
            return out
        ours, theirs = np.zeros(len(since), np.int64), np.zeros(len(self.since), np.int64)
        if hop is not None:
            ours, theirs = row_codes_of_both(hop, (self.senders, self.receivers))
        bounds = 1 << np.frexp(np.maximum(sizes, 1))[1].astype(np.int64) - 1  # few different ones: powers of 2
        here = np.isin(ours, theirs)
        for direction, size in {*zip(ours[here].tolist(), bounds[here].tolist(), strict=True)}:
            rows = np.flatnonzero((ours == direction) & (bounds == size))
            holes = (theirs == direction) & (self.sizes >= size)
            # Each hole ends at or behind its beginning: those that end too early or begin too late are different ones.
            ended = np.searchsorted(np.sort(self.until[holes]), since[rows])
            not_begun = holes.sum() - np.searchsorted(np.sort(self.since[holes]), until[rows], side="right")
            out[rows] = (ended + not_begun < holes.sum()) & (since[rows] <= until[rows])
        return out


@dataclass(frozen=True, slots=True)
class HopHoles:
    """Holes of sessions on hops: those between two addresses, and those between the same queue managers."""

    of_addresses: MissingPackets
    of_queue_managers: MissingPackets

    @staticmethod
    def of(holes: pa.Table, clones: Collection[str] = ()) -> HopHoles:
        """``holes`` is the answer to ``HOLES_SQL``. ``clones``: identifiers of two machines, which tell no end."""
        return HopHoles(MissingPackets.of(holes), _between_queue_managers(holes, clones))

    def of_one_side(self) -> HopHoles:
        """Return the holes of sides of which no packet was captured."""
        return HopHoles(self.of_addresses.of_one_side(), self.of_queue_managers.of_one_side())

    def may_hold(self, hops: Mapping[str, Any], sizes: Ints, since: Ints, until: Ints) -> Bools:
        """Return for each row whether a packet from the sender to the receiver of its hop may be missing.

        ``hops`` has ``hop_keys.HOP_COLUMNS``; the other arguments are those of ``MissingPackets.may_hold``.
        """
        out = np.zeros(len(since), np.bool_)
        for holes, end in ((self.of_addresses, "address"), (self.of_queue_managers, "queue_manager")):
            hop = one_array(hops[f"sender_{end}"]), one_array(hops[f"receiver_{end}"])
            out |= holes.may_hold(hop, sizes, since, until)
        return out

    def may_hold_acknowledgement(
        self, hops: Mapping[str, Any], directly: Bools, sizes: Ints, since: Ints, until: Ints
    ) -> Bools:
        """Return for each row whether an acknowledgement may be missing.

        It comes ``directly`` from the receiver of the hop to its sender, else from any machine to any other.
        """
        back = {f"{end}_{name}": hops[f"{other}_{name}"] for end, other in _ENDS for name in _ENDS_OF_HOP}
        anywhere = self.of_addresses.of_lost_bytes().may_hold(None, sizes, since, until)
        return np.where(directly, self.may_hold(back, sizes, since, until), anywhere)


def read_holes(lake: Lake, span: TimeSpan) -> pa.Table:
    """Return the holes (``HOLES_SQL``) of the sessions that exist within a span: a hole lies within its session."""
    return lake.query(HOLES_SQL.replace("{rows}", span.sessions_sql()), rows=SESSIONS)


@dataclass(frozen=True, slots=True)
class ChangedHoles:
    """Between which addresses, or queue managers that sessions show, holes came or went.

    Columns: sender, receiver, since and until of these holes (microseconds), came, went. ``wait_us`` is the setting
    transfers.wait: how long after a sending a missing packet may say something else of it.
    """

    of_addresses: pa.Table
    of_queue_managers: pa.Table
    wait_us: int

    @staticmethod
    def read(step: IncrementalUpdate, wait: timedelta) -> ChangedHoles | None:
        """Return the holes that came or went since the last update; None without any; UnknownChangesError."""
        found = step.shared_changed_rows(SESSIONS, _CHANGED_HOLES)
        if found is None or not found.num_rows:
            return None
        of_addresses, of_queue_managers = (found.filter(pc.equal(found["shown"], end)) for end in _ENDS_OF_HOP)
        return ChangedHoles(of_addresses, of_queue_managers, timedelta_to_us(wait))

    def affected_rows(self, table: Table, column: str, since: str, last: str) -> Iterator[BoundQuery]:
        """Yield queries for what ``column`` tells of rows of gold between machines between which holes came or went.

        A packet says something else of a row from ``since`` on, SQL in microseconds, until transfers.wait after the
        time in the column ``last``.
        """
        for sql, holes in zip(_AFFECTED_SQL, (self.of_addresses, self.of_queue_managers), strict=True):
            filled = {"column": column, "since": since, "last": last, "wait": self.wait_us, "earliest": self._earliest}
            yield BoundQuery(sql.format(rows="{rows}", holes="{holes}", **filled), {"rows": table, "holes": holes})

    def affects_anywhere_sql(self, last: str) -> str:
        """Return the SQL condition of rows of gold that may be others if they depend on holes between any machines.

        ``last`` as for ``affected_rows``. A hole that came concerns rows without ``capture_loss``, one that went those
        with it.
        """
        lost, holes = "array_contains(missing, 'capture_loss')", self.of_addresses
        if not holes.num_rows:
            return "FALSE"
        came, went = (pc.any(holes[name]).as_py() for name in ("came", "went"))
        which = {(True, True): "TRUE", (True, False): f"NOT {lost}", (False, True): lost}[came, went]
        until = pc.max(holes["until"]).as_py()
        return f"{which} AND unix_micros(first_sent_at) <= {until} AND {last} >= {self._earliest}"

    @property
    def _earliest(self) -> str:
        """The SQL of the time before which no row's ``last`` is of which a hole says something else."""
        chunks = [*self.of_addresses["since"].chunks, *self.of_queue_managers["since"].chunks]
        since = pa.chunked_array(chunks, pa.int64())
        return f"timestamp_micros({pc.min(since).as_py() - self.wait_us})"


def acknowledged_directly(destination: pa.Array, receiver: pa.Array, hop_count: pa.Array) -> Bools:
    """Return for each message whether what acknowledges it comes from the receiver of the hop to its sender.

    So it is where these are its destination and its source: its destination queue manager is the receiver, or not
    known, and no routing server sent it (``hop_count``, null counts as 0).
    """
    arrives = pc.or_kleene(destination.is_null(), pc.equal(destination, receiver))
    direct: Bools = to_flags(arrives) & (to_ints(hop_count) == 0)
    return direct


def _between_queue_managers(holes: pa.Table, clones: Collection[str]) -> MissingPackets:
    """Return the holes of sessions whose handshake shows both ends, by queue managers instead of by addresses."""
    names = "sender_queue_manager", "receiver_queue_manager"
    unknown = pa.array(sorted(clones), pa.string())
    for name in names:
        holes = holes.filter(pc.and_(holes[name].is_valid(), pc.invert(pc.is_in(holes[name], unknown))))
    for name in names:
        address = name.replace("queue_manager", "address")
        holes = holes.set_column(holes.column_names.index(address), address, holes[name])
    return MissingPackets.of(holes)
