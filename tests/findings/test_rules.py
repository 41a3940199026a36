"""Every rule finds its violating story, and does not report the innocent one."""

import copy
import re

import pytest

from findings.exchanges import (
    CANCELLED,
    FAILED,
    H2,
    L_RECEIVE,
    PEEK,
    TIMEOUT,
    H,
    Story,
    app,
    broken,
    call,
    qc,
    qm,
    qm_cancel,
    qm_close,
    qm_end,
    qm_open,
    qm_peek,
    qm_start,
    remote,
    rr,
    rr_cancel,
    rr_end,
    rr_enlist,
    rr_open,
    rr_start,
    rr_tx,
    session,
)
from findings.management import STORIES as MANAGEMENT
from findings.stories import NO_DESCRIPTOR, bind
from findings.stories import STORIES as CALLS
from pipeline.findings import evaluate_queues, session_findings  # noqa: F401 - their import registers checks
from pipeline.findings.evaluate import finding_of_violation
from pipeline.findings.hops import hop_findings  # noqa: F401
from pipeline.findings.rules.registry import (
    ALL_RULES,
    HOP_CHECKS,
    PACKET_CHECKS,
    PROTOCOL_RULES,
    QUEUE_CHECKS,
    SESSION_CHECKS,
    UNOBSERVABLE_RULES,
    checks_of_rule,
    single_call_rules,
)
from udfs.comqc.container_layout import BAD_FLAGS, DEVIATION_TEXTS, REFERENCE_NOT_NEEDED, REJECTION_TEXTS

STORIES = CALLS | MANAGEMENT


def rows(story):
    """The findings of a story, as rows of gold.findings."""
    story = story if isinstance(story, Story) else Story(story)
    return [finding_of_violation(ALL_RULES[check.rule_id], found, "association") for check, found in story.broken()]


def sides(rule, story):
    """Who broke a rule in a story, by call: client or server."""
    return {row["call_key"]: row["subject"].split()[0] for row in rows(story) if row["rule_id"] == rule}


def test_every_rule_has_a_test_and_a_story_or_the_evidence_it_would_need():
    """Rules on queues alone have their stories in test_of_queues, those on sessions in tests/transfers."""
    untested = {rule for rule in PROTOCOL_RULES if not checks_of_rule(rule)}
    assert untested == set(UNOBSERVABLE_RULES)
    assert len(UNOBSERVABLE_RULES) <= 10
    of_queues = {rule for rule in PROTOCOL_RULES if {*checks_of_rule(rule)} & {*QUEUE_CHECKS}} - set(STORIES)
    of_sessions = {check.rule_id for check in (*PACKET_CHECKS, *SESSION_CHECKS, *HOP_CHECKS)} - {"O07"}
    assert set(STORIES) | of_queues | of_sessions == set(PROTOCOL_RULES) - set(UNOBSERVABLE_RULES)


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


INVALID = 0xC00E0007
BY_CURSOR = {"action": PEEK, "cursor_handle": 3}
CREATED, CLOSED = rr(4, 0.5, cursor_handle=3), rr(5, 0.8, cursor_handle=3)
OF_EITHER = {
    "R27 a cursor that was never created": ("R27", lambda result: remote(rr_start(2, result, **BY_CURSOR))),
    "R27 a closed cursor": ("R27", lambda result: remote(CREATED, CLOSED, rr_start(2, result, **BY_CURSOR))),
    "R27 in a transaction": ("R27", lambda result: remote(rr_enlist(), rr_tx(2, result, cursor_handle=3))),
    "R50 nothing received": ("R50", lambda result: remote(rr_end(2, result))),
    "R50 ended already": ("R50", lambda result: remote(rr_start(), rr_end(2), rr_end(3, result))),
    "R50 cancelled": (
        "R50",
        lambda result: remote(rr_start(1, CANCELLED, answer=2.002), rr_cancel(2), rr_end(3, result)),
    ),
    "R50 in a transaction": ("R50", lambda result: remote(rr_end(2, result, opnum=15))),
    "R51 another request waits": (
        "R51",
        lambda result: remote(rr_start(), rr_end(2, result, request_id=8), rr_end(3)),
    ),
    "R51 ended already, another waits": (
        "R51",
        lambda result: remote(
            rr_start(), rr_start(1.5, request_id=8), rr_end(2), rr_end(3, result), rr_end(4, request_id=8)
        ),
    ),
    "Q57": ("Q57", lambda result: [qm_start(1, result, **NO_DESCRIPTOR)]),
    "Q57 by lookup": ("Q57", lambda result: [qm_start(1, result, opnum=10, **NO_DESCRIPTOR)]),
    "Q26": ("Q26", lambda result: [qm_open(0.2, result, open_context=0)]),
    "Q40": ("Q40", lambda result: session(qm(4, 3, result, queue_handle=99, cursor_handle=3))),
    "Q42 no queue": ("Q42", lambda result: session(qm_cancel(2, result, queue_handle=0, queue_descriptor=0))),
    "Q42 two queues": ("Q42", lambda result: session(qm_cancel(2, result, queue_descriptor=29))),
    "C05": ("C05", lambda result: app(qc(4, 2, result, queue_handle=99, cursor_handle=3))),
    "C05 no queue": ("C05", lambda result: app(qc(4, 2, result, queue_handle=0, cursor_handle=3))),
}


@pytest.mark.parametrize("case", OF_EITHER)
def test_rules_that_bind_both_are_asked_of_the_client_and_of_the_server(case):
    rule, story = OF_EITHER[case]
    assert [*sides(rule, story(INVALID)).values()] == ["client"]
    assert [*sides(rule, story(0)).values()] == ["server"]


def test_an_end_on_a_context_that_is_not_open_is_a_violation_of_another_rule():
    closed = [*remote(rr_start(), rr_end()), rr_end(10, None, fault=0x1C00001A)]
    assert broken(closed) & {"R10", "R50", "R51"} == {"R10"}


UNOPENED = {
    "a read": qm_start(1, FAILED, queue_handle=0, queue_descriptor=0),
    "a read of any number": qm_start(1, FAILED, queue_handle=99, queue_descriptor=99),
    "a lookup": qm_start(1, FAILED, opnum=10, queue_handle=0),
    "a purge": qm(6, 1, None, fault=INVALID, queue_handle=0),
    "a cursor's close": qm(4, 1, INVALID, queue_handle=0, cursor_handle=3),
    "a cancel": qm_cancel(1, FAILED, queue_handle=0),
    "a close": qm_close(1, None, fault=0x1C00001A, context_handle=H2),
    "a close of NULL": qm_close(1, INVALID, context_handle=None),
    "a second close": qm_close(12, None, fault=0x1C00001A),
}


@pytest.mark.parametrize("case", UNOPENED)
def test_a_handle_that_was_never_opened_or_is_closed_is_the_clients_violation(case):
    row = UNOPENED[case]
    assert sides("Q35", session(row)) == {row["call_key"]: "client"}


def test_a_server_that_accepts_the_number_0_breaks_its_own_rules():
    zero = {"queue_handle": 0, "queue_descriptor": 0}
    assert broken(session(qm_start(**zero), qm_end())) >= {"Q11", "Q35"}
    assert "Q48" in broken(session(qm(6, 1, queue_handle=0)))
    assert "Q40" in broken(session(qm(4, 1, queue_handle=0, cursor_handle=3)))


A_SECTION = re.compile(r"(M[CS]-[A-Z]+|C706) \d+(\.\d+)*|docs/reference/rules\.md#operation")


@pytest.mark.parametrize("rule", ALL_RULES.values(), ids=lambda rule: rule.rule_id)
def test_each_source_of_a_rule_is_one_document_and_one_section(rule):
    methods = [("qm2qm", 9), ("RemoteRead", 13), ("qmmgmt", 1), ("qmcomm", 4), ("qmcomm2", 2)]
    found = [rule.source_for(method) for method in methods]
    found += [source for source in rule.sources if source != "method"]
    assert all(A_SECTION.fullmatch(source) for source in found)


@pytest.mark.parametrize("rule", STORIES)
def test_a_finding_names_one_section_that_its_rule_is_stated_in(rule):
    found = [row["source"] for row in rows(STORIES[rule][0]) if row["rule_id"] == rule]
    assert found
    for source in found:
        assert A_SECTION.fullmatch(source)
        assert source in PROTOCOL_RULES[rule].sources or PROTOCOL_RULES[rule].sources == ("method",)


RULE = {"offset": 8, "places": 1}
SOURCES = [
    ("MS-MQRR 3.1.4.7", "R21", [rr_start(1, FAILED, action=5)]),
    ("MS-MQRR 3.1.4.13", "R21", [rr_tx(1, FAILED, action=5)]),
    ("MS-MQRR 3.1.4.7", "R33", remote(rr_start(action=PEEK), rr_end(2, INVALID))),
    ("MS-MQRR 3.1.4.13", "R33", remote(rr_start(opnum=13, action=PEEK), rr_end(2, INVALID, opnum=15))),
    ("MS-MQRR 3.1.4.15", "R50", remote(rr_end(2, INVALID, opnum=15))),
    ("MS-MQRR 3.1.4.6", "R10", remote(rr(6, 3, None, fault=5, context_handle=H2))),
    (
        "MS-MQRR 3.2.4.10.2",
        "R29",
        remote(rr_tx(1, TIMEOUT, answer=5, timeout_ms=4000), rr_tx(2, FAILED, cursor_handle=3)),
    ),
    ("MS-MQQP 3.1.4.11", "Q57", [qm_start(1, INVALID, opnum=10, **NO_DESCRIPTOR)]),
    ("MS-MQQP 3.1.4.1", "Q05", [qm_start(opnum=0, action=L_RECEIVE)]),
    ("MS-MQQP 3.1.4.10", "Q05", [qm_start(action=L_RECEIVE)]),
    ("MS-MQQP 3.2.4.5", "Q58", [qm_peek(cursor_handle=3, request_head=bytes(8) + b"\7" + bytes(52))]),
    ("MS-MQQP 3.1.4.5", "P15", [qm(4, 1, 5)]),
    (
        "MS-MQRR 2.2.5.5",
        "R77",
        [rr_start(message_errors=[{"code": "malformed", "field": "ExtendedAddressHeader.HeaderSize", "offset": 4}])],
    ),
    ("MS-MQMP 3.1.4", "P03", [qc(5, 1, None, fault=0x1C010002)]),
    ("MS-MQRR 3.1.4", "P03", [rr(1, 1, None, fault=0x1C010002)]),
    ("MS-RPCE 3", "P05", [qc(2, 1, errors=[{"code": "truncated", "field": "request.hQueue", "offset": 4}])]),
    (
        "MS-MQQP 2.2",
        "P09",
        Story([rr(6, 1)], binds=[bind("qm2qm", result="rejected", reason=2)]),
    ),
    ("MS-MQMR 3.1.4.2", "P12", [call("qmmgmt", 1, 1, None, fault=0xC00E0006)]),
    ("MC-COMQC 2.2.6", "K01", [rr_start(comqc_rejected=REJECTION_TEXTS[BAD_FLAGS])]),
    ("MC-COMQC 2.2.5", "K02", [rr_start(comqc_deviations=[RULE | {"rule": DEVIATION_TEXTS[REFERENCE_NOT_NEEDED]}])]),
    ("MS-MQMQ 2.2.20.5", "T22", [rr_start(transaction_number=0, previous_transaction_number=0)]),
]


@pytest.mark.parametrize(("source", "rule", "story"), SOURCES)
def test_the_section_is_that_of_the_calls_method_where_the_text_says_it_there(source, rule, story):
    assert {row["source"] for row in rows(story) if row["rule_id"] == rule} == {source}


def test_a_new_client_that_asks_for_the_port_is_worth_a_note():
    """R65; one of 2003 has to ask."""
    asked = rr(0, 0.1, None, returned_port=2103)
    new, old = (Story(remote(asked, first=rr_open(version_major=major, version_minor=1))) for major in (6, 5))
    (found,) = (row for row in rows(new) if row["rule_id"] == "R65")
    assert (found["severity"], found["subject"], found["actual"]) == (
        "info", "client 10.0.0.2", "asked by a client of version 6.1",
    )  # fmt: skip
    assert "R65" not in broken(old)


BY_TAPS = {"request_tap": 0, "request_ahead_us": 0, "response_tap": 0, "response_ahead_us": 0}


def by_taps(story):
    """The story, with calls that several taps saw: clocks are related within a connection only."""
    story = copy.deepcopy(story)
    for each in (*story.calls, *story.others):
        each["clocks"] = BY_TAPS
    return story


@pytest.mark.parametrize("rule", ["R08", "R73", "C02", "C04"])
def test_taps_do_not_tell_the_order_of_two_connections(rule):
    assert rule not in broken(by_taps(STORIES[rule][0]))


@pytest.mark.parametrize("rule", STORIES)
def test_rows_that_stand_twice_end_nothing(rule):
    """Somebody else appended them: a check of quality says so."""
    story = STORIES[rule][0]
    story = copy.deepcopy(story if isinstance(story, Story) else Story(story))
    story.calls.extend(copy.deepcopy(story.calls))
    broken(story)


def test_a_context_closed_early_is_found_where_clocks_cannot_be_why():
    def story(opened_at):
        return Story([*app(closed=False), qc(3, 1, None, context_handle=H)], others=[qm_open(opened_at, **elsewhere)])

    elsewhere = {"connection_id": "c9", "client_address": "10.0.0.9"}
    assert "C06" in broken(story(2))
    assert "C06" not in broken(by_taps(story(2)))
    assert "C06" in broken(by_taps(story(12)))
