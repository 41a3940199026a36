r"""Queue aliases: evidence that two names mean the same queue, and the canonical name of each group of aliases.

Evidence is a table of ``ALIAS_EVIDENCE_SCHEMA``: each pair of normal forms gives one row for either name. Sources are
snapshots (PATHNAME, FORMATNAME and the requested object), queue names in responses of qmcomm 1 and 19, direct names
opened on a server's address (``host\rest`` is ``address\rest``), and configuration.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.queue_aliases import QUEUE_ALIASES
from udfs.call_results import call_succeeded
from udfs.columns.arrays import over_distinct
from udfs.queues.normal_form import normalize_queue_name, split_queue_suffix

NAMED_AS_PATH_NAME: Final = "path_name"
NAMED_AS_FORMAT_NAME: Final = "format_name"

ALIAS_EVIDENCE_SCHEMA: Final = QUEUE_ALIASES.schema(
    only=("queue", "other_queue", "named_as", "evidence", "call_key", "snapshot_id", "observed_at")
)
CANONICAL_QUEUE_SCHEMA: Final = QUEUE_ALIASES.schema(only=("queue", "canonical_queue"))

_OPEN_METHODS: Final = {("RemoteRead", 2), ("RemoteRead", 11), ("qmcomm", 2)}  # the server is the queue's owner
_GET_NAME, _OPEN_REMOTE, _OPEN_INTERNAL, _CREATE_CURSOR = ("qmcomm", 1), ("qmcomm", 2), ("qmcomm", 19), ("qmcomm2", 3)

RowValues = Mapping[str, Any]


class _NamedQueue(NamedTuple):
    """A normal form, and whether it was given as path name or format name."""

    queue: str
    named_as: str


def _parse_name(name: str | None, named_as: str | None = None) -> _NamedQueue | None:
    """Return a name with its kind, guessed if not given: FORMATNAME may be a path name (doubt D21, packet sheet)."""
    queue = normalize_queue_name(name)
    if not name or not queue or queue.startswith(".\\"):  # "." is an unknown local machine
        return None
    guessed = NAMED_AS_FORMAT_NAME if "=" in name.partition("\\")[0] else NAMED_AS_PATH_NAME
    return _NamedQueue(queue, named_as or guessed)


def _add_evidence(
    out: list[dict[str, Any]], one: _NamedQueue | None, two: _NamedQueue | None, **source: object
) -> None:
    """Add the evidence that two names are aliases; journals and subqueues give evidence for their queues."""
    if one is None or two is None:
        return
    (first, suffix), (second, other) = split_queue_suffix(one.queue), split_queue_suffix(two.queue)
    if first == second or not first or not second or (suffix and other and suffix != other):
        return
    pair = _NamedQueue(first, one.named_as), _NamedQueue(second, two.named_as)
    for name, alias in (pair, pair[::-1]):
        out.append({"queue": name.queue, "other_queue": alias.queue, "named_as": name.named_as, **source})


def _evidence_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=ALIAS_EVIDENCE_SCHEMA)


def is_address(host: str) -> bool:
    """Return whether the host of a queue name is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def alias_evidence_from_snapshots(snapshots: pa.Table) -> pa.Table:
    """Return the alias evidence of queue snapshots: PATHNAME, FORMATNAME and the requested object name one queue.

    ``snapshots`` are rows of ``silver.queue_snapshots`` with ``queue``, ``pathname``, ``formatname``, ``snapshot_id``,
    ``call_key`` and ``observed_at``.
    """
    out: list[dict[str, Any]] = []
    names = ["queue", "pathname", "formatname", "snapshot_id", "call_key", "observed_at"]
    for row in snapshots.select(names).to_pylist():
        source = {name: row[name] for name in names[3:]} | {"evidence": "snapshot"}
        path, name = _parse_name(row["pathname"]), _parse_name(row["formatname"])
        requested = _parse_name(row["queue"], NAMED_AS_FORMAT_NAME)
        _add_evidence(out, path, name, **source)
        _add_evidence(out, path, requested, **source)
        _add_evidence(out, name, requested, **source)
    return _evidence_table(out)


def _select_methods(calls: pa.Table, methods: Iterable[tuple[str, int]]) -> pa.Table:
    """Return the calls of the given methods, (interface, opnum)."""
    ours = pa.array(np.zeros(calls.num_rows, np.bool_))
    for interface, opnum in methods:
        this = pc.and_(pc.equal(calls.column("interface_name"), interface), pc.equal(calls.column("opnum"), opnum))
        ours = pc.or_(ours, pc.fill_null(this, False))  # noqa: FBT003
    return calls.filter(ours)


def alias_evidence_from_opens(calls: pa.Table) -> pa.Table:
    r"""Return the alias evidence of direct names opened on a server's address: ``host\rest`` is ``address\rest``.

    ``calls`` are rows of ``silver.client_calls`` and ``silver.remote_read_calls`` (their ``protocol`` as
    ``interface_name``) with ``opnum``, ``queue_format_name``, ``queue``, ``server_address``, ``context_handle``,
    ``call_key``, ``requested_at`` and ``responded_at``. Opens that returned no handle are no evidence.
    """
    out: list[dict[str, Any]] = []
    names = ["interface_name", "opnum", "queue_format_name", "queue", "server_address", "context_handle", "call_key",
             "requested_at", "responded_at"]  # fmt: skip
    for row in _select_methods(calls.select(names), _OPEN_METHODS).to_pylist():
        queue = row["queue"]
        if not row["context_handle"] or not queue:
            continue
        host, separator, rest = queue.partition("\\")
        if not (row["queue_format_name"] or "").upper().startswith("DIRECT=") or not separator or "=" in host:
            continue
        there = _NamedQueue(f"{row['server_address']}\\{rest}".lower(), NAMED_AS_FORMAT_NAME)
        _add_evidence(out, _NamedQueue(queue, NAMED_AS_FORMAT_NAME), there, **_call_source(row))
    return _evidence_table(out)


def _call_source(row: RowValues) -> dict[str, Any]:
    return {"evidence": "open", "call_key": row["call_key"], "observed_at": row["responded_at"] or row["requested_at"]}


def alias_evidence_from_responses(calls: pa.Table) -> pa.Table:
    """Return the alias evidence of queue names in responses of qmcomm 1 and 19, from rows of ``silver.client_calls``.

    rpc_QMOpenQueueInternal has the queue in its request. R_QMGetRemoteQueueName has a number only: cli_pQMQueue of an
    rpc_ACCreateCursorEx, whose context handle rpc_QMOpenQueueInternal returned ([MS-MQMP] 3.1.4.1), or dwpQueue of an
    R_QMOpenRemoteQueue; the latest of that number on that server before the request.
    """
    out: list[dict[str, Any]] = []
    names = ["interface_name", "opnum", "queue", "remote_queue_name", "server_address", "queue_descriptor",
             "context_handle", "hresult", "call_key", "requested_at", "responded_at"]  # fmt: skip
    handles: dict[tuple[str, str], str] = {}
    numbers: dict[tuple[str, int], str] = {}
    never = datetime.min.replace(tzinfo=UTC)
    methods = {_GET_NAME, _OPEN_REMOTE, _OPEN_INTERNAL, _CREATE_CURSOR}
    found = _select_methods(calls.select(names), methods).to_pylist()
    rows = [row for row in found if call_succeeded(row["interface_name"], row["hresult"])]
    for row in sorted(rows, key=lambda row: (row["responded_at"] or row["requested_at"] or never, row["call_key"])):
        method, server, number = (row["interface_name"], row["opnum"]), row["server_address"], row["queue_descriptor"]
        requested = row["queue"]
        if method == _OPEN_INTERNAL and row["context_handle"] and requested:
            handles[server, row["context_handle"]] = requested
        elif method == _OPEN_REMOTE and number and requested:
            numbers[server, number] = requested
        elif method == _CREATE_CURSOR and number and (server, row["context_handle"]) in handles:
            numbers[server, number] = handles[server, row["context_handle"]]
        if method == _GET_NAME:
            requested = numbers.get((server, number))
        if method in (_GET_NAME, _OPEN_INTERNAL) and requested:
            _add_evidence(
                out,
                _parse_name(row["remote_queue_name"], NAMED_AS_PATH_NAME),
                _NamedQueue(requested, NAMED_AS_FORMAT_NAME),
                **_call_source(row),
            )
    return _evidence_table(out)


def alias_evidence_from_configuration(pairs: Iterable[tuple[str, str]]) -> pa.Table:
    """Return the alias evidence of pairs of names that the configuration declares equal."""
    out: list[dict[str, Any]] = []
    for one, two in pairs:
        _add_evidence(out, _parse_name(one), _parse_name(two), evidence="configuration")
    return _evidence_table(out)


def _canonical_rank(queue: str, paths: Mapping[str, datetime]) -> tuple[int, datetime, str]:
    """Return the sort key of a group's names: earliest path name, direct name with host, with address, others."""
    latest = datetime.max.replace(tzinfo=UTC)
    if queue in paths:
        return 0, paths[queue], queue
    host, separator, _ = queue.partition("\\")
    if not separator or "=" in host or _is_guid(host):
        return 3, latest, queue
    return 2 if is_address(host) else 1, latest, queue


def _is_guid(text: str) -> bool:
    return len(text) == 36 and text.count("-") == 4 and all(part.isalnum() for part in text.split("-"))


def canonical_queues(evidence: pa.Table) -> pa.Table:
    """Return each name of the evidence with the canonical name of its group, sorted (``CANONICAL_QUEUE_SCHEMA``)."""
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
        if named_as == NAMED_AS_PATH_NAME:
            paths[queue] = min(paths.get(queue, latest), at or latest)
    best: dict[str, str] = {}
    for queue in above:
        group = root(queue)
        if group not in best or _canonical_rank(queue, paths) < _canonical_rank(best[group], paths):
            best[group] = queue
    queues = sorted(above)
    return pa.table([queues, [best[root(queue)] for queue in queues]], schema=CANONICAL_QUEUE_SCHEMA)


def canonicalize(queues: pa.Array, canonical: pa.Table) -> pa.Array:
    """Return the canonical name of each normal form; a name in no group is canonical itself.

    Journals and subqueues follow their queue: ``a;journal`` becomes ``b;journal`` if ``a`` becomes ``b``.
    """
    columns = (canonical.column(name).to_pylist() for name in CANONICAL_QUEUE_SCHEMA.names)
    known: dict[str, str] = dict(zip(*columns, strict=True))
    return over_distinct(queues, partial(canonical_queue_name, known=known), pa.string())


def canonical_queue_name(queue: str | None, known: Mapping[str, str]) -> str | None:
    """Return the canonical name of one normal form; ``known`` maps the names of all groups to their canonical ones."""
    if queue is None or queue in known:
        return None if queue is None else known[queue]
    base, suffix = split_queue_suffix(queue)
    return known.get(base, base) + suffix


def queue_alias_rows(evidence: pa.Table) -> pa.Table:
    """Return the rows of ``silver.queue_aliases``: the evidence with the canonical name of each ``queue``."""
    canonical = canonicalize(evidence.column("queue").combine_chunks(), canonical_queues(evidence))
    return evidence.append_column("canonical_queue", canonical)
