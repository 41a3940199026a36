"""What changed connections affect, as plain values say it."""

import datetime as dt

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import shared_sql
from example_counts import examples
from pipeline.attempts.calls.decoded_call import CLOCK_TOLERANCE_US
from pipeline.findings.affected_associations import (
    AffectedAssociations,
    changed_connections_query,
    connections_with_packets_since,
)
from schemas.bronze import CONNECTIONS, RPC_BINDS, RPC_CALLS
from udfs.dcerpc.interfaces import QM2QM_NAME, QMCOMM_NAME, REMOTE_READ_NAME
from udfs.times import datetime_to_us, us_to_datetime

NAMES, SERVERS = st.sampled_from("abcd"), st.none() | st.sampled_from("st")
GROUPS = st.none() | st.integers(0, 2)
CONNECTION = st.tuples(NAMES, SERVERS, st.none() | st.sampled_from("xy"), GROUPS)
GROUP = ("server_address", "client_address", "association_group_id")
ROW_SCHEMA = pa.schema(
    {
        "connection_id": pa.string(), "server_address": pa.string(), "client_address": pa.string(),
        "association_group_id": pa.int64(), "numbered_at": pa.int64(), "moves": pa.bool_(),
        "versions": pa.list_(pa.string()), "went": pa.bool_(),
    }
)  # fmt: skip


def table(rows, schema=ROW_SCHEMA):
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


@st.composite
def changes(draw):
    """Answers to the query for changed connections, of several tables."""
    facts = st.tuples(st.none() | st.integers(0, 9), st.booleans(), st.lists(st.sampled_from("uvw")), st.booleans())
    return [
        [(*connection, *draw(facts)) for connection in draw(st.lists(CONNECTION, max_size=5))]
        for _ in range(draw(st.integers(1, 3)))
    ]


def version_calls(rows):
    """By server the new calls that ask for its version; None where one changed or went, and for good."""
    found = {}
    for _, server, _, _, _, _, versions, went in rows:
        if server is not None and versions:
            before = found.setdefault(server, set())
            found[server] = None if went or before is None else before | {*versions}
    return found


@settings(max_examples=examples(500), deadline=None)
@given(changed=changes(), there=st.lists(CONNECTION, unique_by=lambda each: each[0]))
def test_connections_servers_and_groups(changed, there):
    affected = AffectedAssociations()
    for part in changed:
        affected.add_changes(table(part))
    rows = [row for part in changed for row in part]
    of_servers = [row for row in rows if row[1] is not None]
    names = {row[0] for row in rows}
    assert sorted(affected.connections.to_pylist()) == sorted(names)
    assert affected.servers == {row[1] for row in of_servers}
    numbered = [(row[1], row[4]) for row in of_servers if row[4] is not None]
    assert affected.queue_numbers_changed_since == {
        server: min(at for other, at in numbered if other == server) for server, _ in numbered
    }
    assert affected.servers_with_changed_move_targets == {row[1] for row in of_servers if row[5]}
    assert affected.new_version_calls == version_calls(rows)
    groups = {row[1:4] for row in [*rows, *(each for each in there if each[0] in names)] if row[3]}
    affected.add_groups(table(there, pa.schema([*ROW_SCHEMA][:4])))
    assert sorted(affected.connections.to_pylist()) == sorted(names | {row[0] for row in there if row[1:4] in groups})


@settings(max_examples=examples(200), deadline=None)
@given(
    rows=st.lists(st.tuples(NAMES, SERVERS, st.integers(0, 9)), unique_by=lambda each: each[0]),
    since=st.dictionaries(st.sampled_from("st"), st.integers(0, 9)),
)
def test_connections_with_packets_since(rows, since):
    unit, begin = CLOCK_TOLERANCE_US // 2, datetime_to_us(dt.datetime(2024, 5, 1, tzinfo=dt.UTC))
    schema = pa.schema(
        {"connection_id": pa.string(), "server_address": pa.string(), "last_packet_at": pa.timestamp("us", "UTC")}
    )
    connections = table([(name, server, us_to_datetime(begin + at * unit)) for name, server, at in rows], schema)
    found = connections_with_packets_since(connections, {server: begin + at * unit for server, at in since.items()})
    expected = [
        name for name, server, at in rows if server in since and at * unit + CLOCK_TOLERANCE_US > since[server] * unit
    ]
    assert found.to_pylist() == expected


def test_what_changes_of_each_table_mean():
    """Planted: of each table one changed row, of bronze.rpc_calls four."""
    affected = AffectedAssociations()
    calls = [
        ("v", QM2QM_NAME, 8, 9),
        ("n", QMCOMM_NAME, 2, 7),
        ("n2", QMCOMM_NAME, 2, 5),
        ("m", REMOTE_READ_NAME, 11, 9),
    ]
    at = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
    whose = {
        "connection_id": "c",
        "server_address": "s",
        "client_address": "x",
        "_change_type": "insert",
        "_commit_version": 1,
    }
    rows = {
        RPC_CALLS: [
            {**whose, "call_key": name, "interface_name": interface, "opnum": opnum, "request_at": at.replace(second=s)}
            for name, interface, opnum, s in calls
        ],
        CONNECTIONS: [{**whose, "connection_id": "d", "kind": "rpc", "association_group_id": 3}],
        RPC_BINDS: [{**whose, "connection_id": "e"}],
    }  # fmt: skip
    for of, changed in rows.items():
        extra = [pa.field("_change_type", pa.string()), pa.field("_commit_version", pa.int64())]
        feed = pa.Table.from_pylist(changed, pa.schema([*of.schema(), *extra]))
        affected.add_changes(shared_sql().answer(changed_connections_query(of, ()), {"feed": feed}))
    assert sorted(affected.connections.to_pylist()) == ["c", "d", "e"]
    assert affected.association_groups.to_pylist() == [dict(zip(GROUP, ("s", "x", 3), strict=True))]
    assert affected.new_version_calls == {"s": {"v"}}
    assert affected.servers_with_changed_move_targets == {"s"}
    assert affected.queue_numbers_changed_since == {"s": datetime_to_us(at.replace(second=5))}
