"""A qmmgmt client: connects to a queue manager, and asks R_QMMgmtGetInfo. Transport and security are impacket's."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from impacket.dcerpc.v5 import epm
from impacket.dcerpc.v5.rpcrt import (
    RPC_C_AUTHN_GSS_NEGOTIATE,
    RPC_C_AUTHN_LEVEL_CONNECT,
    RPC_C_AUTHN_LEVEL_PKT_PRIVACY,
    RPC_C_AUTHN_WINNT,
    DCERPCException,
)
from impacket.krb5.kerberosv5 import KerberosError, SessionKeyDecryptionError
from impacket.uuid import uuidtup_to_bin

from pipeline.collector.get_info import GET_INFO, INTERFACE, AnswerError, get_info, read_answer
from pipeline.collector.transport import RESPONSE, Clock, CutError, ProtocolError, StoppedError, Transport, fault_status

Authentication = Literal["none", "ntlm", "kerberos"]
ENDPOINT_MAPPER: Final = 135
_ACCESS_DENIED: Final = frozenset({0x00000005, 0x1C000013, 0x00000721})  # [C706] E, [MS-RPCE]: access, auth failures
_TOO_BUSY: Final = 0x1C010014
_NOT_REGISTERED: Final = 0x16C9A0D6  # ept_s_not_registered of the endpoint mapper, [C706] N
_REJECTED: Final = frozenset({5, 8, 9})  # reject reasons of bind_nak that are about security, [MS-RPCE] 2.2.2.5

TIMEOUT, REFUSED, UNAUTHENTICATED, CUT, MALFORMED = "timeout", "refused", "unauthenticated", "cut", "malformed"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who asks; the secret is never shown."""

    method: Authentication = "none"
    user: str = ""
    domain: str = ""
    password: str = field(default="", repr=False)
    privacy: bool = False
    kdc: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a queue manager is: ``port`` None asks the endpoint mapper for it."""

    host: str
    port: int | None = None
    endpoint_mapper_port: int = ENDPOINT_MAPPER


class AskError(Exception):
    """No answer: ``code`` is what a snapshot's ``error`` says, ``again`` whether asking again may help."""

    def __init__(self, code: str, detail: str, *, again: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.again = again


@dataclass(frozen=True, slots=True)
class Answer:
    """What R_QMMgmtGetInfo answered: HRESULT, unsigned, and (vt, value) of each property in the order asked."""

    hresult: int
    values: list[tuple[int, Any]]


class Client:
    """One connection to a queue manager's qmmgmt interface; every method raises ``AskError``."""

    def __init__(self, place: Place, credentials: Credentials, *, timeout_s: float, clock: Clock) -> None:
        self._place = place
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._clock = clock
        self._transport: Transport | None = None
        self._rpc: Any = None
        self.address: str | None = None
        self.waited_s = 0.0

    def connect(self) -> None:
        """Find the port where none is given, connect, and bind; the logon is proved by the first answer only."""
        self.close()
        port = self._place.port or self._endpoint()
        who = self._credentials
        kerberos = who.method == "kerberos"
        transport = Transport(self._place.host, port, timeout_s=self._timeout_s, clock=self._clock)
        self._transport = transport
        rpc = transport.get_dce_rpc()
        if kerberos:
            transport.set_kerberos(True, who.kdc)  # noqa: FBT003 - impacket's
        if who.method != "none":
            transport.set_credentials(who.user, who.password, who.domain)
            rpc.set_auth_type(RPC_C_AUTHN_GSS_NEGOTIATE if kerberos else RPC_C_AUTHN_WINNT)
            rpc.set_auth_level(RPC_C_AUTHN_LEVEL_PKT_PRIVACY if who.privacy else RPC_C_AUTHN_LEVEL_CONNECT)
        with self._errors(transport):
            transport.connect()
            self.address = transport.peer_address
            transport.begin()
            rpc.bind(uuidtup_to_bin(INTERFACE))
        self._rpc = rpc

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self.waited_s += self._transport.waited_s
            self._transport.disconnect()
        self._transport = self._rpc = None

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ask over; an error ends it."""
        return self._rpc is not None

    def ask(self, format_name: str | None, properties: Sequence[int]) -> Answer:
        """Ask about a queue by its format name, or (None) about the machine."""
        stub = get_info(format_name, properties)
        if self._transport is None or self._rpc is None:
            raise AskError(CUT, "not connected", again=True)
        transport = self._transport
        with self._errors(transport):
            transport.begin()
            self._rpc.call(GET_INFO, stub)
            answer = self._rpc.recv()
            if transport.pdu[2] != RESPONSE:
                raise AnswerError(f"a PDU of type {transport.pdu[2]} where an answer was due")
            big_endian = not transport.pdu[4] & 0x10
            return Answer(*read_answer(answer, len(properties), big_endian=big_endian))

    def _endpoint(self) -> int:
        """Ask the endpoint mapper for qmmgmt's port (rule M15)."""
        transport = Transport(
            self._place.host, self._place.endpoint_mapper_port, timeout_s=self._timeout_s, clock=self._clock
        )
        self._transport = transport
        with self._errors(transport):
            rpc = transport.get_dce_rpc()
            transport.connect()
            self.address = transport.peer_address
            transport.begin()
            found = epm.hept_map(self._place.host, uuidtup_to_bin(INTERFACE), protocol="ncacn_ip_tcp", dce=rpc)
            port = int(str(found).rpartition("[")[2].rstrip("]"))
            if not 0 < port < 1 << 16:
                raise AnswerError(f"port {port} of the endpoint mapper")
        self.close()
        return port

    @contextmanager
    def _errors(self, transport: Transport) -> Iterator[None]:
        """Make one kind of error of whatever can go wrong in an exchange, and end the connection."""
        try:
            yield
        except (StoppedError, AskError):
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - impacket believes what it reads: anything can come of it
            told = self._told(error, transport.pdu)
            if not (told.code.startswith("fault:") and self._rpc is not None):
                self.close()  # after a fault the connection goes on
            raise told from None  # what lies below may hold what was sent

    def _told(self, error: Exception, pdu: bytes) -> AskError:
        status = fault_status(pdu)
        if isinstance(error, TimeoutError):
            return AskError(TIMEOUT, "no answer in time", again=True)
        if isinstance(error, CutError | ConnectionResetError | BrokenPipeError):
            return AskError(CUT, "the connection ended", again=True)
        if isinstance(error, ProtocolError):
            return AskError(MALFORMED, str(error), again=False)
        if isinstance(error, OSError) and not isinstance(error, KerberosError):
            return AskError(REFUSED, error.strerror or type(error).__name__, again=True)
        if isinstance(error, DCERPCException) and status is not None:
            if status in _ACCESS_DENIED:
                return AskError(UNAUTHENTICATED, "access denied", again=False)
            return AskError(f"fault:0x{status:08X}", "the call was refused", again=status == _TOO_BUSY)
        if isinstance(error, epm.DCERPCSessionError):
            return AskError(f"fault:0x{error.error_code:08X}", "the endpoint mapper has no such interface", again=False)
        # A KDC that asks for no proof beforehand answers anybody: a wrong password then does not open its answer.
        if isinstance(error, KerberosError | SessionKeyDecryptionError) or _refused_logon(pdu):
            return AskError(UNAUTHENTICATED, "the logon was refused", again=False)
        if isinstance(error, IndexError) and self._rpc is None and self._place.port is None:
            return AskError(f"fault:0x{_NOT_REGISTERED:08X}", "qmmgmt is not registered there", again=False)
        if isinstance(error, AnswerError):
            return AskError(MALFORMED, str(error), again=False)
        return AskError(MALFORMED, f"an answer that cannot be read ({type(error).__name__})", again=False)


def _refused_logon(pdu: bytes) -> bool:
    """Tell of a bind_nak whether it refuses the security that was offered."""
    return len(pdu) >= 18 and pdu[2] == 13 and struct.unpack_from("<H", pdu, 16)[0] in _REJECTED
