"""Conversations: which messages are of one, in order of time, and which caused which."""

import json

import pytest

import framework_messages as written
from application import recorded
from application.test_tables import KEY, ingest
from engines import without_spark
from jobs import trace_message
from pipeline.lake.lake import Lake
from pipeline.reports.shown_message.bodies import find_body
from pipeline.reports.shown_message.inputs import MessageRequest, find_messages, read_sighting
from pipeline.reports.trace.conversation import find_causes, trace_conversation
from pipeline.reports.trace.conversation_formatting import conversation_to_json, format_conversation
from privacy.redaction.test_lake import EVERYTHING
from reports.questions.in_memory_lake import InMemoryLake, rows
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.messages import MESSAGES
from schemas.sessions import SENDINGS, SESSION_PACKETS
from udfs.capture.capture_reader import ReadOptions

CONVERSATION = written.NSB_HEADERS["NServiceBus.ConversationId"]


def fact(own, related=None, *, endpoint=None, queue=None, failed_queue=None, native=None):
    """A message as ``find_causes`` takes it."""
    return {"application_id": own, "related_to": related, "endpoint": endpoint, "queue": queue, "message_id": native,
            "failed_queue": failed_queue, "failed": int(failed_queue is not None)}  # fmt: skip


def causes(*facts):
    """Of each message the place of its cause, and its depth."""
    return [(cause.place, cause.depth) for cause in find_causes(facts)]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        ([fact("a"), fact("b", "a"), fact("c", "b"), fact("d", "A")], [(None, 0), (0, 1), (1, 2), (0, 1)]),
        ([fact("b", "a"), fact("c", "b"), fact("a")], [(2, 1), (0, 2), (None, 0)]),  # a cause that comes later
        ([fact("a", "c"), fact("b", "a"), fact("c", "b")], [(None, 0), (0, 1), (1, 2)]),  # a circle
        ([fact("b", "c"), fact("c", "d"), fact("d", "c")], [(1, 1), (None, 0), (1, 1)]),  # one that is entered later
        ([fact("a", "a"), fact("b", "b")], [(None, 0), (None, 0)]),
        ([fact("b", "none"), fact(None), fact(None, None)], [(None, 0), (None, 0), (None, 0)]),
        # Version 3 of NServiceBus: ids are those of MSMQ.
        ([fact(None, native="guid\\1"), fact(None, "guid\\1", native="guid\\2")], [(None, 0), (0, 1)]),
        # A copy in an error queue follows the copy that failed, and what the message caused does not follow that.
        ([fact("a", queue="s\\billing"), fact("a", failed_queue="billing@s"), fact("b", "a")],
         [(None, 0), (0, 1), (0, 1)]),
        # An event for two receivers: each error, and each new message, follows the copy to its queue.
        ([fact("a", queue="s\\private$\\one"), fact("a", queue="s\\private$\\two"), fact("b", "a", endpoint="One"),
          fact("c", "a", endpoint="msmq://s/two?tx=true"), fact("a", failed_queue="s\\private$\\one")],
         [(None, 0), (None, 0), (0, 1), (1, 1), (0, 1)]),
        # Sent again after a while: what it caused follows the last copy before it.
        ([fact("a"), fact("a"), fact("b", "a"), fact("a")], [(None, 0), (None, 0), (1, 1), (None, 0)]),
    ],
)  # fmt: skip
def test_what_caused_a_message(facts, expected):
    assert causes(*facts) == expected


def test_causes_that_were_not_captured_and_circles_are_said():
    found = find_causes([fact("a", "b"), fact("b", "a"), fact("c", "none")])
    assert [(cause.is_cut, cause.not_captured) for cause in found] == [(True, None), (False, None), (False, "none")]


def test_long_chains_and_many_copies_take_linear_time():
    chain = [fact(str(number), str(number - 1)) for number in range(50_000)]
    assert causes(*chain)[-1] == (49_998, 49_999)
    copies = [fact("a", "b") if number % 2 else fact("b", "a") for number in range(20_000)]
    assert len(causes(*copies)) == 20_000


def seen(name, at, own, related=None, *, conversation="talk", **more):
    """A message as it was captured on TCP 1801."""
    row = {"message_key": name, "sighting_key": f"{name} {at}", "packet_key": f"{name} {at}", "seen_at": at,
           "message_id": f"guid\\{name}", "destination_queue": "hq\\private$\\sales", "hop_count": 0,
           "sender_address": "10.0.0.1", "framework": "NServiceBus", "application_message_id": own,
           "related_to": related, "conversation_id": conversation, "originating_endpoint": "Sales"}  # fmt: skip
    return row | more


def lake(*given):
    return InMemoryLake(None, {MESSAGES: rows(MESSAGES, *given)})


def traced(tables, **asked):
    """The keys of the messages with their depths, in order, and the whole answer."""
    found = trace_conversation(tables, **asked)
    return [(each.timeline.message_key, each.cause.depth) for each in found.messages], found


TALK = lake(
    seen("two", 20, "b", "a"), seen("two", 21, "b", "a", hop_count=1), seen("one", 10, "a"),
    seen("three", 30, "c", "b"), seen("other", 15, "x", conversation="else"), seen("late", 40, "d", "e"),
    seen("cause", 50, "e", "a"), seen("cut", 25, "b", conversation=None),
    seen("error", 60, "c", "b", failed_queue="sales@hq", exception_type="System.TimeoutException",
         immediate_retries=4, delayed_retries=3, destination_queue="hq\\private$\\error"),
)  # fmt: skip


@pytest.mark.parametrize("asked", [{"conversation": "TALK"}, {"application_id": "B"}, {"application_id": "e"}])
def test_all_messages_of_a_conversation_in_order_of_time(asked):
    messages, found = traced(TALK, **asked)
    assert messages == [
        ("one", 0), ("two", 1), ("cut", 1), ("three", 2), ("late", 2), ("cause", 1), ("error", 3),
    ]  # fmt: skip
    assert (found.ids, found.found, found.failed) == (["talk"], 7, 1)


def test_the_earliest_are_shown_with_causes_among_all():
    messages, found = traced(TALK, conversation="talk", most=5)
    assert (len(messages), found.found, messages[-1]) == (5, 7, ("late", 2))
    assert found.messages[-1].caused_by == 6


def test_messages_without_a_conversation_are_joined_by_what_they_are_related_to():
    of_wcf = lake(*(
        seen(name, at, own, related, conversation=None, framework="WCF")
        for name, at, own, related in (
            ("ask", 1, "a", None), ("reply", 2, "b", "a"), ("more", 3, "c", "b"), ("x", 4, "y", "z"),
        )
    ))  # fmt: skip
    for asked in "abc":
        messages, found = traced(of_wcf, application_id=asked)
        assert messages == [("ask", 0), ("reply", 1), ("more", 2)]
        assert found.ids == []
    assert traced(of_wcf, conversation="a")[0] == []


def test_the_lines_of_a_conversation():
    lines = list(format_conversation(trace_conversation(TALK, conversation="talk")))
    assert lines[0] == "conversation talk: 7 messages, 1 failed"
    titles = [line for line in lines[1:] if "1970-01-01" in line[:20]]
    assert titles[:2] == [
        "  1  1970-01-01 00:10:00.000000  message",
        "  2  1970-01-01 00:20:00.000000    message caused by 1",
    ]
    assert titles[-1] == "  7  1970-01-01 01:00:00.000000        message caused by 4"
    assert lines[-2].strip() == "failed in sales@hq: System.TimeoutException, after 4 immediate and 3 delayed retries"
    assert lines[-1].strip() == "trace with --id 'guid\\error'"
    (queue,) = {line.strip() for line in lines if "error" in line and "from" in line}
    assert queue == "from Sales at 10.0.0.1 to hq\\private$\\error"


def test_hostile_texts_are_escaped():
    hostile = "\x1b[2J\n\u202e"
    tables = lake(seen("one", 1, hostile, hostile + "2", conversation=hostile, sent_types=[hostile], intent=hostile,
                       originating_endpoint=hostile, failed_queue=hostile, exception_type=hostile))  # fmt: skip
    text = "".join(format_conversation(trace_conversation(tables, application_id=hostile)))
    assert text.isprintable()
    found = trace_conversation(tables, application_id=hostile).messages
    assert json.loads(json.dumps(conversation_to_json(found[0])))["application"]["conversation_id"] == hostile


@pytest.fixture(scope="module")
def recorded_lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conversation")
    (folder / "frameworks.pcap").write_bytes(recorded.capture())
    ingest(folder / "frameworks.pcap", folder / "lake")
    return str(folder / "lake")


def run(lake, *asked, code=0):
    return trace_message.main(["--lake", lake, *asked]) == code


def test_the_command_prints_lines_and_json(recorded_lake, capsys):
    """The capture has a message that failed, and one whose headers were cut behind the conversation's id."""
    assert run(recorded_lake, "--conversation", CONVERSATION.upper())
    out = capsys.readouterr().out
    assert out.startswith(f"conversation {CONVERSATION}: 2 messages, 1 failed\n  1  2023-11-14 22:13:20.")
    assert "Sales.OrderPlaced, Sales.IOrder (Send) caused by 2f1c2b1a-9d3e-4c77-8a10-000102030405, which was not" in out
    assert "\n" + 35 * " " + "failed in billing@SRV2: System.TimeoutException, after 4 immediate and 3 delayed" in out
    own = written.NSB_HEADERS["NServiceBus.MessageId"]
    assert run(recorded_lake, "--application-id", own, "--json", "--most", "1")
    found = capsys.readouterr()
    first, summary = map(json.loads, found.out.splitlines())
    assert first["conversation"] == {
        "number": 1, "depth": 0, "caused_by": None, "cause_cut": False,
        "cause_not_captured": written.NSB_HEADERS["NServiceBus.RelatedTo"],
    }  # fmt: skip
    assert first["application"]["exception_type"] == "System.TimeoutException"
    assert (summary["messages"], summary["found"], summary["more"]) == (1, 2, True)
    assert "these are the earliest 1 of 2 messages" in found.err


def test_a_single_message_has_the_applications_columns_too(recorded_lake, capsys):
    assert run(recorded_lake, "--label", "rebus")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  app     ")]
    assert line.startswith(
        f"  app     framework Rebus, application_message_id {written.REBUS_HEADERS['rbs2-msg-id']}, "
    )
    assert "card 4711" not in line


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--conversation", "x", "--label", "y"], "--conversation: no other option that chooses messages goes with it"),
        (["--conversation", "x", "--application-id", "y"], "--conversation: no other option"),
        (["--application-id", "x", "--from", "2024-01-01"], "--application-id: no other option"),
        (["--conversation", ""], "--conversation: is empty"),
        (["--application-id", "x", "--all", "--most", "2"], "--all: not with --most"),
    ],
)
def test_what_cannot_be_asked_for(recorded_lake, capsys, asked, said):
    assert run(recorded_lake, *asked, code=2)
    assert said in capsys.readouterr().err


def test_nothing_captured(recorded_lake, capsys):
    assert run(recorded_lake, "--conversation", "none", code=5)
    assert "no such message was captured" in capsys.readouterr().err


def test_a_redacted_lake_has_conversations_of_pseudonyms(tmp_path, capsys):
    (tmp_path / "frameworks.pcap").write_bytes(recorded.capture())
    key = tmp_path / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    settings = (EVERYTHING, f"privacy.scratch_folder={tmp_path / 'work'}")
    ingest(tmp_path / "frameworks.pcap", tmp_path / "lake", *settings, more=("--redact-key", str(key)))
    capsys.readouterr()
    assert run(str(tmp_path / "lake"), "--conversation", CONVERSATION)
    out = capsys.readouterr().out
    assert out.startswith(f"conversation {CONVERSATION}: 2 messages, 1 failed\n")
    assert [word for word in ("sales", "billing", "srv2", "timeout") if word in out.lower()] == []


@pytest.mark.long
@pytest.mark.spark
def test_the_store_of_spark_gives_the_same(recorded_lake, spark, tmp_path):
    """Conversations, and what show_message reads."""
    plain, other = Lake(without_spark(), recorded_lake), Lake(spark, str(tmp_path / "spark"), store="spark")
    for table in (MESSAGES, CAPTURE_FILES, CONNECTIONS, RPC_CALLS, SESSION_PACKETS, SENDINGS):
        other.append(table, plain.select(table, "TRUE"))
    lines = [[*format_conversation(trace_conversation(each, conversation=CONVERSATION))] for each in (plain, other)]
    assert lines[0] == lines[1]
    request = MessageRequest(label="nservicebus")
    assert find_messages(other, request) == find_messages(plain, request)
    ((message,), _) = find_messages(plain, request)
    found = [read_sighting(lake, request, message.key) for lake in (plain, other)]
    assert found[0] == found[1]
    assert find_body(other, found[1].row, ReadOptions()) == find_body(plain, found[0].row, ReadOptions())
