"""The lookback of an ongoing association shows whether an evaluation of all its calls would find something else.

The calls of every rule's stories are split: those captured before, and new ones. Where the evaluation of the selected
calls gives the findings from before, the evaluation of all calls does too.
"""

from collections import Counter
from copy import copy
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from attempts.test_dependency_keys import answered
from findings.every_call import check_association, check_calls
from findings.exchanges import Story, call_table, qm_end, qm_open, qm_start, qm_version, rr_end, rr_open, rr_start, us
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.attempts import dependency_keys
from pipeline.attempts.calls.associations import RpcConnection, group_into_associations
from pipeline.attempts.server_openings import OPEN_AND_CLOSE_METHODS
from pipeline.findings.columns.call_history import (
    CLOSE_METHODS,
    OPEN_METHODS,
    UNREADABLE_OUTCOMES,
    AssociationHistory,
    CapturedCall,
    ServerHistory,
)
from pipeline.findings.columns.captured_rows import plain_columns, without_null_columns
from pipeline.findings.rules.registry import ASSOCIATION_CALL_CHECKS, single_call_rules
from udfs.dcerpc.interfaces import QM2QM_NAME, REMOTE_READ_NAME

pytestmark = pytest.mark.spark

NAMED = ("request_id", "lookup_id", "sequence_id", "move_context", "queue_handle", "cursor_handle", "opnum")
TEXTS = ("call_key", "connection_id", "context_handle", "remote_read_handle")
NACK = 1
MESSAGES, PRELUDE = 5, 23  # taken before, and the calls of that
CONTEXT, SESSION = "0e" * 20, "0f" * 20


def stories():
    """Each rule's stories, after other reads of the same association."""
    for rule, pair in (CALLS | MANAGEMENT).items():
        for number, each in enumerate(pair):
            story = each if isinstance(each, Story) else Story(each)
            mine = {row["connection_id"] for row in story.connections}
            ours = {call["interface_name"] for call in story.calls if call["connection_id"] in mine}
            if ours & {QM2QM_NAME, REMOTE_READ_NAME}:
                story = copy(story)
                story.calls = [*prelude(min(mine)), *story.calls]
            yield f"{rule} {number}", story


def prelude(connection):
    """Correct calls of both interfaces: a queue is opened, and messages are received."""
    place = {"connection_id": connection}
    numbers = dict.fromkeys(("queue_handle", "queue_descriptor", "open_context"), 77)
    yield rr_open(-9.9, handle=CONTEXT, **place)
    yield qm_version(-9.8, **place)
    yield qm_open(-9.7, context_handle=SESSION, **numbers, **place)
    for number in range(MESSAGES):
        at, asked = -9.5 + number, {"request_id": 100 + number, **place}
        clocks, held = {"sent_at": us(at - 0.2), "arrived_at": us(at - 0.1)}, {"remote_read_handle": f"{number:040x}"}
        yield rr_start(at, message=900 + number, context_handle=CONTEXT, **clocks, **asked)
        yield rr_end(at + 0.1, context_handle=CONTEXT, **asked)
        read = clocks | held | asked | {"queue_handle": 77, "queue_descriptor": 77}
        yield qm_start(at + 0.2, message=950 + number, **read)
        yield qm_end(at + 0.3, **held, **place)


def dependency_keys_of(spark, named_stories):
    """The dependency keys of each call, by story and call key."""
    rows = []
    for name, story in named_stories:
        for call in story.calls:
            row = {"story": name, "protocol": call["interface_name"]} | {each: call.get(each) for each in TEXTS + NAMED}
            rows.append(row | {each: None if row[each] is None else int(row[each]) for each in NAMED})
    schema = pa.schema(
        [(each, pa.string()) for each in ("story", "protocol", *TEXTS)] + [(n, pa.int64()) for n in NAMED]
    )
    sql = f"SELECT story, call_key, {dependency_keys.key_array(dependency_keys.RULE_KEYS)} AS names FROM {{rows}}"
    found = answered(sql, spark, pa.Table.from_pylist(rows, schema)).to_pylist()
    return {(row["story"], row["call_key"]): frozenset(row["names"]) - {None} for row in found}


class OngoingAssociation:
    """A story's association, still open, with some of its calls captured.

    Rules on columns take longest, and are asked only where the story is that of one.
    """

    def __init__(self, story, rule):
        self.story = story
        # Its end was not captured: it is ongoing.
        self.connections = [
            {**row, "closed_at": None, "last_packet_at": row["last_packet_at"] or us(20)} for row in story.connections
        ]
        every = [*self.connections, *story.other_connections]
        for row in story.others:
            if row["connection_id"] not in {each["connection_id"] for each in every}:
                theirs = {"connection_id": row["connection_id"], "client_address": row["client_address"]}
                every.append({**self.connections[0], **theirs, "association_group_id": None})
        self.found = group_into_associations(
            RpcConnection(row["connection_id"], row["client_address"], row["first_packet_at"], row["last_packet_at"],
                       row["closed_at"], row["association_group_id"], row["syn_seen"],
                       association_joined=row.get("association_joined"))
            for row in every
        )  # fmt: skip
        self.mine = {row["connection_id"] for row in self.connections}
        mine = [row for row in story.calls if row["connection_id"] in self.mine]
        # What rules with several checks find in single calls rests on nothing else.
        table = call_table(mine)
        every_call = check_calls(table) if mine else ()
        self.of_calls = [found for found in every_call if found[0].rule_id not in single_call_rules()]
        of_columns = rule in {check.rule_id for check in ASSOCIATION_CALL_CHECKS}
        self.table = plain_columns(without_null_columns(table)) if of_columns else None

    def violations(self, keys, *, captured):
        """The violations of rules over several calls in the calls ``keys``; ``captured``: all captured calls."""
        opened = [CapturedCall(row) for row in (*self.story.calls, *self.story.others)]
        opened = [each for each in opened if each.method in OPEN_AND_CLOSE_METHODS]
        seen = {self.found[row["connection_id"]].name: row["last_packet_at"] for row in self.connections}
        opened = [each for each in opened if each["connection_id"] not in self.mine or each["call_key"] in captured]
        calls = [row for row in self.story.calls if row["connection_id"] in self.mine and row["call_key"] in captured]
        unread = any(row["outcome"] in UNREADABLE_OUTCOMES for row in calls)
        here = [CapturedCall(row) for row in calls if row["call_key"] in keys]
        association = self.found[self.connections[0]["connection_id"]]
        server = ServerHistory(opened, self.found, seen)
        history = AssociationHistory(
            here, self.connections, association, binds=self.story.binds, server=server, has_unreadable_calls=unread
        )
        found = {}
        there = {row["call_key"] for row in calls} & set(keys)
        of_calls = [(check, each) for check, each in self.of_calls if each.call["call_key"] in there]
        ours = pa.array(sorted(there), pa.string())
        table = None if self.table is None else self.table.filter(pc.is_in(self.table["call_key"], ours))
        for check, violation in (*of_calls, *check_association(history, table)):
            if check.rule_id not in single_call_rules():
                call = violation.call
                evidence = [each["call_key"] for each in violation.evidence or (call,) if each is not None]
                name = (check.rule_id, call and call["call_key"])
                found.setdefault(name, []).append((violation.actual, evidence))
        return {name: sorted(map(str, each)) for name, each in found.items()}, {
            key for (_, key), each in found.items() for _, evidence in each for key in (key, *evidence)
        }


def selected_keys(calls, changed, evidence, names):
    """The keys of the selected calls (``pipeline.findings.lookback.lookback_call_keys``)."""
    news = [call for call in calls if call["call_key"] in changed]
    since = min(CapturedCall(call).started_at for call in news)
    until = max(call.get("response_at") or call["request_at"] for call in news)

    def in_flight(call):
        done = call.get("response_at")
        return done is None or (CapturedCall(call).started_at <= until and done >= since)

    def always(call):
        rare = call["opnum"] == 6 or (call["opnum"] == 1 and call.get("ack") == NACK)
        asks_for_port = (call["interface_name"], call["opnum"]) == (REMOTE_READ_NAME, 0)
        return asks_for_port or (
            call["interface_name"] == QM2QM_NAME
            and (rare or (call["opnum"] in (0, 9, 10) and call.get("cursor_handle")))
        )

    def method(call):
        return call["interface_name"], call["opnum"]

    opening = [call for call in calls if method(call) in {*OPEN_METHODS, *CLOSE_METHODS}]
    contexts = {(call["interface_name"], call.get("context_handle")) for call in opening if call["call_key"] in changed}
    numbers = {c.get("queue_handle") for c in opening if (c["interface_name"], c.get("context_handle")) in contexts} - {
        None
    }
    keys = {call["call_key"] for call in calls if in_flight(call) or always(call)} | evidence

    def sharing_keys(keys):
        wanted = set().union(*(names[key] for key in keys))
        return {call["call_key"] for call in calls if names[call["call_key"]] & wanted}

    keys = keys | sharing_keys(keys) | {
        call["call_key"] for call in calls
        if (call["interface_name"] == REMOTE_READ_NAME and (REMOTE_READ_NAME, call.get("context_handle")) in contexts)
        or (call["interface_name"] == QM2QM_NAME and call.get("queue_handle") in numbers)
    }  # fmt: skip
    return keys | sharing_keys(keys) | {call["call_key"] for call in calls if method(call) in OPEN_AND_CLOSE_METHODS}


def parts_of(calls, chance):
    """Ways to capture a story's calls: the keys of all, and of the new ones; in order of time, or in any order."""
    ordered = [
        call["call_key"] for call in sorted(calls, key=lambda call: (CapturedCall(call).started_at, call["call_key"]))
    ]
    for end in range(PRELUDE + 1, len(ordered) + 1):
        for count in (1, 2, 4):
            yield {*ordered[:end]}, {*ordered[max(0, end - count) : end]}
    for _ in range(6):
        yield {*ordered}, {key for key in ordered if chance.random() < 0.2} or {chance.choice(ordered)}


@pytest.mark.parametrize(
    ("by_spark", "step"), [(False, 20), *(pytest.param(each, 1, marks=pytest.mark.long) for each in (False, True))]
)
def test_what_a_few_calls_come_to_tells_whether_all_come_to_something_else(spark, by_spark, step):
    """Of every story; in a plain run of some."""
    named_stories = list(stories())[::step]
    named, seen = dependency_keys_of(spark if by_spark else None, named_stories), Counter()
    for name, story in named_stories:
        association = OngoingAssociation(story, name.split()[0])
        calls = [call for call in story.calls if call["connection_id"] in association.mine]
        names = {call["call_key"]: named[name, call["call_key"]] for call in calls}
        if not calls or any(call["interface_name"] not in (QM2QM_NAME, REMOTE_READ_NAME) for call in calls):
            continue  # always evaluated with all calls
        for every, changed in parts_of(calls, Random(name)):
            before, evidence = association.violations(every - changed, captured=every - changed)
            captured = [call for call in calls if call["call_key"] in every]
            keys = selected_keys(captured, changed, evidence & every, names)
            few, _ = association.violations(keys, captured=every)
            if few == before:
                whole, _ = association.violations(every, captured=every)
                assert whole == before, (name, sorted(changed), sorted(every - keys))
                seen["unaffected"] += 1
                seen["left out"] += len(every - keys)
            else:
                seen["affected"] += 1
    print(dict(seen))
    assert min(seen["unaffected"], seen["affected"]) > 500 // step
    assert seen["left out"] > 10 * seen["unaffected"]
