"""Verdicts on queues as the view of the estate shows them: from planted messages and reads to sentences."""

import pytest

from pipeline.reports.targets.requirements import REQUIREMENTS
from pipeline.reports.targets.target_file import bundled_targets
from pipeline.reports.targets.verdicts import Fit, judge_queues
from pipeline.reports.views.catalog import LakeViews
from reports.questions.in_memory_lake import InMemoryLake, rows
from reports.targets.test_verdicts import EVERYTHING, SIMPLE
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.messages import MESSAGES
from schemas.sessions import SENDINGS

ORDERS, READINGS = "srv1\\private$\\orders", "srv1\\private$\\readings"


def message(number, **more):
    """A message of 500 bytes in a packet of 700, sent on TCP 1801: in no transaction, nothing asked for."""
    return {
        "message_key": f"m{number}", "sighting_key": f"p{number}", "packet_key": f"p{number}",
        "seen_at": 10 + number / 60, "message_kind": "application", "destination_queue": READINGS, "body_bytes": 500,
        "delivery": "express", "transactional": False, "priority": 3, "time_to_be_received_s": 3_600, "journaling": 0,
        "acknowledgement_requested": 0, "authenticated": False, "signed": False, "encrypted": False, "is_srmp": False,
        "is_comqc": False, "traced": False, "body_format": "xml", "body_bytes_seen": 500,
    } | more  # fmt: skip


def order(number, **more):
    """A message of an exactly-once sequence, the first of two in its transaction, without a time to live."""
    return message(
        number, destination_queue=ORDERS, delivery="recoverable", transactional=True, first_in_transaction=True,
        last_in_transaction=False, source_queue_manager="a1", transaction_sequence_id=7, time_to_be_received_s=None,
        **more,
    )  # fmt: skip


def receive(number, **more):
    return {"attempt_key": f"a{number}", "queue": ORDERS, "message_key": f"m{number}", "is_receive": True,
            "transactional": False, "started_at": 20, "returned_at": 20} | more  # fmt: skip


@pytest.fixture(scope="module")
def planted():
    sent = [order(number) for number in range(10)] + [message(number) for number in range(10, 30)]
    sent[3] |= {"body_bytes": 3_099_800, "journaling": 1, "acknowledgement_requested": 2, "response_queue": READINGS}
    sent[4] |= {"body_format": "nrbf"}
    sent[5] |= {"body_format": None}
    sent[6] |= {"body_format": None, "body_bytes_seen": 0}  # not captured, so it may be text
    lengths = {"p3": 3_100_000}
    return {
        MESSAGES: rows(MESSAGES, *sent),
        SENDINGS: rows(
            SENDINGS, *({"packet_key": f"p{each}", "length_bytes": lengths.get(f"p{each}", 700)} for each in range(30))
        ),
        RECEIVE_ATTEMPTS: rows(
            RECEIVE_ATTEMPTS, *(receive(number, transactional=number < 2, action_name="MQ_ACTION_RECEIVE")
                                for number in range(7)),
        ),
    }  # fmt: skip


def judged(queues):
    """The verdicts of the planted queues: by queue, target and property."""
    found = judge_queues(queues, bundled_targets(), "30 days")
    return {
        (queue.queue, queue.target): {each.property: each for each in queue.properties} | {"": queue.verdict}
        for queue in found
    }


def test_planted_messages_get_their_verdicts(planted):
    found = judged(LakeViews(InMemoryLake(None, planted)).answer("estate_queues").to_pylist())
    orders = found[ORDERS, "Amazon SQS, standard queue"]
    assert orders[""] == Fit.DOES_NOT_FIT
    assert orders["largest message"].evidence == (
        "The largest body and properties have 3.1 MB (3,100,000 bytes), 4.1 MB where a text encoding grows by 4/3, "
        "over a limit of 1 MiB."
    )
    assert orders["transactional remote receives"].evidence.startswith(
        "29 % of the receives that were seen (2 of 7) are remote and transactional. "
    )
    assert orders["order"].verdict == Fit.DOES_NOT_FIT
    assert orders["order"].evidence.startswith("Order is relied on: an exactly-once sequence relies on it. ")
    assert orders["time to live"].change == "Receive each message within 14 d: it is removed after that."
    assert orders["transactions of several messages"].evidence.startswith(
        "100 % of the messages that were seen (10 of 10)"
    )
    assert orders["binary bodies"].evidence.startswith(
        "22 % of the messages that were seen (2 of 9) have a body that is"
    )
    assert orders["dead letters"].evidence.startswith("10 % of the messages that were seen (1 of 10) ask to be kept")
    assert orders["acknowledgements of receipt"].verdict == Fit.CHANGE
    assert orders["replies"].verdict == Fit.CHANGE
    assert orders["encryption"].evidence == "Not seen in 30 days in 10 messages."
    assert orders["peeks"].evidence == "Not seen in 30 days in 7 remote reads."
    assert found[ORDERS, "RabbitMQ 4.3, quorum queue"]["largest message"].verdict == Fit.FITS
    assert found[ORDERS, "Azure Service Bus, standard tier"]["largest message"].verdict == Fit.DOES_NOT_FIT

    readings = found[READINGS, "Azure Service Bus, standard tier"]
    assert readings[""] == Fit.FITS
    assert readings["time to live"].evidence == "The longest time to live is 1 h; there is no limit."
    assert readings["transactional remote receives"].evidence == "Not seen in 30 days."
    assert readings["peak rate"].evidence.startswith(
        "In the busiest minute 20 messages were sent, 0.3 a second, within"
    )


class ReadColumns(dict):
    """A row that notes what is read from it."""

    def __init__(self, *given):
        super().__init__(*given)
        self.read = set()

    def get(self, name, default=None):
        self.read.add(name)
        return super().get(name, default)


def test_each_column_that_is_read_is_one_of_the_view():
    columns = {*LakeViews(InMemoryLake(None, {})).answer("estate_queues").column_names}
    read = set()
    for given in (EVERYTHING, SIMPLE, {}):
        row = ReadColumns(given)
        for each in REQUIREMENTS:
            each.needed(row)
            row.read |= {*each.basis}
        read |= row.read
    assert len(read) > 30
    assert read - columns == set()
