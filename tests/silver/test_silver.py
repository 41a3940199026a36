"""Decoding a batch of calls to all silver tables, and updating the tables from bronze."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from attempts.test_tables import HANDLE, call, stubs
from comqc.helpers import IID, MARKER, chdr, message, method, secd
from messages.building import Packet
from messages.test_sections import cut
from pipeline import concurrency
from pipeline.lake.lake import Lake
from pipeline.silver import update as silver_update
from pipeline.silver.decode import (
    CALL_INPUT_COLUMNS,
    DECODED_TABLES,
    DEFAULT_SETTINGS,
    DecodeSettings,
    decode_calls,
)
from schemas.bronze import RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import PROPERTIES
from tests.support.lakes import versions_text
from udfs.capture.capture_reader import read_capture
from udfs.comqc.declared_interfaces import Declarations, DeclaredInterface, DeclaredMethod, DeclaredParameter
from udfs.keys import key

SAMPLES = ("03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng", "07-faults-cancels-groups.pcap")
SCHEMA = RPC_CALLS.schema()
BODY = message(chdr(), secd(), method(b"abcdefg", iid=IID), method(b"", iid=None, opnum=7))


def received(name, packet, parts=None, **more):
    """A call that returned a message; ``parts`` are kind, bytes and allocated bytes of its sections."""
    parts, at = parts or [(0, len(packet), len(packet))], 0
    sections = []
    for kind, size, most in parts:
        data, at = packet[at : at + size], at + size
        given = {"SectionBufferType": kind, "SectionSizeAlloc": most, "SectionSize": size, "pSectionBuffer": data}
        sections.append(given)
    return call(name, 7, 1, 2, **stubs(
        "R_StartReceive",
        {"phContext": HANDLE, "LookupId": 0, "hCursor": 0, "ulAction": 0, "ulTimeout": 5000, "dwRequestId": 7,
         "dwMaxBodySize": 8, "dwMaxCompoundMessageSize": 9},
        {"pdwArriveTime": 1715990000, "pSequenceId": (9 << 56) + 41, "pdwNumberOfSections": len(parts),
         "ppPacketSections": sections, "return": 0},
    ), **more)  # fmt: skip


def batch(*rows):
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in SCHEMA.names} for row in rows], SCHEMA)


def made(*rows, **settings):
    return {
        name.split(".")[1]: rows.to_pylist()
        for name, rows in decode_calls(batch(*rows).select(CALL_INPUT_COLUMNS), DecodeSettings(**settings)).items()
    }


def test_a_message_and_what_a_component_recorded_in_it():
    packet = Packet(body=BODY, extension=MARKER).bytes()
    found = made(received("one", packet), call("epm", 3, 1, 2, "epm"))
    (row,), (read,) = found["messages"], found["remote_read_calls"]
    assert (row["sighting_key"], row["call_key"], row["seen_in"]) == (key("one"), "one", "RemoteRead")
    assert (row["seen_at"], row["event_date"]) == (read["responded_at"], read["responded_at"].date())
    assert row["event_date"] != read["requested_at"].date()  # the story begins just before midnight
    assert (row["lookup_id"], row["is_comqc"], row["comqc_rejected"], row["errors"]) == (41, True, None, [])
    assert (row["body"], read["packet"]) == (None, None)
    recorded = found["comqc_calls"]
    handed = ("sighting_key", "message_key", "call_key", "seen_at", "event_date", "run_id")
    assert [{name: one[name] for name in handed} for one in recorded] == [{name: row[name] for name in handed}] * 2
    assert [(one["call_index"], one["header"], one["interface_id"]) for one in recorded] == [
        (0, "METH", str(IID)),
        (1, "SMTH", str(IID)),
    ]
    assert [one["marshaled"] for one in recorded] == [None, None]

    kept = made(received("one", packet), packets=True, bodies=True)
    assert kept["remote_read_calls"] == [read | {"packet": packet}]
    assert kept["messages"] == [row | {"body": BODY}]
    assert [one["marshaled"] for one in kept["comqc_calls"]] == [b"abcdefg", b""]


def test_components_messages_that_are_encrypted_cut_short_or_to_be_rejected():
    whole = Packet(body=BODY, extension=MARKER)
    secret = Packet(body=BODY, extension=MARKER, security=(0x20, (b"",) * 5))
    wrong = Packet(body=b"CHDR" + BODY[4:60], extension=MARKER)
    plain = Packet(body=BODY)
    short, parts = cut(whole, len(BODY) - 20, b"")
    packets = {"secret": secret.bytes(), "wrong": wrong.bytes(), "plain": plain.bytes()}
    for bodies in (False, True):
        found = made(received("short", short, parts), *(received(*each) for each in packets.items()), bodies=bodies)
        rows = {row["call_key"]: row for row in found["messages"]}
        assert [one["call_key"] for one in found["comqc_calls"]] == ["short"]
        assert [error["code"] for error in rows["short"]["errors"]] == ["truncated"]
        assert (rows["short"]["comqc_rejected"], rows["short"]["body_complete"]) == (None, False)
        assert (rows["secret"]["encrypted"], rows["secret"]["is_comqc"]) == (True, True)
        assert rows["wrong"]["comqc_rejected"].startswith("[MC-COMQC]")
        assert {rows[name]["comqc_rejected"] for name in ("secret", "plain")} == {None}


def test_no_calls_give_no_rows():
    assert {len(rows) for rows in made().values()} == {0}


def sample(project):
    """Calls of some sample captures, as bronze has them, and two that return messages of queued components."""
    tables = []
    for name in SAMPLES:
        table = read_capture(str(project / "data" / "sample" / name))["rpc_calls"]
        columns = [
            table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
            for f in SCHEMA
        ]
        tables.append(pa.table(columns, schema=SCHEMA))
    components = Packet(body=BODY, extension=MARKER).bytes()
    more = pa.Table.from_batches([batch(received("component", components), received("another", components))])
    return pa.concat_tables([*tables, more]).drop_columns(["event_date"])


@pytest.fixture
def follow(spark, tmp_path, project):
    return SilverLake(Lake(spark, str(tmp_path / "lake")), sample(project))


class SilverLake:
    """A lake with calls of the sample in bronze, and the rows expected in silver."""

    def __init__(self, lake, calls):
        self.lake, self.calls = lake, calls

    def add(self, calls):
        self.lake.append(RPC_CALLS, self.lake.spark.createDataFrame(calls))

    def run(self, settings=DEFAULT_SETTINGS, *, keep_stubs=True):
        return silver_update.update(self.lake, settings, keep_stubs=keep_stubs)

    def versions(self):
        return versions_text(self.lake, *DECODED_TABLES)

    def expected(self, settings=DEFAULT_SETTINGS):
        (calls,) = self.lake.select(RPC_CALLS, "TRUE").combine_chunks().to_batches()
        return {name: plain(rows) for name, rows in decode_calls(calls, settings).items()}

    def found(self):
        return {str(table): plain(self.lake.select(table, "TRUE")) for table in DECODED_TABLES}


def plain(rows):
    return sorted(rows.to_pylist(), key=str)


@pytest.mark.long
@pytest.mark.spark
def test_the_tables_follow_the_calls_also_when_a_run_is_killed_between_them(follow, monkeypatch):
    lake, calls = follow.lake, follow.calls
    half = pa.array([number % 2 == 0 for number in range(len(calls))])
    follow.add(calls.filter(half))
    written = follow.run()
    expected = follow.expected()
    assert follow.found() == expected
    assert written == {name: len(rows) for name, rows in expected.items()}
    assert all(written.values())
    versions = follow.versions()
    assert set(follow.run().values()) == {0}
    assert follow.versions() == versions

    # Calls are added, changed and deleted; the run is killed when some tables are done.
    follow.add(calls.filter(pc.invert(half)))
    changed = pc.is_in(calls.column("call_key"), calls.filter(half).column("call_key").take(pa.array(range(0, 60, 7))))
    lake.update(RPC_CALLS, {"response_at": "response_at + INTERVAL 1 DAY"}, f"call_key IN {_named(calls, changed)}")
    lake.delete(RPC_CALLS, "call_key = 'component'")

    with monkeypatch.context() as patch:
        patch.setattr(concurrency, "_MAX_THREADS", 1)
        patch.setattr(Lake, "delete_and_insert", _raising_at(Lake.delete_and_insert, MESSAGES))
        with pytest.raises(KeyboardInterrupt):
            follow.run()
    counted = {str(table): lake.read(table).count() for table in DECODED_TABLES}
    done = {name for name, rows in follow.expected().items() if counted[name] == len(rows)}
    assert done  # some tables are up to date
    assert {str(MESSAGES), str(REMOTE_READ_CALLS)}.isdisjoint(done)
    lake.spark.sql(f"OPTIMIZE {lake.sql_name(PROPERTIES)}")  # by another client: the provenance is in an earlier commit
    lake.delete(RPC_CALLS, "opnum = 0 AND interface_name = 'qmmgmt' AND call_id % 2 = 0")
    follow.run()
    assert follow.found() == follow.expected()
    versions = follow.versions()
    assert set(follow.run().values()) == {0}
    assert follow.versions() == versions


@pytest.mark.spark
def test_other_declarations_of_methods_decode_all_calls_again(spark, tmp_path):
    components = pa.Table.from_batches([batch(received("component", Packet(body=BODY, extension=MARKER).bytes()))])
    follow = SilverLake(Lake(spark, str(tmp_path / "lake")), components)
    follow.add(components.drop_columns(["event_date"]))
    follow.run()
    before = follow.found()
    parameters = (DeclaredParameter("first", 0x12), DeclaredParameter("second", 3))
    declarations = Declarations({str(IID): DeclaredInterface("IOrders", {6: DeclaredMethod("Place", parameters)})}, {})
    settings = DecodeSettings(declarations=declarations)
    follow.run(settings)
    assert follow.found() == follow.expected(settings) != before
    placed = follow.lake.read(COMQC_CALLS).where("method = 'Place'").first()
    assert (placed.argument_names, [each.value for each in placed.arguments]) == (["first", "second"], ["25185", None])
    assert [(error.code, error.field) for error in placed.errors] == [("truncated", "second")]
    versions = follow.versions()
    assert set(follow.run(settings).values()) == {0}
    assert follow.versions() == versions
    follow.run()
    assert follow.found() == before


def _named(calls, chosen):
    return "('" + "', '".join(calls.filter(chosen).column("call_key").to_pylist()) + "')"


def _raising_at(write, at):
    def raising(lake, table, *rest, **options):
        if table is at:
            raise KeyboardInterrupt
        return write(lake, table, *rest, **options)

    return raising


@pytest.mark.spark
@pytest.mark.long
def test_rows_of_calls_whose_stubs_were_emptied_stay(follow):
    lake, calls = follow.lake, follow.calls
    follow.add(calls)
    everything = follow.expected()
    follow.run(keep_stubs=False)
    assert lake.read(RPC_CALLS).where("request_stub IS NOT NULL OR response_stub IS NOT NULL").count() == 0
    assert follow.found() == everything
    # One capture changes a connection; another removes a call.
    lake.update(RPC_CALLS, {"connection_id": "'joined'"}, "call_key = 'another'")
    lake.delete(RPC_CALLS, "call_key = 'component'")
    follow.run(keep_stubs=False)
    for table in DECODED_TABLES:
        rows = [row for row in everything[str(table)] if row["call_key"] != "component"]
        if table is REMOTE_READ_CALLS:
            rows = [row | {"connection_id": "joined"} if row["call_key"] == "another" else row for row in rows]
        assert plain(lake.select(table, "TRUE")) == sorted(rows, key=str), table
    # Recomputed from calls without stubs.
    before = follow.found()
    lake.replace(REMOTE_READ_CALLS, lake.read(REMOTE_READ_CALLS), provenance="something else")
    follow.run()
    assert follow.found() == before
    assert lake.read(COMQC_CALLS).select(F.countDistinct("call_key")).first()[0] == 1
