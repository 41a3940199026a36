"""RemoteRead, the server's side ([MS-MQRR] 3.1.4; fact sheet 3.3, 4.3)."""

# ruff: noqa: ARG002 - every handler has the same parameters

from __future__ import annotations

from typing import Any

from peer import idl
from peer.manager import (
    ACCESS_DENIED,
    INVALID_HANDLE,
    INVALID_PARAMETER,
    MOVE_ACCESS,
    QUEUE_NOT_FOUND,
    RECEIVE_ACCESS,
    Manager,
    OpenQueue,
    failed_start,
)
from peer.methods import REMOTEREAD
from peer.queues import ACTIONS, LOOKUPS, NOT_FOUND, OPERATION_CANCELLED, PEEK_NEXT, HeldMessage, ReadFailed, is_receive
from peer.rpc import Call, Fault, Handler

NO_TRANSACTION = bytes(16)
TRANSACTION_USAGE, TRANSACTION_SEQUENCE, MESSAGE_NOT_FOUND = 0xC00E0050, 0xC00E0051, 0xC00E0088
STATUS_INVALID_HANDLE, STATUS_INVALID_PARAMETER = 0xC0000008, 0xC000000D
REJECT = 0xC004


class RemoteRead:
    """The sixteen methods over one manager."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    def handlers(self) -> dict[tuple[Any, int], Handler]:
        table: dict[int, Handler] = {
            0: self.get_server_port,
            2: self.open_queue,
            3: self.close_queue,
            4: self.create_cursor,
            5: self.close_cursor,
            6: self.purge_queue,
            7: self.start_receive,
            8: self.cancel_receive,
            9: self.end_receive,
            10: self.move_message,
            11: self.open_for_move,
            12: self.enlist,
            13: self.start_transactional,
            14: self.set_acknowledgement_class,
            15: self.end_receive,
        }
        return {(REMOTEREAD, opnum): handler for opnum, handler in table.items()}

    def _opened(self, call: Call, raw: bytes) -> OpenQueue:
        target = call.handle(raw, REMOTEREAD, OpenQueue).target
        assert isinstance(target, OpenQueue)
        return target

    async def get_server_port(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return {"return": self.manager.ports["remoteread"]}

    def _open(self, call: Call, args: dict[str, Any], accesses: set[int]) -> tuple[bytes, OpenQueue]:
        asked = args["pQueueFormat"]
        allowed = {idl.PUBLIC, idl.PRIVATE, idl.DIRECT, idl.MACHINE, idl.SUBQUEUE}
        if asked.kind not in allowed or args["dwAccess"] not in accesses or args["dwShareMode"] not in {0, 1}:
            raise Fault(INVALID_PARAMETER)
        queue = self.manager.find(asked)
        if queue is None:
            raise Fault(QUEUE_NOT_FOUND)
        try:
            opened = self.manager.open(queue, args["dwAccess"], args["dwShareMode"])
        except ReadFailed as failure:
            raise Fault(failure.hresult) from None
        rundown = lambda: self.manager.close(opened, OPERATION_CANCELLED)  # noqa: E731
        return call.association.open(REMOTEREAD, opened, rundown).raw, opened

    async def open_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """Errors are raised, never returned (P14)."""
        return {"pphContext": self._open(call, args, {0x01, 0x20})[0]}

    async def open_for_move(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        raw, opened = self._open(call, args, {MOVE_ACCESS})
        opened.move = 0x4C2000 + opened.number
        return {"pMoveContext": opened.move, "pphContext": raw}

    async def close_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        handle = call.handle(args["phContext"], REMOTEREAD, OpenQueue)
        self.manager.close(handle.target, OPERATION_CANCELLED)
        return {"phContext": call.association.close(handle), "return": 0}

    async def create_cursor(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return {"phCursor": self.manager.new_cursor(self._opened(call, args["phContext"])), "return": 0}

    async def close_cursor(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(call, args["phContext"])
        known = opened.cursors.pop(args["hCursor"], None)
        return {"return": 0 if known else STATUS_INVALID_HANDLE}

    async def purge_queue(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(call, args["phContext"])
        if opened.access != RECEIVE_ACCESS:
            return {"return": ACCESS_DENIED}
        opened.queue.purge()
        return {"return": 0}

    @staticmethod
    def _parameters_fit(args: dict[str, Any]) -> bool:
        """Rules R21 to R26."""
        action, lookup = args["ulAction"], args["LookupId"]
        if action not in ACTIONS or (action in LOOKUPS) != bool(lookup):
            return False
        if action in LOOKUPS:
            return not args["ulTimeout"] and not args["hCursor"]
        return bool(args["hCursor"]) or action != PEEK_NEXT

    async def start_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return await self._start(call, args, NO_TRANSACTION, transactional=False)

    async def start_transactional(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        return await self._start(call, args, args["pTransactionId"], transactional=True)

    async def _start(self, call: Call, args: dict[str, Any], unit: bytes, *, transactional: bool) -> dict[str, Any]:
        action, request = args["ulAction"], args["dwRequestId"]
        handle = call.association.handles.get(args["phContext"])
        queue_name = handle.target.queue.name if handle and isinstance(handle.target, OpenQueue) else ""
        attempt = self.manager.attempt(
            call, queue_name, "RemoteRead", action, args["ulTimeout"], receive=is_receive(action)
        )
        attempt.transactional = transactional
        try:
            opened = self._opened(call, args["phContext"])
        except Fault:
            attempt.settle("failed")
            raise
        nothing = {"pdwArriveTime": 0, "pSequenceId": 0, "pdwNumberOfSections": 0, "ppPacketSections": None}
        cursor = opened.cursors.get(args["hCursor"])
        error = 0
        if not self._parameters_fit(args):
            error = INVALID_PARAMETER
        elif args["hCursor"] and cursor is None:
            error = STATUS_INVALID_HANDLE
        elif opened.access != RECEIVE_ACCESS and is_receive(action):
            error = ACCESS_DENIED
        elif unit != NO_TRANSACTION and (not is_receive(action) or not opened.queue.transactional):
            error = TRANSACTION_USAGE
        elif unit != NO_TRANSACTION and unit not in self.manager.transactions:
            error = TRANSACTION_SEQUENCE
        elif request in opened.held or request in opened.reading:
            error = INVALID_PARAMETER
        if error:
            return {**nothing, "return": failed_start(attempt, error)}
        lookup = args["LookupId"] if action in LOOKUPS else None
        try:
            stored = await self.manager.start(call, opened, attempt, request, cursor, lookup)
        except ReadFailed as failure:
            return {**nothing, "return": failure.hresult}
        if is_receive(action):
            held = HeldMessage(opened.queue, stored, attempt)
            opened.held[request] = held
            if unit != NO_TRANSACTION:
                stored.transaction = unit
                self.manager.transactions[unit].append(held)
        parts = stored.message.sections(args["dwMaxBodySize"], opened.queue.subqueue, args["dwMaxCompoundMessageSize"])
        sections = [
            {"SectionBufferType": kind, "SectionSizeAlloc": size, "SectionSize": len(data), "pSectionBuffer": data}
            for kind, size, data in parts
        ]
        return {
            "pdwArriveTime": stored.arrived,
            "pSequenceId": attempt.lookup_id,
            "pdwNumberOfSections": len(sections),
            "ppPacketSections": sections,
            "return": 0,
        }

    async def cancel_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(call, args["phContext"])
        done = opened.queue.cancel(opened, args["dwRequestId"], OPERATION_CANCELLED)
        return {"return": 0 if done else NOT_FOUND}

    async def end_receive(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        """R_EndReceive and R_EndTransactionalReceive; the latter leaves the message to the outcome (R54)."""
        opened = self._opened(call, args["phContext"])
        request, acknowledge = args["dwRequestId"], args["dwAck"] == 2
        if not opened.held and not opened.reading:
            return {"return": INVALID_HANDLE}
        held = opened.held.pop(request, None)
        if held is None:
            return {"return": INVALID_PARAMETER}
        attempt = held.attempt
        if held.stored.transaction is not None:
            hresult = 0
            self.manager.ended_transactional[held.stored.lookup_id] = attempt
        else:
            hresult = held.end(acknowledge=acknowledge)
        attempt.end_hresult, attempt.end_call = hresult, call.truth
        if hresult:
            attempt.refused = True
            attempt.settle("failed")
        else:
            attempt.settle("acked" if acknowledge else "nacked")
        return {"return": hresult}

    async def set_acknowledgement_class(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        opened = self._opened(call, args["phContext"])
        lookup = args["LookupId"]
        stored = next((item for item in opened.queue.messages if item.lookup_id == lookup), None)
        if stored is None:
            return {"return": MESSAGE_NOT_FOUND}
        attempt = self.manager.ended_transactional.get(lookup)
        if attempt is None or stored.transaction is None:
            return {"return": TRANSACTION_USAGE}
        if args["usClass"] == REJECT:
            attempt.settle("rejected")
        return {"return": 0}

    async def enlist(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        if args["cbPropagationToken"] != len(args["pbPropagationToken"]):
            raise Fault(0x000006F7, executed=False)
        self.manager.transactions.setdefault(args["pTransactionId"], [])
        return {"return": 0}

    async def move_message(self, call: Call, args: dict[str, Any]) -> dict[str, Any]:
        source = self._opened(call, args["phContextFrom"])
        target = next(
            (item for item in self.manager.opened.values() if item.move and item.move == args["ullContextTo"]), None
        )
        if target is None:
            return {"return": INVALID_HANDLE}
        if (source.queue.parent or source.queue) is not (target.queue.parent or target.queue):
            return {"return": STATUS_INVALID_PARAMETER}
        stored = next((m for m in source.queue.messages if m.lookup_id == args["LookupId"] and m.here), None)
        if stored is None:
            return {"return": MESSAGE_NOT_FOUND}
        source.queue.messages.remove(stored)
        stored.message.moves += 1
        target.queue.put(stored.message, lookup_id=stored.lookup_id)
        return {"return": 0}
