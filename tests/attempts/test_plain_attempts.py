"""Attempts over columns are those of the plain reference, call by call, whatever happened."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from attempts import plain_attempts
from attempts.broker import Broker, captured
from attempts.telling import attempts_of
from attempts.test_handles import _openings
from attempts.test_receive_attempts import _happenings
from example_counts import examples

NAMES = (
    "outcome", "ended_at", "end_hresult", "ack_refused", "ack_unanswered", "reader_gone_at", "gaps", "is_receive",
    "transactional", "lookup_id", "action_name", "confidence", "evidence",
)  # fmt: skip


def plain(calls, connections, ends_at):
    attempts = plain_attempts.find_attempts(calls, connections, capture_ends_at=ends_at)
    return [
        {name: getattr(each, name) for name in NAMES}
        | {"opened_queue": each.queue, "missing": sorted(each.missing)}
        | {"wait_ms": each.wait_us and each.wait_us / 1000, "hold_ms": each.hold_us and each.hold_us / 1000}
        for each in attempts
    ]


def columns(calls, connections, ends_at):
    made = attempts_of(calls, connections, capture_ends_at=ends_at)
    names = (*NAMES, "opened_queue", "missing", "wait_ms", "hold_ms")
    found = [{name: getattr(each, name) for name in names} for each in made]
    return [each | {"lookup_id": each["lookup_id"] and int(each["lookup_id"])} for each in found]


@settings(max_examples=examples(300), deadline=None)
@given(_happenings() | _openings(), st.booleans(), st.integers(0, 1))
def test_of_any_calls(happened, bounded, lost):
    calls, connections, _ = happened
    ends_at = 400_000_000 if bounded else None
    connections = [replace(each, missing_bytes=lost) for each in connections]
    assert columns(calls, connections, ends_at) == plain(calls, connections, ends_at)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 150), st.floats(0, 1))
def test_of_a_queue_manager_and_its_clients(seed, steps, share):
    broker = Broker(Random(seed)).run(steps)
    calls, connections = captured(broker, round(share * steps))
    assert columns(calls, connections, broker.now) == plain(calls, connections, broker.now)
