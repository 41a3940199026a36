"""Rows of ``bronze.rpc_calls`` from assembled calls, as Arrow record batches."""

from __future__ import annotations

import uuid
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from udfs.array_types import Bools, Ints
from udfs.columns.absent import NEVER_NS
from udfs.columns.arrays import to_times, utc_dates
from udfs.dcerpc.endpoint_towers import parse_tower_endpoints
from udfs.dcerpc.interfaces import (
    EPM_NAME,
    EPT_MAP_OPNUM,
    INTERFACES_BY_UUID,
    PORT_QUERY_OPNUMS,
    QM2QM_NAME,
    REMOTE_READ_NAME,
    infer_interface,
)
from udfs.dcerpc.pdu_headers import FAULT, REQUEST
from udfs.dcerpc.verification_trailer import strip_verification_trailers
from udfs.rpc.batch_spool import BatchSpool
from udfs.rpc.call_assembly import (
    AUTH_LEVEL_CALL,
    AUTH_LEVEL_PRIVACY,
    STUB_AFTER_UUID,
    association_of,
    retain_call_pdus,
)
from udfs.rpc.call_contexts import CallContexts, resolve_contexts
from udfs.rpc.call_schema import (
    CALL_OUTCOMES,
    CALL_TIME_COLUMNS,
    CLOCKS_STRUCT,
    RPC_CALLS_SCHEMA,
    SIGHTING_STRUCT,
    lookup_column,
    timestamp_column,
)
from udfs.rpc.call_shapes import record_call_shapes
from udfs.rpc.connection_identity import compute_call_keys, connection_columns
from udfs.rpc.pdu_columns import AssembledCalls, PduColumns
from udfs.rpc.pdu_retention import retain_for_other_captures, unretained_pdu_mask
from udfs.rpc.stub_columns import signed_bytes_column, stub_column
from udfs.tcp.connections import TcpConnection
from udfs.tcp.time_limits import latest_ns

_EPT_MAP_CALL: Final = (EPM_NAME, EPT_MAP_OPNUM)
_PLACE_COLUMNS: Final = ["call_id", "request_sequence", "response_sequence"]
_RECENT_BLOCKS: Final = 8  # whose calls are remembered, in case their connection is read again
_CONTEXT: Final = "context"  # additional column of waiting rows: connection index and context id
InferredContext = tuple[str | None, str | None]  # interface UUID and transfer syntax of a context without a bind
InferredContexts = dict[tuple[int, int], InferredContext]  # by (connection index, context id)


@dataclass(slots=True)
class EmittedCalls:
    """Calls that became rows, by (connection index, context id); context id -1 if the bind was captured.

    ``finished_counts``: number of calls that no other capture can change. ``unfinished_keys``: keys of the other calls.
    """

    finished_counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    unfinished_keys: dict[tuple[int, int], list[str]] = field(default_factory=dict)

    def add(self, other: EmittedCalls) -> None:
        """Add the calls of another pass over the same capture."""
        self.finished_counts += other.finished_counts
        for name, keys in other.unfinished_keys.items():
            self.unfinished_keys.setdefault(name, []).extend(keys)

    def drop_unbound(self, connections: Collection[int]) -> None:
        """Remove the calls of some connections whose bind was not captured: their rows were not returned yet."""
        for calls in (self.finished_counts, self.unfinished_keys):
            for name in [name for name in calls if name[0] in connections and name[1] >= 0]:
                del calls[name]


class CallRowBuilder:
    """Builds the ``rpc_calls`` rows of one pass over a capture.

    ``only`` restricts it to connections that are read again, each from the block on whose number is given, without the
    ``returned`` calls. Of ``withheld`` connections no rows are returned any more in this
    pass. ``block``: the number of the current block.

    Rows of calls without a bind wait until all calls of their context were seen. ``resolve_unbound_rows`` then gives
    them the inferred interface, or drops them. ``learned_endpoints``: interface names by (address, port) that port
    queries and endpoint-mapper calls reported; ``learned_by_connection``: the same as (address, port, interface) by the
    connection that carried the call. ``capture_ended``: unfinished PDUs are retained already.
    """

    def __init__(self, only: Mapping[int, int] | None = None, returned: Collection[str] = frozenset()) -> None:
        self.block = 0
        self.withheld: dict[int, int] = {}
        self._returned = pa.array(sorted(returned), pa.string())
        self._recent: deque[tuple[Ints, pa.RecordBatch]] = deque(maxlen=_RECENT_BLOCKS)
        self.capture_id = ""
        self.learned_endpoints: dict[tuple[bytes, int], set[str]] = {}
        self.learned_by_connection: dict[int, set[tuple[bytes, int, str]]] = {}
        self.emitted = EmittedCalls()
        self.capture_ended = False
        self._only = only
        self._waiting = BatchSpool(RPC_CALLS_SCHEMA.append(pa.field(_CONTEXT, pa.int64())))

    def build_rows(self, calls: AssembledCalls, connections: list[TcpConnection]) -> pa.RecordBatch | None:
        """Return the rows of calls of known MSMQ interfaces, None if there are none; rows without a bind wait."""
        pdus, halves = calls.pdus, calls.halves
        if not self.capture_ended:
            for half in calls.unpaired_halves.tolist():
                retain_call_pdus(
                    calls.pdus, range(halves.first_pdu[half], halves.last_pdu[half] + 1), calls.pdu_bytes, connections
                )
        if not len(calls.request_half):
            return None
        lead = np.where(calls.request_half >= 0, calls.request_half, calls.response_half)
        head = halves.first_pdu[lead]
        owner, context = pdus.connection_index[head], pdus.context_id[head]
        contexts = resolve_contexts(owner, context, pdus.client_position[head], connections)
        candidates = contexts.is_msmq | contexts.is_unbound
        if self._only is not None or self.withheld:
            contexts.is_msmq &= np.isin(owner, [index for index in np.unique(owner).tolist() if self.returns(index)])
        unknown = np.nonzero(contexts.is_unbound)[0]
        if len(unknown):  # of all connections: what is handed on is that of the last pass
            record_call_shapes(calls, unknown, owner, context, connections)
        if self.capture_ended:  # calls that the end of the capture finished: PDUs retained, unless over the limit
            unfinished = ~unretained_pdu_mask(calls, owner, connections)
        else:
            unexplained = contexts.is_unbound & ~self._is_inferred(owner, context, unknown, connections)
            unfinished = retain_for_other_captures(calls, candidates, unexplained, owner, connections)
        if self._only is not None:
            unknown = unknown[np.isin(owner[unknown], sorted(self._only))]
        if len(unknown) and self._waiting.is_full:
            _count_unkept(calls, unknown, owner, connections)
        elif len(unknown):
            rows = self._make_rows(calls, unknown, owner[unknown], contexts, connections)
            self._record_emitted(rows, owner[unknown], context[unknown], unfinished[unknown])
            column = pa.array(owner[unknown] << 17 | context[unknown])
            self._waiting.add(pa.RecordBatch.from_arrays([*rows.columns, column], schema=self._waiting.schema))
        ours = np.nonzero(contexts.is_msmq)[0]
        if not len(ours):
            return None
        batch = self._make_rows(calls, ours, owner[ours], contexts, connections)
        if len(self._returned):
            new = pc.invert(pc.is_in(_stream_places(batch, owner[ours]), self._returned))
            batch, ours = batch.filter(new), ours[np.asarray(new)]
            if not len(ours):
                return None
        self._recent.append((owner[ours], batch.select(_PLACE_COLUMNS)))
        _count_calls(owner[ours], connections)
        self._record_emitted(batch, owner[ours], np.full(len(ours), -1), unfinished[ours])
        self._learn_endpoints(batch, owner[ours], connections)
        return batch

    def returns(self, index: int) -> bool:
        """Whether rows of a connection are returned now."""
        begun = self._only is None or self.block >= self._only.get(index, NEVER_NS)
        return begun and index not in self.withheld

    def recent_calls(self, connections: Collection[int]) -> set[str]:
        """Return the calls of some connections that the last blocks returned, as ``_stream_places`` names them."""
        found: set[str] = set()
        for owner, rows in self._recent if connections else ():
            ours = np.isin(owner, sorted(connections))
            found.update(_stream_places(rows.filter(pa.array(ours)), owner[ours]).to_pylist())
        return found

    def _record_emitted(self, rows: pa.RecordBatch, owner: Ints, context: Ints, unfinished: Bools) -> None:
        keys = rows.column("call_key").take(pa.array(np.nonzero(unfinished)[0])).to_pylist()
        for index, context_id, name in zip(owner[unfinished].tolist(), context[unfinished].tolist(), keys, strict=True):
            self.emitted.unfinished_keys.setdefault((index, context_id), []).append(name)
        final = ~unfinished
        pairs, counts = np.unique(np.stack([owner[final], context[final]]), axis=1, return_counts=True)
        for index, context_id, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
            self.emitted.finished_counts[index, context_id] += count

    def _is_inferred(self, owner: Ints, context: Ints, unknown: Ints, connections: list[TcpConnection]) -> Bools:
        """Return a mask of calls without a bind whose interface can be inferred already."""
        explained = np.zeros(len(owner), bool)
        pair = owner << 17 | context
        for one in np.unique(pair[unknown]).tolist():
            connection: TcpConnection = connections[one >> 17]
            _, address, port = connection.endpoints[connection.likely_client_side() ^ 1]
            seen = association_of(connection).unbound_call_shapes.get(one & 0x1FFFF, set())
            if infer_interface(seen, port, self.learned_endpoints.get((address, port), ())) is not None:
                explained |= pair == one
        return explained

    def resolve_unbound_rows(
        self, inferred: InferredContexts, connections: list[TcpConnection]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the waiting rows whose context has an inferred interface; drop the others."""
        pairs = np.array(sorted(index << 17 | context for index, context in inferred), np.int64)
        values = [inferred[pair >> 17, pair & 0x1FFFF] for pair in pairs.tolist()]
        texts = {
            "interface_uuid": pa.array([uuid_ for uuid_, _ in values], pa.string()),
            "interface_name": pa.array(
                [None if u is None else INTERFACES_BY_UUID[u].name for u, _ in values], pa.string()
            ),
            "transfer_syntax": pa.array([syntax for _, syntax in values], pa.string()),
        }
        for batch in self._waiting.drain():
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
            columns = [
                texts[name].take(index) if name in texts else rows.column(name) for name in RPC_CALLS_SCHEMA.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=RPC_CALLS_SCHEMA)

    def _make_rows(
        self, calls: AssembledCalls, rows: Ints, owner: Ints, contexts: CallContexts, connections: list[TcpConnection]
    ) -> pa.RecordBatch:
        pdus, halves = calls.pdus, calls.halves
        request, response = calls.request_half[rows], calls.response_half[rows]
        asked, answered = request >= 0, response >= 0
        ask_first, ask_last = halves.first_pdu[request], halves.last_pdu[request]
        reply_first, reply_last = halves.first_pdu[response], halves.last_pdu[response]
        head = np.where(asked, ask_first, reply_first)
        whole_request = asked & halves.is_whole[request]
        whole_response = answered & halves.is_whole[response]
        fault = answered & (pdus.pdu_type[reply_last] == FAULT)
        privacy = pdus.auth_level == AUTH_LEVEL_PRIVACY
        signed = (pdus.auth_level >= AUTH_LEVEL_CALL) & (pdus.auth_level <= AUTH_LEVEL_PRIVACY)
        sealed = (asked & privacy[ask_first]) | (answered & privacy[reply_first])
        bound = contexts.bind_seen[rows]
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
        names, peers = connection_columns(owner, connections)
        done_at = latest_ns(pdus.end_time_ns, halves.first_pdu)
        request_stub = stub_column(calls, request, whole_request)
        if not privacy[ask_first].all():  # sealed stubs stay as captured and contain no recognisable trailer
            request_stub = strip_verification_trailers(request_stub)
        response_stub = stub_column(calls, response, whole_response & ~fault)
        request_at, response_at = pdus.time_ns[ask_first], pdus.time_ns[reply_first]
        auth_type, auth_level = pdus.auth_type[head], pdus.auth_level[head]
        auth_type = np.where(auth_level >= 0, auth_type, contexts.auth_type[rows])
        auth_level = np.where(auth_level >= 0, auth_level, contexts.auth_level[rows])
        asked_base, answered_base = peers["base"][:, 0], peers["base"][:, 1]
        asked_from = (asked_base + pdus.stream_offset[ask_first]) & 0xFFFFFFFF
        answered_from = (answered_base + pdus.stream_offset[reply_first]) & 0xFFFFFFFF
        sequence = np.where(asked, asked_from, answered_from)
        at = np.where(asked, request_at, response_at)
        keys = compute_call_keys(peers["prefix"], peers["number"], pdus.call_id[head], sequence, at)
        capture = pa.array([self.capture_id], pa.string())
        zero = np.zeros(len(rows), np.int64)
        opnum = pdus.opnum[ask_first]
        closed = np.full(len(rows), -1)
        for row in np.nonzero(outcome == CALL_OUTCOMES.index("encrypted"))[0].tolist():
            closed[row] = association_of(connections[int(owner[row])]).has_handshake
        columns = {
            "call_key": pa.array(keys, pa.string()),
            **names,
            "call_id": pdus.call_id[head],
            "context_id": pdus.context_id[head],
            "interface_uuid": contexts.interface_uuid.column(rows),
            "interface_name": contexts.interface_name.column(rows),
            "transfer_syntax": contexts.transfer_syntax.column(rows),
            "opnum": pa.array(opnum, mask=~asked),
            "object_uuid": self._object_uuids(calls, np.where(asked, ask_first, -1)),
            "byte_order": lookup_column(("little", "big"), pdus.big_endian[head]),
            "auth_type": pa.array(auth_type, mask=auth_type < 0),
            "auth_level": pa.array(auth_level, mask=auth_level < 0),
            "bind_seen": bound,
            "sealed": sealed,
            "request_at": timestamp_column(request_at, asked),
            "request_done_at": timestamp_column(done_at[request], asked),
            "response_at": timestamp_column(response_at, answered),
            "response_done_at": timestamp_column(done_at[response], answered),
            "cancelled_at": timestamp_column(calls.cancelled_ns[rows], calls.cancelled_ns[rows] != NEVER_NS),
            "orphaned_at": timestamp_column(calls.orphaned_ns[rows], calls.orphaned_ns[rows] != NEVER_NS),
            "request_fragments": np.where(asked, halves.pdu_count[request], 0),
            "response_fragments": np.where(answered, halves.pdu_count[response], 0),
            "request_stub": request_stub,
            "response_stub": response_stub,
            "fault_status": pa.array(
                pdus.fault_status[reply_last], mask=~fault | ~whole_response | (pdus.fault_status[reply_last] < 0)
            ),
            "outcome": lookup_column(CALL_OUTCOMES, outcome),
            "capture_id": capture.take(pa.array(zero)),
            "request_packet": pa.array(pdus.packet_number[ask_first], mask=~asked),
            "response_capture_id": capture.take(pa.array(zero, mask=~answered)),
            "response_packet": pa.array(pdus.packet_number[reply_first], mask=~answered),
            "byte_offset": pdus.file_offset[head],
            "observations": zero + 1,
            "opened_by": pa.nulls(len(rows), pa.string()),
            "closed_reason": lookup_column(("no_handshake", "no_key"), closed),
            "verified_by": pa.nulls(len(rows), pa.string()),
            "response_byte_order": lookup_column(
                ("little", "big"), np.where(answered, pdus.big_endian[reply_first], -1)
            ),
            "request_sequence": pa.array(asked_from, mask=~asked),
            "response_sequence": pa.array(answered_from, mask=~answered),
            "sightings": pa.nulls(len(rows), pa.list_(SIGHTING_STRUCT)),
            "clocks": pa.nulls(len(rows), CLOCKS_STRUCT),
            "request_signed_bytes": signed_bytes_column(calls, request, signed[ask_first], asked_base, request_stub),
            "response_signed_bytes": signed_bytes_column(
                calls, response, signed[reply_first], answered_base, response_stub
            ),
            "request_span": pa.array(_stream_span(pdus, ask_first, ask_last), mask=~asked),
            "response_span": pa.array(_stream_span(pdus, reply_first, reply_last), mask=~answered),
        }
        columns["event_date"] = utc_dates(to_times(pc.coalesce(*(columns[name] for name in CALL_TIME_COLUMNS))))
        return pa.RecordBatch.from_arrays(
            [
                value.cast(field_.type) if isinstance(value, pa.Array) else pa.array(value).cast(field_.type)
                for field_, value in ((f, columns[f.name]) for f in RPC_CALLS_SCHEMA)
            ],
            schema=RPC_CALLS_SCHEMA,
        )

    def _object_uuids(self, calls: AssembledCalls, first: Ints) -> pa.Array:
        found: list[str | None] = [None] * len(first)
        pdus = calls.pdus
        marked = (first >= 0) & (pdus.pdu_type[first] == REQUEST) & (pdus.stub_start[first] == STUB_AFTER_UUID)
        for row in np.nonzero(marked & (pdus.is_whole[first] > 0))[0].tolist():
            data = bytes(calls.pdu_bytes(int(first[row]))[24:40])
            name = uuid.UUID(bytes=data) if pdus.big_endian[first[row]] else uuid.UUID(bytes_le=data)
            found[row] = str(name)
        return pa.array(found, pa.string())

    def _learn_endpoints(self, batch: pa.RecordBatch, owner: Ints, connections: list[TcpConnection]) -> None:
        """Record endpoints that port queries and endpoint-mapper answers report, to recognise unbound calls to them."""
        names, opnums = batch.column("interface_name"), batch.column("opnum")
        asking = [
            pc.and_(pc.equal(names, name), pc.equal(opnums, opnum))
            for name, opnum in (*PORT_QUERY_OPNUMS, _EPT_MAP_CALL)
        ]
        rows = np.nonzero(np.any([pc.is_in(mask, value_set=pa.array([True])) for mask in asking], axis=0))[0]
        for row in rows.tolist():
            name, opnum, connection = names[row].as_py(), opnums[row].as_py(), connections[int(owner[row])]
            data = batch.column("response_stub")[row].as_py()
            if data is None:
                continue
            if (name, opnum) == _EPT_MAP_CALL:
                for address, port, interface in parse_tower_endpoints(data):
                    self._add_endpoint(connection, address, port, interface)
            elif (name, opnum) in PORT_QUERY_OPNUMS and len(data) == 4:
                _, address, _ = connection.endpoints[connection.likely_client_side() ^ 1]
                big = batch.column("response_byte_order")[row].as_py() == "big"
                port = int.from_bytes(data, "big" if big else "little")
                if 0 < port < 65536:
                    target = QM2QM_NAME if name == QM2QM_NAME or port % 11 == 2105 % 11 else REMOTE_READ_NAME
                    self._add_endpoint(connection, address, port, target)

    def _add_endpoint(self, connection: TcpConnection, address: bytes, port: int, interface: str) -> None:
        self.learned_endpoints.setdefault((address, port), set()).add(interface)
        self.learned_by_connection.setdefault(connection.index, set()).add((address, port, interface))


def _stream_span(pdus: PduColumns, first: Ints, last: Ints) -> Ints:
    """Return the stream bytes from the first PDU of a half to the end of its last, including PDUs of other calls."""
    return pdus.stream_offset[last] + pdus.frag_length[last] - pdus.stream_offset[first]


def _stream_places(rows: pa.RecordBatch, owner: Ints) -> pa.Array:
    """Name calls by connection index, call id and sequence number; their keys depend on the copy that came first."""
    sequence = pc.coalesce(rows.column("request_sequence"), rows.column("response_sequence"))
    parts = (pa.array(owner), rows.column("call_id"), sequence)
    return pc.binary_join_element_wise(*(part.cast(pa.string()) for part in parts), "|")


def _count_unkept(calls: AssembledCalls, rows: Ints, owner: Ints, connections: list[TcpConnection]) -> None:
    """Count the bytes of calls without a bind for which there is no room to wait."""
    sizes = np.add.reduceat(calls.pdus.frag_length, calls.halves.first_pdu)
    for number, half in enumerate((calls.request_half[rows], calls.response_half[rows])):
        byte_counts = np.where(half >= 0, sizes[half], 0)
        for index in np.unique(owner[rows]).tolist():
            side = connections[index].likely_client_side() ^ number
            association_of(connections[index]).unkept_call_bytes[side] += int(byte_counts[owner[rows] == index].sum())


def _count_calls(owner: Ints, connections: list[TcpConnection]) -> None:
    for index, count in zip(*np.unique(owner, return_counts=True), strict=True):
        association_of(connections[int(index)]).call_count += int(count)
