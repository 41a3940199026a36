"""Write the documentation page of the rules from their table, their tests, and what is said of those without one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.findings import evaluate, evaluate_queues  # noqa: F401 - importing them declares the tests
from pipeline.findings.rules.registry import OPERATION, RULES, UNSHOWN, Rule, found_by

GROUPS = {
    "P": "RPC",
    "Q": "qm2qm, [MS-MQQP]",
    "R": "RemoteRead, [MS-MQRR]",
    "M": "qmmgmt, [MS-MQMR]",
    "C": "qmcomm, [MS-MQMP]",
}
WHO = {"C": "client", "S": "server", "B": "either"}
READABLE = {"H": "headers", "S": "stubs", "P": "packets", "H/S": "headers, stubs", "S/H": "headers, stubs", "-": "-"}
HEAD = """\
# Rules

Made by `make rules-doc` from `pipeline/findings/rules/`; change it there. Each row
of `gold.findings` is a rule broken by one call, with the calls that prove it (`evidence`) and what was seen (`actual`).

**When a rule is asked.** Only where its precondition was fully observed, as the last column says. "Whole" is an
association of which every SYN, no gap, and only readable calls were captured: without that nothing is called unknown,
missing or late. A sealed call that no key opened, a call cut by the edge of a capture, or one whose bind was not seen
shows nothing. Faults of the RPC runtime are no violation of a rule on results; when several errors hold at once any of
their codes is taken. Doubts (D..) are those of `docs/doubts.md` and of the fact sheet on RPC interfaces, section 5.

**Severity** is `error` for a MUST, `warning` for a SHOULD, and `info` for what only follows from a text, or is soft by
its own words. A few tests say less than their rule's severity; the table says so.

**What follows what.** An association is judged as a whole when one of its calls, connections or binds changed; where
what a server opened changed, its associations of qmcomm, and those of qm2qm with packets since, are too, for their
numbers are the server's. What others opened later than the last packet (and 10 s, for clocks) explains nothing. Some
rules look at the first bytes of stubs, and those of qmmgmt (M03, M05 to M09, M14, M16 to M19) at whole ones: with
`store.stubs: false` they are not asked. R22 to R24, Q22 to Q24 and the like know only what one association saw of a
message; of a message that came to readers of several, Q22, Q24 and R53 are asked over all reads of its queue, and
`gold.ack_sequences` tells what cannot be proven.

**Queues.** O03 to O06 look at snapshots and at reads of the same queue at the same queue manager (its address must be
known by the name that the collector asks it by). Growth and disagreement are one finding for each day and queue: a
count that only rises for a while is no fault of a protocol, hence never an error. A snapshot differs from traffic for
many good reasons (sends and local readers that nobody captures, expiry, held messages, clocks): what is left of them is
in `pipeline/findings/rules/queues.py`. `gold.queue_history.unexplained_change` has every difference, explained or not.

"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, title in GROUPS.items():
        rules = [rule for name, rule in RULES.items() if name.startswith(group) and name not in UNSHOWN]
        parts.append(_table(title, rules))
    parts.append(_table("Operation", OPERATION.values()))
    parts.append(
        "## Rules that traffic cannot show\n\n"
        "The columns that traffic is kept in do not decide these; what would is said beside each.\n\n"
        "| Rule | Says | Evidence that would be needed |\n| --- | --- | --- |\n"
        + "".join(f"| {name} | {_cell(RULES[name].rule)} | {_cell(why)} |\n" for name, why in UNSHOWN.items())
    )
    return "\n".join(parts)


def _table(title: str, rules: Iterable[Rule]) -> str:
    head = f"## {title}\n\n| Rule | Source | Severity | By | Needs | Says | Found when | Asked when |\n"
    return head + "| --- | --- | --- | --- | --- | --- | --- | --- |\n" + "".join(map(_row, rules))


def _row(rule: Rule) -> str:
    tests = found_by(rule.rule_id)
    found = " ".join(dict.fromkeys(_said(test.test) for test in tests)) or f"{rule.violation} (`silver.hosts`)"
    asked = "; ".join(dict.fromkeys(test.precondition for test in tests)) or "both were seen"
    cells = (rule.rule_id, rule.source, rule.severity, WHO[rule.who], READABLE[rule.needs], rule.rule, found, asked)
    return f"| {' | '.join(map(_cell, cells))} |\n"


def _said(test: Any) -> str:  # noqa: ANN401 - a test of any kind
    function = test.func if isinstance(test, partial) else test
    return " ".join((inspect.getdoc(function) or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
