"""Client of the qmmgmt interface: connects to a queue manager and calls R_QMMgmtGetInfo, by means of impacket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

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

from pipeline.collector.get_info_codec import (
    GET_INFO_OPNUM,
    QMMGMT_SYNTAX_ID,
    ResponseError,
    decode_response,
    encode_request,
)
from pipeline.collector.transport import (
    ANSWER_LIMIT_CODE,
    RESPONSE_PDU,
    AnswerLimitError,
    CollectionStoppedError,
    ConnectionCutError,
    DeadlineTransport,
    ProtocolError,
    RoundBudget,
    RoundLimitError,
    StopSignal,
    fault_status,
)
from pipeline.settings import AuthenticationMethod, CollectorConfig

_ACCESS_DENIED_STATUSES: Final = frozenset({0x00000005, 0x1C000013, 0x00000721})  # [C706] E, [MS-RPCE]
_TOO_BUSY_STATUS: Final = 0x1C010014
_NOT_REGISTERED_STATUS: Final = 0x16C9A0D6  # ept_s_not_registered, [C706] N
_SECURITY_REJECT_REASONS: Final = frozenset({5, 8, 9})  # of bind_nak, [MS-RPCE] 2.2.2.5

TIMEOUT_CODE: Final = "timeout"
CONNECTION_REFUSED_CODE: Final = "refused"
UNRESOLVED_CODE: Final = "unresolved"
UNAUTHENTICATED_CODE: Final = "unauthenticated"
CONNECTION_LOST_CODE: Final = "cut"
MALFORMED_ANSWER_CODE: Final = "malformed"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Account for authentication. ``repr`` does not show the password. ``privacy`` encrypts the calls."""

    authentication: AuthenticationMethod = CollectorConfig.authentication
    user: str = CollectorConfig.user
    domain: str = CollectorConfig.domain
    password: str = field(default="", repr=False)
    privacy: bool = CollectorConfig.privacy
    kdc: str | None = CollectorConfig.kdc


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Host and port of a queue manager. With ``port`` None, the endpoint mapper is asked for the port."""

    host: str
    port: int | None = None
    endpoint_mapper_port: int = CollectorConfig.endpoint_mapper_port


class RequestError(Exception):
    """A request without answer. ``code`` is the ``error`` of a snapshot; ``retryable``: a retry may succeed."""

    def __init__(self, code: str, detail: str, *, retryable: bool) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.retryable = retryable


@dataclass(frozen=True, slots=True)
class ManagementAnswer:
    """Answer of R_QMMgmtGetInfo: unsigned HRESULT, and (vt, value) of each property in the requested order."""

    hresult: int
    values: list[tuple[int, Any]]


class ManagementClient:
    """One connection to the qmmgmt interface of a queue manager. Methods raise RequestError, or RoundLimitError.

    ``waited_s`` is the time that closed connections spent waiting for the server.
    """

    def __init__(
        self, server: ServerAddress, credentials: Credentials, *, timeout_s: float, stop_signal: StopSignal,
        budget: RoundBudget,
    ) -> None:  # fmt: skip
        self._server = server
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._stop_signal = stop_signal
        self._budget = budget
        self._transport: DeadlineTransport | None = None
        self._rpc: Any = None
        self.peer_address: str | None = None
        self.waited_s = 0.0

    def connect(self) -> None:
        """Find the port if none is given, connect, and bind. The first answer shows whether the logon succeeded."""
        self.close()
        transport = self._new_transport(self._server.port or self._find_port())
        account = self._credentials
        kerberos = account.authentication == "kerberos"
        rpc = transport.get_dce_rpc()
        if kerberos:
            transport.set_kerberos(True, account.kdc)  # noqa: FBT003 - impacket's
        if account.authentication != "none":
            transport.set_credentials(account.user, account.password, account.domain)
            rpc.set_auth_type(RPC_C_AUTHN_GSS_NEGOTIATE if kerberos else RPC_C_AUTHN_WINNT)
            rpc.set_auth_level(RPC_C_AUTHN_LEVEL_PKT_PRIVACY if account.privacy else RPC_C_AUTHN_LEVEL_CONNECT)
        with self._translate_errors(transport):
            self._connect_transport(transport)
            rpc.bind(uuidtup_to_bin(QMMGMT_SYNTAX_ID))
        self._rpc = rpc

    def _new_transport(self, port: int) -> DeadlineTransport:
        self._transport = DeadlineTransport(
            self._server.host, port, timeout_s=self._timeout_s, stop_signal=self._stop_signal, budget=self._budget
        )
        return self._transport

    def _connect_transport(self, transport: DeadlineTransport) -> None:
        transport.connect()
        self.peer_address = transport.peer_address
        transport.start_exchange()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self.waited_s += self._transport.waited_s
            self._transport.disconnect()
        self._transport = self._rpc = None

    @property
    def connected(self) -> bool:
        """Whether the connection is open. Most errors close it."""
        return self._rpc is not None

    def get_info(self, format_name: str | None, properties: Sequence[int]) -> ManagementAnswer:
        """Request properties of a queue by its format name, or of the machine (None)."""
        stub = encode_request(format_name, properties)
        if self._transport is None or self._rpc is None:
            raise RequestError(CONNECTION_LOST_CODE, "not connected", retryable=True)
        transport = self._transport
        with self._translate_errors(transport):
            transport.start_exchange()
            self._rpc.call(GET_INFO_OPNUM, stub)
            answer = self._rpc.recv()
            if transport.last_pdu[2] != RESPONSE_PDU:
                raise ResponseError(f"PDU of type {transport.last_pdu[2]} instead of a response")
            big_endian = not transport.last_pdu[4] & 0x10
            return ManagementAnswer(*decode_response(answer, len(properties), big_endian=big_endian))

    def _find_port(self) -> int:
        """Return the port of qmmgmt from the endpoint mapper (rule M15)."""
        transport = self._new_transport(self._server.endpoint_mapper_port)
        with self._translate_errors(transport):
            rpc = transport.get_dce_rpc()
            self._connect_transport(transport)
            found = epm.hept_map(self._server.host, uuidtup_to_bin(QMMGMT_SYNTAX_ID), protocol="ncacn_ip_tcp", dce=rpc)
            port = int(str(found).rpartition("[")[2].rstrip("]"))
            if not 0 < port < 1 << 16:
                raise ResponseError(f"port {port} from the endpoint mapper")
        self.close()
        return port

    @contextmanager
    def _translate_errors(self, transport: DeadlineTransport) -> Iterator[None]:
        """Convert every error of an exchange to ``RequestError``, and close the connection except after a fault."""
        try:
            yield
        except (CollectionStoppedError, RequestError, RoundLimitError):
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - impacket does not validate what it reads: any exception can follow
            request_error = self._request_error(error, transport.last_pdu)
            if not (request_error.code.startswith("fault:") and self._rpc is not None):
                self.close()  # a fault leaves the connection usable
            raise request_error from None  # the cause may contain what was sent

    def _request_error(self, error: Exception, pdu: bytes) -> RequestError:
        status = fault_status(pdu)
        if isinstance(error, TimeoutError):
            return RequestError(TIMEOUT_CODE, "no answer in time", retryable=True)
        if isinstance(error, ConnectionCutError | ConnectionResetError | BrokenPipeError):
            return RequestError(CONNECTION_LOST_CODE, "the connection was closed", retryable=True)
        if isinstance(error, AnswerLimitError):
            return RequestError(ANSWER_LIMIT_CODE, str(error), retryable=False)
        if isinstance(error, ProtocolError):
            return RequestError(MALFORMED_ANSWER_CODE, str(error), retryable=False)
        if isinstance(error, socket.gaierror):
            return RequestError(UNRESOLVED_CODE, error.strerror or "the name has no address", retryable=True)
        if isinstance(error, OSError) and not isinstance(error, KerberosError):
            return RequestError(CONNECTION_REFUSED_CODE, error.strerror or type(error).__name__, retryable=True)
        if isinstance(error, DCERPCException) and status is not None:
            if status in _ACCESS_DENIED_STATUSES:
                return RequestError(UNAUTHENTICATED_CODE, "access denied", retryable=False)
            return RequestError(f"fault:0x{status:08X}", "the call was refused", retryable=status == _TOO_BUSY_STATUS)
        if isinstance(error, epm.DCERPCSessionError):
            code = f"fault:0x{error.error_code:08X}"
            return RequestError(code, "the endpoint mapper does not know the interface", retryable=False)
        # Without pre-authentication a KDC answers everybody; a wrong password then cannot decrypt the answer.
        if isinstance(error, KerberosError | SessionKeyDecryptionError) or _is_logon_refusal(pdu):
            return RequestError(UNAUTHENTICATED_CODE, "the logon was refused", retryable=False)
        if isinstance(error, IndexError) and self._rpc is None and self._server.port is None:
            code = f"fault:0x{_NOT_REGISTERED_STATUS:08X}"
            return RequestError(code, "qmmgmt is not registered there", retryable=False)
        if isinstance(error, ResponseError):
            return RequestError(MALFORMED_ANSWER_CODE, str(error), retryable=False)
        return RequestError(
            MALFORMED_ANSWER_CODE, f"the answer cannot be read ({type(error).__name__})", retryable=False
        )


def _is_logon_refusal(pdu: bytes) -> bool:
    """Tell whether a PDU is a bind_nak that rejects the authentication."""
    return len(pdu) >= 18 and pdu[2] == 13 and struct.unpack_from("<H", pdu, 16)[0] in _SECURITY_REJECT_REASONS
