"""RPC state of a TCP connection: binds, the presentation contexts they establish, retained PDUs ([C706] 12.6.3.5).

A context id has the meaning of the last bind before it in the client's stream. The server's answer, if seen, gives the
transfer syntax.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from udfs.dcerpc.bind_pdus import ContextElement, ContextResult, parse_bind, parse_bind_ack
from udfs.dcerpc.interfaces import INTERFACES_BY_UUID, CallShape
from udfs.dcerpc.pdu_headers import ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, BIND, BIND_ACK, BIND_NAK
from udfs.rpc.pdu_framing import StrayBytes
from udfs.sealed.security_tokens import HandshakeToken, has_usable_handshake
from udfs.tcp.capture_budget import CaptureBudget

AUTH_LEVEL_CONNECT = 2
MAX_UNANSWERED_BINDS = 64
MAX_EARLY_ANSWERS = 16
MAX_TOKENS_PER_BIND = 16  # a handshake has three
MAX_BINDS_PER_CONNECTION = 1 << 12
MAX_QUARANTINED_BINDS = 1 << 12  # of one connection; further ones are added to the last


class BindLimitError(Exception):
    """A bind exceeds the limit of its connection or capture."""


class RetainedPdu(NamedTuple):
    """A PDU that is retained for other captures: of a bind, or of an unfinished or unbound call.

    ``data``: its bytes; only a rebuilt header if a part of the PDU is missing. ``time_ns``: of
    its first byte; ``end_time_ns``: when it was complete. ``acknowledgement``: of its first packet.
    """

    side: int
    stream_offset: int
    frag_length: int
    data: bytes
    time_ns: int
    end_time_ns: int
    packet_number: int
    file_offset: int
    acknowledgement: int
    context_id: int  # -1: a bind or its answer
    is_finished: bool = False  # of a complete call that only a repetition in another capture can change


@dataclass(slots=True)
class BindExchange:
    """One bind or alter_context and the server's answer, as far as seen."""

    stream_offset: int  # of its first byte, in the client's stream
    sequence: int
    call_id: int
    context_elements: list[ContextElement]
    time_ns: int
    packet_number: int
    max_xmit_frag: int
    max_recv_frag: int
    group_id: int
    auth_type: int | None
    auth_level: int | None
    secondary_address: str | None = None
    results: list[ContextResult] = field(default_factory=list)
    nak_reason: int | None = None
    tokens: list[HandshakeToken] = field(
        default_factory=list
    )  # security tokens: of the bind, its answer, and auth3 PDUs


@dataclass(slots=True)
class BoundContext:
    """The meaning of a context id from a stream offset on: interface, transfer syntax, (auth_type, auth_level).

    A context that the server refused has no meaning: the interface is the one that was asked for.
    """

    stream_offset: int
    interface_uuid: str
    transfer_syntax: str
    auth: tuple[int | None, int | None]
    accepted: bool = False  # by the server's answer
    refused: bool = False

    @property
    def is_unanswered(self) -> bool:
        """Whether no answer to the bind was seen: the meaning is the one that was asked for."""
        return not self.accepted and not self.refused

    def means_the_same_as(self, other: BoundContext) -> bool:
        """Whether both have one interface and transfer syntax."""
        return (self.interface_uuid, self.transfer_syntax) == (other.interface_uuid, other.transfer_syntax)


@dataclass(slots=True)
class RpcAssociation:
    """The RPC association state of one TCP connection, as far as captured.

    ``is_msmq``: a bind proposed an interface of MSMQ or the endpoint mapper. ``has_joined``: the bind PDU asked for an
    association group that another connection began; None where only alter_context PDUs were captured, or none.
    ``has_skipped_bytes``: a remainder stands for bytes that were in no PDU. ``contexts``: meanings by context id.
    ``unbound_call_shapes``: by context id, of calls whose bind was not seen. ``early_answers``: answers seen before
    their binds. ``quarantined_binds``: PDUs that were not added, malformed or over a limit. ``retained_pdus``: of binds
    and unfinished calls; ``retained_unbound_pdus``: of complete calls without a bind. Over the limit PDUs are not
    retained: ``dropped_bytes`` counts those of calls without a bind by (context id, side), ``unretained_offsets`` has
    those of unfinished calls as (1 for a response, 0 for others; stream offset).
    ``unkept_call_bytes``: by side, of calls without a bind that are no rows because too many waited.
    """

    budget: CaptureBudget = field(default_factory=CaptureBudget)  # of the capture
    binds: list[BindExchange] = field(default_factory=list)  # by stream offset
    binds_by_call_id: dict[int, list[BindExchange]] = field(default_factory=dict)
    unanswered_binds: list[BindExchange] = field(default_factory=list)
    contexts: dict[int, list[BoundContext]] = field(default_factory=dict)
    unbound_call_shapes: dict[int, set[CallShape]] = field(default_factory=dict)
    group_id: int | None = None
    call_count: int = 0
    is_msmq: bool = False
    has_joined: bool | None = None
    has_skipped_bytes: bool = False
    early_answers: list[tuple[int, bytes, str, int, int, HandshakeToken | None]] = field(default_factory=list)
    quarantined_binds: list[StrayBytes] = field(default_factory=list)
    retained_pdus: list[RetainedPdu] = field(default_factory=list)
    retained_unbound_pdus: list[RetainedPdu] = field(default_factory=list)
    retained_bytes: int = 0
    dropped_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    unretained_offsets: set[tuple[int, int]] = field(default_factory=set)
    unkept_call_bytes: list[int] = field(default_factory=lambda: [0, 0])
    token_count: int = 0
    handshake_check: tuple[int, bool] = (0, False)  # cache of has_handshake: number of tokens, result

    @property
    def has_only_other_interfaces(self) -> bool:
        """Whether all binds were seen, none of them for an MSMQ or epm interface: an alter_context follows a bind."""
        return self.is_begin_seen and not self.is_msmq

    @property
    def is_begin_seen(self) -> bool:
        """Whether the bind PDU was captured that begins the association, not only alter_context PDUs."""
        return self.has_joined is not None

    def add_bind(
        self, body: bytes, order: str, end: int, offset: int, sequence: int, call_id: int, time: int, number: int,
        auth: tuple[int | None, int | None], token: HandshakeToken | None = None,
    ) -> None:  # fmt: skip
        """Add a bind or alter_context PDU. Raises ``MalformedBindError``, ``BindLimitError``."""
        xmit, receive, group, elements = parse_bind(body, order, end)
        parts = sum(1 + len(element.transfer_syntaxes) for element in elements)
        if len(self.binds) >= MAX_BINDS_PER_CONNECTION or parts > self.budget.contexts:
            raise BindLimitError
        self.budget.contexts -= parts
        bind = BindExchange(offset, sequence, call_id, elements, time, number, xmit, receive, group, *auth)
        self._add_token(bind, token)
        self.binds.append(bind)
        self.binds_by_call_id.setdefault(call_id, []).append(bind)
        self.unanswered_binds.append(bind)
        del self.unanswered_binds[:-MAX_UNANSWERED_BINDS]
        if body[2] == BIND:
            self.has_joined = group != 0
        for element in elements:
            if element.interface_uuid in INTERFACES_BY_UUID:
                self.is_msmq = True
            if not element.transfer_syntaxes:
                continue
            bound = self.contexts.setdefault(element.context_id, [])
            if bound and bound[-1].is_unanswered:
                bound.pop()
            if not bound or bound[-1].refused:
                bound.append(BoundContext(offset, element.interface_uuid, element.transfer_syntaxes[0], auth))
        answers, self.early_answers = self.early_answers, []
        for answer in answers:
            self.add_bind_answer(*answer)

    def add_bind_answer(
        self, ptype: int, body: bytes, order: str, end: int, call_id: int, token: HandshakeToken | None = None
    ) -> None:
        """Add a bind_ack, alter_context_resp or bind_nak PDU. Raises ``MalformedBindError``."""
        bind = self._pop_answered_bind(call_id)
        if bind is None and len(self.early_answers) < MAX_EARLY_ANSWERS:
            self.early_answers.append((ptype, body, order, end, call_id, token))
        if ptype == BIND_NAK:
            if bind is not None:
                bind.nak_reason = int.from_bytes(body[16:18], "little" if order == "<" else "big")
                for element in bind.context_elements:
                    self._refuse(bind, element)
            return
        xmit, receive, group, address, results = parse_bind_ack(body, order, end)
        if ptype == BIND_ACK or self.group_id is None:
            self.group_id = group or self.group_id
        if bind is None:
            return
        self._add_token(bind, token)
        bind.results = results
        bind.max_xmit_frag, bind.max_recv_frag = xmit, receive
        bind.group_id, bind.secondary_address = group, address
        for element, result in zip(bind.context_elements, results, strict=False):
            if result.result != "accepted" or result.transfer_syntax is None:
                self._refuse(bind, element)
                continue
            bound = self.contexts.setdefault(element.context_id, [])
            auth = (bind.auth_type, bind.auth_level)
            context = BoundContext(
                bind.stream_offset, element.interface_uuid, result.transfer_syntax, auth, accepted=True
            )
            if bound and bound[-1].is_unanswered:
                bound[-1] = context
            elif not bound or bound[-1].refused or not bound[-1].means_the_same_as(context):
                insort(bound, context, key=lambda other: other.stream_offset)

    def _refuse(self, bind: BindExchange, element: ContextElement) -> None:
        """Note that the server did not accept a context; one that was accepted before keeps its meaning."""
        if not element.transfer_syntaxes:
            return
        bound = self.contexts.setdefault(element.context_id, [])
        place = bisect_right(bound, bind.stream_offset, key=lambda context: context.stream_offset)
        before = bound[place - 1] if place else None
        if before is None or (before.is_unanswered and before.stream_offset < bind.stream_offset):
            auth = (bind.auth_type, bind.auth_level)
            syntax = element.transfer_syntaxes[0]
            bound.insert(place, BoundContext(bind.stream_offset, element.interface_uuid, syntax, auth, refused=True))
        elif before.is_unanswered:
            before.refused = True

    def add_auth3_token(self, call_id: int, offset: int, token: HandshakeToken) -> bool:
        """Add the token of an auth3 PDU to the last bind before it with the same call id, else to the last bind.

        ``offset``: of the PDU, in the client's stream. Returns whether there was room. Without any bind the token is
        dropped.
        """
        candidates = self.binds_by_call_id.get(call_id) or self.binds[-1:]
        if not candidates:
            return True
        bind = candidates[bisect_right(candidates, offset, key=lambda each: each.stream_offset) - 1]
        if len(bind.tokens) >= MAX_TOKENS_PER_BIND:
            return False
        self._add_token(bind, token)
        return True

    def _add_token(self, bind: BindExchange, token: HandshakeToken | None) -> None:
        if token is not None:
            bind.tokens.append(token)
            self.token_count += 1

    @property
    def has_handshake(self) -> bool:
        """Whether the tokens contain a handshake from which session keys can be derived."""
        if self.token_count != self.handshake_check[0]:
            tokens = [token for one in self.binds for token in one.tokens]
            self.handshake_check = self.token_count, has_usable_handshake(tokens)
        return self.handshake_check[1]

    def _pop_answered_bind(self, call_id: int) -> BindExchange | None:
        """Remove and return the oldest unanswered bind with the answer's call id; None if its bind was not seen so far.

        Another bind's answer may be here without its bind, where a capture begins between the two.
        """
        bind = next((each for each in self.unanswered_binds if each.call_id == call_id), None)
        if bind is not None:
            self.unanswered_binds.remove(bind)
        return bind

    def quarantine_bind(self, bind: StrayBytes) -> None:
        """Record a PDU for quarantine; beyond the limit only its size."""
        if len(self.quarantined_binds) < MAX_QUARANTINED_BINDS:
            self.quarantined_binds.append(bind)
        else:
            self.quarantined_binds[-1].size += bind.size

    def usual_context(self, context_id: int) -> BoundContext | None:
        """Return the first meaning of a context id that the server did not refuse, else the first one; None without."""
        bound = self.contexts.get(context_id, [])
        return next((context for context in bound if not context.refused), bound[0] if bound else None)

    def context_at(self, context_id: int, offset: int) -> BoundContext | None:
        """Return the meaning of a context id at an offset of the client's stream; None if its bind was not seen."""
        bound = self.contexts.get(context_id, [])
        count = bisect_right(bound, offset, key=lambda context: context.stream_offset)
        return bound[count - 1] if count else None


BIND_REQUEST_TYPES = (BIND, ALTER_CONTEXT)
BIND_ANSWER_TYPES = (BIND_ACK, ALTER_CONTEXT_RESP, BIND_NAK)
AUTH3_PDU_TYPES = (AUTH3,)
