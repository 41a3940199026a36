"""Management actions: what was asked of a queue manager, and the states before and after it. No Spark.

The rules, from [MS-MQMR] 3.1.4.2:

* CONNECT and DISCONNECT change the state of the queue manager and of its outgoing queues, PAUSE and RESUME that of the
  queue. TIDY and EOD_RESEND change no state.
* The state before an action is that of the last snapshot before its request, the state after it that of the first
  snapshot after its response; neither is further away than ``max_gap``. A snapshot beyond another action that changed
  the state, or may have, says nothing of this one.

Format names are part of the identity of outgoing queues, so snapshots are those of the same format name. Times are
microseconds since the epoch (UTC).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pipeline.attempts.evidence import confidence_level
from udfs.call_results import call_succeeded
from udfs.codes import AUTH_LEVEL_NAMES, AUTH_LEVEL_NONE, code_name
from udfs.dcerpc.interfaces import QMMGMT_NAME
from udfs.rows import RowDict

_CHANGING: Final = {"machine": ("CONNECT", "DISCONNECT"), "queue": ("PAUSE", "RESUME")}  # actions that change states

ObjectKey = tuple[str | None, str | None]  # queue manager, and a queue's format name in lower case


class StateReport(NamedTuple):
    """The state of a queue or queue manager that a snapshot reported."""

    at: int
    snapshot_id: str
    state: str


@dataclass(frozen=True, slots=True)
class ManagementAction:
    """A R_QMMgmtAction call: its columns in silver, with ``machine`` (the queue manager's name in gold).

    Of bronze.rpc_calls it has ``auth_level``, ``bind_seen`` and ``call_outcome``.
    """

    call: Mapping[str, Any]

    @property
    def name(self) -> str | None:
        """The action, upper case: it is not case-sensitive."""
        text = self.call["action"]
        return None if text is None else text.upper()

    @property
    def begin(self) -> int:
        """The time of the request, else of the response."""
        requested: int | None = self.call["requested_at"]
        responded: int = self.call["responded_at"]
        return responded if requested is None else requested

    @property
    def end(self) -> int:
        """The time of the response, else of the request."""
        responded: int | None = self.call["responded_at"]
        return self.begin if responded is None else max(responded, self.begin)

    @property
    def object_key(self) -> ObjectKey | None:
        """What the action is done to; None where that has no state, or is not known."""
        kind, name = self.call["object_type"], self.call["queue_format_name"]
        if kind == "machine":
            return self.call["machine"], None
        return (self.call["machine"], name.lower()) if kind == "queue" and name is not None else None

    @property
    def outcome(self) -> str:
        """done, failed, or unknown: the answer was not captured, or cannot be read."""
        if self.call["fault_name"] is not None:
            return "failed"
        done = call_succeeded(QMMGMT_NAME, self.call["hresult"])
        return "unknown" if done is None else "done" if done else "failed"

    @property
    def changed_object(self) -> ObjectKey | None:
        """What had its state changed, or may have; None if nothing. What cannot be read may have changed everything."""
        kind = self.call["object_type"]
        if self.outcome == "failed" or (kind is not None and self.name not in _CHANGING.get(kind, ())):
            return None
        return (self.call["machine"], None) if kind is None else self.object_key

    @property
    def auth_level(self) -> int | None:
        """The authentication level; a call without security may be one of the level CONNECT if no bind was seen."""
        level: int | None = self.call["auth_level"]
        return AUTH_LEVEL_NONE if level is None and self.call["bind_seen"] else level

    def missing(self) -> set[str]:
        """Return the codes of what is missing of the call itself."""
        call, outcome = self.call, self.call["call_outcome"]
        holds = {
            "no_bind": not call["bind_seen"],
            "no_request": call["requested_at"] is None,
            "no_response": call["responded_at"] is None and outcome != "damaged",
            "sealed": outcome == "encrypted",
            "damaged": outcome == "damaged",
            "decode_error": bool(call["errors"]),
            "queue_unknown": call["object_type"] == "queue" and call["queue"] is None,
        }
        return {code for code, missing in holds.items() if missing}


def action_rows(
    actions: Iterable[ManagementAction], reports: Mapping[str, Sequence[StateReport]], max_gap: int
) -> list[RowDict]:
    """Return the rows of gold.management_actions.

    ``actions`` are also those up to ``max_gap`` before and after the ones that are wanted. ``reports`` are, by call
    key, the snapshots of the same queue or machine up to ``max_gap`` before and after an action.
    """
    actions = list(actions)
    changes = _StateChanges(actions)
    return [_row(each, reports.get(each.call["call_key"], ()), changes, max_gap) for each in actions]


class _StateChanges:
    """When actions that may have changed states began and ended, by what they were done to."""

    def __init__(self, actions: Iterable[ManagementAction]) -> None:
        self._moments: defaultdict[ObjectKey, list[tuple[int, str]]] = defaultdict(list)  # time and call key
        for each in actions:
            about = each.changed_object
            if about is not None:
                self._moments[about] += [(at, each.call["call_key"]) for at in {each.begin, each.end}]
        for moments in self._moments.values():
            moments.sort()

    def any_between(self, action: ManagementAction, since: int, until: int) -> bool:
        """Whether another action changed the state of what this one is done to, from ``since`` to ``until``."""
        about = action.object_key
        for place in {about, (about[0], None)} if about is not None else ():
            moments = self._moments.get(place, [])
            begin, end = bisect_left(moments, (since,)), bisect_left(moments, (until + 1,))
            first = moments[begin : min(end, begin + 3)]  # an action has two moments at most
            if any(call_key != action.call["call_key"] for _, call_key in first):
                return True
        return False


def _row(action: ManagementAction, reports: Sequence[StateReport], changes: _StateChanges, max_gap: int) -> RowDict:
    call, begin, end = action.call, action.begin, action.end
    before = max((each for each in reports if begin - max_gap < each.at <= begin), default=None)
    after = min((each for each in reports if end <= each.at < end + max_gap and each != before), default=None)
    if before is not None and changes.any_between(action, before.at, begin):
        before = None
    if after is not None and changes.any_between(action, begin, after.at):
        after = None
    missing = action.missing()
    if action.outcome != "failed" and (before is None or after is None):
        missing.add("no_snapshot")
    level = action.auth_level
    return {
        **call,
        "action": action.name,
        "queue_manager": call["machine"],
        "auth_level": level,
        "auth_level_name": None if level is None else code_name(AUTH_LEVEL_NAMES, level),
        "outcome": action.outcome,
        "state_before": before and before.state,
        "state_before_at": before and before.at,
        "state_after": after and after.state,
        "state_after_at": after and after.at,
        "evidence": [
            *([before.snapshot_id] if before else []),
            call["call_key"],
            *([after.snapshot_id] if after else []),
        ],
        "confidence": confidence_level(missing, guessed=False),
        "missing": sorted(missing),
    }
