"""What binds establish on a connection: the meaning of its presentation context ids ([C706] 12.6.3.5).

A context id is decoded by the bind that stands before it in the client's stream; the answer, where it was seen, says
which transfer syntax holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from udfs.rpc.bind import Answer, Element, MalformedBindError, parse_bind, parse_bind_ack
from udfs.rpc.interfaces import BY_UUID, Seen
from udfs.rpc.pdu import ALTER_CONTEXT, ALTER_CONTEXT_RESP, BIND, BIND_ACK, BIND_NAK

AUTH_LEVEL_CONNECT = 2
MAX_EARLY = 16
MAX_BINDS = 1 << 16  # of one connection; a client that asks for more is no RPC client


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
    contexts: dict[int, list[Context]] = field(default_factory=dict)
    evidence: dict[int, set[Seen]] = field(default_factory=dict)  # of contexts without a bind
    group: int | None = None
    calls: int = 0
    ours: bool = False  # a bind asked for one of our interfaces
    unbound: bool = False  # calls were seen of contexts without a bind
    early: list[tuple[int, bytes, str, int, int]] = field(default_factory=list)  # answers captured before their binds
    malformed: list[tuple[str, int, int, int, int, bytes]] = field(default_factory=list)

    @property
    def foreign(self) -> bool:
        """Whether its binds were seen and none asked for one of our interfaces."""
        return bool(self.asked) and not self.ours

    def ask(
        self, body: bytes, order: str, end: int, offset: int, sequence: int, call_id: int, time: int, number: int,
        auth: tuple[int | None, int | None],
    ) -> None:  # fmt: skip
        """Take a bind or alter_context; raises ``MalformedBindError``."""
        xmit, receive, group, elements = parse_bind(body, order, end)
        if len(self.asked) >= MAX_BINDS:
            raise MalformedBindError
        asked = Asked(offset, sequence, call_id, elements, time, number, xmit, receive, group, *auth)
        self.asked.append(asked)
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

    def answer(self, ptype: int, body: bytes, order: str, end: int, call_id: int) -> None:
        """Take a bind_ack, alter_context_resp or bind_nak; raises ``MalformedBindError``."""
        waiting = [asked for asked in self.asked if not asked.answers and asked.nak is None]
        asked = next((one for one in waiting if one.call_id == call_id), waiting[0] if waiting else None)
        if asked is None and len(self.early) < MAX_EARLY:
            self.early.append((ptype, body, order, end, call_id))
        if ptype == BIND_NAK:
            if asked is not None:
                asked.nak = int.from_bytes(body[16:18], "little" if order == "<" else "big")
            return
        xmit, receive, group, address, answers = parse_bind_ack(body, order, end)
        if ptype == BIND_ACK or self.group is None:
            self.group = group or self.group
        if asked is None:
            return
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
            else:
                known.append(context)

    def context(self, context_id: int, offset: int) -> Context | None:
        """Return what a context id means at an offset of the client's stream; None when its bind was not seen."""
        found = None
        for context in self.contexts.get(context_id, ()):
            if context.offset <= offset:
                found = context
        return found


REQUESTS = (BIND, ALTER_CONTEXT)
ANSWERS = (BIND_ACK, ALTER_CONTEXT_RESP, BIND_NAK)
