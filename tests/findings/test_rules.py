"""Every rule finds what breaks it, and is silent beside it: one violating and one innocent exchange for each."""

import pytest

from findings.exchanges import broken
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.rules import RULES, UNSHOWN, found_by
from tools.write_rules_doc import page

STORIES = CALLS | MANAGEMENT


def test_the_documentation_page_is_the_rules_and_their_tests(project):
    """`make rules-doc` writes it anew."""
    assert (project / "docs" / "rules.md").read_text(encoding="utf-8") == page()


def test_every_rule_has_a_test_and_a_story_or_the_evidence_it_would_need():
    untested = {rule for rule in RULES if not found_by(rule)}
    assert untested == set(UNSHOWN)
    assert len(UNSHOWN) <= 10
    assert set(STORIES) == set(RULES) - set(UNSHOWN)


@pytest.mark.parametrize("rule", STORIES)
def test_the_violating_exchange_is_found(rule):
    assert rule in broken(STORIES[rule][0])


@pytest.mark.parametrize("rule", STORIES)
def test_the_innocent_exchange_is_not(rule):
    assert rule not in broken(STORIES[rule][1])
