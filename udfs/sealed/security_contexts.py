"""Build the security contexts of a connection from the tokens of its handshakes, and derive their session keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from udfs.sealed import kerberos_handshake
from udfs.sealed.claimed_identity import MalformedNtlmMessageError
from udfs.sealed.decryption_keys import DecryptionKeys
from udfs.sealed.ntlm_handshake import NtlmHandshake
from udfs.sealed.ntlm_session import NtlmSession
from udfs.sealed.protected_pdu import DecryptedStub, DecryptionFailure, SentPdu
from udfs.sealed.security_tokens import NTLM_AUTHENTICATE, NTLM_CHALLENGE, NTLM_NEGOTIATE, HandshakeToken


class DecryptionSession(Protocol):
    """A security context with known session keys, able to decrypt its PDUs."""

    def decrypt(self, sent: Sequence[SentPdu]) -> list[DecryptedStub]:
        """Return for each PDU its stub in the clear, or why it cannot be decrypted."""


@dataclass(slots=True)
class SecurityContext:
    """One security context: either ``session``, which decrypts its PDUs, or ``failure``, why it cannot be decrypted.

    ``start_sequences`` are the TCP sequence numbers of the client's first token and of the server's (None if missing).
    ``principal`` is None if the handshake does not show it without a key.
    """

    context_id: int
    start_sequences: tuple[int, int | None]
    principal: str | None = None
    failure: DecryptionFailure | None = None
    session: DecryptionSession | None = field(default=None, repr=False)


def build_security_contexts(tokens: Iterable[HandshakeToken], keys: DecryptionKeys) -> list[SecurityContext]:
    """Return the security contexts of a connection, in the order of the client's stream.

    ``tokens`` are all tokens of the connection, those of each side in the order of its stream.
    """
    of_context: dict[int, list[list[HandshakeToken]]] = defaultdict(list)
    for token in tokens:
        handshakes = of_context[token.auth_context_id]
        starts_handshake = token.from_client and (
            token.ntlm_message_type == NTLM_NEGOTIATE
            or (token.ntlm_message_type is None and kerberos_handshake.is_ap_request(token))
        )
        if not handshakes or (starts_handshake and any(each.from_client for each in handshakes[-1])):
            handshakes.append([])
        handshakes[-1].append(token)
    return [_build_context(each, keys) for handshakes in of_context.values() for each in handshakes]


def _build_context(tokens: Sequence[HandshakeToken], keys: DecryptionKeys) -> SecurityContext:
    server = next((token.sequence for token in tokens if not token.from_client), None)
    client = next((token.sequence for token in tokens if token.from_client), tokens[0].sequence)
    context = SecurityContext(tokens[0].auth_context_id, (client, server), failure=DecryptionFailure.NO_HANDSHAKE)
    ends = tuple(
        next((token.end for token in reversed(tokens) if token.from_client == side), 0) for side in (True, False)
    )
    if any(token.ntlm_message is not None for token in tokens):
        _apply_ntlm_keys(context, tokens, keys, (ends[0], ends[1]))
    elif any(token.kerberos_message is not None for token in tokens):
        context.principal, context.failure, context.session = kerberos_handshake.open_kerberos_context(tokens, keys)
    elif all(token.auth_type not in kerberos_handshake.SUPPORTED_AUTH_TYPES for token in tokens):
        context.failure = DecryptionFailure.NO_KEY  # a mechanism for which there are no keys
    return context


def _apply_ntlm_keys(
    context: SecurityContext, tokens: Sequence[HandshakeToken], keys: DecryptionKeys, ends: tuple[int, int]
) -> None:
    messages = {token.ntlm_message_type: token.ntlm_message for token in tokens if token.ntlm_message is not None}
    challenge, authenticate = messages.get(NTLM_CHALLENGE), messages.get(NTLM_AUTHENTICATE)
    if challenge is None or authenticate is None:
        return
    try:
        handshake = NtlmHandshake.parse(challenge, authenticate)
    except MalformedNtlmMessageError:
        return
    names = handshake.names
    context.principal = names.principal
    context.failure = DecryptionFailure.NO_KEY
    for key in keys.ntlm:
        if names.is_anonymous or key.matches_account(names.domain, names.user):
            context.failure = DecryptionFailure.BAD_SIGNATURE
            exported = handshake.exported_key(key)
            if exported is not None:
                context.failure, context.session = None, NtlmSession(handshake.flags, exported, ends)
                return
