"""Write the documentation page of the rules: their table, their checks, and the evidence that others would need."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.findings import evaluate, evaluate_queues, reported_sequences, session_findings  # noqa: F401 - their import registers the checks
from pipeline.findings.hops import hop_findings  # noqa: F401
from pipeline.findings.rules.registry import OPERATIONAL_RULES, PROTOCOL_RULES, UNOBSERVABLE_RULES, Rule, checks_of_rule

GROUPS = {
    "P": "RPC",
    "Q": "qm2qm, [MS-MQQP]",
    "R": "RemoteRead, [MS-MQRR]",
    "M": "qmmgmt, [MS-MQMR]",
    "C": "qmcomm, [MS-MQMP]",
    "T": "Message packets and sessions, [MS-MQMQ], [MS-MQQB]",
    "K": "COM+ queued components, [MC-COMQC]",
}
WHO = {"C": "client", "S": "server", "B": "either"}
READABLE = {"H": "headers", "S": "stubs", "P": "packets", "H/S": "headers, stubs", "S/H": "headers, stubs", "-": "-"}
HEAD = """\
# Rules

Made by `make rules-doc` from `pipeline/findings/rules`; change it there. Each row of `gold.findings` is one violation
of a rule, with the calls that prove it (`evidence`) and what was seen (`actual`).

**When a rule is evaluated.** Only where its precondition was fully observed, as the last column says. An
[association](../start/glossary.md#association) was "captured completely" if every SYN, no gap, and only readable
calls were captured: without that, nothing is called unknown, missing or late. Sealed calls that no key decrypted,
calls cut by the edge of a capture, and calls whose bind was not seen prove nothing. Faults of the RPC runtime do not
violate rules on results. If several errors hold at once, any of their codes is accepted. D-numbers are those of the
[decoders](../internals/decoders.md#ambiguities-of-the-specifications), and of the fact sheet on RPC interfaces,
section 5.

**Source.** A finding's `source` is one document and one section: the section of the call's method if it states the
rule, otherwise the first one that the column *Source* lists for the document of the call's interface. Rules of
operation that no specification states refer to this page.

**Both sides.** A rule that binds either side has one finding for a call: the client's if it sent an invalid request
that the server refused or did not answer, the server's if it answered MQ_OK.

**Message packets.** T22 to T33 hold for each packet, whichever method returned it. The finding names the server that
sent the packet; the queue manager that made it is in `silver.messages.source_queue_manager`. T26 compares times of two
clocks, so it is a warning. T22 to T27 have the numbers of the rules of message transfer.

**Sessions.** T01 to T29 hold for packets of the binary protocol (TCP 1801); of these T22, T24 to T27 for messages that
RPC returned too. The finding names the side that sent the packet (`packet_key`). "The side was captured completely":
from its SYN on, without a hole, and all of it is packets.

**COM+ queued components.** K01 to K05 hold for each sighting of a message whose body was seen and is not encrypted. The
finding names the queue manager that first accepted the message. One message that is read several times, on its way
through the retry queues, has a finding each time. A message that was cut, is judged by what was seen of it.

**Severity** is `error` for a MUST, `warning` for a SHOULD, and `info` for what only follows from a text, or is soft by
its own words. A few checks report less than their rule's severity; the table says so.

**What is evaluated again.** An association is evaluated as a whole if one of its calls, connections or binds changed.
If what a server opened changed, its associations of qmcomm, and those of qm2qm with packets since, are evaluated too,
because queue numbers belong to the server. Opens that come later than an association's last packet (plus 10 s, for
differing clocks) explain nothing.

**Stubs.** Some rules read the first bytes of stubs, and those of qmmgmt (M03, M05 to M09, M14, M16 to M19) whole stubs:
with `store.stubs: false` they are not evaluated.

**Several readers.** R22 to R24, Q22 to Q24 and similar rules know only what one association saw of a message. For
messages that went to readers of several associations, Q22, Q24 and R53 are evaluated over all reads of the queue;
`gold.ack_sequences` contains what cannot be proven.

**Queues.** O03 to O06 look at snapshots and at reads of the same queue at the same queue manager (its address must be
known by the name under which the collector asks it). Growth and disagreement are one finding per day and queue. A
count that rises for a while violates no protocol, so it is never an error. A snapshot can differ from traffic for many
reasons (sends and local readers that nobody captures, expiry, held messages, clocks); what is left is in
`pipeline/findings/rules/queues.py`. `gold.queue_history.unexplained_change` contains every difference, explained or
not.

**Sequences.** O08 compares what queue managers report of an exactly-once sequence (`gold.eod_transfers`,
`gold.eod_sources`) with its packets (`gold.transfer_sequences`): one finding per day, sequence and end. Only what was
captured 5 minutes or more before the report counts, so that differing clocks explain nothing. A machine that was
restored from a backup reports such numbers. Where one id is used for several queues at a machine, nothing is judged.

"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        rules = (rule for name, rule in PROTOCOL_RULES.items() if name.startswith(group))
        parts.append(_table(title, [rule for rule in rules if rule.rule_id not in UNOBSERVABLE_RULES]))
    parts.append(_table("Operation", OPERATIONAL_RULES.values()))
    parts.append(
        "## Rules that traffic cannot show\n\n"
        "The stored columns do not decide these rules. The last column says which evidence would.\n\n"
        "| Rule | Rule text | Evidence that would be needed |\n| --- | --- | --- |\n"
        + "".join(
            f"| {name} | {_cell(PROTOCOL_RULES[name].requirement)} | {_cell(evidence)} |\n"
            for name, evidence in UNOBSERVABLE_RULES.items()
        )
    )
    return "\n".join(parts)


def _table(title: str, rules: Iterable[Rule]) -> str:
    head = f"## {title}\n\n| Rule | Source | Severity | By | Needs | Rule text | Violated if | Evaluated if |\n"
    return head + "| --- | --- | --- | --- | --- | --- | --- | --- |\n" + "".join(map(_row, rules))


def _row(rule: Rule) -> str:
    checks = checks_of_rule(rule.rule_id)
    violated = " ".join(dict.fromkeys(_docstring(check.check) for check in checks))
    evaluated = "; ".join(dict.fromkeys(check.precondition for check in checks))
    cells = (
        rule.rule_id,
        ", ".join(rule.sources).replace("method", "the method's section"),
        rule.severity,
        WHO[rule.bound_party],
        READABLE[rule.required_parts],
        rule.requirement,
        violated or f"{rule.violation} (`silver.hosts`)",
        evaluated or "both were seen",
    )
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _docstring(check: Any) -> str:  # noqa: ANN401 - a check of any kind
    function = check.func if isinstance(check, partial) else check
    return " ".join((inspect.getdoc(function) or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
