"""Every rule finds what breaks it, and is silent beside it: one violating and one innocent exchange for each."""

import pytest

from findings.exchanges import Story, broken, qm_end, qm_open, qm_start, session
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.findings.rules.registry import RULES, UNSHOWN, found_by, of_one_call
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


@pytest.mark.parametrize("rule", STORIES)
def test_what_rests_on_one_call_alone_is_judged_where_it_changed(rule):
    """With what was known of the other calls it is what all of them come to, whichever of them changed."""
    for told in STORIES[rule]:
        story = told if isinstance(told, Story) else Story(told)
        every = [(test.rule_id, hit.call and hit.call["call_key"], hit.actual) for test, hit in story.broken()]
        keys = [row["call_key"] for row in story.calls]
        for fresh in ({}, {*keys[::2]}, {*keys[1::2]}, {*keys[-1:]}, {*keys}):
            known = [found for found in every if found[0] in of_one_call() and found[1] not in fresh]
            now = [(test.rule_id, hit.call and hit.call["call_key"], hit.actual) for test, hit in story.broken(fresh)]
            assert sorted(map(str, known + now)) == sorted(map(str, every))


@pytest.mark.parametrize(("seconds", "explains"), [(-3600, True), (29, True), (31, False), (3600, False)])
def test_what_another_association_opened_explains_what_was_there_then(seconds, explains):
    """The last packet is 20 s in; clocks of captures are taken to agree to 10 s."""
    elsewhere = qm_open(seconds, queue_handle=99, connection_id="other", context_handle="7" * 40)
    story = Story(session(qm_start(queue_handle=99), qm_end()), others=[elsewhere])
    assert ({"Q11", "Q35"} & broken(story) == set()) == explains
