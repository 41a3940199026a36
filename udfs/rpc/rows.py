"""Settled calls -> rows of ``rpc_calls`` (tables.md, bronze), as Arrow record batches."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.dcerpc.interfaces import BY_UUID, EPM, EPT_MAP, PORT_ASKING, QM2QM, REMOTE_READ, infer
from udfs.dcerpc.pdu import FAULT, OBJECT_UUID, REQUEST
from udfs.dcerpc.towers import towers
from udfs.dcerpc.verification import without_trailers
from udfs.files.container import NO_TIME, Ints
from udfs.rpc.calls import AUTH_LEVEL_CALL, AUTH_LEVEL_PRIVACY, NEVER, Calls, Flags, Pdus, association, keep
from udfs.rpc.context_binding import Contexts, contexts_of
from udfs.rpc.identity import call_keys, per_connection
from udfs.rpc.row_spool import Spool
from udfs.rpc.schema import CALLS_SCHEMA, OUTCOMES, SIGHTING, chosen_of, times
from udfs.rpc.stub_bytes import pieces, stub_column
from udfs.rpc.unbound_calls import note_evidence
from udfs.rpc.unfinished_calls import keep_for_others, were_left
from udfs.tcp.flows import Connection

_EPT_MAP: Final = (EPM.name, EPT_MAP)
_DAY_US: Final = 86_400_000_000
_CONTEXT: Final = "context"  # column of rows that wait: connection and context id
Meaning = tuple[str | None, str | None]  # interface UUID and transfer syntax of a context without its bind
Meanings = dict[tuple[int, int], Meaning]  # by connection and context id


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
        contexts = contexts_of(owner, context, pdus.place[head], connections)
        candidates = contexts.ours | contexts.unknown
        if self._only is not None:
            kept = np.isin(owner, sorted(self._only))
            contexts.ours &= kept
            contexts.unknown &= kept
        unknown = np.nonzero(contexts.unknown)[0]
        if len(unknown):
            note_evidence(calls, unknown, owner, context, connections)
        if self.finishing:  # what is settled only because the capture ends, is kept as far as it was not too much
            unfinished = ~were_left(calls, owner, connections)
        else:
            unexplained = contexts.unknown & ~self._explained(owner, context, unknown, connections)
            unfinished = keep_for_others(calls, candidates, unexplained, owner, connections)
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
        self, calls: Calls, rows: Ints, owner: Ints, contexts: Contexts, connections: list[Connection]
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
        names, peers = per_connection(owner, connections)
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
        keys = call_keys(peers["prefix"], peers["number"], pdus.call_id[head], sequence, at)
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
            "byte_order": chosen_of(("little", "big"), pdus.big[head]),
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
            "outcome": chosen_of(OUTCOMES, outcome),
            "capture_id": capture.take(pa.array(zero)),
            "request_packet": pa.array(pdus.number[ask_first], mask=~asked),
            "response_capture_id": capture.take(pa.array(zero, mask=~answered)),
            "response_packet": pa.array(pdus.number[reply_first], mask=~answered),
            "byte_offset": pdus.file_offset[head],
            "observations": zero + 1,
            "opened_by": pa.nulls(len(rows), pa.string()),
            "closed_reason": chosen_of(("no_handshake", "no_key"), closed),
            "verified_by": pa.nulls(len(rows), pa.string()),
            "response_byte_order": chosen_of(("little", "big"), np.where(answered, pdus.big[reply_first], -1)),
            "request_sequence": pa.array(asked_from, mask=~asked),
            "response_sequence": pa.array(answered_from, mask=~answered),
            "sightings": pa.nulls(len(rows), pa.list_(SIGHTING)),
            "request_pieces": pieces(calls, request, signed[ask_first], asked_base, request_stub),
            "response_pieces": pieces(calls, response, signed[reply_first], answered_base, response_stub),
            "request_span": pa.array(_span(pdus, ask_first, ask_last), mask=~asked),
            "response_span": pa.array(_span(pdus, reply_first, reply_last), mask=~answered),
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


def _span(pdus: Pdus, first: Ints, last: Ints) -> Ints:
    """Return the bytes from halves' first PDU to the end of their last: fragments of several calls take turns."""
    return pdus.offset[last] + pdus.size[last] - pdus.offset[first]


def _count_calls(owner: Ints, connections: list[Connection]) -> None:
    for index, count in zip(*np.unique(owner, return_counts=True), strict=True):
        association(connections[int(index)]).calls += int(count)


def has_handshake(connection: Connection) -> bool:
    """Whether a handshake of the connection was seen that keys could make session keys of."""
    return association(connection).has_handshake
