"""What a few calls of an association that goes on come to tells whether all of its calls come to something else.

Every rule's exchanges are told in two parts: what was captured before, and what comes. Where the few calls that are
looked back on, judged alone, come to the findings that there were, all calls do.
"""

from collections import Counter
from copy import copy
from random import Random

import pyarrow as pa
import pytest

from attempts.test_dependency_keys import answered
from findings.exchanges import Story, qm_end, qm_open, qm_start, qm_version, rr_end, rr_open, rr_start, us
from findings.management import STORIES as MANAGEMENT
from findings.stories import STORIES as CALLS
from pipeline.attempts import dependency_keys
from pipeline.attempts.associations import Connection, associations
from pipeline.attempts.server_openings import LEDGER
from pipeline.findings.evaluate import judge
from pipeline.findings.rules.conversations import CLOSES, OPENS, UNREAD, Conversation, Exchange, Ledger
from pipeline.findings.rules.registry import of_one_call
from udfs.dcerpc.interfaces import QM, RR

pytestmark = pytest.mark.spark

NAMED = ("request_id", "lookup_id", "sequence_id", "move_context", "queue_handle", "cursor_handle", "opnum")
TEXTS = ("call_key", "connection_id", "context_handle", "remote_read_handle")
NACK = 1
MESSAGES, PRELUDE = 5, 23  # taken before, and the calls of that
CONTEXT, SESSION = "0e" * 20, "0f" * 20


def stories():
    """Each rule's exchanges, after other reads of the same association."""
    for rule, told in (CALLS | MANAGEMENT).items():
        for number, each in enumerate(told):
            story = each if isinstance(each, Story) else Story(each)
            mine = {row["connection_id"] for row in story.connections}
            ours = {call["interface_name"] for call in story.calls if call["connection_id"] in mine}
            if ours & {QM, RR}:
                story = copy(story)
                story.calls = [*prelude(min(mine)), *story.calls]
            yield f"{rule} {number}", story


def prelude(connection):
    """A queue opened over each of the interfaces, and messages taken from it, that nothing is wrong with."""
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


def names_of(spark, told):
    """The names that explain each call, by story and call."""
    rows = []
    for name, story in told:
        for call in story.calls:
            row = {"story": name, "protocol": call["interface_name"]} | {each: call.get(each) for each in TEXTS + NAMED}
            rows.append(row | {each: None if row[each] is None else int(row[each]) for each in NAMED})
    schema = pa.schema(
        [(each, pa.string()) for each in ("story", "protocol", *TEXTS)] + [(n, pa.int64()) for n in NAMED]
    )
    sql = f"SELECT story, call_key, {dependency_keys.listed(dependency_keys.EXPLAINS)} AS names FROM {{rows}}"
    found = answered(sql, spark, pa.Table.from_pylist(rows, schema)).to_pylist()
    return {(row["story"], row["call_key"]): frozenset(row["names"]) - {None} for row in found}


class Told:
    """A story's association, still open, as far as some of its calls show it."""

    def __init__(self, story):
        self.story = story
        # Nothing is known of its end: it goes on.
        self.connections = [
            {**row, "closed_at": None, "last_packet_at": row["last_packet_at"] or us(20)} for row in story.connections
        ]
        every = [*self.connections, *story.beside]
        for row in story.others:
            if row["connection_id"] not in {each["connection_id"] for each in every}:
                theirs = {"connection_id": row["connection_id"], "client_address": row["client_address"]}
                every.append({**self.connections[0], **theirs, "association_group_id": None})
        self.found = associations(
            Connection(row["connection_id"], row["client_address"], row["first_packet_at"], row["last_packet_at"],
                       row["closed_at"], row["association_group_id"], row["syn_seen"])
            for row in every
        )  # fmt: skip
        self.mine = {row["connection_id"] for row in self.connections}

    def judged(self, keys, *, there, fresh):
        """What rules over several calls find in some calls, of those that are there."""
        opened = [Exchange(row) for row in (*self.story.calls, *self.story.others)]
        opened = [each for each in opened if each.method in LEDGER]
        seen = {self.found[row["connection_id"]].name: row["last_packet_at"] for row in self.connections}
        opened = [each for each in opened if each["connection_id"] not in self.mine or each["call_key"] in there]
        calls = [row for row in self.story.calls if row["connection_id"] in self.mine and row["call_key"] in there]
        unread = any(row["outcome"] in UNREAD for row in calls)
        here = [Exchange(row | {"fresh": row["call_key"] in fresh}) for row in calls if row["call_key"] in keys]
        association = self.found[self.connections[0]["connection_id"]]
        conversation = Conversation(here, self.connections, association, binds=self.story.binds,
                                    ledger=Ledger(opened, self.found, seen), unread=unread)  # fmt: skip
        found = {}
        for test, hit in judge(conversation, narrow=True):
            if test.rule_id not in of_one_call():
                evidence = [call["call_key"] for call in hit.evidence or (hit.call,) if call is not None]
                found.setdefault((test.rule_id, hit.call and hit.call["call_key"]), []).append((hit.actual, evidence))
        return {name: sorted(map(str, hits)) for name, hits in found.items()}, {
            key for (_, key), hits in found.items() for _, evidence in hits for key in (key, *evidence)
        }


def looked_back(calls, fresh, evidence, names):
    """The keys of the calls that are looked at (``pipeline.findings.lookback.look_back``)."""
    news = [call for call in calls if call["call_key"] in fresh]
    since = min(Exchange(call).at for call in news)
    until = max(call.get("response_at") or call["request_at"] for call in news)

    def under_way(call):
        done = call.get("response_at")
        return done is None or (Exchange(call).at <= until and done >= since)

    def always(call):
        rare = call["opnum"] == 6 or (call["opnum"] == 1 and call.get("ack") == NACK)
        return call["interface_name"] == QM and (rare or (call["opnum"] in (0, 9, 10) and call.get("cursor_handle")))

    def method(call):
        return call["interface_name"], call["opnum"]

    opening = [call for call in calls if method(call) in {*OPENS, *CLOSES}]
    contexts = {(call["interface_name"], call.get("context_handle")) for call in opening if call["call_key"] in fresh}
    numbers = {c.get("queue_handle") for c in opening if (c["interface_name"], c.get("context_handle")) in contexts} - {
        None
    }
    keys = {call["call_key"] for call in calls if under_way(call) or always(call)} | evidence

    def meeting(keys):
        wanted = set().union(*(names[key] for key in keys))
        return {call["call_key"] for call in calls if names[call["call_key"]] & wanted}

    keys = keys | meeting(keys) | {
        call["call_key"] for call in calls
        if (call["interface_name"] == RR and (RR, call.get("context_handle")) in contexts)
        or (call["interface_name"] == QM and call.get("queue_handle") in numbers)
    }  # fmt: skip
    return keys | meeting(keys) | {call["call_key"] for call in calls if method(call) in LEDGER}


def parts_of(calls, chance):
    """Ways in which a story's calls come: all there is, and what of it is news; as time goes on, or in any order."""
    ordered = [call["call_key"] for call in sorted(calls, key=lambda call: (Exchange(call).at, call["call_key"]))]
    for end in range(PRELUDE + 1, len(ordered) + 1):
        for count in (1, 2, 4):
            yield {*ordered[:end]}, {*ordered[max(0, end - count) : end]}
    for _ in range(6):
        yield {*ordered}, {key for key in ordered if chance.random() < 0.2} or {chance.choice(ordered)}


@pytest.mark.parametrize("by_spark", [True, False])
def test_what_a_few_calls_come_to_tells_whether_all_come_to_something_else(spark, by_spark):
    told = list(stories())
    named, seen = names_of(spark if by_spark else None, told), Counter()
    for name, story in told:
        association = Told(story)
        calls = [call for call in story.calls if call["connection_id"] in association.mine]
        names = {call["call_key"]: named[name, call["call_key"]] for call in calls}
        if not calls or any(call["interface_name"] not in (QM, RR) for call in calls):
            continue  # judged as a whole
        for every, fresh in parts_of(calls, Random(name)):
            before, evidence = association.judged(every - fresh, there=every - fresh, fresh=set())
            there = [call for call in calls if call["call_key"] in every]
            keys = looked_back(there, fresh, evidence & every, names)
            few, _ = association.judged(keys, there=every, fresh=fresh)
            if few == before:
                whole, _ = association.judged(every, there=every, fresh=fresh)
                assert whole == before, (name, sorted(fresh), sorted(every - keys))
                seen["told by few"] += 1
                seen["left out"] += len(every - keys)
            else:
                seen["judged as a whole"] += 1
    print(dict(seen))
    assert min(seen["told by few"], seen["judged as a whole"]) > 500
    assert seen["left out"] > 10 * seen["told by few"]
