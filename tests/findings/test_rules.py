"""Every rule finds its violating story, and does not report the innocent one."""

import pytest

from findings.exchanges import Story, broken, call, qm_end, qm_open, qm_start, session
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.findings.rules.registry import PROTOCOL_RULES, UNOBSERVABLE_RULES, checks_of_rule, single_call_rules

STORIES = CALLS | MANAGEMENT


def test_every_rule_has_a_test_and_a_story_or_the_evidence_it_would_need():
    untested = {rule for rule in PROTOCOL_RULES if not checks_of_rule(rule)}
    assert untested == set(UNOBSERVABLE_RULES)
    assert len(UNOBSERVABLE_RULES) <= 10
    assert set(STORIES) == set(PROTOCOL_RULES) - set(UNOBSERVABLE_RULES)


@pytest.mark.parametrize("rule", STORIES)
def test_the_violating_exchange_is_found(rule):
    assert rule in broken(STORIES[rule][0])


@pytest.mark.parametrize("rule", STORIES)
def test_the_innocent_exchange_is_not(rule):
    assert rule not in broken(STORIES[rule][1])


@pytest.mark.parametrize("rule", STORIES)
def test_what_rests_on_one_call_alone_is_judged_where_it_changed(rule):
    """Whichever calls changed: with the known findings of the others, the result is that of all calls."""
    for given in STORIES[rule]:
        story = given if isinstance(given, Story) else Story(given)

        def found(changed=None, story=story):
            return [
                (check.rule_id, each.call and each.call["call_key"], each.actual)
                for check, each in story.broken(changed)
            ]

        every = found()
        keys = [row["call_key"] for row in story.calls]
        for changed in ({}, {*keys[::2]}, {*keys[1::2]}, {*keys[-1:]}, {*keys}):
            known = [each for each in every if each[0] in single_call_rules() and each[1] not in changed]
            assert sorted(map(str, known + found(changed))) == sorted(map(str, every))


@pytest.mark.parametrize(("seconds", "explains"), [(-3600, True), (29, True), (31, False), (3600, False)])
def test_what_another_association_opened_explains_what_was_there_then(seconds, explains):
    """The last packet is at 20 s, and clocks of captures may differ by 10 s."""
    elsewhere = qm_open(seconds, queue_handle=99, connection_id="other", context_handle="7" * 40)
    story = Story(session(qm_start(queue_handle=99), qm_end()), others=[elsewhere])
    assert ({"Q11", "Q35"} & broken(story) == set()) == explains


@pytest.mark.parametrize(("interface", "hresult", "wrong"), [
    ("qmmgmt", 5, False), ("qmmgmt", 0xFFFF, False), ("qmmgmt", 0x400E0001, True), ("qm2qm", 5, True),
])  # fmt: skip
def test_a_win32_code_is_a_result_of_qmmgmt_only(interface, hresult, wrong):
    """[MS-MQMR] 3: any nonzero Win32 error value signifies failure; the other interfaces return HRESULTs."""
    assert ("P15" in broken([call(interface, 1, 1, hresult)])) is wrong
