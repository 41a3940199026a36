"""One server's calls -> the purges and moves among them, with their queues. Plain rows in, plain rows out; no Spark.

A purge names its queue by what opened it: RemoteRead by the context handle, qm2qm by the owner's number. R_MoveMessage
takes the message from the queue of its context handle to that of a number which R_OpenQueueForMove gave with a handle
of its own (doubt D7 of the fact sheet on RPC interfaces): it holds as long as that handle does. What a purge or move
did is known by its answer alone ([MS-MQRR] 3.1.4.6, 3.1.4.10, [MS-MQQP] 3.1.4.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from pipeline.associations import Association, Connection, associations
from pipeline.attempts import LOOKUP_ID
from pipeline.calls import Call
from pipeline.handles import Handles, Opened
from pipeline.timeline import Timeline
from udfs.codes import MQ_OK

Row = dict[str, Any]

PURGES: Final = {("RemoteRead", 6), ("qm2qm", 6)}
MOVE: Final = ("RemoteRead", 10)
OPEN, OPEN_FOR_MOVE = 2, 11  # of RemoteRead
_CALL: Final = [each.name for each in fields(Call)]


def operations(calls: Iterable[Mapping[str, Any]], connections: Iterable[Connection]) -> list[Row]:
    """Return a row for each purge and move of one server; ``calls`` are these and what opened and closed their queues.

    Calls are rows of silver.remote_read_calls and silver.client_calls, times in microseconds; purges and moves with
    what bronze.rpc_calls knows of them (``outcome``, ``closed``: sealed, and no key opened it).
    """
    return _Server(list(calls), connections).rows()


def succeeded(call: Mapping[str, Any]) -> bool | None:
    """Whether a call was answered MQ_OK; None when no answer could be read."""
    if call["hresult"] is not None:
        return bool(call["hresult"] == MQ_OK)
    return False if call.get("outcome") == "fault" else None


def operation(call: Mapping[str, Any], what: str, missing: Iterable[str] = (), evidence: Sequence[str] = ()) -> Row:
    """Return the row of a call that did something to a queue."""
    done = succeeded(call)
    codes = {*missing}
    if call["errors"]:
        codes.add("decode_error")
    if call["requested_at"] is None:
        codes.add("no_request")
    if call["responded_at"] is None:
        codes.add("no_response")
    if call.get("closed"):
        codes.add("sealed")
    if call.get("outcome") == "damaged":
        codes.add("damaged")
    return {
        "operation": what,
        "queue": None,
        "queue_format_name": None,
        "target_queue": None,
        "lookup_id": None,
        **{name: call[name] for name in ("call_key", "client_address", "server_address", "requested_at")},
        "succeeded": done,
        "done_at": call["responded_at"],
        "evidence": [*evidence, call["call_key"]],
        "missing": sorted(codes),
        "confidence": "complete" if not codes else "provisional" if codes == {"transaction_open"} else "partial",
        "errors": list(call["errors"] or ()),
    }


class _Server:
    def __init__(self, calls: list[Mapping[str, Any]], connections: Iterable[Connection]) -> None:
        self.rows_by_key = {row["call_key"]: row for row in calls}
        self.association = associations(connections)
        known = [_call(row) for row in calls if _is_handle_call(row)]
        known.sort(key=lambda call: (call.at, call.call_key))
        self.handles = Handles(known, self._of)
        self.targets = Timeline[Call]()
        opened = [call for call in known if self.rows_by_key[call.call_key]["move_context"] and call.responded_at]
        for call in sorted(opened, key=lambda call: (call.responded_at or 0, call.call_key)):
            self.targets.add(int(self.rows_by_key[call.call_key]["move_context"]), call, call.responded_at or 0)
        self.done = [row for row in calls if (row["protocol"], row["opnum"]) in PURGES | {MOVE}]

    def _of(self, call: Call) -> Association:
        found = self.association.get(call.connection_id)
        if found is None:  # its connection's row is not there: alone, and never seen to end
            found = self.association[call.connection_id] = Association(call.connection_id)
        return found

    def rows(self) -> list[Row]:
        """Return the operations, in order of time."""
        made = [self._move(row) if (row["protocol"], row["opnum"]) == MOVE else self._purge(row) for row in self.done]
        return sorted(made, key=lambda row: (row["done_at"] or row["requested_at"] or 0, row["call_key"]))

    def _purge(self, row: Mapping[str, Any]) -> Row:
        call = _call(row)
        opened = self.handles.opened(call)
        return operation(row, "purge", self._missing(call, opened), _keys(opened)) | self._from(opened)

    def _move(self, row: Mapping[str, Any]) -> Row:
        call = _call(row)
        opened, target = self.handles.opened(call), self._target(row)
        missing = self._missing(call, opened) | self._missing(call, target)
        if row["transaction_id"] is not None:
            missing.add("transaction_open")
        found = operation(row, "move", missing, list(dict.fromkeys([*_keys(opened), *_keys(target)])))
        found |= self._from(opened) | {"target_queue": target.queue}
        return found | {"lookup_id": int(row["lookup_id"]) & LOOKUP_ID if row["lookup_id"] else None}

    def _target(self, row: Mapping[str, Any]) -> Opened:
        """Return the open whose number a move names, if its handle still stood."""
        at = row["requested_at"] or row["responded_at"] or 0
        given = self.targets.latest(int(row["move_context"]), at) if row["move_context"] else None
        if given is None:
            return Opened(missing=frozenset({"no_open", "queue_unknown"}))
        asked = Call("", "RemoteRead", OPEN, given.connection_id, requested_at=at, context_handle=given.context_handle)
        return self.handles.opened(asked)

    def _from(self, opened: Opened) -> Row:
        name = self.rows_by_key[opened.opens[0].call_key]["queue_format_name"] if opened.opens else None
        return {"queue": opened.queue, "queue_format_name": name}

    def _missing(self, call: Call, opened: Opened) -> set[str]:
        missing = set(opened.missing)
        if "no_open" in missing and not self._of(call).beginning_seen:
            missing.add("capture_begins")
        return missing


def _keys(opened: Opened) -> list[str]:
    return [call.call_key for call in sorted(opened.opens, key=lambda call: (call.at, call.call_key))]


def _is_handle_call(row: Mapping[str, Any]) -> bool:
    return (row["protocol"], row["opnum"]) in {
        ("RemoteRead", OPEN), ("RemoteRead", OPEN_FOR_MOVE), ("RemoteRead", 3), ("qm2qm", 2), ("qm2qm", 3),
        ("qmcomm", 2), ("qmcomm", 3),
    }  # fmt: skip


def _call(row: Mapping[str, Any]) -> Call:
    """Return a row as the handles take it: both ways to open a queue give a context handle alike."""
    values = {name: row[name] for name in _CALL if name in row}
    values["errors"] = tuple((error["code"], error["field"], error["offset"]) for error in row["errors"] or ())
    if (row["protocol"], row["opnum"]) == ("RemoteRead", OPEN_FOR_MOVE):
        values["opnum"] = OPEN
    values["lookup_id"] = None if row["lookup_id"] is None else int(row["lookup_id"])
    return Call(**values)
