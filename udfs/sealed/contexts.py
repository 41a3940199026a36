"""The security contexts of a connection: its handshakes, put together from tokens, and what keys make of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from udfs.sealed import kerberos
from udfs.sealed.keys import Keys
from udfs.sealed.ntlm import Handshake, MalformedMessageError
from udfs.sealed.session import Closed, NtlmSession, Opened, Sent
from udfs.sealed.tokens import AUTHENTICATE, CHALLENGE, NEGOTIATE, Token


class Session(Protocol):
    """Session keys of one handshake, and how they open PDUs."""

    def open(self, sent: Sequence[Sent]) -> list[Opened]:
        """Return the stubs of PDUs, in their order, or why they stay closed."""


@dataclass(slots=True)
class SecurityContext:
    """One security context: ``session`` opens its PDUs, or ``closed`` says why none can be.

    ``begins``: TCP sequence numbers of its first token and, where there is one, of the server's first; ``principal`` as
    the handshake shows it, None where it does not without a key.
    """

    context_id: int
    begins: tuple[int, int | None]
    principal: str | None = None
    closed: Closed | None = None
    session: Session | None = field(default=None, repr=False)


def security_contexts(tokens: Iterable[Token], keys: Keys) -> list[SecurityContext]:
    """Return the security contexts that a connection's tokens show, in the order of the client's stream.

    ``tokens`` are all of one connection, each side's in the order of its stream.
    """
    of_context: dict[int, list[list[Token]]] = defaultdict(list)
    for token in tokens:
        handshakes = of_context[token.auth_context_id]
        begins_anew = token.from_client and (
            token.ntlm_type == NEGOTIATE or (token.ntlm_type is None and kerberos.is_request(token))
        )
        if not handshakes or (begins_anew and any(each.from_client for each in handshakes[-1])):
            handshakes.append([])
        handshakes[-1].append(token)
    return [_context(each, keys) for handshakes in of_context.values() for each in handshakes]


def _context(tokens: Sequence[Token], keys: Keys) -> SecurityContext:
    server = next((token.sequence for token in tokens if not token.from_client), None)
    client = next((token.sequence for token in tokens if token.from_client), tokens[0].sequence)
    made = SecurityContext(tokens[0].auth_context_id, (client, server), closed=Closed.NO_HANDSHAKE)
    ends = tuple(
        next((token.end for token in reversed(tokens) if token.from_client == side), 0) for side in (True, False)
    )
    if any(token.ntlm is not None for token in tokens):
        _ntlm(made, tokens, keys, (ends[0], ends[1]))
    elif any(token.kerberos is not None for token in tokens):
        made.principal, made.closed, made.session = kerberos.session(tokens, keys)
    elif all(token.auth_type not in kerberos.KNOWN_TYPES for token in tokens):
        made.closed = Closed.NO_KEY  # a mechanism for which there are no keys
    return made


def _ntlm(made: SecurityContext, tokens: Sequence[Token], keys: Keys, ends: tuple[int, int]) -> None:
    messages = {token.ntlm_type: token.ntlm for token in tokens if token.ntlm is not None}
    challenge, authenticate = messages.get(CHALLENGE), messages.get(AUTHENTICATE)
    if challenge is None or authenticate is None:
        return
    try:
        handshake = Handshake.of(challenge, authenticate)
    except MalformedMessageError:
        return
    made.principal = handshake.principal
    made.closed = Closed.NO_KEY
    for key in keys.ntlm:
        if handshake.is_anonymous or key.names(handshake.domain, handshake.user):
            made.closed = Closed.BAD_SIGNATURE
            exported = handshake.exported_key(key)
            if exported is not None:
                made.closed, made.session = None, NtlmSession(handshake.flags, exported, ends)
                return
