"""Write the module with the versions of the rules: digests of the registered checks and of all code that they use."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Final

from pipeline.findings import evaluate, evaluate_queues, reported_sequences, session_findings  # noqa: F401 - their import registers the checks
from pipeline.findings.hops import hop_findings  # noqa: F401
from pipeline.findings.rules import registry
from pipeline.findings.rules.registry import ALL_RULES, RuleCheck
from pipeline.transfers.hops.hop_keys import CLONES_RULE
from tools.code_digest import CodeDigest, Definition

_NOT_OF_RULES: Final = (
    "pipeline.lake", "pipeline.concurrency", "pipeline.findings.rules.catalog.RULE_TABLE",
    "pipeline.findings.rules.versions",
)  # fmt: skip
"""How tables are stored and read, and the texts of all rules: those of a group are counted with it."""
_NOT_OF: Final = {"CALL_RULES": (), "SESSION_RULES": ("pipeline.findings.columns.association_calls",)}
"""What does not count in a group either; in others it is all columns of calls."""
_CLONES: Final = [check for check in registry.HOP_CHECKS if check.rule_id == CLONES_RULE]
_OF_HOPS: Final = (("hops.hop_findings", "hop_finding_rows"),)
_FINDINGS: Final = "pipeline.findings"
_GROUPS: Final[dict[str, tuple[list[RuleCheck], tuple[tuple[str, str], ...]]]] = {
    "CALL_RULES": (
        [
            *registry.CALL_CHECKS, *registry.ASSOCIATION_CALL_CHECKS, *registry.ASSOCIATION_CHECKS,
            *registry.BIND_CHECKS, *registry.SERVER_CHECKS, *registry.QUEUE_CHECKS,
        ],
        (
            ("evaluate", "evaluate_calls"), ("queue_queries", "QueueFactQueries"),
            ("evaluate_queues", "evaluate_queues"), ("duplicate_machines", "find_duplicate_machines"),
        ),
    ),
    "SESSION_RULES": (
        [*registry.PACKET_CHECKS, *registry.SESSION_CHECKS],
        (("session_findings", "read_facts"), ("session_findings", "evaluate_sessions")),
    ),
    "HOP_RULES": ([check for check in registry.HOP_CHECKS if check not in _CLONES], _OF_HOPS),
    "CLONE_RULES": (_CLONES, _OF_HOPS),
    "SEQUENCE_RULES": (registry.SEQUENCE_CHECKS, (("update_reported_sequences", "_evaluate"),)),
}  # fmt: skip
"""The rules that are evaluated together, and by which module and definition of ``pipeline.findings``."""
_HEAD: Final = '''\
"""The versions of the rules, made by `make rules-doc` from their code. Findings of another version are made again."""

from typing import Final

'''


def page(project: Path = Path()) -> str:
    """Return the text of the module."""
    lines = []
    for name, (checks, evaluation) in _GROUPS.items():
        definitions = {_definition(check) for check in checks}
        definitions |= {Definition(f"{_FINDINGS}.{module}", function) for module, function in evaluation}
        code = CodeDigest(project, (*_NOT_OF_RULES, *_NOT_OF.get(name, ("pipeline.findings.columns",))))
        digest = code.of(definitions, *sorted(map(_facts, checks)))
        lines.append(f'{name}: Final = "{digest}"\n')
    return _HEAD + "".join(lines)


def _definition(check: RuleCheck) -> Definition:
    """Return the definition of a check's function."""
    function = check.check.func if isinstance(check.check, partial) else check.check
    return Definition(function.__module__, function.__name__)


def _facts(check: RuleCheck) -> str:
    """Return what is registered of a check beside its function, and the texts of its rule."""
    of_partial = check.check.keywords if isinstance(check.check, partial) else {}
    return repr((ALL_RULES[check.rule_id], check.needs, check.complete, check.methods, of_partial))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
