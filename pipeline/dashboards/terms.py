"""What the page explains beside its data: terms of the glossary, alert conditions, rules, and names of codes."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from pipeline.alerts.conditions import CONDITIONS
from pipeline.findings.rules.registry import ALL_RULES
from udfs.codes import RESULT_NAMES, WSA_ERROR_NAMES

GLOSSARY_FILE = "glossary.json"
"""Terms of docs/start/glossary.md, in lower case, with the first sentences of each; made by ``make glossary``."""


def page_terms() -> dict[str, Any]:
    """Return the texts by term: ``glossary``, ``conditions``, ``rules`` by id, and ``codes`` by number."""
    text = (resources.files("pipeline.dashboards") / "static" / GLOSSARY_FILE).read_text(encoding="utf-8")
    return {
        "glossary": json.loads(text),
        "conditions": {name: condition.meaning for name, condition in CONDITIONS.items()},
        "rules": {rule: each.requirement for rule, each in ALL_RULES.items()},
        "codes": {str(code): name for code, name in (RESULT_NAMES | WSA_ERROR_NAMES).items()},
    }
