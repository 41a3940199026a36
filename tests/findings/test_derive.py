"""gold.findings and gold.coverage follow the tables below: in any order of changes the result is that of all rows."""

from collections import Counter
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from findings.facts import facts, plain, read
from pipeline.concurrency import run_concurrently
from pipeline.findings import affected_associations, evaluate
from pipeline.findings import update as findings_update
from pipeline.findings.lookback import evaluate_ongoing_associations
from pipeline.lake import lake as lake_module
from pipeline.lake.lake import Lake
from pipeline.quality import coverage
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS
from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.coverage import COVERAGE
from schemas.findings import FINDINGS
from schemas.hosts import HOSTS
from schemas.messages import MESSAGES

pytestmark = [pytest.mark.spark, pytest.mark.long]  # test_any_order holds all tables to the same in make test


@pytest.fixture(autouse=True)
def _of_few_calls_too(monkeypatch):
    """Use the lookback for ongoing associations of any size."""
    monkeypatch.setattr(affected_associations, "MIN_CALLS_FOR_KEYS", -1)


BRONZE = {"rpc_calls": RPC_CALLS, "connections": CONNECTIONS, "rpc_binds": RPC_BINDS}
SILVER = {str(table): table for table in (REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS, MESSAGES)}
TABLES = BRONZE | SILVER


def conformed(table, rows):
    """Rows with the table's columns, null where the reader has none; the date is added when they are written."""
    schema = table.schema(without=("event_date",))
    columns = [
        rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(len(rows), f.type) for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def of_connections(tables, chosen):
    """The rows of some connections; messages are of the calls of these."""
    names = pa.array(sorted(chosen), pa.string())
    out = {
        name: tables[name].filter(pc.is_in(tables[name]["connection_id"], names))
        for name in TABLES
        if name != str(MESSAGES)
    }
    messages = tables[str(MESSAGES)]
    calls = pa.table(out["rpc_calls"])["call_key"].combine_chunks()
    return out | {str(MESSAGES): messages.filter(pc.is_in(messages["call_key"], calls))}


def of_calls(tables, chosen):
    """The rows of some calls, without those of connections and binds."""
    keys = pa.array(chosen, pa.string())
    return {
        name: tables[name].filter(pc.is_in(tables[name]["call_key"], keys))
        if "call_key" in tables[name].column_names
        else tables[name].slice(0, 0)
        for name in TABLES
    }


class World:
    """A lake, and all rows that were added to it."""

    def __init__(self, spark, root):
        self.lake = Lake(spark, str(root))
        self.parts = []
        for table in (CAPTURE_FILES, HOSTS):
            self.lake.create(table)

    def add(self, part):
        self.parts.append(part)
        rows = {table: conformed(table, part[name]) for name, table in TABLES.items() if len(part[name])}
        run_concurrently({table: partial(self.lake.append, table, rows[table]) for table in rows})

    def take(self, part):
        self.parts.remove(part)
        gone = {name: set(part[name][table.key[0]].to_pylist()) for name, table in TABLES.items()}
        run_concurrently({
            name: partial(self.lake.delete_values, table, table.key[0], gone[name], dates=None)
            for name, table in TABLES.items() if gone[name]
        })  # fmt: skip

    def tables(self):
        return joined(*self.parts)

    def follows(self):
        findings_update.update(self.lake)
        found = self.lake.select(FINDINGS, "TRUE")
        assert plain(found) == plain(evaluate.evaluate_calls(facts(self.tables())))
        return found


def joined(*parts):
    return {name: pa.concat_tables([pa.table(part[name]) for part in parts]) for name in TABLES}


def names_of(tables, *interfaces):
    calls = tables["rpc_calls"]
    ours = calls.filter(pc.is_in(calls["interface_name"], pa.array(interfaces, pa.string())))
    return set(ours["connection_id"].to_pylist())


NAMES = ("call_key", "connection_id", "bind_key", "sighting_key")


def moved(part, seconds, *, version=None):
    """The same calls on other connections, some seconds later; ``version``: the server's reported version."""
    later = pa.scalar(seconds * 1_000_000, pa.duration("us"))
    out = {}
    for name, rows in part.items():
        columns = {}
        for column in rows.column_names:
            values = rows[column]
            if pa.types.is_timestamp(values.type):
                values = pc.add(values.cast(pa.timestamp("us", "UTC")), later)
            elif column in NAMES:
                values = pc.binary_join_element_wise(values, pa.scalar(f"{seconds:+}"), "")
            elif column == "version_major" and version is not None:
                values = pc.if_else(pc.is_valid(values), pa.scalar(version, values.type), values)
            columns[column] = values
        out[name] = pa.table(columns)
    return out


def covered(lake):
    """The rows of coverage after an update, which equal those of a full count."""
    coverage.update(lake)
    rows = lake.read(COVERAGE).drop("run_id").toArrow().to_pylist()
    again = coverage.counted(lake, None).drop_columns(["run_id"]).to_pylist()
    assert sorted(rows, key=str) == sorted(again, key=str)
    return rows


def test_findings_and_coverage_follow_what_comes_and_goes(spark, tmp_path, project):
    sample = {n: read(next((project / "data" / "sample").glob(f"{n}-*"))) for n in ("03", "07", "10")}
    dependent = sample["03"]
    applications = names_of(dependent, "qmcomm")
    others = set(dependent["connections"]["connection_id"].to_pylist()) - applications
    world = World(spark, tmp_path / "lake")
    groups = set(sample["07"]["connections"]["connection_id"].to_pylist())
    one = min(groups)
    readers = of_connections(sample["10"], names_of(sample["10"], "RemoteRead"))

    world.add(readers)
    world.add(joined(of_connections(dependent, others), of_connections(sample["07"], {one})))
    first = world.follows()
    coverage.update(world.lake)
    # The openings of another connection name the queues of reads, and associations grow.
    world.add(joined(of_connections(dependent, applications), of_connections(sample["07"], groups - {one})))
    more = world.follows()
    assert first.num_rows < more.num_rows
    world.take(readers)
    world.follows()
    version = world.lake.version(FINDINGS)
    assert findings_update.update(world.lake) == 0
    assert world.lake.version(FINDINGS) == version

    rows = covered(world.lake)
    total = Counter()
    for row in rows:
        total[row["layer"], row["measure"]] += row["value"]
    calls = world.tables()["rpc_calls"]
    outcomes = Counter(calls["outcome"].to_pylist())
    assert total["rpc", "calls"] == len(calls)
    assert {name: total["rpc", f"calls_{name}"] for name in outcomes} == outcomes
    connections = world.tables()["connections"]
    assert total["transport", "connections"] == len(connections)
    assert total["transport", "bytes"] == sum(
        map(sum, zip(*(connections[f"{side}_bytes"].to_pylist() for side in ("client", "server")), strict=True))
    )
    assert total["message", "messages"] == len(world.tables()[str(MESSAGES)])
    assert total["stub", "decoded"] + total["stub", "undecoded"] == sum(
        len(world.tables()[str(table)]) for table in (REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS)
    )
    assert coverage.update(world.lake) == 0
    # What opens a queue names it for messages of other dates: they change, and no call of theirs does.
    world.lake.update(MESSAGES, {"queue": "NULL"}, "TRUE")
    unnamed = [row["value"] for row in covered(world.lake) if row["measure"] == "queue_unknown"]
    assert sum(unnamed) == total["message", "messages"]


@pytest.mark.parametrize("most", [200_000, -1], ids=["in memory", "in Spark"])
def test_what_one_association_opens_explains_others_that_were_there_then(spark, tmp_path, project, monkeypatch, most):
    """Openings come before, long after, at the same time within the clock tolerance, or with another version."""
    monkeypatch.setattr(findings_update, "_MAX_CALLS_IN_MEMORY", most)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", most)
    dependent = read(next((project / "data" / "sample").glob("03-*")))
    applications = names_of(dependent, "qmcomm")
    others = set(dependent["connections"]["connection_id"].to_pylist()) - applications
    readers, owners = of_connections(dependent, others), of_connections(dependent, applications)
    world = World(spark, tmp_path / "lake")
    world.add(readers)
    world.follows()
    for part in (
        moved(owners, 3600), moved(readers, 3600), moved(readers, -3600), moved(owners, 5), moved(readers, 8),
        moved(readers, 7200, version=7), moved(owners, -3600), moved(joined(readers, owners), 7205),
    ):  # fmt: skip
        world.add(part)
        world.follows()
    world.take(world.parts[6])
    world.follows()


def aged(tables):
    """The same, of a machine that reports Windows 2000: its queue properties are too new (M19)."""
    stubs = tables["rpc_calls"]["response_stub"]
    reported, old = (text.encode("utf-16-le") for text in ("Server, Test Peer", "Windows 2000 Test"))
    aged = pa.array([None if stub is None else stub.replace(reported, old) for stub in stubs.to_pylist()], pa.binary())
    place = tables["rpc_calls"].column_names.index("response_stub")
    return tables | {"rpc_calls": tables["rpc_calls"].set_column(place, "response_stub", aged)}


def never_ending(tables):
    """The same, of connections whose ends were not captured."""
    ends = tables["connections"]["closed_at"]
    place = tables["connections"].column_names.index("closed_at")
    return tables | {
        "connections": tables["connections"].set_column(place, "closed_at", pa.nulls(len(ends), ends.type))
    }


@pytest.mark.parametrize("most", [200_000, -1], ids=["in memory", "in Spark"])
@pytest.mark.parametrize("ends", [True, False], ids=["ended", "ongoing"])
def test_more_calls_of_associations_that_go_on(spark, tmp_path, project, monkeypatch, most, ends):
    """Single-call rules are evaluated once, with the stub's bytes; the others with all calls.

    Ongoing associations are evaluated with related calls first, and with all only where these show something new.
    """
    monkeypatch.setattr(findings_update, "_MAX_CALLS_IN_MEMORY", most)
    monkeypatch.setattr(lake_module, "MAX_ROWS_IN_MEMORY", most)
    results = []

    def spy(*args, **options):
        results.append(evaluate_ongoing_associations(*args, **options))
        return results[-1]

    monkeypatch.setattr(findings_update, "evaluate_ongoing_associations", spy)
    every = aged(joined(*(read(next((project / "data" / "sample").glob(f"{n}-*"))) for n in ("03", "04", "07", "09"))))
    every = every if ends else never_ending(every)
    calls = every["rpc_calls"]
    keys = calls.sort_by([("request_at", "ascending"), ("call_key", "ascending")])["call_key"].to_pylist()
    parts = [of_calls(every, keys[number::3]) for number in range(3)]
    parts[0] |= {name: every[name] for name in ("connections", "rpc_binds")}
    world = World(spark, tmp_path / "lake")
    for part in parts:
        world.add(part)
        found = world.follows()
    assert {"M02", "M11", "M19"} <= {*found["rule_id"].to_pylist()}
    assert not ends or {"R57", "Q18"} <= {*found["rule_id"].to_pylist()}
    assert any(each.unaffected_connections for each in results) != ends
    world.take(parts[1])
    world.follows()
    world.add(parts[1])
    world.follows()
