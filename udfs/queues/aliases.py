r"""Which texts name the same queue: the evidence, and the one text of each group that stands for all.

Evidence is a table of EVIDENCE: each piece binds two normal forms and gives a row for each of them. It comes from a
snapshot (PATHNAME, FORMATNAME and the object asked), from the name that qmcomm 1 or 19 answered to who asked for a
queue, from a direct name opened on a server's address (``host\rest`` is ``address\rest``), and from configuration.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.queues.normal_form import normal_text, parent

PATH_NAME: Final = "path_name"
FORMAT_NAME: Final = "format_name"

EVIDENCE: Final = pa.schema(
    {
        "queue": pa.string(),
        "other_queue": pa.string(),
        "named_as": pa.string(),
        "evidence": pa.string(),
        "call_key": pa.string(),
        "snapshot_id": pa.string(),
        "observed_at": pa.timestamp("us", tz="UTC"),
    }
)
CANONICAL: Final = pa.schema({"queue": pa.string(), "canonical_queue": pa.string()})

_OPENS: Final = {("RemoteRead", 2), ("RemoteRead", 11), ("qmcomm", 2)}  # answered by the queue's owner itself
_GET_NAME, _OPEN_REMOTE, _OPEN_INTERNAL, _CREATE_CURSOR = ("qmcomm", 1), ("qmcomm", 2), ("qmcomm", 19), ("qmcomm2", 3)

Row = Mapping[str, Any]


class _Named(NamedTuple):
    """A normal form, and what it was shown as."""

    queue: str
    named_as: str


def _named(name: str | None, named_as: str | None = None) -> _Named | None:
    """Return a name with its kind: a FORMATNAME may hold a path name (doubt D21 of the sheet on packets)."""
    queue = normal_text(name)
    if not name or not queue or queue.startswith(".\\"):  # whose own name for itself a dot is, nobody can tell
        return None
    shown = FORMAT_NAME if "=" in name.partition("\\")[0] else PATH_NAME
    return _Named(queue, named_as or shown)


def _bind(out: list[dict[str, Any]], one: _Named | None, two: _Named | None, **source: object) -> None:
    """Add a piece of evidence. A journal or subqueue binds the queues that they belong to."""
    if one is None or two is None:
        return
    (first, suffix), (second, other) = parent(one.queue), parent(two.queue)
    if first == second or not first or not second or (suffix and other and suffix != other):
        return
    pair = _Named(first, one.named_as), _Named(second, two.named_as)
    for mine, its in (pair, pair[::-1]):
        out.append({"queue": mine.queue, "other_queue": its.queue, "named_as": mine.named_as, **source})


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=EVIDENCE)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def aliases_of_snapshots(snapshots: pa.Table) -> pa.Table:
    """Return the evidence of rows of ``silver.queue_snapshots``: PATHNAME, FORMATNAME and the object asked.

    Read are ``queue``, ``pathname``, ``formatname``, ``snapshot_id``, ``call_key`` and ``observed_at``.
    """
    out: list[dict[str, Any]] = []
    names = ["queue", "pathname", "formatname", "snapshot_id", "call_key", "observed_at"]
    for row in snapshots.select(names).to_pylist():
        source = {name: row[name] for name in names[3:]} | {"evidence": "snapshot"}
        path, name = _named(row["pathname"]), _named(row["formatname"])
        asked = _named(row["queue"], FORMAT_NAME)
        _bind(out, path, name, **source)
        _bind(out, path, asked, **source)
        _bind(out, name, asked, **source)
    return _table(out)


def _of_methods(calls: pa.Table, methods: Iterable[tuple[str, int]]) -> pa.Table:
    """Return the calls of some methods, (interface, opnum): few of many."""
    ours = pa.array(np.zeros(calls.num_rows, np.bool_))
    for interface, opnum in methods:
        this = pc.and_(pc.equal(calls.column("interface_name"), interface), pc.equal(calls.column("opnum"), opnum))
        ours = pc.or_(ours, pc.fill_null(this, False))  # noqa: FBT003
    return calls.filter(ours)


def aliases_of_opens(calls: pa.Table) -> pa.Table:
    r"""Return the evidence of direct names opened on an address: ``host\rest`` there is ``address\rest``.

    ``calls`` are rows of ``silver.client_calls`` and ``silver.remote_read_calls`` (their ``protocol`` as
    ``interface_name``) with ``opnum``, ``queue_format_name``, ``queue``, ``server_address``, ``context_handle``,
    ``call_key``, ``requested_at`` and ``responded_at``. Opens that gave no handle show nothing.
    """
    out: list[dict[str, Any]] = []
    names = ["interface_name", "opnum", "queue_format_name", "queue", "server_address", "context_handle", "call_key",
             "requested_at", "responded_at"]  # fmt: skip
    for row in _of_methods(calls.select(names), _OPENS).to_pylist():
        queue = row["queue"]
        if not row["context_handle"] or not queue:
            continue
        host, separator, rest = queue.partition("\\")
        if not (row["queue_format_name"] or "").upper().startswith("DIRECT=") or not separator or "=" in host:
            continue
        there = _Named(f"{row['server_address']}\\{rest}".lower(), FORMAT_NAME)
        _bind(out, _Named(queue, FORMAT_NAME), there, **_seen(row))
    return _table(out)


def _seen(row: Row) -> dict[str, Any]:
    return {"evidence": "open", "call_key": row["call_key"], "observed_at": row["responded_at"] or row["requested_at"]}


def aliases_of_answers(calls: pa.Table) -> pa.Table:
    """Return the evidence of the names that qmcomm 1 and 19 answered, from rows of ``silver.client_calls``.

    rpc_QMOpenQueueInternal tells the queue asked for itself. R_QMGetRemoteQueueName asks by a number: cli_pQMQueue of
    an rpc_ACCreateCursorEx, whose context handle rpc_QMOpenQueueInternal gave ([MS-MQMP] 3.1.4.1), or dwpQueue of an
    R_QMOpenRemoteQueue; the newest of that number at that server before the question.
    """
    out: list[dict[str, Any]] = []
    names = ["interface_name", "opnum", "queue", "remote_queue_name", "server_address", "queue_descriptor",
             "context_handle", "hresult", "call_key", "requested_at", "responded_at"]  # fmt: skip
    handles: dict[tuple[str, str], str] = {}
    numbers: dict[tuple[str, int], str] = {}
    never = datetime.min.replace(tzinfo=UTC)
    methods = {_GET_NAME, _OPEN_REMOTE, _OPEN_INTERNAL, _CREATE_CURSOR}
    rows = [row for row in _of_methods(calls.select(names), methods).to_pylist() if row["hresult"] == 0]
    for row in sorted(rows, key=lambda row: (row["responded_at"] or row["requested_at"] or never, row["call_key"])):
        method, server, number = (row["interface_name"], row["opnum"]), row["server_address"], row["queue_descriptor"]
        asked = row["queue"]
        if method == _OPEN_INTERNAL and row["context_handle"] and asked:
            handles[server, row["context_handle"]] = asked
        elif method == _OPEN_REMOTE and number and asked:
            numbers[server, number] = asked
        elif method == _CREATE_CURSOR and number and (server, row["context_handle"]) in handles:
            numbers[server, number] = handles[server, row["context_handle"]]
        if method == _GET_NAME:
            asked = numbers.get((server, number))
        if method in (_GET_NAME, _OPEN_INTERNAL) and asked:
            _bind(out, _named(row["remote_queue_name"], PATH_NAME), _Named(asked, FORMAT_NAME), **_seen(row))
    return _table(out)


def aliases_of_configuration(pairs: Iterable[tuple[str, str]]) -> pa.Table:
    """Return the evidence of names that the configuration declares equal, as they are written there."""
    out: list[dict[str, Any]] = []
    for one, two in pairs:
        _bind(out, _named(one), _named(two), evidence="configuration")
    return _table(out)


def _rank(queue: str, paths: Mapping[str, datetime]) -> tuple[int, datetime, str]:
    """Order the texts of a group: the path name shown first, a direct name with a host, one with an address, any."""
    latest = datetime.max.replace(tzinfo=UTC)
    if queue in paths:
        return 0, paths[queue], queue
    host, separator, _ = queue.partition("\\")
    if not separator or "=" in host or _is_guid(host):
        return 3, latest, queue
    return 2 if _is_address(host) else 1, latest, queue


def _is_guid(text: str) -> bool:
    return len(text) == 36 and text.count("-") == 4 and all(part.isalnum() for part in text.split("-"))


def canonical_queues(evidence: pa.Table) -> pa.Table:
    """Return every text of the evidence with the one that stands for its group (CANONICAL), ordered by text."""
    above: dict[str, str] = {}

    def root(queue: str) -> str:
        above.setdefault(queue, queue)
        while above[queue] != queue:
            above[queue] = above[above[queue]]
            queue = above[queue]
        return queue

    paths: dict[str, datetime] = {}
    latest = datetime.max.replace(tzinfo=UTC)
    names = ["queue", "other_queue", "named_as", "observed_at"]
    for queue, other, named_as, at in zip(*(evidence.column(name).to_pylist() for name in names), strict=True):
        above[root(queue)] = root(other)
        if named_as == PATH_NAME:
            paths[queue] = min(paths.get(queue, latest), at or latest)
    best: dict[str, str] = {}
    for queue in above:
        group = root(queue)
        if group not in best or _rank(queue, paths) < _rank(best[group], paths):
            best[group] = queue
    queues = sorted(above)
    return pa.table([queues, [best[root(queue)] for queue in queues]], schema=CANONICAL)


def canonical_of(queues: pa.Array, canonical: pa.Table) -> pa.Array:
    """Return the canonical text of every normal form; one that is in no group stands for itself.

    Journals and subqueues follow their queue: ``a;journal`` becomes ``b;journal`` where ``a`` becomes ``b``.
    """
    columns = (canonical.column(name).to_pylist() for name in CANONICAL.names)
    known: dict[str, str] = dict(zip(*columns, strict=True))
    encoded = queues.dictionary_encode()
    distinct = [canonical_text(queue, known) for queue in encoded.dictionary.to_pylist()]
    return pa.array(distinct, pa.string()).take(encoded.indices)


def canonical_text(queue: str | None, known: Mapping[str, str]) -> str | None:
    """Return the canonical text of one normal form; ``known`` has that of every text of a group."""
    if queue is None or queue in known:
        return None if queue is None else known[queue]
    base, suffix = parent(queue)
    return known.get(base, base) + suffix


def queue_aliases(evidence: pa.Table) -> pa.Table:
    """Return rows of ``silver.queue_aliases``: the evidence with the canonical text of each ``queue``."""
    canonical = canonical_of(evidence.column("queue").combine_chunks(), canonical_queues(evidence))
    return evidence.append_column("canonical_queue", canonical)
