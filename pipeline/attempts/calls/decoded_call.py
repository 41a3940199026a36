"""Calls as the state machines take them: plain rows, and the role of each method in a remote read.

Times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from udfs.call_results import call_succeeded

CallRole = Literal[
    "name", "release", "open", "close", "start", "end", "cancel", "reject", "purge", "move", "target",
    "proxy", "proxy_close", "cursor", "port",
]  # fmt: skip
DecodeErrorFields = tuple[str, str | None, int | None]


class Clocks(NamedTuple):
    """The taps that saw request and response of a call (column ``clocks``), and how far ahead their clocks are, us."""

    request_tap: int | None = None
    request_ahead_us: int | None = None
    response_tap: int | None = None
    response_ahead_us: int | None = None


ONE_CLOCK: Final = Clocks()
LOOKUP_ID_ACTION_FLAG: Final = (1 << 56) - 1  # the part of a LookupIdentifier that the wire carries
CLOCK_TOLERANCE_US: Final = 10_000_000  # the most by which clocks of captures of one server differ

CALL_ROLES: Final[dict[tuple[str, int], CallRole]] = {
    ("qmcomm", 2): "name",
    ("qmcomm", 3): "release",
    ("qm2qm", 0): "start",
    ("qm2qm", 1): "end",
    ("qm2qm", 2): "open",
    ("qm2qm", 3): "close",
    ("qm2qm", 5): "cancel",
    ("qm2qm", 6): "purge",
    ("qm2qm", 9): "start",
    ("qm2qm", 10): "start",
    ("RemoteRead", 2): "open",
    ("RemoteRead", 3): "close",
    ("RemoteRead", 6): "purge",
    ("RemoteRead", 7): "start",
    ("RemoteRead", 8): "cancel",
    ("RemoteRead", 9): "end",
    ("RemoteRead", 10): "move",
    ("RemoteRead", 11): "target",
    ("RemoteRead", 13): "start",
    ("RemoteRead", 14): "reject",
    ("RemoteRead", 15): "end",
}
"""What a method does, by (interface, opnum): of qmcomm, to name a queue by a number at its owner, and to let go; a
target is opened for messages to be moved to it."""

OPEN_ROLES: Final[dict[tuple[str, int], CallRole]] = {
    **{method: role for method, role in CALL_ROLES.items() if role in ("name", "release", "open", "close", "target")},
    ("qmcomm", 4): "cursor",
    ("qmcomm", 19): "proxy",
    ("qmcomm", 20): "proxy_close",
    ("qmcomm2", 3): "cursor",
    ("qmcomm", 31): "port",
    ("qm2qm", 7): "port",
    ("RemoteRead", 0): "port",
    ("RemoteRead", 4): "cursor",
}
"""What a method does to open queues, by (interface, opnum). A proxy is what an application opens at its queue manager;
a port is asked for before a remote queue is opened."""


class DecodedCall(NamedTuple):
    """A row of silver.remote_read_calls or silver.client_calls, with what bronze.rpc_calls knows of it.

    ``requested_at`` and ``responded_at`` are times of one clock for all calls of a connection (``clocks``).
    ``encrypted``: it is sealed, and no key decrypted it.
    """

    call_key: str
    protocol: str
    opnum: int
    connection_id: str
    requested_at: int | None = None
    responded_at: int | None = None
    queue: str | None = None
    context_handle: str | None = None
    remote_read_handle: str | None = None
    queue_handle: int | None = None
    queue_descriptor: int | None = None
    open_context: int | None = None
    action: int | None = None
    timeout_ms: int | None = None
    request_id: int | None = None
    lookup_id: int | None = None
    sequence_id: int | None = None
    transaction_id: str | None = None
    acknowledgement_class: int | None = None
    ack: int | None = None
    hresult: int | None = None
    errors: tuple[DecodeErrorFields, ...] = ()
    outcome: str = "ok"
    fault_status: int | None = None
    encrypted: bool = False
    bind_seen: bool = True
    cancelled_at: int | None = None
    orphaned_at: int | None = None
    move_context: int | None = None
    clocks: Clocks = ONE_CLOCK
    access: int | None = None
    share_mode: int | None = None
    returned_port: int | None = None

    @property
    def captured_request_at(self) -> int | None:
        """The time of the request by the clock of the tap that saw it."""
        return None if self.requested_at is None else self.requested_at + (self.clocks.request_ahead_us or 0)

    @property
    def captured_response_at(self) -> int | None:
        """The time of the response by the clock of the tap that saw it."""
        return None if self.responded_at is None else self.responded_at + (self.clocks.response_ahead_us or 0)

    @property
    def at(self) -> int:
        """The time of the request, else of the response."""
        return self.requested_at if self.requested_at is not None else self.responded_at or 0

    @property
    def is_refused(self) -> bool:
        """Whether the answer was captured and is a fault, or the result of a call that did not succeed."""
        return self.fault_status is not None or call_succeeded(self.protocol, self.hresult) is False

    @property
    def is_accepted(self) -> bool:
        """Whether the answer was captured and its result is that of a call that succeeded."""
        return self.fault_status is None and call_succeeded(self.protocol, self.hresult) is True

    @property
    def result(self) -> int | None:
        """The HRESULT, or the status of the fault; None when neither was captured."""
        return self.hresult if self.fault_status is None else self.fault_status
