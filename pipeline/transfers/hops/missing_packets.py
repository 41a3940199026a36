"""Whether a packet that was not captured may have been sent between two machines: the one place that decides. No Spark.

A hole may hold a packet that travels in its direction, is not larger, and was sent in its time. Rows of gold ask for
the packets that would make them conclude otherwise: a row is complete only where no hole may hold one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL
from pipeline.transfers.side_losses import UNLIMITED
from schemas.sessions import SESSIONS
from udfs.array_types import Bools, Ints
from udfs.columns.absent import AFTER_ALL, BEFORE_ALL
from udfs.columns.arrays import one_array, to_flags, to_ints, to_times
from udfs.columns.codes import row_codes_of_both

HOLES_SQL: Final = " UNION ALL ".join(
    f"""
SELECT {sender}_address AS sender_address, {receiver}_address AS receiver_address,
  {managers[0]}_queue_manager AS sender_queue_manager, {managers[1]}_queue_manager AS receiver_queue_manager,
  coalesce(uncaptured_side = '{sender}', FALSE) AS one_sided, hole.since, hole.until, hole.size_bytes
FROM (SELECT *, explode({sender}_holes) AS hole FROM {{rows}} WHERE {sender}_holes IS NOT NULL)"""
    for sender, receiver, managers in (
        ("client", "server", ("initiator", "acceptor")), ("server", "client", ("acceptor", "initiator"))
    )
)  # fmt: skip
"""SQL over ``silver.sessions``: the holes of all sessions, by direction."""
CHANGED_HOLES_SQL: Final = f"""
SELECT client_address, server_address, max(unix_micros(last_packet_at)) AS until FROM (
  SELECT connection_id, client_address, server_address, max(last_packet_at) AS last_packet_at FROM {{feed}}
  WHERE client_holes IS NOT NULL OR server_holes IS NOT NULL
  GROUP BY connection_id, client_address, server_address, CAST(client_holes AS string), CAST(server_holes AS string),
    coalesce(uncaptured_side, '')
  HAVING {MORE_ROWS_SQL} <> 0
) GROUP BY client_address, server_address"""
"""SQL over the change feed of ``silver.sessions``: between which machines holes came or went, and until when."""
AFFECTED_SQL: Final = " UNION ".join(
    f"""
SELECT g.{{column}} AS id FROM {{rows}} AS g JOIN {{pairs}} AS p
  ON g.sender_address = p.{sender}_address AND g.receiver_address = p.{receiver}_address
WHERE {{since}} <= coalesce(p.until, {{since}})"""
    for sender, receiver in (("client", "server"), ("server", "client"))
)
"""SQL over a table of gold: what is between these machines since then or earlier. ``pairs``: changed holes; ``since``:
from when on, microseconds, a packet that is missing says something else of a row."""
HOLE_CHANGES: Final = (
    (CHANGED_HOLES_SQL, AFFECTED_SQL),
    (
        CHANGED_HOLES_SQL.replace(
            " FROM {feed}",
            """ FROM (
    SELECT connection_id, initiator_queue_manager AS client_address, acceptor_queue_manager AS server_address,
      last_packet_at, client_holes, server_holes, uncaptured_side, _change_type FROM {feed})""",
        ),
        AFFECTED_SQL.replace("_address = p.", "_queue_manager = p."),
    ),
)
"""``CHANGED_HOLES_SQL`` and ``AFFECTED_SQL``; and the same of queue managers that sessions show, not of addresses."""
_OF_FEED: Final = HOLES_SQL.replace("hole.size_bytes", "hole.size_bytes, connection_id, _change_type")
CHANGED_ANYWHERE_SQL: Final = f"""
SELECT min(coalesce(unix_micros(since), {BEFORE_ALL})) AS since,
  max(coalesce(unix_micros(until), {AFTER_ALL})) AS until, max(more) > 0 AS came, min(more) < 0 AS went
FROM (
  SELECT since, until, {MORE_ROWS_SQL} AS more FROM ({_OF_FEED.replace("{rows}", "{feed}")})
  GROUP BY connection_id, sender_address, one_sided, since, until, size_bytes HAVING {MORE_ROWS_SQL} <> 0
)"""
"""SQL over the same change feed: since and until when holes came or went, of all machines; nulls without any."""
PAIRS_SCHEMA: Final = pa.schema(
    [("client_address", pa.string()), ("server_address", pa.string()), ("until", pa.int64())]
)
"""The answer to ``CHANGED_HOLES_SQL``."""
_ENDS: Final = (("sender", "receiver"), ("receiver", "sender"))
_NAMES: Final = ("address", "queue_manager")


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
        back = {f"{end}_{name}": hops[f"{other}_{name}"] for end, other in _ENDS for name in _NAMES}
        anywhere = self.of_addresses.of_lost_bytes().may_hold(None, sizes, since, until)
        return np.where(directly, self.may_hold(back, sizes, since, until), anywhere)


def read_missing_packets(lake: Lake, clones: Collection[str] = ()) -> HopHoles:
    """Return where packets may be missing, of all sessions; ``clones``: identifiers of two machines."""
    return HopHoles.of(lake.query(HOLES_SQL, rows=SESSIONS), clones)


def changed_anywhere_sql(changes: Collection[Mapping[str, Any]] | None, wait_us: int) -> str | None:
    """Return the SQL condition of rows of gold that may be other ones if they depend on holes between any machines.

    A hole that came concerns rows without ``capture_loss``, one that went those with it. ``changes`` is the answer to
    ``CHANGED_ANYWHERE_SQL``, ``wait_us`` the setting transfers.wait. None where there is no such row.
    """
    row = next(iter(changes or ()), None)
    if row is None or row["since"] is None:
        return None
    lost = "array_contains(missing, 'capture_loss')"
    which = {(True, True): "TRUE", (True, False): f"NOT {lost}", (False, True): lost}[row["came"], row["went"]]
    since = max(row["since"] - wait_us, BEFORE_ALL)
    return f"{which} AND unix_micros(first_sent_at) <= {row['until']} AND unix_micros({{last}}) >= {since}"


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
