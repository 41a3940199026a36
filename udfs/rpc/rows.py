"""Settled calls -> rows of ``rpc_calls`` (tables.md, bronze), as Arrow record batches."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from udfs.capture.container import NO_TIME, Ints
from udfs.capture.flows import Connection
from udfs.capture.spool import Spool
from udfs.keys import hash_key, key_bytes
from udfs.rpc.association import Context
from udfs.rpc.calls import (
    AUTH_LEVEL_CALL,
    AUTH_LEVEL_PRIVACY,
    NEVER,
    Calls,
    Flags,
    association,
    bind_level,
    keep,
    spans,
)
from udfs.rpc.interfaces import BY_UUID, EPM, EPT_MAP, NDR, NDR64, PORT_ASKING, QM2QM, REMOTE_READ, Seen, infer
from udfs.rpc.pdu import FAULT, OBJECT_UUID, REQUEST
from udfs.rpc.verification import trailer_start, without_trailers
from udfs.sealed.pieces import packed

TIMESTAMP: Final = pa.timestamp("us", "UTC")
SIGHTING: Final = pa.struct(
    [
        ("capture_id", pa.string()),
        ("request_packet", pa.int64()),
        ("response_capture_id", pa.string()),
        ("response_packet", pa.int64()),
        ("byte_offset", pa.int64()),
        ("request_at", pa.int64()),
        ("request_done_at", pa.int64()),
        ("response_at", pa.int64()),
        ("response_done_at", pa.int64()),
        ("request", pa.int32()),
        ("response", pa.int32()),
        ("settled", pa.bool_()),
    ]
)
CALLS_SCHEMA: Final = pa.schema(
    [
        ("call_key", pa.string()),
        ("connection_id", pa.string()),
        ("client_address", pa.string()),
        ("client_port", pa.int32()),
        ("server_address", pa.string()),
        ("server_port", pa.int32()),
        ("call_id", pa.int64()),
        ("context_id", pa.int32()),
        ("interface_uuid", pa.string()),
        ("interface_name", pa.string()),
        ("transfer_syntax", pa.string()),
        ("opnum", pa.int32()),
        ("object_uuid", pa.string()),
        ("byte_order", pa.string()),
        ("auth_type", pa.int32()),
        ("auth_level", pa.int32()),
        ("bind_seen", pa.bool_()),
        ("sealed", pa.bool_()),
        ("request_at", TIMESTAMP),
        ("request_done_at", TIMESTAMP),
        ("response_at", TIMESTAMP),
        ("response_done_at", TIMESTAMP),
        ("cancelled_at", TIMESTAMP),
        ("orphaned_at", TIMESTAMP),
        ("request_fragments", pa.int32()),
        ("response_fragments", pa.int32()),
        ("request_stub", pa.binary()),
        ("response_stub", pa.binary()),
        ("fault_status", pa.int64()),
        ("outcome", pa.string()),
        ("capture_id", pa.string()),
        ("request_packet", pa.int64()),
        ("response_capture_id", pa.string()),
        ("response_packet", pa.int64()),
        ("byte_offset", pa.int64()),
        ("observations", pa.int32()),
        ("opened_by", pa.string()),
        ("closed_reason", pa.string()),
        ("verified_by", pa.string()),
        ("response_byte_order", pa.string()),
        ("request_sequence", pa.int64()),
        ("response_sequence", pa.int64()),
        ("sightings", pa.list_(SIGHTING)),
        ("request_pieces", pa.binary()),
        ("response_pieces", pa.binary()),
        ("event_date", pa.date32()),
    ]
)
OUTCOMES: Final = ("no_request", "damaged", "no_response", "fault", "encrypted", "unbound", "ok")
# Bytes of request and answer of a call that is kept though it is finished: more, of each connection, costs too much.
_SMALL_CALL: Final = 2048
_EPT_MAP: Final = (EPM.name, EPT_MAP)
_DAY_US: Final = 86_400_000_000
_CONTEXT: Final = "context"  # column of rows that wait: connection and context id
_NO_FIXED_LENGTH: Final = 512  # stubs longer than this are alike as evidence: no fixed layout is
_MAX_EVIDENCE: Final = 4096  # different shapes of calls of one context; more tell nothing new

Meaning = tuple[str | None, str | None]  # interface UUID and transfer syntax of a context without its bind
Meanings = dict[tuple[int, int], Meaning]  # by connection and context id


def batch_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a batch; times in them are microseconds, dates are days, both since the epoch."""
    plain = {TIMESTAMP: pa.int64(), pa.date32(): pa.int32()}
    columns = []
    for column in schema:
        values = [row[column.name] for row in rows]
        columns.append(pa.array(values, plain.get(column.type, column.type)).cast(column.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Identity(NamedTuple):
    """What names a connection in the tables: ``made_of`` says from which facts, for these may still change."""

    made_of: tuple[int, int]
    four_tuple: tuple[str, int, str, int]
    connection_id: str
    prefix: bytes  # the four-tuple as keys are made of it


def identity(connection: Connection) -> Identity:
    """Return a connection's names and its key, that of its four-tuple and the time of its first packet."""
    made_of = (connection.likely_client(), connection.first_time)
    known = connection.identity
    if isinstance(known, Identity) and known.made_of == made_of:
        return known
    (_, one, port), (_, two, other) = connection.endpoints[made_of[0]], connection.endpoints[made_of[0] ^ 1]
    names = (str(ipaddress.ip_address(one)), port, str(ipaddress.ip_address(two)), other)
    prefix = key_bytes(*names)
    time = None if made_of[1] == NO_TIME else made_of[1] // 1000
    connection.identity = found = Identity(made_of, names, hash_key(prefix + key_bytes(time)), prefix)
    return found


def four_tuple(connection: Connection) -> tuple[str, int, str, int]:
    """Return client address, client port, server address, server port."""
    return identity(connection).four_tuple


def connection_id(connection: Connection) -> str:
    """Return the key of a connection."""
    return identity(connection).connection_id


def times(values: Ints, valid: Flags) -> pa.Array:
    """Return nanoseconds as microseconds, floored; null where not valid or unknown."""
    good = valid & (values != NO_TIME) & (values != NEVER)
    return pa.array(np.where(good, values // 1000, 0), pa.int64(), mask=~good).cast(TIMESTAMP)


@dataclass(slots=True)
class Made:
    """The calls that became rows, by connection and context id (-1: its bind was captured).

    ``settled``: how many nothing else can change; ``unfinished``: the keys of those that other captures may change.
    """

    settled: Counter[tuple[int, int]] = field(default_factory=Counter)
    unfinished: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def add(self, other: Made) -> None:
        """Add those of another reading of the same capture."""
        self.settled += other.settled
        for name, keys in other.unfinished.items():
            self.unfinished.setdefault(name, []).extend(keys)

    def drop(self, connections: set[int]) -> None:
        """Forget those of some connections."""
        for name in [name for name in self.settled if name[0] in connections]:
            del self.settled[name]
        for name in [name for name in self.unfinished if name[0] in connections]:
            del self.unfinished[name]


class RowBuilder:
    """Builds the rows of one reading of a capture; ``only`` restricts it to some connections.

    Calls of contexts without a bind wait, as rows, until all that was seen of the context is known (``evidence`` of its
    association): ``provisional`` then gives them the meaning that was inferred, or drops them.
    """

    def __init__(self, only: set[int] | None = None) -> None:
        self.capture_id = ""
        self.learnt: dict[tuple[bytes, int], set[str]] = {}
        self.taught: dict[int, set[tuple[bytes, int, str]]] = {}  # what of it by calls of which connection
        self.made = Made()
        self.finishing = False  # at the end of a capture: what is not finished is kept already
        self._only = only
        self._waiting = Spool(CALLS_SCHEMA.append(pa.field(_CONTEXT, pa.int64())))

    def build(self, calls: Calls, connections: list[Connection]) -> pa.RecordBatch | None:
        """Return the rows of calls whose interface is known to be ours, or None if there are none."""
        pdus, halves = calls.pdus, calls.halves
        if not self.finishing:
            for half in calls.lone.tolist():
                keep(calls.pdus, range(halves.first[half], halves.last[half] + 1), calls.fragment, connections)
        if not len(calls.request):
            return None
        lead = np.where(calls.request >= 0, calls.request, calls.response)
        head = halves.first[lead]
        owner, context = pdus.connection[head], pdus.context[head]
        contexts = _contexts(owner, context, pdus.place[head], connections)
        candidates = contexts.ours | contexts.unknown
        if self._only is not None:
            kept = np.isin(owner, sorted(self._only))
            contexts.ours &= kept
            contexts.unknown &= kept
        unknown = np.nonzero(contexts.unknown)[0]
        if len(unknown):
            _note_evidence(calls, unknown, owner, context, connections)
        if self.finishing:  # what is settled only because the capture ends, is kept as far as it was not too much
            unfinished = ~_left(calls, owner, connections)
        else:
            unexplained = contexts.unknown & ~self._explained(owner, context, unknown, connections)
            unfinished = _keep(calls, candidates, unexplained, owner, connections)
        if len(unknown):
            rows = self._rows(calls, unknown, owner[unknown], contexts, connections)
            self._note_made(rows, owner[unknown], context[unknown], unfinished[unknown])
            column = pa.array(owner[unknown] << 17 | context[unknown])
            self._waiting.add(pa.RecordBatch.from_arrays([*rows.columns, column], schema=self._waiting.schema))
        ours = np.nonzero(contexts.ours)[0]
        if not len(ours):
            return None
        batch = self._rows(calls, ours, owner[ours], contexts, connections)
        _count_calls(owner[ours], connections)
        self._note_made(batch, owner[ours], np.full(len(ours), -1), unfinished[ours])
        self._learn_ports(batch, owner[ours], connections)
        return batch

    def _note_made(self, rows: pa.RecordBatch, owner: Ints, context: Ints, unfinished: Flags) -> None:
        keys = rows.column("call_key").take(pa.array(np.nonzero(unfinished)[0])).to_pylist()
        for index, context_id, name in zip(owner[unfinished].tolist(), context[unfinished].tolist(), keys, strict=True):
            self.made.unfinished.setdefault((index, context_id), []).append(name)
        final = ~unfinished
        pairs, counts = np.unique(np.stack([owner[final], context[final]]), axis=1, return_counts=True)
        for index, context_id, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self.made.settled[index, context_id] += count

    def _explained(self, owner: Ints, context: Ints, unknown: Ints, connections: list[Connection]) -> Flags:
        """Tell of which calls without a bind the interface is inferred already: they will be rows without more."""
        explained = np.zeros(len(owner), bool)
        pair = owner << 17 | context
        for one in np.unique(pair[unknown]).tolist():
            connection = connections[one >> 17]
            _, address, port = connection.endpoints[connection.likely_client() ^ 1]
            seen = association(connection).evidence.get(one & 0x1FFFF, set())
            if infer(seen, port, self.learnt.get((address, port), ())) is not None:
                explained |= pair == one
        return explained

    def provisional(self, meanings: Meanings, connections: list[Connection]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that waited for a meaning and got one."""
        pairs = np.array(sorted(index << 17 | context for index, context in meanings), np.int64)
        values = [meanings[pair >> 17, pair & 0x1FFFF] for pair in pairs.tolist()]
        texts = {
            "interface_uuid": pa.array([uuid_ for uuid_, _ in values], pa.string()),
            "interface_name": pa.array([None if u is None else BY_UUID[u].name for u, _ in values], pa.string()),
            "transfer_syntax": pa.array([syntax for _, syntax in values], pa.string()),
        }
        for batch in self._waiting.batches():
            if not len(pairs):
                return
            context = batch.column(_CONTEXT).to_numpy()
            place = np.minimum(np.searchsorted(pairs, context), len(pairs) - 1)
            kept = pairs[place] == context
            if not kept.any():
                continue
            rows = batch.filter(pa.array(kept))
            _count_calls(context[kept] >> 17, connections)
            index = pa.array(place[kept])
            columns = [texts[name].take(index) if name in texts else rows.column(name) for name in CALLS_SCHEMA.names]
            yield pa.RecordBatch.from_arrays(columns, schema=CALLS_SCHEMA)

    def _rows(
        self, calls: Calls, rows: Ints, owner: Ints, contexts: _Contexts, connections: list[Connection]
    ) -> pa.RecordBatch:
        pdus, halves = calls.pdus, calls.halves
        request, response = calls.request[rows], calls.response[rows]
        asked, answered = request >= 0, response >= 0
        ask_first, ask_last = halves.first[request], halves.last[request]
        reply_first, reply_last = halves.first[response], halves.last[response]
        head = np.where(asked, ask_first, reply_first)
        whole_request = asked & halves.whole[request]
        whole_response = answered & halves.whole[response]
        fault = answered & (pdus.ptype[reply_last] == FAULT)
        privacy = pdus.auth_level == AUTH_LEVEL_PRIVACY
        signed = (pdus.auth_level >= AUTH_LEVEL_CALL) & (pdus.auth_level <= AUTH_LEVEL_PRIVACY)
        sealed = (asked & privacy[ask_first]) | (answered & privacy[reply_first])
        bound = contexts.bound[rows]
        outcome = np.select(
            [
                ~asked,
                ~whole_request | (answered & ~whole_response),
                ~answered,
                fault,
                sealed,
                ~bound,
            ],
            np.arange(6),
            6,
        )
        names, peers = _per_connection(owner, connections)
        request_stub = stub_column(calls, request, whole_request)
        if not privacy[ask_first].all():  # what is sealed is kept as captured; nothing in it looks like a trailer
            request_stub = without_trailers(request_stub)
        response_stub = stub_column(calls, response, whole_response & ~fault)
        request_at, response_at = pdus.time[ask_first], pdus.time[reply_first]
        auth_type, auth_level = pdus.auth_type[head], pdus.auth_level[head]
        auth_type = np.where(auth_level >= 0, auth_type, contexts.auth_type[rows])
        auth_level = np.where(auth_level >= 0, auth_level, contexts.auth_level[rows])
        asked_base, answered_base = peers["base"][:, 0], peers["base"][:, 1]
        asked_from = (asked_base + pdus.offset[ask_first]) & 0xFFFFFFFF
        answered_from = (answered_base + pdus.offset[reply_first]) & 0xFFFFFFFF
        sequence = np.where(asked, asked_from, answered_from)
        at = np.where(asked, request_at, response_at)
        keys = _call_keys(peers["prefix"], peers["number"], pdus.call_id[head], sequence, at)
        capture = pa.array([self.capture_id], pa.string())
        zero = np.zeros(len(rows), np.int64)
        opnum = pdus.opnum[ask_first]
        dates = np.where(asked, np.where(request_at == NO_TIME, response_at, request_at), response_at)
        closed = np.full(len(rows), -1)
        for row in np.nonzero(outcome == OUTCOMES.index("encrypted"))[0].tolist():
            closed[row] = has_handshake(connections[int(owner[row])])
        columns = {
            "call_key": pa.array(keys, pa.string()),
            **names,
            "call_id": pdus.call_id[head],
            "context_id": pdus.context[head],
            "interface_uuid": contexts.interface.column(rows),
            "interface_name": contexts.name.column(rows),
            "transfer_syntax": contexts.syntax.column(rows),
            "opnum": pa.array(opnum, mask=~asked),
            "object_uuid": self._object_uuids(calls, np.where(asked, ask_first, -1)),
            "byte_order": _choose(("little", "big"), pdus.big[head]),
            "auth_type": pa.array(auth_type, mask=auth_type < 0),
            "auth_level": pa.array(auth_level, mask=auth_level < 0),
            "bind_seen": bound,
            "sealed": sealed,
            "request_at": times(request_at, asked),
            "request_done_at": times(pdus.done[ask_last], asked),
            "response_at": times(response_at, answered),
            "response_done_at": times(pdus.done[reply_last], answered),
            "cancelled_at": times(calls.cancelled[rows], calls.cancelled[rows] != NEVER),
            "orphaned_at": times(calls.orphaned[rows], calls.orphaned[rows] != NEVER),
            "request_fragments": np.where(asked, halves.count[request], 0),
            "response_fragments": np.where(answered, halves.count[response], 0),
            "request_stub": request_stub,
            "response_stub": response_stub,
            "fault_status": pa.array(pdus.status[reply_last], mask=~fault | ~whole_response),
            "outcome": _choose(OUTCOMES, outcome),
            "capture_id": capture.take(pa.array(zero)),
            "request_packet": pa.array(pdus.number[ask_first], mask=~asked),
            "response_capture_id": capture.take(pa.array(zero, mask=~answered)),
            "response_packet": pa.array(pdus.number[reply_first], mask=~answered),
            "byte_offset": pdus.file_offset[head],
            "observations": zero + 1,
            "opened_by": pa.nulls(len(rows), pa.string()),
            "closed_reason": _choose(("no_handshake", "no_key"), closed),
            "verified_by": pa.nulls(len(rows), pa.string()),
            "response_byte_order": _choose(("little", "big"), np.where(answered, pdus.big[reply_first], -1)),
            "request_sequence": pa.array(asked_from, mask=~asked),
            "response_sequence": pa.array(answered_from, mask=~answered),
            "sightings": pa.nulls(len(rows), pa.list_(SIGHTING)),
            "request_pieces": _pieces(calls, request, signed[ask_first], asked_base, request_stub),
            "response_pieces": _pieces(calls, response, signed[reply_first], answered_base, response_stub),
            "event_date": pa.array(
                np.where(dates == NO_TIME, 0, dates // 1000 // _DAY_US), pa.int32(), mask=dates == NO_TIME
            ),
        }
        return pa.RecordBatch.from_arrays(
            [
                value.cast(field_.type) if isinstance(value, pa.Array) else pa.array(value).cast(field_.type)
                for field_, value in ((f, columns[f.name]) for f in CALLS_SCHEMA)
            ],
            schema=CALLS_SCHEMA,
        )

    def _object_uuids(self, calls: Calls, first: Ints) -> pa.Array:
        found: list[str | None] = [None] * len(first)
        pdus = calls.pdus
        marked = (first >= 0) & ((pdus.flags[first] & OBJECT_UUID) != 0) & (pdus.ptype[first] == REQUEST)
        for row in np.nonzero(marked & (pdus.whole[first] > 0))[0].tolist():
            data = bytes(calls.fragment(int(first[row]))[24:40])
            name = uuid.UUID(bytes=data) if pdus.big[first[row]] else uuid.UUID(bytes_le=data)
            found[row] = str(name)
        return pa.array(found, pa.string())

    def _learn_ports(self, batch: pa.RecordBatch, owner: Ints, connections: list[Connection]) -> None:
        """Keep ports that the endpoint mapper or a port-asking call named: calls without a bind may go there."""
        names, opnums = batch.column("interface_name"), batch.column("opnum")
        asking = [pc.and_(pc.equal(names, name), pc.equal(opnums, opnum)) for name, opnum in (*PORT_ASKING, _EPT_MAP)]
        rows = np.nonzero(np.any([pc.is_in(mask, value_set=pa.array([True])) for mask in asking], axis=0))[0]
        for row in rows.tolist():
            name, opnum, connection = names[row].as_py(), opnums[row].as_py(), connections[int(owner[row])]
            data = batch.column("response_stub")[row].as_py()
            if data is None:
                continue
            if (name, opnum) == _EPT_MAP:
                for address, port, interface in towers(data):
                    self._learn(connection, address, port, interface)
            elif (name, opnum) in PORT_ASKING and len(data) == 4:
                _, address, _ = connection.endpoints[connection.likely_client() ^ 1]
                big = batch.column("response_byte_order")[row].as_py() == "big"
                port = int.from_bytes(data, "big" if big else "little")
                if 0 < port < 65536:
                    target = QM2QM.name if name == QM2QM.name or port % 11 == 2105 % 11 else REMOTE_READ.name
                    self._learn(connection, address, port, target)

    def _learn(self, connection: Connection, address: bytes, port: int, interface: str) -> None:
        self.learnt.setdefault((address, port), set()).add(interface)
        self.taught.setdefault(connection.index, set()).add((address, port, interface))


def _keep(calls: Calls, candidates: Flags, unexplained: Flags, owner: Ints, connections: list[Connection]) -> Flags:
    """Keep the PDUs of calls that another capture may finish or explain; return which it may finish or repeat."""
    whole, request, response = calls.halves.whole, calls.request, calls.response
    unfinished = (request < 0) | (response < 0) | ~whole[request] | ~whole[response]
    again = ~unfinished & _sent_again(calls, owner, connections)
    kept = _keep_calls(calls, unfinished & candidates, connections)
    _keep_calls(calls, ~unfinished & ~again & unexplained, connections, unknown=True)
    return kept | _keep_calls(calls, again & candidates, connections, settled=True)


def _keep_calls(
    calls: Calls, chosen: Flags, connections: list[Connection], *, unknown: bool = False, settled: bool = False
) -> Flags:
    """Keep some calls; return which were: a connection has enough at some time."""
    kept = np.zeros(len(chosen), bool)
    halves = np.nonzero((calls.group >= 0) & chosen[calls.group])[0]
    halves = halves[np.argsort(calls.group[halves], kind="stable")]
    numbers, begins = np.unique(calls.group[halves], return_index=True)
    for number, part in zip(numbers.tolist(), np.split(halves, begins[1:]), strict=False):
        which = spans(calls.halves.first[part], calls.halves.last[part]).tolist()
        kept[number] = keep(calls.pdus, which, calls.fragment, connections, unknown=unknown, settled=settled)
    return kept


def _sent_again(calls: Calls, owner: Ints, connections: list[Connection]) -> Flags:
    """Tell which small calls begin a direction without its SYN: the capture before may have them too.

    What is sent again is what was not acknowledged when the file before ended: seldom more than one request.
    """
    none = np.iinfo(np.int64).min
    unique, inverse = np.unique(owner, return_inverse=True)
    until = np.full((len(unique), 2), none)
    for row, index in enumerate(unique.tolist()):
        connection = connections[index]
        client = connection.likely_client()
        for column, number in enumerate((client, client ^ 1)):
            side = connection.sides[number]
            if side.syn is None and side.started:
                until[row, column] = side.first
    found = np.zeros(len(owner), bool)
    if (until == none).all():
        return found
    for column, half in enumerate((calls.request, calls.response)):
        offset = calls.pdus.offset[calls.halves.first[half]]
        found |= (half >= 0) & (offset <= until[inverse, column])
    sizes = np.add.reduceat(calls.pdus.size, calls.halves.first)
    return found & (sizes[calls.request] + sizes[calls.response] <= _SMALL_CALL)


def _left(calls: Calls, owner: Ints, connections: list[Connection]) -> Flags:
    """Tell which calls were not kept for other captures, for their connections had too much to keep."""
    found = np.zeros(len(owner), bool)
    names = [index for index in np.unique(owner).tolist() if association(connections[index]).left]
    for call in np.nonzero(np.isin(owner, names))[0].tolist() if names else ():
        left = association(connections[int(owner[call])]).left
        for kind, half in enumerate((int(calls.request[call]), int(calls.response[call]))):
            found[call] |= half >= 0 and (kind, int(calls.pdus.offset[calls.halves.first[half]])) in left
    return found


def _count_calls(owner: Ints, connections: list[Connection]) -> None:
    for index, count in zip(*np.unique(owner, return_counts=True), strict=True):
        association(connections[int(index)]).calls += int(count)


def _contexts(owner: Ints, context: Ints, place: Ints, connections: list[Connection]) -> _Contexts:
    """Resolve context ids, once for each context of each connection where it has one meaning only."""
    pairs, inverse = np.unique(owner << 17 | context, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    bounds = np.append(np.searchsorted(inverse[order], np.arange(len(pairs))), len(order))
    found = _Contexts(len(owner))
    for number, pair in enumerate(pairs.tolist()):
        known = association(connections[pair >> 17])
        rows = order[bounds[number] : bounds[number + 1]]
        bound = known.contexts.get(pair & 0x1FFFF, [])
        if not bound:
            found.unknown[rows] = not known.foreign
        elif len(bound) == 1 and bool((place[rows] >= bound[0].offset).all()):
            found.set(rows, bound[0])
        else:
            for row in rows.tolist():
                one = known.context(pair & 0x1FFFF, int(place[row]))
                if one is None:
                    found.unknown[row] = not known.foreign
                else:
                    found.set(np.array([row]), one)
    return found


def _note_evidence(calls: Calls, rows: Ints, owner: Ints, context: Ints, connections: list[Connection]) -> None:
    """Keep what calls without a bind show, one of each shape: opnum and lengths, with the syntax its bytes suggest."""
    pdus, halves = calls.pdus, calls.halves
    request, response = calls.request[rows], calls.response[rows]
    lead = np.where(request >= 0, request, response)

    def size(half: Ints) -> Ints:
        stubs = np.add.reduceat(pdus.stub_size, halves.first)
        return np.where((half >= 0) & halves.whole[half], np.minimum(stubs[half], _NO_FIXED_LENGTH), -1)

    shape = np.stack(
        [owner[rows], context[rows], pdus.opnum[halves.first[lead]], pdus.ptype[halves.first[lead]], size(request),
         size(response), pdus.ptype[halves.last[response]]]
    )  # fmt: skip
    _, examples = np.unique(shape, axis=1, return_index=True)
    for example in examples.tolist():
        known = association(connections[int(owner[rows[example]])])
        evidence = known.evidence.setdefault(int(context[rows[example]]), set())
        if len(evidence) >= _MAX_EVIDENCE:
            continue
        first = int(halves.first[lead[example]])
        opnum = int(pdus.opnum[first]) if request[example] >= 0 else None
        asked = _beginning(calls, int(request[example]), int(shape[4, example]), request=True)
        answered = _beginning(calls, int(response[example]), int(shape[5, example]), request=False)
        sealed = int(pdus.auth_level[first]) == AUTH_LEVEL_PRIVACY
        evidence.add(
            Seen(
                opnum,
                None if asked is None else min(len(asked), _NO_FIXED_LENGTH),
                None if answered is None else min(len(answered), _NO_FIXED_LENGTH),
                None if sealed else _suggested_syntax(opnum, asked, answered),
            )
        )


class _Texts:
    """A column of few different texts: indexes into a list, -1 for null."""

    def __init__(self, size: int) -> None:
        self._values: list[str] = []
        self._index = np.full(size, -1)

    def set(self, rows: Ints, value: str | None) -> None:
        if value is None:
            return
        if value not in self._values:
            self._values.append(value)
        self._index[rows] = self._values.index(value)

    def column(self, rows: Ints) -> pa.Array:
        return _choose(self._values, self._index[rows])


class _Contexts:
    """What the presentation contexts of calls mean, row by row."""

    def __init__(self, size: int) -> None:
        self.interface, self.name, self.syntax = _Texts(size), _Texts(size), _Texts(size)
        self.bound = np.zeros(size, bool)
        self.ours = np.zeros(size, bool)
        self.unknown = np.zeros(size, bool)
        self.auth_type, self.auth_level = np.full(size, -1), np.full(size, -1)

    def set(self, rows: Ints, context: Context) -> None:
        self.bound[rows] = True
        interface = BY_UUID.get(context.interface)
        if interface is None:
            return
        self.ours[rows] = True
        self.interface.set(rows, interface.uuid)
        self.name.set(rows, interface.name)
        self.syntax.set(rows, context.syntax)
        auth_type, auth_level = bind_level(context)
        if auth_type is not None and auth_level is not None:
            self.auth_type[rows], self.auth_level[rows] = auth_type, auth_level


def _choose(values: Iterable[str], index: npt.NDArray[Any]) -> pa.Array:
    index = np.asarray(index, np.int64)
    return pa.array(list(values), pa.string()).take(pa.array(np.maximum(index, 0), mask=index < 0))


def has_handshake(connection: Connection) -> bool:
    """Whether a handshake of the connection was seen that keys could make session keys of."""
    return association(connection).has_handshake


def _per_connection(owner: Ints, connections: list[Connection]) -> tuple[dict[str, pa.Array], dict[str, Ints]]:
    """Return the columns that a connection gives all its calls, and per call the bases of both directions."""
    unique, number = np.unique(owner, return_inverse=True)
    identities = [identity(connections[index]) for index in unique.tolist()]
    tuples = [one.four_tuple for one in identities]
    bases = np.zeros((len(unique), 2), np.int64)
    for row, index in enumerate(unique.tolist()):
        connection = connections[index]
        client = connection.likely_client()
        bases[row] = [connection.sides[side].base or 0 for side in (client, client ^ 1)]
    take = pa.array(number)
    prefix = np.array([one.prefix for one in identities], object)
    columns = {
        "connection_id": pa.array([one.connection_id for one in identities], pa.string()).take(take),
        "client_address": pa.array([names[0] for names in tuples], pa.string()).take(take),
        "client_port": pa.array([names[1] for names in tuples], pa.int32()).take(take),
        "server_address": pa.array([names[2] for names in tuples], pa.string()).take(take),
        "server_port": pa.array([names[3] for names in tuples], pa.int32()).take(take),
    }
    return columns, {"base": bases[number], "prefix": prefix, "number": number}


def _call_keys(prefix: Ints, number: Ints, call_id: Ints, sequence: Ints, at: Ints) -> list[str]:
    """Return the keys of calls: four-tuple, call id, sequence number of the first byte, and its time in us."""
    sha, keys = hashlib.sha256, []
    null = b"\xff\xff\xff\xff"
    starts = list(prefix)
    for which, one, two, three in zip(
        number.tolist(), call_id.tolist(), sequence.tolist(), (at // 1000).tolist(), strict=True
    ):
        a, b, c = b"%d" % one, b"%d" % two, b"%d" % three
        moment = b"%c\0\0\0%b" % (len(c), c) if three != NO_TIME // 1000 else null
        keys.append(sha(b"%b%c\0\0\0%b%c\0\0\0%b%b" % (starts[which], len(a), a, len(b), b, moment)).hexdigest()[:32])
    return keys


def stub_column(calls: Calls, half: Ints, valid: Flags) -> pa.Array:
    """Return the joined stubs of halves as a binary column; null where not valid."""
    pdus, halves = calls.pdus, calls.halves
    rows = np.nonzero(valid)[0]
    chosen = half[rows]
    fragments = spans(halves.first[chosen], halves.last[chosen])
    sizes = pdus.stub_size[fragments]
    low = pdus.start[fragments] + pdus.stub_from[fragments]
    memory = memoryview(calls.joined)
    parts: list[memoryview | bytes] = [memory[a:b] for a, b in zip(low.tolist(), (low + sizes).tolist(), strict=True)]
    own = pdus.body[fragments]
    for position in np.nonzero(own >= 0)[0].tolist():
        a = int(low[position])
        parts[position] = calls.kept[int(own[position])][a : a + int(sizes[position])]
    lengths = np.zeros(len(valid), np.int64)
    if len(fragments):
        ends = np.cumsum(halves.count[chosen])
        lengths[rows] = np.add.reduceat(sizes, ends - halves.count[chosen])
    offsets = np.zeros(len(valid) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(valid), [mask, pa.py_buffer(offsets.tobytes()), pa.py_buffer(b"".join(parts))]
    )


def _pieces(calls: Calls, half: Ints, signed: Flags, base: Ints, stubs: pa.Array) -> pa.Array:
    """Return what protected halves need beside their stubs to be opened or verified later; null where not whole.

    A verification trailer is none of the stub any more: it goes with what follows the stub.
    """
    rows = np.nonzero(signed & np.asarray(stubs.is_valid()))[0]
    if not len(rows):
        return pa.nulls(len(signed), pa.binary())
    pdus, halves = calls.pdus, calls.halves
    firsts, lasts = halves.first[half[rows]], halves.last[half[rows]]
    fragments = spans(firsts, lasts)
    sequences = np.repeat(base[rows], lasts - firsts + 1) + pdus.offset[fragments]
    before, sizes = pdus.stub_from[fragments].tolist(), pdus.stub_size[fragments].tolist()
    places = zip(fragments.tolist(), (sequences & 0xFFFFFFFF).tolist(), before, sizes, strict=True)
    left = pc.binary_length(stubs).to_numpy(zero_copy_only=False)[rows].astype(np.int64).tolist()
    found: list[bytes | None] = [None] * len(signed)
    for row, count, stub_size in zip(rows.tolist(), (lasts - firsts + 1).tolist(), left, strict=True):
        records: list[bytes | memoryview] = []
        rest = stub_size
        for index, sequence, low, size in itertools.islice(places, count):
            data, stub = calls.fragment(index), min(size, rest)
            rest -= stub
            records += packed(sequence, data[:low], stub, data[low + stub :])
        found[row] = b"".join(records)
    return pa.array(found, pa.binary())


def _beginning(calls: Calls, half: int, size: int, *, request: bool) -> bytes | None:
    """Return the stub of one half as far as evidence needs it: all of a short one, else a long enough piece of it.

    None if it was not seen whole or is a fault.
    """
    if size < 0 or calls.pdus.ptype[calls.halves.last[half]] == FAULT:
        return None
    pdus, value = calls.pdus, b""
    for index in range(int(calls.halves.first[half]), int(calls.halves.last[half]) + 1):
        low = int(pdus.stub_from[index])
        value += calls.fragment(index)[low : low + int(pdus.stub_size[index])]
        if len(value) > _NO_FIXED_LENGTH:
            return value
    trailer = trailer_start(value) if request else None
    return value if trailer is None else value[:trailer]


def _suggested_syntax(opnum: int | None, request: bytes | None, response: bytes | None) -> str | None:
    """Return the transfer syntax that the bytes of a RemoteRead call suggest (little endian alone)."""
    if opnum in (2, 11) and request is not None and len(request) >= 44:
        if request[4] == request[0] and request[0]:
            return NDR
        if request[8] == request[0] and not any(request[4:8]):
            return NDR64
    if opnum in (7, 13) and response is not None and len(response) >= 40:
        return NDR if any(response[20:24]) else NDR64
    return None


def towers(data: bytes) -> list[tuple[bytes, int, str]]:
    """Return address, port and interface name of the towers for our interfaces in an ept_map answer.

    Looks for the interfaces' floors anywhere in the stub, which works for every transfer syntax ([C706] appendix L).
    """
    found = []
    for interface in BY_UUID.values():
        floor = b"\x13\x00\x0d" + uuid.UUID(interface.uuid).bytes_le
        at = data.find(floor)
        while at >= 0:
            place = _tower(data, at - 2)
            if place is not None:
                found.append((*place, interface.name))
            at = data.find(floor, at + 1)
    return found


def _tower(data: bytes, at: int) -> tuple[bytes, int] | None:
    if at < 0:
        return None
    port, address = None, None
    try:
        (floors,) = struct.unpack_from("<H", data, at)
        at += 2
        for _ in range(min(floors, 8)):
            (left,) = struct.unpack_from("<H", data, at)
            protocol = data[at + 2] if left else 0
            (right,) = struct.unpack_from("<H", data, at + 2 + left)
            value = data[at + 4 + left : at + 4 + left + right]
            if protocol == 0x07 and len(value) == 2:
                port = int.from_bytes(value, "big")
            elif protocol == 0x09 and len(value) == 4:
                address = value
            at += 4 + left + right
    except (struct.error, IndexError):
        return None
    return None if port is None or address is None else (address, port)
