"""Which queue a read is from: stories of opens, by context handle and by number, over any connections and captures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attempts.stories import (
    HANDLE,
    INVALID_HANDLE,
    OK,
    ORDERS,
    OTHER_HANDLE,
    SILENT,
    close,
    connection,
    facts,
    name,
    opened,
    qm_close,
    qm_end,
    qm_open,
    qm_start,
    release,
    start,
    told,
    us,
)
from attempts.telling import attempts_of
from example_counts import examples
from pipeline.attempts.calls.decoded_call import Clocks

LARGE = "srv1\\private$\\large"
APP = connection("app", group=10, client="10.0.0.8")
OTHER_APP = connection("app2", group=11, client="10.0.0.9")
READER = connection("c1", group=1)
OTHER_READER = connection("c2", group=2, client="10.0.0.3")
PLACES = [APP, READER]


def queues(*calls, connections=PLACES, until=60.0):
    return [attempt["queue"] for attempt in told(*calls, connections=connections, until=until)]


def test_the_application_opens_and_its_supporting_server_reads():
    (attempt,) = told(name(0), qm_open(1), release(1.5), qm_start(2), qm_end(3), connections=PLACES)
    assert attempt["queue"] == ORDERS
    assert attempt["evidence"] == ["name", "open", "start", "end"]
    assert (attempt["outcome"], attempt["confidence"], attempt["missing"]) == ("acked", "complete", [])


def test_without_the_applications_open_the_number_says_nothing():
    (attempt,) = told(qm_open(1), qm_start(2), qm_end(3), connections=PLACES)
    assert (attempt["queue"], attempt["missing"]) == (None, ["no_open", "queue_unknown"])


def test_an_open_that_was_refused_or_came_later_names_nothing():
    assert queues(name(0, INVALID_HANDLE), qm_open(1), qm_start(2)) == [None]
    assert queues(name(0, SILENT), qm_open(1), qm_start(2)) == [None]
    assert queues(qm_open(1), qm_start(2), name(3)) == [None]
    assert queues(name(1), qm_open(1), qm_start(2)) == [None]  # by one clock the number was not given yet


def test_a_number_given_to_a_later_open_is_another_queue():
    assert queues(
        name(0), qm_open(1), release(1.5), qm_start(2), qm_close(3),
        name(4, queue=LARGE, name="name2", context_handle=OTHER_HANDLE), qm_open(5, name="open2"),
        release(5.5, name="release2", context_handle=OTHER_HANDLE), qm_start(6, name="start2"),
    ) == [ORDERS, LARGE]  # fmt: skip


@pytest.mark.parametrize("opens_at", [-1, 3])
def test_taps_do_not_tell_the_order_of_two_connections(opens_at):
    """A session with the numbers of an application is after its open and before its close, whatever clocks say."""
    calls = name(0), qm_open(opens_at), release(2), qm_start(4), qm_end(5)
    assert queues(*calls) == [None]
    assert queues(*(call._replace(clocks=Clocks(0, 0, 0, 0)) for call in calls)) == [ORDERS]
    far = (name(10), *calls[1:]) if opens_at < 0 else (name(-10), release(-9), *calls[1:2], *calls[3:])
    assert queues(*(call._replace(clocks=Clocks(0, 0, 0, 0)) for call in far)) == [None]


def test_a_closed_queue_lends_its_name_to_no_later_read():
    assert queues(name(0), qm_open(1), qm_close(3), qm_start(4)) == [None]
    # Somebody else's open of that number was not captured.
    assert queues(
        name(0), qm_open(1), qm_close(3), qm_open(5, name="open2", connection_id="c2"),
        qm_start(6, connection_id="c2"), connections=[*PLACES, OTHER_READER],
    ) == [None]  # fmt: skip
    # A close that was refused closes nothing.
    assert queues(name(0), qm_open(1), qm_close(3, hresult=INVALID_HANDLE), qm_start(4)) == [ORDERS]


def test_the_end_of_the_supporting_servers_association_closes_what_it_opened():
    ended = [APP, connection("c1", group=1, closed=4), OTHER_READER]
    later = [qm_open(5, name="open2", connection_id="c2"), qm_start(6, connection_id="c2")]
    assert queues(name(0), qm_open(1), *later, connections=ended) == [None]
    lives = [*ended, connection("c3", group=1, first=2, last=50)]
    assert queues(name(0), qm_open(1), *later, connections=lives) == [ORDERS]


def test_what_nobody_adopted_goes_with_its_context():
    adopted_late = [qm_open(3), qm_start(4)]
    assert queues(name(0), release(2), *adopted_late) == [None]
    assert queues(name(0), release(2, outcome="fault"), *adopted_late) == [ORDERS]
    assert queues(name(0), *adopted_late, connections=[connection("app", group=10, closed=2), READER]) == [None]
    # What was adopted stays when the application lets go, and when it goes.
    assert queues(name(0), qm_open(1), release(2), qm_start(4)) == [ORDERS]
    assert queues(name(0), qm_open(1), qm_start(4), connections=[connection("app", group=10, closed=2), READER]) == [
        ORDERS
    ]


def test_two_applications_with_a_number_each():
    assert queues(
        name(0), name(0.5, queue=LARGE, name="name2", connection_id="app2", queue_handle=29, open_context=29,
                      queue_descriptor=29),
        qm_open(1), qm_open(1.5, name="open2", connection_id="c2", queue_handle=29, open_context=29,
                            queue_descriptor=29),
        qm_start(2), qm_start(3, name="start2", connection_id="c2", queue_handle=29),
        connections=[*PLACES, OTHER_APP, OTHER_READER],
    ) == [ORDERS, LARGE]  # fmt: skip


def test_a_session_opened_with_other_numbers_than_the_application_got_is_not_its():
    # An owner of Windows 2000 hands out a dwpQueue that is not phQueue; the session gives it back.
    old = {"queue_descriptor": 0x5000, "open_context": 28}
    assert queues(name(0, **old), qm_open(1, **old), qm_start(2)) == [ORDERS]
    assert queues(name(0, **old), qm_open(1, **old | {"queue_descriptor": 0x6000}), qm_start(2)) == [None]


def test_a_read_whose_session_was_not_captured_has_the_name_and_lacks_the_open():
    (attempt,) = told(name(0), qm_start(2), qm_end(3), connections=PLACES)
    assert attempt["queue"] == ORDERS
    assert (attempt["missing"], attempt["confidence"]) == (["no_open"], "partial")


def test_a_read_without_its_number_is_from_no_queue():
    (attempt,) = told(name(0), qm_open(1), qm_start(2)._replace(queue_handle=None), qm_end(3), connections=PLACES)
    assert (attempt["queue"], attempt["missing"]) == (None, ["queue_unknown"])


@pytest.mark.parametrize("gone", ["closed", "another association"])
def test_a_context_handle_names_its_queue_in_its_association_until_it_is_closed(gone):
    calls = [opened(), start(1), *([close(2)] if gone == "closed" else []), start(3, name="start2")]
    if gone != "closed":
        calls[-1] = calls[-1]._replace(connection_id="c2")
    assert queues(*calls, connections=[READER, OTHER_READER]) == [ORDERS, None]


def test_a_handle_that_is_given_again_names_its_newest_queue():
    assert queues(
        opened(), start(1), opened(2, queue=LARGE, name="open2"), start(3, name="start2"), connections=[READER]
    ) == [ORDERS, LARGE]


NUMBERS = st.integers(27, 29)
CONTEXTS = st.sampled_from([HANDLE, OTHER_HANDLE])


@st.composite
def _openings(draw):
    calls = []
    for number in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from([name, release, qm_open, qm_close, qm_start]))
        app = kind in (name, release)
        more = {"name": f"{kind.__name__} {number}"}
        more["connection_id"] = draw(st.sampled_from(["app", "app2"] if app else ["c1", "c2"]))
        if kind in (name, qm_open, qm_start):
            more["queue_handle"] = draw(NUMBERS)
        if kind in (name, qm_open):
            more |= dict.fromkeys(("open_context", "queue_descriptor"), more["queue_handle"])
        if kind is name:
            more["queue"] = draw(st.sampled_from([ORDERS, LARGE, None]))
        if kind is not qm_start:
            more["context_handle"] = draw(CONTEXTS)
        if kind is not release:
            more["hresult"] = draw(st.sampled_from([OK, OK, OK, INVALID_HANDLE, SILENT]))
        calls.append(kind(draw(st.integers(0, 100)), **more))
    closed = st.none() | st.integers(1, 100)
    connections = [replace(c, closed_at=us(draw(closed))) for c in (APP, OTHER_APP, READER, OTHER_READER)]
    return calls, connections, draw(st.permutations(range(len(calls))))


@settings(max_examples=examples(300), deadline=None)
@given(_openings())
def test_a_queue_is_that_of_an_open_before_and_the_order_of_rows_says_nothing(happened):
    calls, connections, order = happened
    attempts = attempts_of(calls, connections, capture_ends_at=us(400))
    shuffled = attempts_of([calls[place] for place in order], connections[::-1], capture_ends_at=us(400))
    assert [facts(attempt) for attempt in shuffled] == [facts(attempt) for attempt in attempts]
    for attempt in attempts:
        named = [call for call in calls if call.call_key in attempt.evidence and call.protocol == "qmcomm"]
        assert attempt.queue is None or attempt.queue in {call.queue for call in named}
        assert ("queue_unknown" in attempt.missing) == (attempt.queue is None)
        for call in named:
            assert (call.queue_handle, call.is_accepted) == (attempt.call.queue_handle, True)
            assert call.responded_at <= attempt.call.at
            # No later open of that number was answered in between: the newest is its owner's word.
            session = next(
                (c for c in calls if c.call_key in attempt.evidence and c.opnum == 2 and c is not call), None
            )
            until = attempt.call.at if session is None else session.at
            later = [c.responded_at for c in calls if c.protocol == "qmcomm" and c.opnum == 2 and c.is_accepted
                     and c.queue_handle == call.queue_handle and c.responded_at <= until]  # fmt: skip
            assert max(later) == call.responded_at
