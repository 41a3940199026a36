"""qm2qm and the qmcomm calls that open its handles ([MS-MQQP] 3.1.4, [MS-MQMP]; fact sheet 3.2, 3.5, 4.2)."""

# ruff: noqa: ARG002 - every handler has the same parameters

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peer.manager import (
    ACCESS_DENIED,
    INVALID_HANDLE,
    INVALID_PARAMETER,
    QUEUE_NOT_FOUND,
    RECEIVE_ACCESS,
    Manager,
    OpenQueue,
    failed_start,
)
from peer.methods import QM2QM, QMCOMM
from peer.ndr import NULL_HANDLE
from peer.queues import (
    LOOKUPS,
    NOT_FOUND,
    OPERATION_CANCELLED,
    PEEK_CURRENT,
    PEEK_NEXT,
    RECEIVE,
    REMOTE_CANCELED,
    HeldMessage,
    ReadFailed,
    is_receive,
)
from peer.rpc import Call, Fault, Handle, Handler

MQ_ERROR = 0xC00E0001
STATUS_INVALID_PARAMETER = 0xC000000D


@dataclass(eq=False)
class QmSession:
    """What RemoteQMOpenQueue returns: the OpenQueueEntry."""

    opened: OpenQueue


@dataclass(eq=False)
class OpenRemote:
    """What R_QMOpenRemoteQueue returns: PCTX_OPENREMOTE_HANDLE_TYPE."""

    opened: OpenQueue


class Qm2Qm:
    """qm2qm opnums 0 to 10 and the qmcomm ones a dependent client needs at the owner."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.adopted: dict[int, OpenQueue] = {}

    def handlers(self) -> dict[tuple[Any, int], Handler]:
        owner: dict[int, Handler] = {
            0: self.start_receive,
            1: self.end_receive,
            2: self.open_queue,
            3: self.close_queue,
            4: self.close_cursor,
            5: self.cancel_receive,
            6: self.purge_queue,
            7: self.get_port,
            8: self.get_version,
            9: self.start_receive2,
            10: self.start_by_lookup_id,
        }
        client: dict[int, Handler] = {
            1: self.get_remote_queue_name,
            2: self.open_remote_queue,
            3: self.close_remote_context,
            4: self.create_remote_cursor,
            31: self.get_client_port,
        }
        table = {(QM2QM, opnum): handler for opnum, handler in owner.items()}
        return {**table, **{(QMCOMM, opnum): handler for opnum, handler in client.items()}}

    # qmcomm at the owner

    async def get_remote_queue_name(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Refused by Vista and later (C09)."""
        raise Fault(5)

    async def get_client_port(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        kind = args["fIP"]
        port = {0: "remoteread", 1: "qm2qm"}.get(kind)
        return {"return": self.manager.ports[port] if port else 0}

    async def open_remote_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        failed = {"pphContext": NULL_HANDLE, "pdwContext": 0, "dwpQueue": 0, "phQueue": 0}
        if args["pQueueFormat"] is None or args["dwDesiredAccess"] not in {1, 0x20} or args["dwShareMode"] > 1:
            return {**failed, "return": INVALID_PARAMETER}
        queue = self.manager.find(args["pQueueFormat"])
        if queue is None:
            return {**failed, "return": QUEUE_NOT_FOUND}
        try:
            opened = self.manager.open(queue, args["dwDesiredAccess"], args["dwShareMode"])
        except ReadFailed as failure:
            return {**failed, "return": failure.hresult}
        handle = call.association.open(QMCOMM, OpenRemote(opened), lambda: self._close_context(opened))
        number = opened.number
        return {"pphContext": handle.raw, "pdwContext": number, "dwpQueue": number, "phQueue": number, "return": 0}

    def _close_context(self, opened: OpenQueue) -> None:
        if not opened.adopted:  # D17: once qm2qm took it over it survives
            self.manager.close(opened, OPERATION_CANCELLED)

    async def close_remote_context(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        handle = call.handle(args["pphContext"], QMCOMM, OpenRemote)
        self._close_context(handle.target.opened)
        return {"pphContext": call.association.close(handle)}

    async def create_remote_cursor(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self.manager.opened.get(args["hQueue"])
        if opened is None:
            return {"phCursor": 0, "return": INVALID_HANDLE}
        return {"phCursor": self.manager.new_cursor(opened), "return": 0}

    # qm2qm

    async def get_port(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        port = {0: "remoteread", 1: "qm2qm"}.get(args["dwPortType"])
        return {"return": self.manager.ports[port] if port else 0}

    async def get_version(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        major, minor, build = self.manager.version
        return {"pMajor": major, "pMinor": minor, "pBuildNumber": build}

    async def open_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        context, queue = args["dwpContext"], args["pQueue"]
        opened = self.manager.opened.get(context)
        if not queue or not context or queue != context or opened is None:
            return {"phContext": NULL_HANDLE, "return": INVALID_PARAMETER}
        opened.adopted = True
        self.adopted[opened.number] = opened
        handle = call.association.open(QM2QM, QmSession(opened), lambda: self._close(opened))
        return {"phContext": handle.raw, "return": 0}

    def _close(self, opened: OpenQueue) -> None:
        self.adopted.pop(opened.number, None)
        self.manager.close(opened, OPERATION_CANCELLED)

    async def close_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        handle = call.handle(args["pphContext"], QM2QM, QmSession)
        self._close(handle.target.opened)
        return {"pphContext": call.association.close(handle), "return": 0}

    async def close_cursor(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self.adopted.get(args["hQueue"])
        known = opened.cursors.pop(args["hCursor"], None) if opened else None
        return {"return": 0 if known else INVALID_HANDLE}

    async def purge_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Server 2003 and later raise what older ones return (2.2)."""
        opened = self.adopted.get(args["hQueue"])
        if opened is None:
            raise Fault(INVALID_HANDLE)
        if opened.access != RECEIVE_ACCESS:
            raise Fault(ACCESS_DENIED)
        opened.queue.purge()
        return {"return": 0}

    async def cancel_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Q42 to Q47."""
        opened = self.adopted.get(args["hQueue"])
        if not args["pQueue"] or args["pQueue"] != args["hQueue"]:
            return {"return": INVALID_PARAMETER}
        if opened is None or not opened.reading:
            return {"return": INVALID_HANDLE}
        if args["dwRequestID"] not in opened.reading:
            return {"return": MQ_ERROR}
        done = opened.queue.cancel(opened, args["dwRequestID"], REMOTE_CANCELED)
        return {"return": 0 if done else NOT_FOUND}

    async def start_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        desc = args["lpRemoteReadDesc"]
        handle, desc, _, hresult = await self._read(call, desc, None)
        return {"pphContext": handle, "lpRemoteReadDesc": desc, "return": hresult}

    async def start_receive2(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return await self._start2(call, args, None)

    async def start_by_lookup_id(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return await self._start2(call, args, args["LookupId"])

    async def _start2(self, call: Call, args: dict[str, Any], lookup: int | None) -> dict[str, Any]:
        asked = args["lpRemoteReadDesc2"]
        if asked["pRemoteReadDesc"] is None:
            attempt = self.manager.attempt(call, "", "qm2qm", 0, 0, receive=True)
            failed_start(attempt, INVALID_HANDLE)
            return {"pphContext": NULL_HANDLE, "lpRemoteReadDesc2": asked, "return": INVALID_HANDLE}
        handle, desc, sequence, hresult = await self._read(call, asked["pRemoteReadDesc"], lookup)
        answer = {"pRemoteReadDesc": desc, "SequentialId": sequence}
        return {"pphContext": handle, "lpRemoteReadDesc2": answer, "return": hresult}

    async def _read(
        self, call: Call, desc: dict[str, Any], lookup: int | None
    ) -> tuple[bytes, dict[str, Any], int, int]:
        """The three Starts; on failure the descriptor is echoed (3.2 trap c)."""
        action, number, request = desc["ulAction"], desc["hRemoteQueue"], desc["dwRequestID"]
        opened = self.adopted.get(number)
        attempt = self.manager.attempt(
            call, opened.queue.name if opened else "", "qm2qm", action, desc["ulTimeout"], receive=is_receive(action)
        )
        cursor = opened.cursors.get(desc["hCursor"]) if opened else None
        error = 0
        valid = LOOKUPS if lookup is not None else (RECEIVE, PEEK_CURRENT, PEEK_NEXT)
        if (
            opened is None
            or action not in valid
            or (lookup is None and desc["dwQueue"] != number)
            or (lookup is not None and (desc["ulTimeout"] or desc["hCursor"]))
        ):
            error = INVALID_PARAMETER
        elif (action == PEEK_NEXT and not desc["hCursor"]) or (desc["hCursor"] and cursor is None):
            error = STATUS_INVALID_PARAMETER
        elif lookup is None and request in opened.reading:
            error = INVALID_PARAMETER
        elif is_receive(action) and opened.access != RECEIVE_ACCESS:
            error = ACCESS_DENIED
        answer = {**desc, "Reserved": 1}
        if error or opened is None:
            return NULL_HANDLE, answer, 0, failed_start(attempt, error)
        try:
            stored = await self.manager.start(call, opened, attempt, request, cursor, lookup)
        except ReadFailed as failure:
            return NULL_HANDLE, answer, 0, failure.hresult
        packet = stored.message.packet()
        answer.update(dwSize=len(packet), dwArriveTime=stored.arrived, lpBuffer=packet)
        raw = NULL_HANDLE
        if is_receive(action):
            held = HeldMessage(opened.queue, stored, attempt)
            raw = call.association.open(QM2QM, held, held.rundown).raw
        return raw, answer, attempt.lookup_id or 0, 0

    async def end_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        handle: Handle = call.handle(args["pphContext"], QM2QM, HeldMessage)
        held: HeldMessage = handle.target
        acknowledge = args["dwAck"] == 2
        hresult = held.end(acknowledge=acknowledge)
        attempt = held.attempt
        attempt.end_hresult, attempt.end_call = hresult, call.truth
        if hresult:
            attempt.refused = True
            attempt.settle("failed")
        else:
            attempt.settle("acked" if acknowledge else "nacked")
        return {"pphContext": call.association.close(handle), "return": hresult}
