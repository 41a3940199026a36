"""qmmgmt, the endpoint mapper and the runtime's own management interface ([MS-MQMR] 3.1.4, [C706]; 1.9, 4.8)."""

# ruff: noqa: ARG002 - every handler has the same parameters

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any
from uuid import UUID

from peer import methods
from peer.idl import (
    UNKNOWN,
    VT_BLOB,
    VT_CLSID,
    VT_I4,
    VT_I8,
    VT_LPWSTR,
    VT_NULL,
    VT_UI4,
    VT_UI8,
    VT_VECTOR,
    QueueFormat,
    Variant,
)
from peer.manager import INVALID_PARAMETER, QUEUE_NOT_FOUND, Manager
from peer.methods import EPM, QMMGMT, RPC_MGMT
from peer.ndr import NULL_HANDLE
from peer.pdu import NDR
from peer.queues import OutgoingTransfer, Queue
from peer.rpc import Call, Fault, Handler

ILLEGAL_PROPID = 0xC00E0039
NOT_REGISTERED = 0x16C9A0D6
MACHINE, QUEUE, SESSION = 1, 2, 3
STRINGS, VARIANTS = VT_VECTOR | VT_LPWSTR, VT_VECTOR | 12


def sequence_info(ident: int, number: int, previous: int) -> bytes:
    """SEQUENCE_INFO, 16 octets (3.1)."""
    return struct.pack("<qII", ident, number, previous)


class Management:
    """R_QMMgmtGetInfo and R_QMMgmtAction over one manager."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    def handlers(self) -> dict[tuple[Any, int], Handler]:
        return {
            (QMMGMT, 0): self.get_info,
            (QMMGMT, 1): self.action,
            (EPM, 3): self.ept_map,
            (RPC_MGMT, 2): self.is_listening,
        }

    async def get_info(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Return values in the requested order; on failure every out value stays VT_NULL (M09)."""
        if self.manager.delay_s:
            await asyncio.sleep(self.manager.delay_s)
        asked, ids = args["pObjectFormat"], args["aProp"]
        if not len(ids) == args["cp"] == len(args["apVar"]):
            raise Fault(0x000006F7, executed=False)
        nothing = {"apVar": [Variant(VT_NULL) for _ in ids]}
        if asked["type"] == SESSION:
            return {**nothing, "return": INVALID_PARAMETER}
        if asked["type"] == MACHINE:
            values = self.machine()
            highest = 6
        else:
            queue = self.manager.find(asked["queue"])
            if queue is None:
                return {**nothing, "return": QUEUE_NOT_FOUND}
            if queue.refuses:
                return {**nothing, "return": queue.refuses}
            values = queue_properties(queue)
            highest = 27
            if self.manager.unknown_properties & set(ids):
                return {**nothing, "return": ILLEGAL_PROPID}
        if any(not 1 <= ident <= highest for ident in ids):
            return {**nothing, "return": ILLEGAL_PROPID}
        return {"apVar": [values.get(ident, Variant(VT_NULL)) for ident in ids], "return": 0}

    def machine(self) -> dict[int, Variant]:
        """Return the machine properties of table 4.8."""
        queues = [queue for queue in self.manager.queues.values() if queue.parent is None]
        local = [queue for queue in queues if not queue.outgoing]
        total = sum(len(item.message.body) for queue in queues for item in queue.messages)
        return {
            1: Variant(STRINGS, [queue.format_name for queue in queues]),
            2: Variant(STRINGS, [queue.name for queue in local]),
            3: Variant(VT_NULL),
            4: Variant(VT_LPWSTR, "CONNECTED" if self.manager.connected else "DISCONNECTED"),
            5: Variant(VT_LPWSTR, "MSMQ Enterprise Server, Test Peer"),
            6: Variant(VT_I8, total),
        }

    async def action(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Perform machine and queue actions with their states (M11 to M14, M17)."""
        asked, word = args["pObjectFormat"], args["lpwszAction"].upper()
        if asked["type"] == MACHINE and word in {"CONNECT", "DISCONNECT", "TIDY"}:
            if word != "TIDY":
                self.manager.connected = word == "CONNECT"
            return {"return": 0}
        if asked["type"] == QUEUE and word in {"PAUSE", "RESUME", "EOD_RESEND"}:
            queue = self.manager.find(asked["queue"])
            if queue is None:
                return {"return": QUEUE_NOT_FOUND}
            if not queue.outgoing:
                return {"return": INVALID_PARAMETER}
            if word != "EOD_RESEND":
                queue.paused = word == "PAUSE"
            return {"return": 0}
        return {"return": INVALID_PARAMETER}

    async def is_listening(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return {"status": 0, "return": 1}

    async def ept_map(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Return the tower of an interface of this manager, at the address that the client connected to."""
        limit = args["max_towers"]
        answer = {"entry_handle": NULL_HANDLE, "num_towers": 0, "towers": (limit, [])}
        wanted = tower_interface(args["map_tower"] or b"")
        port = self.manager.ports["qm2qm" if wanted == methods.QM2QM.uuid else "remoteread"]
        known = {methods.QM2QM.uuid, methods.REMOTEREAD.uuid, QMMGMT.uuid, methods.QMCOMM.uuid}
        if wanted not in known:
            return {**answer, "return": NOT_REGISTERED}
        found = tower(wanted, call.connection.server[0], port)
        return {**answer, "num_towers": 1, "towers": (limit, [found]), "return": 0}


def queue_properties(queue: Queue) -> dict[int, Variant]:
    """Return the queue properties of table 4.8; those of outgoing queues only are VT_NULL on local ones."""
    size = sum(len(item.message.body) for item in queue.messages)
    journal = sum(len(item.message.body) for item in queue.journal)
    state = ("ONHOLD" if queue.paused else queue.state or "CONNECTED") if queue.outgoing else "LOCAL CONNECTION"
    values = {
        1: Variant(VT_LPWSTR, queue.name),
        2: Variant(VT_LPWSTR, queue.reported_name or queue.format_name),
        3: Variant(VT_LPWSTR, "PRIVATE" if "private$" in queue.name.lower() else "PUBLIC"),
        4: Variant(VT_LPWSTR, "REMOTE" if queue.outgoing else "LOCAL"),
        5: Variant(VT_LPWSTR, "YES" if queue.transactional else "NO"),
        6: Variant(VT_LPWSTR, "NO"),
        7: Variant(VT_UI4, len(queue.messages)),
        8: Variant(VT_UI4, size),
        9: Variant(VT_UI4, len(queue.journal)),
        10: Variant(VT_UI4, journal),
        11: Variant(VT_LPWSTR, state),
        26: Variant(VT_UI4, 0),
        27: Variant(STRINGS, []),
    }
    if queue.transfer is not None:
        values |= transfer_properties(queue.transfer)
    elif queue.outgoing:
        values |= _eod(queue)
    elif queue.transactional:
        values[24] = Variant(
            VARIANTS,
            [
                Variant(STRINGS, ["DIRECT=OS:cli1\\private$\\out", "DIRECT=TCP:10.0.0.9\\private$\\out"]),
                Variant(VT_VECTOR | VT_CLSID, [UUID(int=0xA1), UUID(int=0xA2)]),
                Variant(VT_VECTOR | VT_UI8, [0x6740_0000_0000_0001, 0x6740_0001_0000_0001]),
                Variant(VT_VECTOR | VT_UI4, [17, 4]),
                Variant(VT_VECTOR | VT_I4, [1_700_000_000, 1_700_000_060]),
                Variant(VT_VECTOR | VT_UI4, [0, 2]),
            ],
        )
    return values


def _eod(queue: Queue) -> dict[int, Variant]:
    """Return the exactly-once properties of an outgoing queue: messages still in it are unacknowledged."""
    ident, waiting = 0x6740_0000_0000_0001, len(queue.messages)
    first = 100
    return {
        12: Variant(STRINGS, ["IP=10.0.0.7:1801"]),
        13: Variant(VT_BLOB, sequence_info(ident, first - 1, first - 2)),
        14: Variant(VT_I4, 1_700_000_100),
        15: Variant(VT_UI4, first - 1),
        16: Variant(VT_BLOB, sequence_info(ident, first, first - 1)),
        17: Variant(VT_BLOB, sequence_info(ident, first + waiting - 1, first + waiting - 2)),
        18: Variant(VT_BLOB, sequence_info(ident, first + waiting, first + waiting - 1)),
        19: Variant(VT_UI4, waiting),
        20: Variant(VT_UI4, waiting),
        21: Variant(VT_I4, 1_700_000_160),
        22: Variant(VT_UI4, 30),
        23: Variant(VT_UI4, 1),
        25: Variant(
            VARIANTS,
            [
                Variant(VT_VECTOR | VT_UI4, [2, 0x8000_0004]),
                Variant(VT_VECTOR | VT_I4, [1_700_000_000, 1_700_000_030]),
                Variant(VT_VECTOR | VT_I4, [0, 0x274C]),
                Variant(VARIANTS, [Variant(STRINGS, ["10.0.0.7"]), Variant(STRINGS, ["10.0.0.7"])]),
            ],
        ),
    }


RESEND_S = (30, 300, 1800, 21600)  # of the first three resends, the next three, three more, and all after


def transfer_properties(transfer: OutgoingTransfer) -> dict[int, Variant]:
    """Return the properties of a transfer; LAST_ACK is present only while something is unacknowledged."""
    ident, acked, waiting = transfer.sequence, transfer.acknowledged, transfer.waiting
    following = acked + waiting + 1

    def blob(number: int) -> Variant:
        return Variant(VT_BLOB, sequence_info(ident, number, number - 1))

    columns = list(zip(*transfer.history, strict=True)) or [(), (), (), ()]
    return {
        12: Variant(STRINGS, [transfer.hop]),
        13: blob(acked) if waiting and acked else Variant(VT_NULL),
        14: Variant(VT_I4, transfer.acknowledged_at),
        15: Variant(VT_UI4, 1 if acked else 0),
        16: blob(acked + 1) if waiting else Variant(VT_NULL),
        17: blob(acked + waiting) if waiting else Variant(VT_NULL),
        18: blob(following),
        19: Variant(VT_UI4, transfer.unread),
        20: Variant(VT_UI4, waiting),
        21: Variant(VT_I4, transfer.resend_at),
        22: Variant(VT_UI4, RESEND_S[min(max(transfer.resends - 1, 0) // 3, 3)]),
        23: Variant(VT_UI4, transfer.resends),
        25: Variant(
            VARIANTS,
            [
                Variant(VT_VECTOR | VT_UI4, list(columns[0])),
                Variant(VT_VECTOR | VT_I4, list(columns[1])),
                Variant(VT_VECTOR | VT_I4, list(columns[2])),
                Variant(VARIANTS, [Variant(STRINGS, addresses) for addresses in columns[3]]),
            ],
        ),
    }


def tower(interface: UUID, address: str, port: int, version: int = 1) -> bytes:
    """Five floors: interface, NDR, connection-oriented RPC, TCP port, IP address (1.9)."""

    def floor(left: bytes, right: bytes) -> bytes:
        return struct.pack("<H", len(left)) + left + struct.pack("<H", len(right)) + right

    def syntax(ident: UUID, major: int) -> bytes:
        return b"\x0d" + ident.bytes_le + struct.pack("<H", major)

    return struct.pack("<H", 5) + b"".join(
        (
            floor(syntax(interface, version), b"\x00\x00"),
            floor(syntax(NDR.uuid, 2), b"\x00\x00"),
            floor(b"\x0b", b"\x00\x00"),
            floor(b"\x07", struct.pack(">H", port)),
            floor(b"\x09", socket.inet_aton(address) if ":" not in address else bytes(4)),
        )
    )


def tower_interface(octets: bytes) -> UUID:
    """The interface UUID of the first floor, nil when there is none."""
    return UUID(bytes_le=octets[5:21]) if len(octets) >= 21 and octets[4] == 0x0D else UUID(int=0)


def tower_port(octets: bytes) -> int:
    """The TCP port of the fourth floor."""
    at = 2
    for _ in range(3):
        at += 2 + struct.unpack_from("<H", octets, at)[0]
        at += 2 + struct.unpack_from("<H", octets, at)[0]
    return int(struct.unpack_from(">H", octets, at + 5)[0])


def machine_object() -> dict[str, Any]:
    """MGMT_OBJECT of the machine."""
    return {"type": MACHINE, "queue": None}


def queue_object(name: str) -> dict[str, Any]:
    """MGMT_OBJECT of a queue by its direct name."""
    return {"type": QUEUE, "queue": QueueFormat.direct(name)}


def session_object() -> dict[str, Any]:
    """MGMT_OBJECT of a session, which every server refuses (M06)."""
    return {"type": SESSION, "queue": QueueFormat(UNKNOWN)}
