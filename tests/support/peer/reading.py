"""Clients of a queue manager: RemoteRead readers and dependent clients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from peer.client import Client
from peer.idl import QueueFormat
from peer.ndr import NULL_HANDLE
from peer.queues import RECEIVE

CLIENT_ID = UUID("0d6a5f10-42c1-4a6e-9b7d-31a5c0ffee01")
ACK, NACK = 2, 1
FOUR_MIB = 4 << 20


def open_arguments(name: str | QueueFormat, access: int = 1, share: int = 0) -> dict[str, Any]:
    """Arguments of R_OpenQueue and R_OpenQueueForMove as a current client sends them."""
    return {
        "pQueueFormat": QueueFormat.direct(name) if isinstance(name, str) else name,
        "dwAccess": access,
        "dwShareMode": share,
        "pClientId": CLIENT_ID,
        "fNonRoutingServer": 1,
        "Major": 6,
        "Minor": 1,
        "BuildNumber": 7601,
        "fWorkgroup": 0,
    }


@dataclass
class RemoteReader:
    """A queue opened over RemoteRead."""

    client: Client
    context: bytes = NULL_HANDLE
    next_request: int = field(default=1)

    async def open(self, name: str | QueueFormat, access: int = 1, share: int = 0) -> RemoteReader:
        answer = await self.client.call("R_OpenQueue", **open_arguments(name, access, share))
        self.context = answer["pphContext"]
        return self

    def start_arguments(
        self, action: int = RECEIVE, *, timeout: int = 0, cursor: int = 0, lookup: int = 0, max_body: int = FOUR_MIB,
        max_compound: int = FOUR_MIB,
    ) -> dict[str, Any]:  # fmt: skip
        """Arguments of R_StartReceive with the next request id."""
        request, self.next_request = self.next_request, self.next_request + 1
        return {
            "phContext": self.context,
            "LookupId": lookup,
            "hCursor": cursor,
            "ulAction": action,
            "ulTimeout": timeout,
            "dwRequestId": request,
            "dwMaxBodySize": max_body,
            "dwMaxCompoundMessageSize": max_compound,
        }

    async def start(self, action: int = RECEIVE, **options: Any) -> tuple[int, dict[str, Any]]:
        """Call R_StartReceive; returns its request id and response."""
        args = self.start_arguments(action, **options)
        return args["dwRequestId"], await self.client.call("R_StartReceive", **args)

    async def end(self, request: int, ack: int = ACK) -> int:
        answer = await self.client.call("R_EndReceive", phContext=self.context, dwAck=ack, dwRequestId=request)
        return int(answer["return"])

    async def receive(self, ack: int = ACK, **options: Any) -> dict[str, Any]:
        """Receive a message, and end the read if there was one."""
        request, answer = await self.start(RECEIVE, **options)
        if answer["return"] == 0:
            await self.end(request, ack)
        return answer

    async def cancel(self, request: int) -> int:
        answer = await self.client.call("R_CancelReceive", phContext=self.context, dwRequestId=request)
        return int(answer["return"])

    async def purge(self) -> int:
        return int((await self.client.call("R_PurgeQueue", phContext=self.context))["return"])

    async def cursor(self) -> int:
        return int((await self.client.call("R_CreateCursor", phContext=self.context))["phCursor"])

    async def close_cursor(self, cursor: int) -> int:
        return int((await self.client.call("R_CloseCursor", phContext=self.context, hCursor=cursor))["return"])

    async def close(self) -> int:
        return int((await self.client.call("R_CloseQueue", phContext=self.context))["return"])


@dataclass
class DependentReader:
    """A dependent client's read: opened over qmcomm, read over qm2qm by its supporting server (4.2)."""

    app: Client
    support: Client
    handle: int = 0
    context: bytes = NULL_HANDLE
    remote: bytes = NULL_HANDLE
    next_request: int = 1

    async def open(self, name: str | QueueFormat, access: int = 1, share: int = 0) -> DependentReader:
        answer = await self.app.call(
            "R_QMOpenRemoteQueue",
            pQueueFormat=QueueFormat.direct(name) if isinstance(name, str) else name,
            dwCallingProcessID=0,
            dwDesiredAccess=access,
            dwShareMode=share,
            pLicGuid=CLIENT_ID,
            dwMQS=0x400,
        )
        if answer["return"]:
            raise OSError(f"0x{answer['return']:08X}")
        self.remote, self.handle = answer["pphContext"], answer["phQueue"]
        number = self.handle
        opened = await self.support.call(
            "RemoteQMOpenQueue", pLicGuid=CLIENT_ID, dwMQS=0, hQueue=number, pQueue=number, dwpContext=number
        )
        self.context = opened["phContext"]
        await self.app.call("R_QMCloseRemoteQueueContext", pphContext=self.remote)
        return self

    def descriptor(self, action: int = RECEIVE, *, timeout: int = 0, cursor: int = 0) -> dict[str, Any]:
        request, self.next_request = self.next_request, self.next_request + 1
        return {
            "hRemoteQueue": self.handle, "hCursor": cursor, "ulAction": action, "ulTimeout": timeout, "dwSize": 0,
            "dwQueue": self.handle, "dwRequestID": request, "Reserved": 0, "dwArriveTime": 0, "eAckNack": 0,
            "lpBuffer": None,
        }  # fmt: skip

    async def start(self, action: int = RECEIVE, **options: Any) -> dict[str, Any]:
        return await self.support.call("RemoteQMStartReceive", lpRemoteReadDesc=self.descriptor(action, **options))

    async def start2(self, action: int = RECEIVE, **options: Any) -> dict[str, Any]:
        desc = {"pRemoteReadDesc": self.descriptor(action, **options), "SequentialId": 0}
        return await self.support.call("RemoteQMStartReceive2", lpRemoteReadDesc2=desc)

    async def lookup(self, action: int, lookup: int) -> dict[str, Any]:
        desc = {"pRemoteReadDesc": self.descriptor(action), "SequentialId": 0}
        return await self.support.call("RemoteQMStartReceiveByLookupId", LookupId=lookup, lpRemoteReadDesc2=desc)

    async def end(self, handle: bytes, ack: int = ACK) -> int:
        answer = await self.support.call("RemoteQMEndReceive", pphContext=handle, dwAck=ack)
        return int(answer["return"])

    async def cancel(self, request: int) -> int:
        number = self.handle
        answer = await self.support.call("RemoteQMCancelReceive", hQueue=number, pQueue=number, dwRequestID=request)
        return int(answer["return"])

    async def cursor(self) -> int:
        return int((await self.app.call("R_QMCreateRemoteCursor", ptb1=None, hQueue=self.handle))["phCursor"])

    async def close(self) -> int:
        return int((await self.support.call("RemoteQMCloseQueue", pphContext=self.context))["return"])
