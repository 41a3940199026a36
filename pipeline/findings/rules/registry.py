"""The registry of conformance rules: their texts (``RULE_TABLE``) and the checks that are registered for them.

A check is a function in one of the modules of this package. A decorator registers it for single calls (``call_rule``),
calls and what their association has open (``association_call_rule``), the history of one association
(``association_rule``), its binds (``bind_rule``), all openings of a server (``server_rule``) or the facts of one queue
(``queue_rule``). Those on calls and packets are given columns, and say which rows break the rule. Checks run only where
their input was captured completely. Rules that no check covers stand in ``UNOBSERVABLE_RULES``, with the evidence that
would be needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from pipeline.findings.columns.association_calls import MANY_METHODS, AssociationCalls
from pipeline.findings.columns.call_columns import AssociationCallColumns, Mask, Method, Numbers
from pipeline.findings.columns.call_history import AssociationHistory, CapturedCall, ServerHistory
from pipeline.findings.rules.catalog import RULE_TABLE
from pipeline.findings.rules.queue_facts import QueueFacts, QueueRuleLimits
from pipeline.findings.rules.session_facts import PacketFacts, PacketViolation, SessionFacts
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM2_NAME, QMCOMM_NAME, QMMGMT_NAME, REMOTE_READ_NAME

RequiredEvidence = Literal["headers", "request", "answer", "ok"]
Severity = Literal["error", "warning", "info"]

_DOCUMENTS: Final = {"Q": "MS-MQQP", "R": "MS-MQRR", "M": "MS-MQMR", "C": "MS-MQMP", "K": "MC-COMQC"}
_SECTION_OF_METHOD: Final = "method"
_METHOD_SECTIONS: Final = {
    **{(QM2QM_NAME, opnum): f"MS-MQQP 3.1.4.{opnum + 1}" for opnum in range(11)},
    **{(REMOTE_READ_NAME, opnum): f"MS-MQRR 3.1.4.{opnum or 1}" for opnum in (0, *range(2, 16))},
    **{(QMMGMT_NAME, opnum): f"MS-MQMR 3.1.4.{opnum + 1}" for opnum in range(2)},
}
"""The section that describes a method, by (interface, opnum)."""
_INTERFACE_SECTIONS: Final = {
    QM2QM_NAME: "MS-MQQP 3.1.4", REMOTE_READ_NAME: "MS-MQRR 3.1.4", QMMGMT_NAME: "MS-MQMR 3.1.4",
    QMCOMM_NAME: "MS-MQMP 3.1.4", QMCOMM2_NAME: "MS-MQMP 3.1.5",
}  # fmt: skip
"""The section that describes an interface's methods."""
_PRECONDITIONS: Final[dict[RequiredEvidence, str]] = {
    "headers": "the call's headers were captured",
    "request": "the request was captured completely",
    "answer": "request and response were captured completely",
    "ok": "request and response were captured completely, and the response is MQ_OK",
}
_COMPLETE: Final = "the association was captured completely"


@dataclass(frozen=True, slots=True)
class Rule:
    """A conformance rule: one row of ``RULE_TABLE``.

    ``sources``: the sections that state it. ``requirement_level``: M (MUST), S (SHOULD) or D (derived).
    ``bound_party``: C (client), S (server) or B (either).
    ``required_parts``: what must be readable, H (headers), S (stubs) or P (packets). ``violation`` says what breaks it.
    """

    rule_id: str
    sources: tuple[str, ...]
    requirement_level: str
    bound_party: str
    required_parts: str
    requirement: str
    violation: str

    def source_for(self, method: tuple[str, int] = ("", -1)) -> str:
        """Return the document and section that state the rule for a method (interface, opnum).

        It is the method's own section where that states the rule, else the first one of the interface's document, else
        the first one.
        """
        of_interface = _INTERFACE_SECTIONS.get(method[0], self.sources[0])
        of_method = _METHOD_SECTIONS.get(method, of_interface)
        if of_method in self.sources or self.sources == (_SECTION_OF_METHOD,):
            return of_method
        document = of_interface.split()[0]
        return next((source for source in self.sources if source.split()[0] == document), self.sources[0])

    @property
    def severity(self) -> Severity:
        """``error`` for MUST, ``warning`` for SHOULD, ``info`` for derived rules and soft texts."""
        if any(word in self.violation for word in ("informational", "soft")):
            return "info"
        levels: dict[str, Severity] = {"M": "error", "S": "warning"}
        return levels.get(self.requirement_level[:1], "info")


def _parse_rules() -> dict[str, Rule]:
    found = {}
    for line in RULE_TABLE.strip().splitlines():
        rule_id, sources, *rest = (cell.strip() for cell in line.split(" | "))
        found[rule_id] = Rule(rule_id, tuple(_full_source(rule_id[0], source) for source in sources.split(", ")), *rest)
    return found


def _full_source(kind: str, source: str) -> str:
    """Return a section with the full name of its document."""
    if source[0].isdigit():
        return f"{_DOCUMENTS[kind]} {source}"
    return f"MS-{source}" if source.startswith(("MQ", "RPCE")) else source


PROTOCOL_RULES: Final = _parse_rules()
_RULES_PAGE: Final = "docs/reference/rules.md#operation"
OPERATIONAL_RULES: Final = {
    rule.rule_id: rule
    for rule in (
        Rule("O01", ("MS-MQMQ 2.1.1",), "S", "B", "S", "an identifier of a queue manager is one machine's",
             "two machines, told apart by their names, were seen with it"),
        Rule("O02", (_RULES_PAGE,), "S", "B", "P", "the clocks of sender, owner and capture agree to 2 s",
             "a message arrives before it was sent, or after it was read"),
        Rule("O03", (_RULES_PAGE,), "S", "B", "S", "dead letters do not become more",
             "a dead-letter queue, or a component's dead queue, grows"),
        Rule("O04", (_RULES_PAGE,), "S", "B", "S", "somebody empties journals",
             "a journal grows"),
        Rule("O05", ("MS-MQQB 3.1.5.8.6",), "S", "B", "S", "a receiver takes what its sender goes on with",
             "sender and receiver disagree about the next number"),
        Rule("O06", (_RULES_PAGE,), "S", "B", "S", "what a queue manager reports of a queue is what reads of it show",
             "a report that no message, reader or clock that was not seen can explain"),
        Rule("O07", ("MS-MQQB 3.1.3.2",), "S", "B", "P", "an identifier of a queue manager is one machine's",
             "handshakes with it show two machine starts that take turns, or whose sessions overlap"),
        Rule("O08", (_RULES_PAGE,), "S", "B", "P", "a queue manager reports of a sequence what it sent and took",
             "a report that contradicts packets captured well before it"),
    )
}  # fmt: skip
"""Rules on operation. O01 is checked on silver.hosts, O02 on messages, O03 to O06 on queues, O07 on sessions, O08
on sequences."""
ALL_RULES: Final = PROTOCOL_RULES | OPERATIONAL_RULES


class Violation(NamedTuple):
    """A violation that the calls of an association or a server prove: what was seen, and the calls that prove it.

    ``call`` is the call that breaks the rule, or None. ``severity`` overrides the rule's own. ``by_server`` says who
    broke a rule that binds both parties. ``subject`` overrides the call's client or server as what the finding is
    about. ``source`` is the document and section, where the call's method does not decide which one.
    """

    call: CapturedCall | None
    actual: str
    evidence: tuple[CapturedCall, ...] = ()
    severity: Severity | None = None
    by_server: bool | None = None
    subject: str | None = None
    source: str | None = None


def violation_of_either(call: CapturedCall, actual: str, evidence: tuple[CapturedCall, ...] = ()) -> Violation:
    """Return the violation of a rule that binds both: the client's invalid request, or the server's MQ_OK to it."""
    suffix = ", answered MQ_OK" if call.succeeded else ""
    return Violation(call, f"{actual}{suffix}", evidence, by_server=call.succeeded)


TextOfCall = str | Callable[[Any], str]


class ViolatingCalls(NamedTuple):
    """Calls that break a rule, each by itself, and the text of what was seen.

    A text is a function of the call, or a format: ``{name}`` is a column of the call, ``{}`` its element of the next of
    ``values`` (arrays with an element for each call). Without ``actual`` it is the rule's own text.
    ``of_either``: the rule binds both parties (``violation_of_either``). ``evidence``: arrays of the positions of other
    calls that prove the violation beside it, ``NONE`` without one, or of calls of other associations, None without one.
    The rest is as in ``Violation``.
    """

    calls: Mask
    actual: TextOfCall = ""
    values: tuple[Numbers, ...] = ()
    of_either: bool = False
    severity: Severity | None = None
    by_server: bool | None = None
    subject: str | None = None
    source: TextOfCall | None = None
    evidence: tuple[Numbers, ...] = ()

    def at(self, places: Numbers) -> ViolatingCalls:
        """Return the same of the calls at some places."""
        values, evidence = (tuple(each[places] for each in arrays) for arrays in (self.values, self.evidence))
        return self._replace(calls=self.calls[places], values=values, evidence=evidence)

    def violation(self, place: int, call: CapturedCall, calls: Mapping[int, CapturedCall]) -> Violation:
        """Return the violation of the call at a place; ``calls`` are those of the evidence, by position."""
        actual, subject, source = (
            None if each is None else self.text(each, place, call) for each in (self.actual, self.subject, self.source)
        )
        others = (each[place] if each.dtype == np.object_ else calls.get(int(each[place])) for each in self.evidence)
        evidence = (*(each for each in others if each is not None), call)
        if self.of_either:
            found = violation_of_either(call, actual or "", evidence)
        else:
            found = Violation(call, actual or "", evidence, by_server=self.by_server)
        return found._replace(severity=self.severity, subject=subject, source=source)

    def text(self, given: TextOfCall, place: int, call: Any) -> str:  # noqa: ANN401 - a call, or a message
        """Return one of the texts for the call at a place."""
        values = [values[place] for values in self.values]
        return Formatter().vformat(given, values, call) if isinstance(given, str) else given(call)


class ViolatingBind(NamedTuple):
    """A bind, a row of bronze.rpc_binds, that breaks a rule, and the text of what was seen."""

    bind: Mapping[str, Any]
    actual: str

    def violation(self, rule: Rule, call: CapturedCall | None) -> Violation:
        """Return the violation, of the first call of its connection where there is one."""
        interface = self.bind["interface_name"]
        where = f"{interface} context {self.bind['context_id']} of connection {self.bind['connection_id']}"
        source = rule.source_for((interface, -1))
        return Violation(call, f"{self.actual} ({where})", by_server=True, source=source)


class QueueViolation(NamedTuple):
    """A violation that the facts of a queue prove, with the keys of the calls and snapshots that prove it.

    ``call`` is the row of the call that breaks the rule, empty without one. ``severity`` overrides the rule's own.
    """

    observed_at: int
    actual: str
    evidence: tuple[str, ...]
    subject: str
    severity: Severity | None = None
    call: Mapping[str, Any] = {}


CallCheck = Callable[[AssociationCallColumns], Iterable[ViolatingCalls]]
AssociationCallCheck = Callable[[AssociationCalls], Iterable[ViolatingCalls]]
BindCheck = Callable[[Sequence[Mapping[str, Any]]], Iterable[ViolatingBind]]
AssociationCheck = Callable[[AssociationHistory], Iterable[Violation]]
ServerCheck = Callable[[ServerHistory], Iterable[Violation]]
PacketCheck = Callable[[PacketFacts], Iterable[PacketViolation]]
SessionCheck = Callable[[SessionFacts], Iterable[PacketViolation]]
QueueCheck = Callable[[QueueFacts, QueueRuleLimits], Iterable[QueueViolation]]
_Check = TypeVar("_Check")


class RuleCheck(NamedTuple):
    """A registered check of a rule: what must have been read, the precondition in words, and the function.

    ``methods``: a check is for calls of these, for all where there are none. ``complete``: it is only for associations
    that were captured completely. ``messages``, of a check on packets or sessions: the condition of the messages that
    it looks at.
    """

    rule_id: str
    needs: RequiredEvidence
    precondition: str
    check: Any
    methods: tuple[Method, ...] = ()
    complete: bool = False
    messages: str | None = None


CALL_CHECKS: Final[list[RuleCheck]] = []
ASSOCIATION_CALL_CHECKS: Final[list[RuleCheck]] = []
ASSOCIATION_CHECKS: Final[list[RuleCheck]] = []
BIND_CHECKS: Final[list[RuleCheck]] = []
SERVER_CHECKS: Final[list[RuleCheck]] = []
QUEUE_CHECKS: Final[list[RuleCheck]] = []
PACKET_CHECKS: Final[list[RuleCheck]] = []
SESSION_CHECKS: Final[list[RuleCheck]] = []
HOP_CHECKS: Final[list[RuleCheck]] = []
SEQUENCE_CHECKS: Final[list[RuleCheck]] = []


def call_rule(rule_id: str, *methods: Method, needs: RequiredEvidence = "request") -> Callable[[CallCheck], CallCheck]:
    """Register a check that looks at single calls, of these methods, or of all where none are given.

    The check is given calls as columns, also those of other methods, and yields those that break its rule
    (``ViolatingCalls``). A call that it yields several times has the first text. Calls of other methods, and those that
    were not captured as it ``needs``, do not count. It runs for new and changed calls. Where its rule also has checks
    over several calls, it runs with these too, and then without the bytes of stubs.
    """
    return _registrar(CALL_CHECKS, RuleCheck(rule_id, needs, _PRECONDITIONS[needs], None, methods))


def association_call_rule(
    rule_id: str,
    *methods: Method,
    precondition: str | None = None,
    needs: RequiredEvidence = "request",
    complete: bool = False,
) -> Callable[[AssociationCallCheck], AssociationCallCheck]:
    """Register a check on calls that also looks at what is open when they are made, or at other calls of a connection.

    It is as one on single calls, but is given all calls of some associations. It evaluates ``AssociationCalls.judged``:
    those of the methods that were captured as it ``needs``, of associations captured completely where it asks for
    ``complete``.
    """
    precondition = _joined(complete, precondition)
    check = RuleCheck(rule_id, needs, precondition, None, methods, complete=complete)
    return _registrar(ASSOCIATION_CALL_CHECKS, check)


def association_rule(
    rule_id: str,
    *methods: Method,
    precondition: str | None = None,
    complete: bool = False,
) -> Callable[[AssociationCheck], AssociationCheck]:
    """Register a check that looks at the history of one association: the lifetimes of its handles.

    ``methods`` are those of the calls that may break the rule; its violations by other calls do not count. A history
    has no reads and no Ends: ValueError where the rule is for these. With ``complete`` it runs only where the
    association was captured completely.
    """
    if not methods or not MANY_METHODS.isdisjoint(methods):
        raise ValueError(f"{rule_id}: histories have no reads and no Ends; make it an association_call_rule")
    precondition = _joined(complete, precondition)
    check = RuleCheck(rule_id, "headers", precondition, None, methods, complete=complete)
    return _registrar(ASSOCIATION_CHECKS, check)


def _joined(complete: bool, precondition: str | None) -> str:  # noqa: FBT001 - by place
    return "; ".join(filter(None, (_COMPLETE if complete else None, precondition)))


def bind_rule(rule_id: str, precondition: str) -> Callable[[BindCheck], BindCheck]:
    """Register a check that looks at the binds of an association, also of connections without calls."""
    return _registrar(BIND_CHECKS, RuleCheck(rule_id, "headers", precondition, None))


def server_rule(rule_id: str, precondition: str) -> Callable[[ServerCheck], ServerCheck]:
    """Register a check that looks at all openings of a server, over its associations."""
    return _registrar(SERVER_CHECKS, RuleCheck(rule_id, "headers", precondition, None))


def queue_rule(rule_id: str, precondition: str) -> Callable[[QueueCheck], QueueCheck]:
    """Register a check that looks at the facts of one queue: its reported states, and the reads of all its readers."""
    return _registrar(QUEUE_CHECKS, RuleCheck(rule_id, "headers", precondition, None))


def packet_rule(
    rule_id: str, precondition: str, *, messages: str | None = None
) -> Callable[[PacketCheck], PacketCheck]:
    """Register a check that looks at packets of the binary protocol, each by itself.

    ``messages``: the condition, in SQL, of the rows of silver.messages that it looks at; None: at none. Only messages
    that meet the condition of some rule are read, and those are given to all.
    """
    return _registrar(PACKET_CHECKS, RuleCheck(rule_id, "headers", precondition, None, messages=messages))


def session_rule(
    rule_id: str, precondition: str, *, messages: str | None = None
) -> Callable[[SessionCheck], SessionCheck]:
    """Register a check that looks at all packets of one session of the binary protocol, and ``messages`` likewise."""
    return _registrar(SESSION_CHECKS, RuleCheck(rule_id, "headers", precondition, None, messages=messages))


def hop_rule(rule_id: str, precondition: str) -> Callable[[_Check], _Check]:
    """Register a check that looks at what went from one queue manager to another, over all sessions."""
    return _registrar(HOP_CHECKS, RuleCheck(rule_id, "headers", precondition, None))


def sequence_rule(rule_id: str, precondition: str) -> Callable[[_Check], _Check]:
    """Register a check that compares reports of an exactly-once sequence with what was captured of it."""
    return _registrar(SEQUENCE_CHECKS, RuleCheck(rule_id, "headers", precondition, None))


def _registrar(checks: list[RuleCheck], declared: RuleCheck) -> Callable[[_Check], _Check]:
    """Return a decorator that adds a function to a list of checks."""

    def register(check: _Check) -> _Check:
        checks.append(declared._replace(check=check))
        return check

    return register


def single_call_rules() -> frozenset[str]:
    """Return the ids of rules that only look at one call: their findings change only when that call does."""
    single = {check.rule_id for check in CALL_CHECKS}
    others = (*ASSOCIATION_CALL_CHECKS, *ASSOCIATION_CHECKS, *SERVER_CHECKS)
    return frozenset(single - {check.rule_id for check in others})


def checks_of_rule(rule_id: str) -> list[RuleCheck]:
    """Return the checks of a rule."""
    return [check for checks in _ALL_CHECKS for check in checks if check.rule_id == rule_id]


_ALL_CHECKS: Final = (
    CALL_CHECKS, ASSOCIATION_CALL_CHECKS, ASSOCIATION_CHECKS, BIND_CHECKS, SERVER_CHECKS, QUEUE_CHECKS,
    PACKET_CHECKS, SESSION_CHECKS, HOP_CHECKS, SEQUENCE_CHECKS,
)  # fmt: skip
UNOBSERVABLE_RULES: Final = {
    "Q67": "what the queue manager did after the connection was lost: its journal of transactions, or a queue snapshot "
    "before and after with no other reader",
    "R40": "the whole packet with its trailing headers, beside the sections that were sent",
    "R75": "whether client and server are members of one domain; no violation is defined",
    "M10": "nothing of its own: a property of the other kind is M04's and M07's",
    "M15": "what the client asked the endpoint mapper, and the ports that it was configured with",
    "M20": "what the client's application was given: its own trace",
    "C09": "the versions of both peers; no violation is defined",
    "C13": "whether the proxy is of a remote queue: the supporting server's own call to its owner, and the transfer "
    "buffer's pUow, which is not kept",
}
"""Rules that the captured columns cannot decide, with the evidence that would be needed."""
