"""Of an association that goes on a change touches what rests on names that it tells under, and no other attempt.

The reference queue manager (``broker``) tells random conversations. Each is looked at twice: as a capture shows it up
to some moment, or without some of its calls, and then with more. What is not touched must come out as it was, and what
is touched must come out of the few calls that are asked for as it does of all.
"""

from collections import defaultdict
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from attempts.broker import CLEAN_UP, Broker, captured
from attempts.telling import facts_of, gold_of
from engines import shared_sql
from pipeline.attempts import dependency_keys
from pipeline.attempts.ongoing_associations import find_ongoing
from pipeline.lake.queries.answer import query_in_spark
from udfs.keys import key

pytestmark = pytest.mark.spark

STEPS = 100
OFTEN = (
    {},
    {"cancel": 20, "arrive": 3, "disconnect": 0},
    {"open": 12, "close": 12, "disconnect": 0},
    {"move": 8, "close": 6},
)
FOR_EVER = 0xFFFFFFFF
BY_NUMBER = {("qm2qm", opnum) for opnum in (0, 6, 9, 10)}
OPENINGS = {(protocol, opnum) for protocol in ("qm2qm", "qmcomm") for opnum in (2, 3)}
ANSWERED = {
    "responded_at": None, "hresult": None, "sequence_id": None, "remote_read_handle": None, "fault_status": None,
    "outcome": "no_response",
}  # fmt: skip
UNREAD = {"context_handle": None, "queue_handle": None}


def as_of(calls, connections, at):
    """What a capture that ends at a moment shows of them."""

    def shown(call):
        given = {"context_handle": None} if call.opnum == 2 else {}
        return call._replace(**ANSWERED, **given) if (call.responded_at or 0) > at else call

    there = []
    for each in connections:
        if each.first_packet_at <= at:
            closed = each.closed_at if each.closed_at is not None and each.closed_at <= at else None
            there.append(replace(each, last_packet_at=min(each.last_packet_at, at), closed_at=closed))
    return [shown(call) for call in calls if call.requested_at <= at], there


def story(seed):
    """A conversation as it was known before, and after: calls, connections, and until when."""
    chance = Random(seed)
    broker = Broker(chance).run(STEPS, **chance.choice(OFTEN))
    calls, connections = captured(broker)
    calls = [call._replace(**UNREAD) if chance.random() < 0.02 else call for call in calls]
    first, last = calls[0].requested_at, broker.now
    if chance.random() < 0.6:  # a part of the calls comes later, all of one method or any
        method = chance.choice([None, *sorted({(call.protocol, call.opnum) for call in calls})])
        share = 0.1 if method is None else 0.5
        late = {
            call.call_key for call in calls if method in (None, (call.protocol, call.opnum)) and chance.random() < share
        }
        some = [call for call in calls if call.call_key not in late]
        return (some, connections, last), (calls, connections, last)
    moments = sorted(chance.randint(first, last) for _ in range(2))
    if chance.random() < 0.3:
        moments[1] = last
    return tuple((*as_of(calls, connections, at), at) for at in moments)


def answered(sql, spark, rows):
    """The answer to a question on rows: of DuckDB here, or of Spark."""
    of = {"rows": rows}
    return shared_sql().answer(sql, of) if spark is None else query_in_spark(spark, sql, of).toArrow()


def names_of(spark, stories):
    """The names of all calls as they were and are, (story, when, call) -> tells, rests_on; and those of numbers."""
    parts = []
    for number, states in enumerate(stories):
        for when, (calls, connections, _) in enumerate(states):
            facts, _ = facts_of(calls, connections)
            place = pa.array([f"{number} {when}"] * facts.num_rows, pa.string())
            parts.append(facts.select(FIELDS).append_column("place", place))
    lists = {
        "tells": dependency_keys.key_array(dependency_keys.PUBLISHED_KEYS),
        "rests_on": dependency_keys.key_array(dependency_keys.REQUIRED_KEYS),
    }
    names = ", ".join(
        f"{sql} AS {name}" for name, sql in (lists | {"number": dependency_keys.QUEUE_NUMBER_KEY}).items()
    )
    sql = f"SELECT place, call_key, queue_handle, {names} FROM {{rows}}"
    named, numbers = {}, {}
    for row in answered(sql, spark, pa.concat_tables(parts)).to_pylist():
        number, when = map(int, row["place"].split())
        named[number, when, row["call_key"]] = frozenset(row["tells"]) - {None}, frozenset(row["rests_on"]) - {None}
        numbers[row["queue_handle"]] = row["number"]
    return named, numbers


FIELDS = [
    "call_key", "protocol", "opnum", "context_handle", "remote_read_handle", "queue_handle", "request_id", "lookup_id",
    "sequence_id", "move_context",
]  # fmt: skip


def rows_by_call(calls, connections, until):
    attempts, operations = gold_of(calls, connections, until=until)
    names = {key(call.call_key): call.call_key for call in calls}
    found = {names[row["attempt_key"]]: row for row in attempts.to_pylist()}
    return found | {row["call_key"]: row for row in operations.to_pylist()}


def number_reached(before, after, changed, moved):
    """The connections with reads by number that come after an opening, or the end of a connection, that is news."""
    reads = [call for call in before[0] if (call.protocol, call.opnum) in BY_NUMBER]
    newest = max((call.at for call in reads), default=-1)
    times = [call.at for call in changed if (call.protocol, call.opnum) in OPENINGS] + moved
    since = min((at for at in times if at <= newest), default=None)
    every = [*reads, *(call for call in after[0] if (call.protocol, call.opnum) in BY_NUMBER)]
    return set() if since is None else {call.connection_id for call in every if call.at >= since}


def due(rows, until):
    """Calls that attempts rest on which the end of the capture can settle."""
    found = set()
    for row in rows.values():
        if row.get("outcome") == "in_flight":
            held = row["protocol"] == "RemoteRead" and row["returned_at"] is not None
            waits = row["returned_at"] is None and row["timeout_ms"] not in (None, FOR_EVER)
            since = row["returned_at"] if held else row["started_at"]
            at = since.timestamp() * 1e6 + (CLEAN_UP if held else row["timeout_ms"] * 1000) if held or waits else until
            if at < until:
                found |= set(row["evidence"])
    return found


@pytest.mark.parametrize("by_spark", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 2000), marks=pytest.mark.long)], ids=str)
def test_a_change_touches_what_rests_on_the_names_that_it_tells_under_and_nothing_else(spark, seeds, by_spark):
    stories = [story(seed) for seed in seeds]
    named, numbers = names_of(spark if by_spark else None, stories)
    seen = defaultdict(int)
    for number, (before, after) in enumerate(stories):
        was, now = ({call.call_key: call for call in state[0]} for state in (before, after))
        changed = [now[name] for name in now if was.get(name) != now[name]]
        images = {each.connection_id: each for each in before[1]}
        others = {c.connection_id: images.get(c.connection_id) for c in after[1] if images.get(c.connection_id) != c}
        on = find_ongoing(after[1], others)
        moved = [c.first_packet_at if others[c.connection_id] is None else c.closed_at for c in after[1]
                 if c.connection_id in others and (others[c.connection_id] is None
                 or c.connection_id in on.newly_closed_connections
                                                   or c.closed_at != others[c.connection_id].closed_at)]  # fmt: skip
        reached = number_reached(before, after, changed, [at for at in moved if at is not None])
        parted = {on.associations[name] for name in reached if name in on.associations}
        here = {name for name, association in on.associations.items() if association not in parted}

        tells = set()
        for name in {call.call_key for call in changed} | due(rows_by_call(*before), after[2]):
            tells |= named[number, 1, name][0] | named.get((number, 0, name), (set(), set()))[0]
        for name, call in now.items():
            if call.connection_id in on.newly_closed_connections and call.responded_at is None:
                tells |= named[number, 1, name][0]
        closed = {call.context_handle for call in changed if (call.protocol, call.opnum) == ("qm2qm", 3)}
        opened = {call.queue_handle for call in now.values()
                  if (call.protocol, call.opnum) == ("qm2qm", 2) and call.context_handle in closed}  # fmt: skip
        tells |= {numbers[each] for each in opened if each in numbers}

        there, made = rows_by_call(*before), rows_by_call(*after)
        touched = {
            name for name, call in now.items() if call.connection_id in here and named[number, 1, name][1] & tells
        }
        for name in made.keys() - touched:
            if now[name].connection_id in here:
                assert made[name] == there.get(name), (number, name)
                seen["stayed"] += 1
        rest_on = set().union(*(named[number, 1, name][1] for name in touched))
        cancels = {(call.queue_handle, call.request_id) for call in now.values()
                   if (call.protocol, call.opnum) == ("qm2qm", 5)}  # fmt: skip
        few = [
            call for name, call in now.items()
            if name in touched or (call.connection_id in here and named[number, 1, name][0] & rest_on)
            or (call.protocol, call.opnum) in OPENINGS
            or (call.protocol == "qm2qm" and (call.queue_handle, call.request_id) in cancels)
        ]  # fmt: skip
        out = rows_by_call(few, after[1], after[2])
        for name in touched & made.keys():
            assert out[name] == made[name], (number, name)
            seen["touched"] += 1
            seen["changed"] += made[name] != there.get(name)
    print(dict(seen))
    assert seen["stayed"] > seen["touched"] / 2 > 100, seen
    assert seen["changed"] > seen["touched"] / 3, seen
