"""Verdicts: at the limit and on both sides of it, not seen, not known, and a planted estate against all targets."""

import math
from datetime import date

import pytest

from pipeline.reports.targets.facts import FACTS, FactKind
from pipeline.reports.targets.requirements import REQUIREMENTS
from pipeline.reports.targets.target_file import (
    DocumentationPage,
    DocumentedValue,
    MoveTarget,
    TargetFact,
    bundled_targets,
)
from pipeline.reports.targets.verdicts import Fit, PropertyVerdict, judge_queues, verdict_rows

PAGE = DocumentationPage("https://example.com/limits", date(2026, 1, 31), date(2026, 2, 1))
FITS, CHANGE, NO, UNKNOWN, NOT_SEEN = (
    Fit.FITS, Fit.CHANGE, Fit.DOES_NOT_FIT, Fit.UNKNOWN, Fit.NOT_SEEN,
)  # fmt: skip


def stated(value, text="", says=None, change=None):
    return DocumentedValue(value, text, PAGE, says, change)


def judged(row, facts):
    (verdict,) = judge_queues([{"queue": "a"} | row], [MoveTarget("Own, queue", facts)], "30 days")
    return {each.property: each for each in verdict.properties}


def judged_size(size, limit, default=None):
    facts = {"message_bytes": TargetFact(limit, default)}
    return judged({"messages": 10, "largest_packet_bytes": size}, facts)["largest message"]


MIB = stated(1 << 20, "1 MiB")


@pytest.mark.parametrize(
    ("size", "verdict", "relation"),
    [
        (786_432, FITS, ", within a limit of 1 MiB."),  # encoded just 1 MiB
        (786_433, CHANGE, "; only without the encoding within a limit of 1 MiB."),
        (1_048_576, CHANGE, "; only without the encoding within a limit of 1 MiB."),
        (1_048_577, NO, ", over a limit of 1 MiB."),
    ],
)
def test_sizes_at_the_limit_as_they_are_and_encoded_as_text(size, verdict, relation):
    found = judged_size(size, MIB)
    assert found.verdict == verdict
    assert found.evidence.endswith(relation)
    assert (found.change is not None) == (verdict == CHANGE)
    assert (found.source, found.as_of) == ("https://example.com/limits", date(2026, 1, 31))


def test_the_evidence_of_a_size_has_its_figures():
    assert judged_size(3_100_000, MIB).evidence == (
        "The largest body and properties have 3.1 MB (3,100,000 bytes), 4.1 MB where a text encoding grows by 4/3, "
        "over a limit of 1 MiB."
    )
    assert judged_size(1_500, MIB).evidence.startswith(
        "The largest body and properties have 1.5 kB (1,500 bytes), 2.0 kB"
    )


@pytest.mark.parametrize(("size", "verdict"), [(300, FITS), (301, CHANGE), (750, CHANGE), (1000, CHANGE), (1001, NO)])
def test_what_is_over_the_default_and_within_the_limit_fits_with_a_change(size, verdict):
    found = judged_size(size, stated(1000, "1 KB"), stated(400, "400 bytes"))
    assert found.verdict == verdict
    if size in (301, 750):
        assert found.change == "Raise the limit above its default of 400 bytes."
        assert found.evidence.endswith(", within a limit of 1 KB, over the default of 400 bytes.")


def test_what_the_documentation_offers_beyond_a_limit_is_the_change():
    found = judged_size(1001, stated(1000, "1 KB", change="Keep bodies elsewhere."))
    assert (found.verdict, found.change) == (CHANGE, "Keep bodies elsewhere.")


def test_a_change_beyond_the_limit_is_not_asked_for_within_it():
    found = judged_size(300, stated(1000, "1 KB", change="Keep bodies elsewhere."))
    assert (found.verdict, found.change) == (FITS, None)


@pytest.mark.parametrize(("seconds", "verdict"), [(1_209_599, FITS), (1_209_600, FITS), (1_209_601, CHANGE)])
def test_times_to_live_at_the_limit(seconds, verdict):
    facts = {"time_to_live": TargetFact(stated(1_209_600, "14 d"))}
    row = {"headers_known": 10, "without_time_to_live": 0, "largest_time_to_live_s": seconds}
    found = judged(row, facts)["time to live"]
    assert found.verdict == verdict
    assert found.change == (
        "Receive each message within 14 d: it is removed after that." if verdict == CHANGE else None
    )
    assert found.evidence.endswith(", over a limit of 14 d." if verdict == CHANGE else ", within a limit of 14 d.")


def test_messages_without_a_time_to_live():
    row = {"headers_known": 10, "without_time_to_live": 4, "largest_time_to_live_s": 60}
    limited = judged(row, {"time_to_live": TargetFact(stated(1_209_600, "14 d"))})["time to live"]
    assert limited.verdict == CHANGE
    assert limited.evidence == (
        "40 % of the messages that were seen (4 of 10) have no time to live; the limit is 14 d."
    )
    endless = judged(row, {"time_to_live": TargetFact(stated(math.inf, "unlimited"))})["time to live"]
    assert endless.verdict == FITS
    assert endless.evidence.endswith("have no time to live; there is no limit.")


@pytest.mark.parametrize(
    ("priorities", "verdict", "evidence"),
    [
        ([3], FITS, "Priority 3 alone is in use, within a limit of 2."),
        ([3, 4], FITS, "2 priorities are in use (3, 4), within a limit of 2."),
        ([0, 3, 7], NO, "3 priorities are in use (0, 3, 7), over a limit of 2."),
    ],
)
def test_numbers_of_priorities_at_the_limit(priorities, verdict, evidence):
    found = judged({"priorities": priorities}, {"priorities": TargetFact(stated(2, "2"))})["priorities"]
    assert (found.verdict, found.evidence) == (verdict, evidence)


@pytest.mark.parametrize(("sendings", "verdict"), [(17_999, FITS), (18_000, FITS), (18_001, NO)])
def test_the_busiest_minute_at_the_limit(sendings, verdict):
    facts = {"messages_per_second": TargetFact(stated(300, "300"))}
    found = judged({"peak_per_minute": sendings}, facts)["peak rate"]
    assert found.verdict == verdict
    assert found.evidence.startswith(f"In the busiest minute {sendings:,} messages were sent, 300.0 a second, ")


@pytest.mark.parametrize(
    ("limit", "verdict", "change"),
    [
        (stated(1, "yes"), FITS, None),
        (stated(1, "yes", change="Turn it on."), CHANGE, "Turn it on."),
        (stated(0, "no", change="Do without."), CHANGE, "Do without."),
        (stated(0, "no"), NO, None),
        (DocumentedValue(None, "unknown", PAGE, "Nothing says so."), UNKNOWN, None),
        (DocumentedValue(None, "unknown", None, None), UNKNOWN, None),
    ],
)
def test_what_is_offered_decides(limit, verdict, change):
    row = {"receives": 10_000, "transactional_receives": 1_400}
    found = judged(row, {"distributed_transactions": TargetFact(limit)})["transactional remote receives"]
    assert (found.verdict, found.change) == (verdict, change)
    assert found.evidence.startswith(
        "14 % of the receives that were seen (1,400 of 10,000) are remote and transactional."
    )


def test_a_fact_that_a_target_does_not_have_gives_no_verdict():
    found = judged({"sequences": 1}, {})["order"]
    evidence = "Order is relied on: an exactly-once sequence relies on it. What the target offers is not known."
    assert found == PropertyVerdict("order", UNKNOWN, evidence)


@pytest.mark.parametrize(
    ("row", "evidence"),
    [
        ({"encrypted": 0, "security_known": 12_000}, "Not seen in 30 days in 12,000 messages."),
        ({"encrypted": None, "security_known": None}, "Not seen in 30 days."),
        ({}, "Not seen in 30 days."),
    ],
)
def test_what_was_not_seen_is_said_so_whatever_the_target_offers(row, evidence):
    for fact in ({}, {"encryption": TargetFact(stated(0, "no"))}):
        found = judged(row, fact)["encryption"]
        assert (found.verdict, found.evidence) == (NOT_SEEN, evidence)


def test_several_counts_are_each_said():
    row = {"properties_known": 50, "ack_arrival": 20, "ack_not_arrived": 30}
    facts = {"arrival_receipts": TargetFact(stated(0, "no", "None is sent."))}
    assert judged(row, facts)["acknowledgements of arrival"].evidence == (
        "Of 50 messages that were seen 20 ask for an acknowledgement that they arrived, "
        "30 ask for an acknowledgement that they did not arrive. Documentation: None is sent."
    )


@pytest.mark.parametrize(
    ("count", "total", "share"),
    [
        (1, 1_000, "Less than 1 %"),
        (10, 1_000, "1 %"),
        (999, 1_000, "More than 99 %"),
        (9, 9, "100 %"),
        (9, None, "100 %"),
    ],
)
def test_shares_are_rounded_but_not_to_none_or_all(count, total, share):
    found = judged({"encrypted": count, "security_known": total}, {})["encryption"]
    assert found.evidence.startswith(f"{share} of the messages that were seen ({count:,} of {total or count:,}) are")


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        ({"order": 1, "encryption": 1}, FITS),
        ({"order": 1}, FITS),
        ({"order": 1, "encryption": 0}, NO),
        ({}, UNKNOWN),
    ],
)
def test_the_verdict_on_a_queue_is_the_worst_of_its_properties(facts, verdict):
    target = MoveTarget("Own, queue", {name: TargetFact(stated(value)) for name, value in facts.items()})
    (found,) = judge_queues([{"queue": "a", "sequences": 2, "encrypted": 1}], [target], "30 days")
    assert found.verdict == verdict
    assert {each.property for each in found.with_verdict(NOT_SEEN)} == {
        each.title for each in REQUIREMENTS if each.title not in ("order", "encryption")
    }


def test_a_queue_of_which_nothing_was_seen():
    (found,) = judge_queues([{"queue": "a"}], bundled_targets()[:1], "7 days")
    assert found.verdict == NOT_SEEN
    assert {each.evidence for each in found.properties} == {"Not seen in 7 days."}


# The properties of a planted queue that has all of them, and the verdict for each target in the order of their files.
EVERYTHING = {
    "queue": "orders", "messages": 10_000, "sendings": 10_500, "headers_known": 10_000, "properties_known": 10_000,
    "security_known": 10_000, "bodies_known": 10_000, "binary_bodies": 10, "receives": 10_000, "peeks": 5, "lookups": 7,
    "largest_packet_bytes": 3_100_000, "without_time_to_live": 1, "largest_time_to_live_s": 86_400, "sequences": 3,
    "in_larger_transactions": 40, "transactional_receives": 1_400, "transactional": 10_000, "priorities": [3, 7],
    "dead_letter_asked": 1, "ack_arrival": 1, "ack_not_arrived": 0, "ack_receive": 0, "ack_not_received": 2,
    "with_response_queue": 3, "authenticated": 0, "signed": 4, "encrypted": 5, "multicast_messages": 6,
    "list_messages": None, "subqueues": ["poison"], "comqc": 1, "peak_per_minute": 60_000,
    "largest_depth_bytes": 6_000_000_000,
}  # fmt: skip
PLANTED = {  # SQS standard, FIFO; Service Bus standard, premium; Kafka; RabbitMQ quorum, classic
    "largest message": (CHANGE, CHANGE, NO, CHANGE, CHANGE, FITS, FITS),
    "binary bodies": (CHANGE, CHANGE, FITS, FITS, FITS, FITS, FITS),
    "time to live": (CHANGE, CHANGE, FITS, FITS, CHANGE, FITS, FITS),
    "order": (NO, CHANGE, CHANGE, CHANGE, CHANGE, CHANGE, CHANGE),
    "transactions of several messages": (NO, NO, CHANGE, CHANGE, CHANGE, NO, NO),
    "transactional remote receives": (CHANGE,) * 7,
    "exactly once": (CHANGE, CHANGE, CHANGE, CHANGE, FITS, CHANGE, CHANGE),
    "priorities": (CHANGE, CHANGE, CHANGE, CHANGE, CHANGE, FITS, CHANGE),
    "dead letters": (CHANGE, CHANGE, CHANGE, CHANGE, UNKNOWN, CHANGE, CHANGE),
    "acknowledgements of arrival": (CHANGE,) * 7,
    "acknowledgements of receipt": (CHANGE,) * 7,
    "replies": (CHANGE, CHANGE, FITS, FITS, CHANGE, FITS, FITS),
    "authentication": (CHANGE, CHANGE, UNKNOWN, UNKNOWN, UNKNOWN, CHANGE, CHANGE),
    "encryption": (CHANGE,) * 7,
    "several receivers": (CHANGE,) * 7,
    "peeks": (CHANGE, CHANGE, FITS, FITS, FITS, CHANGE, CHANGE),
    "reads by identifier": (NO, NO, CHANGE, CHANGE, CHANGE, NO, NO),
    "subqueues": (CHANGE, CHANGE, CHANGE, CHANGE, UNKNOWN, UNKNOWN, UNKNOWN),
    "COM+ queued components": (NO,) * 7,
    "peak rate": (FITS, CHANGE, CHANGE, FITS, UNKNOWN, UNKNOWN, UNKNOWN),
    "waiting messages": (FITS, FITS, CHANGE, FITS, FITS, FITS, FITS),
}
SIMPLE = {
    "queue": "readings", "messages": 100, "sendings": 100, "headers_known": 100, "properties_known": 100,
    "security_known": 100, "bodies_known": 100, "binary_bodies": 0, "receives": 0, "largest_packet_bytes": 2_000,
    "without_time_to_live": 0, "largest_time_to_live_s": 3_600, "sequences": 0, "in_larger_transactions": 0,
    "transactional": 0, "priorities": [3], "dead_letter_asked": 0, "ack_arrival": 0, "encrypted": 0, "comqc": 0,
    "peak_per_minute": 5, "largest_depth_bytes": 40_000,
}  # fmt: skip


def test_a_planted_estate_against_all_targets():
    targets = bundled_targets()
    found = judge_queues([EVERYTHING, SIMPLE], targets, "30 days")
    assert [each.target for each in found] == [each.name for each in targets] * 2
    everything, simple = found[:7], found[7:]
    verdicts = [{each.property: each.verdict for each in queue.properties} for queue in everything]
    assert {name: tuple(each[name] for each in verdicts) for name in verdicts[0]} == PLANTED
    assert [each.verdict for each in everything] == [NO] * 7
    assert [each.verdict for each in simple] == [FITS] * 7
    seen = {"largest message", "time to live", "priorities", "peak rate", "waiting messages"}
    for queue in simple:
        assert {each.property for each in queue.properties if each.verdict != NOT_SEEN} == seen


def test_a_verdict_other_than_not_seen_and_not_known_has_its_page():
    for queue in judge_queues([EVERYTHING, SIMPLE], bundled_targets(), "30 days"):
        for each in queue.properties:
            assert each.evidence.endswith(".")
            assert (each.source is None) == (each.verdict in (UNKNOWN, NOT_SEEN)), each
            assert (each.change is None) == (each.verdict != CHANGE), each


def test_rows_of_verdicts_are_plain():
    target = MoveTarget("Own, queue", {"order": TargetFact(stated(0, "no", "None is kept."))})
    rows = verdict_rows(judge_queues([{"queue": "a", "sequences": 2}], [target], "30 days"))
    assert len(rows) == len(REQUIREMENTS)
    assert next(row for row in rows if row["property"] == "order") == {
        "queue": "a", "target": "Own, queue", "queue_verdict": "does not fit", "property": "order",
        "verdict": "does not fit", "change": None, "source": "https://example.com/limits", "as_of": date(2026, 1, 31),
        "evidence": "Order is relied on: 2 exactly-once sequences rely on it. Documentation: None is kept.",
    }  # fmt: skip


def test_each_fact_is_needed_by_one_requirement():
    assert sorted(each.fact for each in REQUIREMENTS) == sorted(FACTS)
    assert len({each.title for each in REQUIREMENTS}) == len(REQUIREMENTS)


def test_values_as_they_are_written():
    assert FactKind.SIZE.parse("256 KB") == 256_000
    assert FactKind.SIZE.parse("1 MiB") == 1_048_576
    assert FactKind.DURATION.parse("14 d") == 1_209_600
    assert FactKind.NUMBER.parse("32") == 32
    assert FactKind.SIZE.parse("unlimited") == math.inf
    assert FactKind.OFFERED.parse("unknown") is None
    with pytest.raises(ValueError, match="14"):
        FactKind.DURATION.parse("14")
