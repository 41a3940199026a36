"""What binds establish on a connection: the meaning of its presentation context ids ([C706] 12.6.3.5).

A context id is decoded by the bind that stands before it in the client's stream; the answer, where it was seen, says
which transfer syntax holds.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from udfs.dcerpc.bind import Answer, Element, MalformedBindError, parse_bind, parse_bind_ack
from udfs.dcerpc.interfaces import BY_UUID, Seen
from udfs.dcerpc.pdu import ALTER_CONTEXT, ALTER_CONTEXT_RESP, AUTH3, BIND, BIND_ACK, BIND_NAK
from udfs.sealed.tokens import Token, shown

AUTH_LEVEL_CONNECT = 2
MAX_WAITING = 64
MAX_EARLY = 16
MAX_TOKENS = 16  # of one bind: a handshake has three
MAX_BINDS = 1 << 12  # of one connection; a client that asks for more is no RPC client


class Kept(NamedTuple):
    """A PDU that another capture may need again: of a bind, or of a call that is not finished.

    ``data`` are its bytes, or its header alone where a hole took a part of it; ``done`` is the time of its last byte,
    ``acknowledgement`` the number on its first packet.
    """

    side: int
    offset: int
    size: int
    data: bytes
    time: int
    done: int
    number: int
    file_offset: int
    acknowledgement: int
    context_id: int  # -1 of a bind
    settled: bool = False  # of a call that only a repetition can change: the capture before may have it too


@dataclass(slots=True)
class Asked:
    """One bind or alter_context with its answer as far as seen."""

    offset: int  # of its first byte in the client's stream
    sequence: int
    call_id: int
    elements: list[Element]
    time: int
    number: int
    max_xmit_frag: int
    max_recv_frag: int
    group: int
    auth_type: int | None
    auth_level: int | None
    secondary_address: str | None = None
    answers: list[Answer] = field(default_factory=list)
    nak: int | None = None
    tokens: list[Token] = field(default_factory=list)  # its own, its answer's, and of auth3 behind it


@dataclass(slots=True)
class Context:
    """What a context id means from a stream offset on."""

    offset: int
    interface: str
    syntax: str
    auth: tuple[int | None, int | None]
    accepted: bool = False


@dataclass(slots=True)
class Association:
    """The RPC side of one TCP connection."""

    asked: list[Asked] = field(default_factory=list)
    waiting: deque[Asked] = field(default_factory=lambda: deque(maxlen=MAX_WAITING))  # of these, not answered yet
    contexts: dict[int, list[Context]] = field(default_factory=dict)
    evidence: dict[int, set[Seen]] = field(default_factory=dict)  # of contexts without a bind
    group: int | None = None
    calls: int = 0
    ours: bool = False  # a bind asked for one of our interfaces
    early: list[tuple[int, bytes, str, int, int, Token | None]] = field(
        default_factory=list
    )  # answers before their binds
    malformed: list[tuple[str, int, int, int, int, int, bytes]] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)  # binds, and what belongs to calls that are not finished
    unknown: list[Kept] = field(default_factory=list)  # whole calls, of contexts without a bind
    kept_bytes: int = 0
    unread: Counter[tuple[int, int]] = field(default_factory=Counter)  # bytes too many to be kept, by context and side
    left: set[tuple[int, int]] = field(default_factory=set)  # answers (1) and requests (0) too many to be kept: offsets
    handshake: tuple[int, bool] = (0, False)  # of how many tokens it is known, and whether these hold one

    @property
    def foreign(self) -> bool:
        """Whether its binds were seen and none asked for one of our interfaces."""
        return bool(self.asked) and not self.ours

    def ask(
        self, body: bytes, order: str, end: int, offset: int, sequence: int, call_id: int, time: int, number: int,
        auth: tuple[int | None, int | None], token: Token | None = None,
    ) -> None:  # fmt: skip
        """Take a bind or alter_context; raises ``MalformedBindError``."""
        xmit, receive, group, elements = parse_bind(body, order, end)
        if len(self.asked) >= MAX_BINDS:
            raise MalformedBindError
        asked = Asked(offset, sequence, call_id, elements, time, number, xmit, receive, group, *auth)
        if token is not None:
            asked.tokens.append(token)
        self.asked.append(asked)
        self.waiting.append(asked)
        for element in elements:
            if element.interface in BY_UUID:
                self.ours = True
            if not element.syntaxes:
                continue
            known = self.contexts.setdefault(element.context_id, [])
            if not any(context.accepted for context in known):
                known.clear()
            if not known:
                known.append(Context(offset, element.interface, element.syntaxes[0], auth))
        early, self.early = self.early, []
        for answer in early:
            self.answer(*answer)

    def answer(self, ptype: int, body: bytes, order: str, end: int, call_id: int, token: Token | None = None) -> None:
        """Take a bind_ack, alter_context_resp or bind_nak; raises ``MalformedBindError``."""
        asked = self._asked_by(call_id)
        if asked is None and len(self.early) < MAX_EARLY:
            self.early.append((ptype, body, order, end, call_id, token))
        if ptype == BIND_NAK:
            if asked is not None:
                asked.nak = int.from_bytes(body[16:18], "little" if order == "<" else "big")
            return
        xmit, receive, group, address, answers = parse_bind_ack(body, order, end)
        if ptype == BIND_ACK or self.group is None:
            self.group = group or self.group
        if asked is None:
            return
        if token is not None:
            asked.tokens.append(token)
        asked.answers = answers
        asked.max_xmit_frag, asked.max_recv_frag = xmit, receive
        asked.group, asked.secondary_address = group, address
        for element, given in zip(asked.elements, answers, strict=False):
            if given.result != "accepted" or given.syntax is None:
                continue
            known = self.contexts.setdefault(element.context_id, [])
            auth = (asked.auth_type, asked.auth_level)
            context = Context(asked.offset, element.interface, given.syntax, auth, accepted=True)
            if known and not known[-1].accepted:
                known[-1] = context
            elif not known or (known[-1].interface, known[-1].syntax) != (context.interface, context.syntax):
                insort(known, context, key=lambda other: other.offset)

    def authenticate(self, call_id: int, token: Token) -> None:
        """Take an auth3 PDU's token: of the last bind before it with its call id, else of the last of all.

        Without a bind it is let go.
        """
        known = [one for one in self.asked if one.call_id == call_id] or self.asked[-1:]
        before = [one for one in known if (token.sequence - one.sequence) & 0xFFFFFFFF < 1 << 31]
        asked = next(reversed(before or known), None)
        if asked is not None and len(asked.tokens) < MAX_TOKENS:
            asked.tokens.append(token)

    @property
    def has_handshake(self) -> bool:
        """Whether its tokens hold a handshake that keys could make session keys of."""
        count = sum(len(one.tokens) for one in self.asked)
        if count != self.handshake[0]:
            self.handshake = count, shown([token for one in self.asked for token in one.tokens])
        return self.handshake[1]

    def _asked_by(self, call_id: int) -> Asked | None:
        """Take the bind that an answer belongs to out of those that wait: by call id, else the oldest."""
        if not self.waiting:
            return None
        asked = next((one for one in self.waiting if one.call_id == call_id), self.waiting[0])
        self.waiting.remove(asked)
        return asked

    def note_malformed(self, offset: int, time: int, number: int, file_offset: int, size: int, sample: bytes) -> None:
        """Keep a bind that cannot be read, for quarantine."""
        if len(self.malformed) < MAX_BINDS:
            self.malformed.append(("malformed_bind", offset, time, number, file_offset, size, sample))

    def context(self, context_id: int, offset: int) -> Context | None:
        """Return what a context id means at an offset of the client's stream; None when its bind was not seen."""
        known = self.contexts.get(context_id, [])
        place = bisect_right(known, offset, key=lambda context: context.offset)
        return known[place - 1] if place else None


REQUESTS = (BIND, ALTER_CONTEXT)
ANSWERS = (BIND_ACK, ALTER_CONTEXT_RESP, BIND_NAK)
THIRD_LEGS = (AUTH3,)
