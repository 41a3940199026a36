"""Attempts that are computed slice by slice are those of whole servers, whatever was captured."""

from dataclasses import replace
from itertools import chain
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attempts.broker import Broker, captured
from attempts.telling import SERVER, facts_of, receive_attempts_table
from engines import shared_sql
from example_counts import examples
from pipeline.arrow_rows import NO_TEXTS, distinct_texts
from pipeline.attempts import attempt_rows, dependency_keys, server_slices
from pipeline.attempts.affected_scope import RecomputeScope, read_first_request, read_requiring_calls
from pipeline.attempts.attempt_rows import attempts_function
from pipeline.attempts.calls.decoded_call import Clocks
from pipeline.attempts.changed_rows import REQUEST_KEY_SQL, RPC_CONNECTIONS_QUERY
from pipeline.attempts.server_slices import attempt_queries
from pipeline.lake.queries.inputs import FilteredTable, RowsOfDates, values_array
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.table import Table

_AT_RPC = {"protocol": "interface_name", "requested_at": "request_at", "responded_at": "response_at"}
_OF_MESSAGE = {"message_bytes": "body_bytes", "message_errors": "errors"}


class TablesInMemory:
    """Tables that are asked as those of a lake."""

    def __init__(self, tables):
        self.tables = tables

    def query(self, sql, /, **of):
        return shared_sql().answer(sql, {name: self._given(each) for name, each in of.items()})

    def _given(self, each):
        if isinstance(each, Table):
            return self.tables[each]
        if isinstance(each, RowsOfDates):
            return self.tables[each.table]
        if isinstance(each, FilteredTable):
            return self.query(f"SELECT * FROM {{rows}} WHERE {each.where}", rows=each.table)
        return each if isinstance(each, pa.Table) else values_array(each)


def as_table(table, rows, renamed=()):
    """Rows with the columns of a table: those that they have, under other names, and else nulls."""
    renamed = dict(renamed)
    held = {renamed.get(name, name): rows[name] for name in rows.column_names}
    schema = table.schema()
    return pa.table(
        [held[name].cast(kind) if name in held else pa.nulls(len(rows), kind) for name, kind in
         zip(schema.names, schema.types, strict=True)],
        schema=schema,
    )  # fmt: skip


def tables_of(facts, connections):
    """The tables of bronze and silver that the facts come from."""
    place = facts.column_names.index("clocks")
    taps = pc.is_valid(pc.struct_field(facts["clocks"], "request_tap"))
    nothing = pa.nulls(len(facts), facts["clocks"].type)
    facts = facts.set_column(place, "clocks", pc.if_else(taps, facts["clocks"], nothing))
    ours = pc.is_in(facts["protocol"], pa.array(["qm2qm", "RemoteRead"]))
    reads, clients = facts.filter(ours), facts.filter(pc.invert(ours))
    calls = facts.append_column("sealed", facts["encrypted"])
    kind = pa.array(["rpc"] * len(connections), pa.string())
    return {
        REMOTE_READ_CALLS: as_table(REMOTE_READ_CALLS, reads),
        CLIENT_CALLS: as_table(CLIENT_CALLS, clients, {"protocol": "interface_name"}),
        RPC_CALLS: as_table(RPC_CALLS, calls.drop_columns(["errors"]), _AT_RPC),
        MESSAGES: as_table(MESSAGES, facts.drop_columns(["queue", "errors"]), _OF_MESSAGE),
        CONNECTIONS: as_table(CONNECTIONS, connections.append_column("kind", kind)),
        RPC_BINDS: RPC_BINDS.schema().empty_table(),
        RECEIVE_ATTEMPTS: RECEIVE_ATTEMPTS.schema().empty_table(),
    }


def by_slice(tables, ends, scope=None):
    """The attempts, computed slice by slice, and how many slices have calls."""
    lake = TablesInMemory(tables)
    parts = {name: lake.query(part.sql, **part.inputs) for name, part in attempt_queries(lake, scope, ends).items()}
    find = attempts_function(ends=ends, aliases={}, cleanup_s=300)
    slices = parts["calls"]["slice"].unique().to_pylist()
    made = (find({name: part.filter(pc.equal(part["slice"], each)) for name, part in parts.items()}) for each in slices)
    rows = pa.concat_tables([RECEIVE_ATTEMPTS.schema().empty_table(), *chain.from_iterable(made)])
    return rows.sort_by("attempt_key").to_pylist(), len(slices)


def scope_of(tables, connections, *, goes_on):
    """What a change of all calls on some connections affects; with ``goes_on`` by the keys that they publish."""
    lake = TablesInMemory(tables)
    published = dependency_keys.key_array(dependency_keys.PUBLISHED_KEYS)
    keys = lake.query(f"SELECT DISTINCT explode({published}) AS key FROM {{reads}}", reads=REMOTE_READ_CALLS)
    sql = f"SELECT {REQUEST_KEY_SQL} AS request FROM {{reads}} WHERE protocol = 'qm2qm' AND opnum = 5"
    names = pa.array(sorted(connections), pa.string())
    scope = RecomputeScope(
        connections=NO_TEXTS if goes_on else names,
        ongoing_connections=names if goes_on else NO_TEXTS,
        dates=frozenset([None]),
        connection_rows=lake.query(RPC_CONNECTIONS_QUERY, connections=CONNECTIONS),
        call_count=len(tables[REMOTE_READ_CALLS]),
        cancelled_requests=distinct_texts(lake.query(sql, reads=REMOTE_READ_CALLS)["request"]),
        numbered=frozenset([SERVER]),
        ongoing_calls=read_requiring_calls(lake, names, distinct_texts(keys["key"]), [None]) if goes_on else NO_TEXTS,
    )
    return replace(scope, since=read_first_request(lake, scope))


def scope_is_a_part(seed, tables, ends, whole, *, may_go_on):
    """Compare what a scope of some clients gives, in slices and whole, with their attempts among all."""
    chance = Random(seed)
    clients = {f"10.0.1.{number}" for number in range(3) if chance.random() < 0.6}
    ours = pc.is_in(tables[CONNECTIONS]["client_address"], pa.array(sorted(clients), pa.string()))
    names = {*tables[CONNECTIONS].filter(ours)["connection_id"].to_pylist()}
    scope = scope_of(tables, names, goes_on=may_go_on and chance.random() < 0.5)
    expected = [row for row in whole.sort_by("attempt_key").to_pylist() if row["connection_id"] in names]
    assert by_slice(tables, ends, scope)[0] == expected
    assert by_slice(tables, ends, replace(scope, call_count=0))[0] == expected


def captured_in_part(call, chance):
    """The call without the packet of its request, or cut inside the answer."""
    lost = chance.random()
    if lost < 0.05:
        asked = {} if call.opnum in (2, 11) else {"context_handle": None, "request_id": None, "action": None}
        return call._replace(requested_at=None, **asked)
    return call._replace(outcome="damaged", hresult=None) if lost < 0.2 else call


def slices_change_nothing(seed, steps):
    """Compare what slices of a few calls give; return how many there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_slices, "_CALLS_IN_ONE_SLICE", 1)
        patch.setattr(server_slices, "_CALLS_OF_SCOPE_IN_ONE_SLICE", 1)
        patch.setattr(server_slices, "_CALLS_PER_SLICE", (1, 10, 1000)[seed % 3])  # conversations are cut with more
        return compare(seed, steps)


def compare(seed, steps):
    chance, broker = Random(seed), Broker(Random(seed)).run(steps)
    calls, connections = captured(broker, begin=chance.choice([0, 0, steps // 2]))
    if not calls:
        return 0
    # Some connections were there before: they may belong to any association of their client. Some share a client.
    connections = [
        replace(each, syn_seen=False, association_group_id=None) if chance.random() < 0.2 else each
        for each in connections
    ]
    connections = [replace(each, client_address=f"10.0.1.{chance.randrange(3)}") for each in connections]
    has_taps = chance.random() < 0.2
    if has_taps:
        calls = [call._replace(clocks=Clocks(0, 0, 1, chance.choice([0, 500_000]))) for call in calls]
    has_losses = chance.random() < 0.5
    if has_losses:
        calls = [captured_in_part(call, chance) for call in calls]
    facts, connected = facts_of(calls, connections)
    ends = {SERVER: broker.now}
    whole = receive_attempts_table(facts, connected, ends=ends, aliases={}, cleanup_s=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempt_rows, "_ATTEMPTS_AT_ONCE", 3)
        assert receive_attempts_table(facts, connected, ends=ends, aliases={}, cleanup_s=300).equals(whole)
    tables = tables_of(facts, connected)
    made, slices = by_slice(tables, ends)
    if not has_taps:
        scope_is_a_part(seed, tables, ends, whole, may_go_on=not has_losses)  # those are looked at as a whole
    assert made == whole.sort_by("attempt_key").to_pylist()
    return slices


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 80))
def test_slices_change_no_attempt(seed, steps):
    slices_change_nothing(seed, steps)


@pytest.mark.long
@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32), st.integers(20, 200))
def test_slices_change_no_attempt_of_many(seed, steps):
    slices_change_nothing(seed, steps)


@pytest.mark.long
def test_a_busy_server_has_many_slices():
    assert max(slices_change_nothing(seed, 200) for seed in range(6)) > 2


@pytest.mark.parametrize(
    ("calls", "digits"),
    [(10_000, 0), (10_001, 1), (1_600_000, 1), (1_600_001, 2), (25_600_001, 3), (10**10, 3)],
)
def test_a_server_is_cut_for_all_cores_and_then_by_how_much_a_slice_may_have(calls, digits):
    assert server_slices.slice_digits(calls) == digits
