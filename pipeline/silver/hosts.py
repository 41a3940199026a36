"""``silver.hosts``: machines by the names, addresses and identifiers that were seen together, with the evidence.

The table is updated incrementally from change feeds of its input tables: of each identity the sightings that came and
went are counted. It is recomputed where the feeds do not reach back, or where a first or last sighting was deleted. Its
commit notes the versions of its inputs and, because it comes last, also how far the collector's snapshots were decoded
(``collected_snapshots``).
"""

from __future__ import annotations

import ipaddress
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pipeline.lake.date_filters import distinct_dates
from pipeline.lake.incremental import ChangeFeeds
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import MORE_ROWS_SQL, PRE_IMAGES
from pipeline.silver import collected_snapshots as silver_collected_snapshots
from pipeline.silver.decode import DECODER_VERSIONS
from pipeline.silver.update import LAST_COMMITTED_TABLE, DecodedState
from schemas.bronze import RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import MACHINE_SNAPSHOTS, QUEUE_SNAPSHOTS
from schemas.sessions import SESSIONS
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.dcerpc.endpoint_towers import parse_tower_endpoints
from udfs.dcerpc.interfaces import EPT_MAP_OPNUM
from udfs.keys import key
from udfs.rows import RowDict

DECODER_VERSION: Final = "4"
ENDPOINT_MAPPER: Final = "endpoint_mapper"
_CALLS: Final = str(RPC_CALLS)
_VERSION_PREFIX: Final = "seen "  # in provenance, before an input table's name
_IDENTITY_COLUMNS: Final = ("queue_manager_id", "host_name", "address", "source")
_GUID: Final = r"\{?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\}?"
_PRIVATE_FORMAT_NAME: Final = re.compile(f"private={_GUID}")
_DIRECT_FORMAT_NAME: Final = re.compile(r"direct=os:(.*)$", re.IGNORECASE)
_PATH_NAME: Final = re.compile(r"([^\\=;]+)\\")
_OF_NO_MACHINE: Final = (None, "", "0.0.0.0", "::", str(uuid.UUID(int=0)))  # noqa: S104 - not listened at
_IP_ADDRESS: Final = re.compile(r"^([0-9]{1,3}\.){3}[0-9]{1,3}$|:")


def update_collected_snapshots(lake: Lake, failures: dict[str, str]) -> tuple[dict[str, int], dict[str, Any] | None]:
    """Decode new snapshots of the collector to silver. Call it when silver is up to date with ``bronze.rpc_calls``.

    Returns how many rows of each table were written, and the provenance for ``update_hosts``; None if it has nothing to
    do. Adds to ``failures`` by path why decoding a snapshot of a file failed.
    """
    raw_version = lake.version(SNAPSHOTS_RAW)
    before = lake.versions.provenance(HOSTS)
    source = silver_collected_snapshots.SOURCE_TABLE_NAME
    now = {
        source: raw_version,
        _CALLS: lake.versions.provenance(LAST_COMMITTED_TABLE).get(_CALLS),
        str(SESSIONS): lake.version(SESSIONS),
        "decoder": DECODER_VERSIONS,
        "hosts": DECODER_VERSION,
    }
    if before.items() >= now.items() or {raw_version, now[_CALLS], now[str(SESSIONS)]} == {None}:
        return {}, None
    written: dict[str, int] = {}
    same_decoders = before.get("decoder") == DECODER_VERSIONS
    if raw_version is not None and (before.get(source) != raw_version or not same_decoders):
        since = before.get(source) if same_decoders else None
        written = silver_collected_snapshots.decode_new_snapshots(lake, since, failures)
    return written, now


def update_hosts(lake: Lake, run_id: str, provenance: Mapping[str, Any]) -> int:
    """Update ``silver.hosts`` from silver; the commit notes ``provenance``. Returns how many rows were written."""
    newest = lake.versions.newest_commits(HOSTS, *_EVIDENCE)
    before = newest[HOSTS].provenance() if HOSTS in newest else {}
    versions = {_VERSION_PREFIX + str(table): newest[table].version for table in _EVIDENCE if table in newest}
    decoded = DecodedState.of(lake.versions.provenance(LAST_COMMITTED_TABLE))
    stubs_removed = decoded is not None and decoded.emptied
    same_decoders = all(before.get(name) == provenance[name] for name in ("decoder", "hosts"))
    changes = _read_changes(lake, before, versions) if same_decoders and not stubs_removed else None
    rows = None
    if changes is not None:
        stored = lake.select_by_values(HOSTS, {_host_key(change) for change in changes})
        rows = apply_host_changes(_by_key(stored.to_pylist()), changes)
    if rows is None:
        stored = lake.select(HOSTS, "TRUE")
        rows = _by_key(map(_host_row, compute_hosts(lake)))
        if stubs_removed:  # answers of the endpoint mapper may be gone: keep what they showed
            known = _by_key(stored.to_pylist())
            rows = {name: row for name, row in known.items() if row["source"] == ENDPOINT_MAPPER} | rows
    table = pa.Table.from_pylist([{**row, RUN_ID: run_id} for row in rows.values()], schema=stored.schema)
    dates = distinct_dates(stored)
    return lake.replace_changed(HOSTS, table, stored, dates=dates, provenance=json.dumps({**provenance, **versions}))


def _host_key(identity: Mapping[str, Any]) -> str:
    return key(*(identity[name] for name in _IDENTITY_COLUMNS))


def _by_key(rows: Iterable[RowDict]) -> dict[str, RowDict]:
    return {row["host_key"]: row for row in rows}


def _host_row(row: RowDict) -> RowDict:
    """Complete an identity with its times and count of sightings to a row of the table."""
    first = row["first_seen_at"]
    return {
        **row,
        "host_key": _host_key(row),
        "errors": [],
        "decoder_version": DECODER_VERSION,
        EVENT_DATE: None if first is None else first.date(),
    }


def compute_hosts(lake: Lake) -> list[RowDict]:
    """Compute from all input tables what is seen together, with first and last time and count of sightings."""
    found: dict[tuple[Any, ...], RowDict] = {}
    counts = "min(seen_at) AS first_seen_at, max(seen_at) AS last_seen_at, count(*) AS sightings"
    for table, evidence in _EVIDENCE.items():
        if not lake.exists(table):
            continue
        for row in lake.query(evidence.aggregate_sql(counts, "1"), rows=table, **evidence.joined_tables).to_pylist():
            for identity in evidence.identities(row):
                new = {**identity, **dict.fromkeys(_TIME_AGGREGATES), "sightings": 0}
                host = found.setdefault(tuple(identity.values()), new)
                for name, better in _TIME_AGGREGATES.items():
                    times = [time for time in (host[name], row[name]) if time is not None]
                    host[name] = better(times, default=None)
                host["sightings"] += row["sightings"]
    return list(found.values())


_TIME_AGGREGATES: Final[Mapping[str, Any]] = {"first_seen_at": min, "last_seen_at": max}
_CHANGE_AGGREGATES: Final = {
    "first_seen_at": "min(CASE WHEN net > 0 THEN seen_at END)",
    "last_seen_at": "max(CASE WHEN net > 0 THEN seen_at END)",
    "first_gone_at": "min(CASE WHEN net < 0 THEN seen_at END)",
    "last_gone_at": "max(CASE WHEN net < 0 THEN seen_at END)",
    "untimed": "bool_or(seen_at IS NULL)",
    "sightings": "CAST(sum(net) AS bigint)",
}
"""SQL over sightings with their ``net`` number at each time: when some came and went, and how many more there are."""


def _read_changes(lake: Lake, made: Mapping[str, Any], versions: Mapping[str, int]) -> list[RowDict] | None:
    """Return how sightings of identities changed since a commit; None if the change feeds cannot show it.

    A change is an identity with ``_CHANGE_AGGREGATES``. One identity may have several.
    """
    changes: list[RowDict] = []
    if _ends_changed(lake, made, versions):
        return None
    sign = f"CASE WHEN _change_type IN ({', '.join(map(repr, PRE_IMAGES))}) THEN -1 ELSE 1 END"
    counts = ", ".join(f"{sql} AS {name}" for name, sql in _CHANGE_AGGREGATES.items())
    for table, evidence in _EVIDENCE.items():
        name = _VERSION_PREFIX + str(table)
        if name not in versions:
            continue
        feeds = ChangeFeeds(lake, {str(table): made.get(name)}, {str(table): versions[name]})
        by_time = evidence.aggregate_sql("seen_at, CAST(sum(sign) AS bigint) AS net", sign)
        sql = f"SELECT {evidence.names}, {counts} FROM ({by_time}) WHERE net <> 0 GROUP BY ALL"
        rows = feeds.rows(table, sql.replace("{rows}", "{feed}"), **evidence.joined_tables)
        if rows is None:
            return None
        changes += ({**row, **identity} for row in rows for identity in evidence.identities(row))
    return changes


def _ends_changed(lake: Lake, made: Mapping[str, Any], versions: Mapping[str, int]) -> bool:
    """Whether a session shows other queue managers than before, or is gone: it may have carried messages of before."""
    name = _VERSION_PREFIX + str(SESSIONS)
    if name not in versions or name not in made:
        return False
    feeds = ChangeFeeds(lake, {str(SESSIONS): made[name]}, {str(SESSIONS): versions[name]})
    return feeds.rows(SESSIONS, f"SELECT count(*) AS n FROM ({_OTHER_ENDS})") not in ([], [{"n": 0}])


def apply_host_changes(known: Mapping[str, RowDict], changes: Iterable[RowDict]) -> dict[str, RowDict] | None:
    """Apply changes to rows of the table, by key; None if the result does not follow from them.

    ``known`` has all rows of the table that changes are about. A change is an identity with ``_CHANGE_AGGREGATES`` of
    its sightings. A deleted sighting must not be a first or last one, because then the next one is not known.
    """
    rows = dict(known)
    for change in sorted(changes, key=lambda change: change["first_gone_at"] is not None):  # sightings that came first
        name = _host_key(change)
        first_gone, last_gone = change["first_gone_at"], change["last_gone_at"]
        identity = {part: change[part] for part in _IDENTITY_COLUMNS}
        before = rows.get(name, {**identity, **dict.fromkeys(_TIME_AGGREGATES), "sightings": 0})
        times = {
            end: better((at for at in (before[end], change[end]) if at is not None), default=None)
            for end, better in _TIME_AGGREGATES.items()
        }
        first, last = times["first_seen_at"], times["last_seen_at"]
        if change["untimed"] or first is None:
            return None
        if first_gone is not None and not first < first_gone <= last_gone < last:
            return None
        rows[name] = _host_row({**before, **times, "sightings": before["sightings"] + change["sightings"]})
    return rows


class _HostEvidence(NamedTuple):
    """Evidence for identities of machines in a table: what to read of it, and how to extract identities from rows.

    ``columns`` are SQL over ``from_sql``, in which ``{rows}`` is the table; ``seen_at`` is the SQL of the time.
    ``extract`` yields identifier, name and address that a row shows together.
    """

    columns: tuple[str, ...]
    where: str
    seen_at: str
    source: str
    extract: Callable[[RowDict], Iterable[tuple[str | None, str | None, str | None]]]
    joined_tables: Mapping[str, Table] = {}
    from_sql: str = "{rows}"

    @property
    def names(self) -> str:
        """The names of the columns, for SQL."""
        return ", ".join(column.rpartition(" ")[2] for column in self.columns)

    def aggregate_sql(self, counts: str, sign: str) -> str:
        """Return the query for equal rows with aggregates over ``seen_at`` and ``sign``."""
        read = f"SELECT {', '.join(self.columns)}, {self.seen_at} AS seen_at, {sign} AS sign FROM {self.from_sql}"
        return f"SELECT {self.names}, {counts} FROM ({read} WHERE {self.where}) GROUP BY ALL"

    def identities(self, row: RowDict) -> Iterator[RowDict]:
        """Yield the identities in a row that tie at least two of identifier, name and address together.

        Of the endpoint mapper one is enough: the address serves Message Queuing. Zeros are those of no machine.
        """
        for identity in self.extract(row):
            known = [None if part in _OF_NO_MACHINE else part for part in identity]
            if len(known) - known.count(None) > (self.source != ENDPOINT_MAPPER):
                yield dict(zip(_IDENTITY_COLUMNS, (*known, self.source), strict=True))


def _host_of_path_name(path_name: str | None) -> str | None:
    r"""Return the host of a path name ``host\private$\q``, lower case; None for no path name, a dot, or an address."""
    found = _PATH_NAME.match(path_name or "")
    host = found[1].lower() if found else ""
    return None if host in ("", ".") or _IP_ADDRESS.search(host) else host


def _guid_of_format_name(format_name: str | None) -> str | None:
    """Return the queue manager's GUID of a private format name."""
    found = _PRIVATE_FORMAT_NAME.match((format_name or "").lower())
    return found[1] if found else None


# The address that was queried for a snapshot: from traffic ``queue_manager``, else what the collector noted.
_QUERIED_ADDRESS: Final = "CASE WHEN source = 'wire' THEN queue_manager ELSE server_address END AS address"
_JOINED_WITH_RAW: Final = "{rows} LEFT JOIN (SELECT snapshot_id, server_address FROM {raw}) AS raw USING (snapshot_id)"


def _identities_of_local_queue(row: RowDict) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Yield the identity in a snapshot of a local queue: host of the path name, GUID of the private format name."""
    yield (
        _guid_of_format_name(row["formatname"]) or _guid_of_format_name(row["queue_format_name"]),
        _host_of_path_name(row["pathname"]),
        row["address"],
    )


def _identities_of_machine(row: RowDict) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Yield the names of a machine in its snapshot: of its private queues, and in the collector's configuration."""
    names = {_host_of_path_name(each) for each in row["privateq"] or ()}
    if row["source"] == "collector" and row["queue_manager"] is not None:
        names.add(row["queue_manager"].lower())
    for name in sorted(names - {None}, key=str):
        yield None, name, row["address"]


def _identities_of_open(row: RowDict) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Yield the identity in an open call: host or GUID of the format name, and the server's address."""
    direct = _DIRECT_FORMAT_NAME.match(row["queue_format_name"] or "")
    yield (
        _guid_of_format_name(row["queue_format_name"]),
        _host_of_path_name(direct[1] if direct else None),
        row["server_address"],
    )


def _identities_of_epm_answer(row: RowDict) -> Iterator[tuple[str | None, str | None, str | None]]:
    """Yield the addresses that an endpoint mapper's answer shows to serve MSMQ: those of its towers, and its own."""
    found = {str(ipaddress.ip_address(address)) for address, _, _ in parse_tower_endpoints(row["response_stub"])}
    for address in sorted(found | {row["server_address"]} if found else found):
        yield None, None, address


# Both ends of a handshake. An identifier that was only asked for, and not answered, need not be of that machine.
_SESSION_ENDS: Final = """(
  SELECT *, initiator_queue_manager AS guid, client_address AS address,
    coalesce(establish_requested_at, establish_answered_at) AS seen_at FROM {rows}
  UNION ALL
  SELECT *, acceptor_queue_manager AS guid, server_address AS address, establish_answered_at AS seen_at FROM {rows}
) AS ends"""
_OTHER_ENDS: Final = f"""
SELECT connection_id FROM {{feed}} GROUP BY connection_id HAVING {MORE_ROWS_SQL} < 0
  OR count(DISTINCT coalesce(initiator_queue_manager, '') || ' ' || coalesce(acceptor_queue_manager, '')) > 1"""
# What a routing server sends comes from its own address, not from that of the queue manager that the message names.
_WITH_SESSION: Final = """{rows} AS messages LEFT JOIN (
  SELECT connection_id AS session, client_address, server_address, initiator_queue_manager, acceptor_queue_manager
  FROM {sessions}
) AS sessions ON session = connection_id AND packet_key IS NOT NULL"""
_SENDER_SQL: Final = (
    "CASE WHEN sender_address = client_address THEN initiator_queue_manager"
    " WHEN sender_address = server_address THEN acceptor_queue_manager END"
)
# Messages name the queue manager that first accepted them, some also the address that they were sent from. Opens are
# RemoteRead 2 and 11, and qmcomm 2.
_EVIDENCE: Final[dict[Table, _HostEvidence]] = {
    QUEUE_SNAPSHOTS: _HostEvidence(
        ("formatname", "queue_format_name", "pathname", _QUERIED_ADDRESS), "upper(location) = 'LOCAL'", "observed_at",
        "snapshot", _identities_of_local_queue, {"raw": SNAPSHOTS_RAW}, _JOINED_WITH_RAW,
    ),
    MACHINE_SNAPSHOTS: _HostEvidence(
        ("privateq", "source", "queue_manager", _QUERIED_ADDRESS), "TRUE", "observed_at", "snapshot",
        _identities_of_machine, {"raw": SNAPSHOTS_RAW}, _JOINED_WITH_RAW,
    ),
    MESSAGES: _HostEvidence(
        ("source_queue_manager", "sender_address"),
        "source_queue_manager IS NOT NULL AND sender_address IS NOT NULL AND hop_count = 0"
        f" AND coalesce({_SENDER_SQL}, source_queue_manager) = source_queue_manager", "seen_at", "message",
        lambda row: [(row["source_queue_manager"], None, row["sender_address"])], {"sessions": SESSIONS}, _WITH_SESSION,
    ),
    REMOTE_READ_CALLS: _HostEvidence(
        ("queue_format_name", "server_address"),
        "protocol = 'RemoteRead' AND opnum IN (2, 11) AND context_handle IS NOT NULL", "responded_at", "format_name",
        _identities_of_open,
    ),
    CLIENT_CALLS: _HostEvidence(
        ("queue_format_name", "server_address"),
        "interface_name = 'qmcomm' AND opnum = 2 AND context_handle IS NOT NULL", "responded_at", "format_name",
        _identities_of_open,
    ),
    RPC_CALLS: _HostEvidence(
        ("response_stub", "server_address"),
        f"interface_name = 'epm' AND opnum = {EPT_MAP_OPNUM} AND response_stub IS NOT NULL", "response_at",
        ENDPOINT_MAPPER, _identities_of_epm_answer,
    ),
    SESSIONS: _HostEvidence(
        ("guid", "address"), "guid IS NOT NULL AND seen_at IS NOT NULL", "seen_at", "session",
        lambda row: [(row["guid"], None, row["address"])], from_sql=_SESSION_ENDS,
    ),
}  # fmt: skip
