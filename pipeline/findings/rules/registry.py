"""Conformance rules: what each one says (``rule_table``), and its test, found by the rule's id.

A test is a function in one of the modules ``rules_*``. It looks at one exchange (``each``), at one association
(``over``), at all that a server opened (``across``) or at what is told of a queue (``of_queue``), and is asked only
where what it rests on was read whole. A rule without a test is in ``UNSHOWN``, with the evidence that would be needed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from pipeline.findings.rules.catalog import TABLE
from pipeline.findings.rules.conversations import Conversation, Exchange, Ledger
from pipeline.findings.rules.queue_facts import Limits, Told

Needs = Literal["headers", "request", "answer", "ok"]
Severity = Literal["error", "warning", "info"]

_DOCUMENTS: Final = {"Q": "MS-MQQP", "R": "MS-MQRR", "M": "MS-MQMR", "C": "MS-MQMP"}
_PRECONDITIONS: Final[dict[Needs, str]] = {
    "headers": "the call's headers were captured",
    "request": "the request was read whole",
    "answer": "request and answer were read whole",
    "ok": "request and answer were read whole, the answer is MQ_OK",
}
WHOLE: Final = "the association is whole"


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table. ``level``: M, S or D; ``who``: C, S or B; ``needs``: H, S, P."""

    rule_id: str
    source: str
    level: str
    who: str
    needs: str
    rule: str
    violation: str

    @property
    def severity(self) -> Severity:
        """``error`` for MUST, ``warning`` for SHOULD; ``info`` for what only follows, or is soft by its own words."""
        if any(word in self.violation for word in ("informational", "soft")):
            return "info"
        levels: dict[str, Severity] = {"M": "error", "S": "warning"}
        return levels.get(self.level[:1], "info")


def _rules() -> dict[str, Rule]:
    found = {}
    for line in TABLE.strip().splitlines():
        rule_id, source, *rest = (cell.strip() for cell in line.split(" | "))
        found[rule_id] = Rule(rule_id, _document(rule_id[0], source), *rest)
    return found


def _document(kind: str, source: str) -> str:
    """Return where a rule is written with its document's full name: the table leaves out what the section names."""
    if kind == "P" or source.startswith(("MQ", "RPCE", "IDL", "notes")):
        named = source if kind == "P" or source.startswith(("MQ", "RPCE")) else f"{_DOCUMENTS[kind]} {source}"
    else:
        named = f"{_DOCUMENTS[kind]} {source}"
    return re.sub(r"(?<!MS-)\b(MQ[A-Z]+|RPCE)\b", r"MS-\1", named)


RULES: Final = _rules()
OPERATION: Final = {
    rule.rule_id: rule
    for rule in (
        Rule("O01", "MS-MQMQ 2.1.1", "S", "B", "S", "an identifier of a queue manager is one machine's",
             "two machines, told apart by their names, were seen with it"),
        Rule("O02", "docs/rules.md", "S", "B", "P", "the clocks of sender, owner and capture agree to 2 s",
             "a message arrives before it was sent, or after it was read"),
        Rule("O03", "docs/rules.md", "S", "B", "S", "dead letters do not become more",
             "a dead-letter queue, or a component's dead queue, grows"),
        Rule("O04", "docs/rules.md", "S", "B", "S", "somebody empties journals",
             "a journal grows"),
        Rule("O05", "MS-MQQB 3.1.5.8.6", "S", "B", "S", "a receiver takes what its sender goes on with",
             "sender and receiver disagree about the next number"),
        Rule("O06", "docs/rules.md", "S", "B", "S", "what a queue manager reports of a queue is what reads of it show",
             "a report that no message, reader or clock that was not seen can explain"),
    )
}  # fmt: skip
"""Rules of operation: silver.hosts shows the first, messages the second, the state of queues the others."""
ALL: Final = RULES | OPERATION


class Hit(NamedTuple):
    """A rule broken: by this call (None where it is no call), what was seen, and the calls that prove it.

    ``severity`` where it is not the rule's own; ``server`` tells who broke a rule that binds both.
    """

    call: Exchange | None
    actual: str
    evidence: tuple[Exchange, ...] = ()
    severity: Severity | None = None
    server: bool | None = None
    subject: str | None = None


class Sign(NamedTuple):
    """A rule broken by what is told of a queue: when, what was seen, by which calls and snapshots, and of what.

    ``call`` is the row of the call that breaks it, where one does; ``severity`` where it is not the rule's own.
    """

    at: int
    actual: str
    evidence: tuple[str, ...]
    subject: str
    severity: Severity | None = None
    call: Mapping[str, Any] = {}


One = Callable[[Exchange], Hit | str | bool | None]
Many = Callable[[Conversation], Iterable[Hit]]
All = Callable[[Ledger], Iterable[Hit]]
OfQueue = Callable[[Told, Limits], Iterable[Sign]]


class Test(NamedTuple):
    """How a rule is tested: what is looked at, the precondition in words, and the function."""

    rule_id: str
    needs: Needs
    precondition: str
    test: Any


BY_METHOD: Final[defaultdict[tuple[str, int], list[Test]]] = defaultdict(list)
ANYWHERE: Final[list[Test]] = []
OVER: Final[list[Test]] = []
ACROSS: Final[list[Test]] = []
QUEUES: Final[list[Test]] = []


def each(rule_id: str, *methods: tuple[str, int], needs: Needs = "request") -> Callable[[One], One]:
    """Declare a test of one exchange at a time, of these methods; of all without any.

    The test gives a Hit, or what was seen as text, or True; nothing, or False, where the rule is kept. It is asked when
    the call comes or changes; where the rule has tests over several calls too, whenever these are, and then without the
    bytes of the stub.
    """

    def declare(test: One) -> One:
        made = Test(rule_id, needs, _PRECONDITIONS[needs], test)
        for method in methods:
            BY_METHOD[method].append(made)
        if not methods:
            ANYWHERE.append(made)
        return test

    return declare


def over(rule_id: str, precondition: str = WHOLE) -> Callable[[Many], Many]:
    """Declare a test of one association."""

    def declare(test: Many) -> Many:
        OVER.append(Test(rule_id, "headers", precondition, test))
        return test

    return declare


def across(rule_id: str, precondition: str) -> Callable[[All], All]:
    """Declare a test of all that a server opened, over its associations."""

    def declare(test: All) -> All:
        ACROSS.append(Test(rule_id, "headers", precondition, test))
        return test

    return declare


def of_queue(rule_id: str, precondition: str) -> Callable[[OfQueue], OfQueue]:
    """Declare a test of what is told of one queue: its state, and the reads of all its readers."""

    def declare(test: OfQueue) -> OfQueue:
        QUEUES.append(Test(rule_id, "headers", precondition, test))
        return test

    return declare


def of_one_call() -> frozenset[str]:
    """Return the rules whose tests look at one call alone: what they find stays as long as the call does not change."""
    one = {test.rule_id for tests in (ANYWHERE, *BY_METHOD.values()) for test in tests}
    return frozenset(one - {test.rule_id for test in (*OVER, *ACROSS)})


def found_by(rule_id: str) -> list[Test]:
    """Return the tests of a rule."""
    every = [test for tests in BY_METHOD.values() for test in tests]
    return list(dict.fromkeys(test for test in (*every, *ANYWHERE, *OVER, *ACROSS, *QUEUES) if test.rule_id == rule_id))


UNSHOWN: Final = {
    "Q67": "what the queue manager did after the connection was lost: its journal of transactions, or a queue snapshot "
    "before and after with no other reader",
    "R40": "the whole packet with its trailing headers, beside the sections that were sent",
    "R59": "whether the target queue is transactional: PROPID_MGMT_QUEUE_XACT of a snapshot of it",
    "R75": "whether client and server are members of one domain; no violation is defined",
    "M10": "nothing of its own: a property of the other kind is M04's and M07's",
    "M15": "what the client asked the endpoint mapper, and the ports that it was configured with",
    "M20": "what the client's application was given: its own trace",
    "C09": "the versions of both peers; no violation is defined",
    "C13": "whether the proxy is of a remote queue: the supporting server's own call to its owner, and the transfer "
    "buffer's pUow, which is not kept",
}
"""Rules that traffic cannot show by the columns it is kept in, and the evidence that would be needed."""
