"""Relabelling of finished calls after a merge: by column, by call, and in the lake's table, with the same result."""

from datetime import UTC, datetime
from itertools import product

import pyarrow as pa
import pytest

from pipeline.bronze.across_captures.merge_changes import CHANGES_STORED, LABELS_SCHEMA, MEANINGS_SCHEMA, MergeChanges
from pipeline.bronze.across_captures.staged_rows import apply_connection_ids
from pipeline.bronze.across_captures.stored_rows import relabel_stored_rows
from pipeline.lake.engine.frames import arrow_to_frame
from pipeline.lake.lake import Lake
from schemas.bronze import RPC_CALLS
from udfs.capture.call_relabelling import drop_merged_calls, relabel_calls
from udfs.capture.capture_reader import BRONZE_SCHEMAS
from udfs.capture.merged_remainders import CONNECTION_LABELS_SCHEMA, PRESENTATION_CONTEXTS_SCHEMA

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
UUID = "1a9134dd-7b39-45ba-ad88-44d01ca47f28"
MEANINGS = [
    {
        "known": known, "bind_seen": seen, "interface_uuid": uuid, "interface_name": uuid and "RemoteRead",
        "transfer_syntax": uuid and "NDR", "auth_type": level and 10, "auth_level": level,
    }
    for known, seen, uuid, level in product((True, False), (True, False), (UUID, None), (6, None))
]  # fmt: skip
CALLS = [
    {
        "outcome": outcome, "closed_reason": reason, "auth_type": level and 9, "auth_level": level, "bind_seen": False,
        "interface_uuid": uuid, "interface_name": uuid and "qm2qm", "transfer_syntax": uuid and "NDR64",
    }
    for outcome, reason, level, uuid in product(
        ("ok", "unbound", "fault", None), ("no_handshake", "no_key", None), (2, None), (UUID, None)
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def case():
    """Calls of every kind, on connections with every label and meaning, and on some without."""
    labels, meanings, calls = [], [], []
    for ours, handshake, meaning in product((True, False), (True, False), (*MEANINGS, None)):
        name = {"capture_id": f"capture {len(labels) % 3}", "was_connection_id": f"was {len(labels)}"}
        rest = {"connection_id": f"now {len(labels)}", "ours": ours, "handshake": handshake, "together": False}
        labels.append(dict.fromkeys(CONNECTION_LABELS_SCHEMA.names) | name | rest)
        if meaning is not None:
            meanings.append({**name, "context_id": 1, **meaning})
    places = [(label["capture_id"], label["was_connection_id"]) for label in labels]
    places += [("another capture", "was 0"), ("capture 0", "another connection")]
    for (capture, connection), context, call in product(places, (1, 2, None), CALLS):
        nothing = dict.fromkeys(BRONZE_SCHEMAS["rpc_calls"].names) | {
            "request_at": NOON,
            "event_date": NOON.date(),
            "sightings": [],
        }
        name = {"call_key": str(len(calls)), "capture_id": capture, "connection_id": connection, "context_id": context}
        calls.append(nothing | name | call)
    return calls, labels, meanings


def learnt(call, labels, meanings):
    """The rule, call by call; None: the call is of another protocol."""
    label = labels.get((call["capture_id"], call["connection_id"]))
    if label is None:
        return call
    meaning = meanings.get((call["capture_id"], call["connection_id"], call["context_id"]))
    call = call | {"connection_id": label["connection_id"]}
    if call["closed_reason"] == "no_handshake" and label["handshake"]:
        call["closed_reason"] = "no_key"
    if meaning is None:
        return call if label["ours"] else None
    if not meaning["known"] or (not label["ours"] and meaning["interface_uuid"] is None):
        return None
    call |= {name: meaning[name] for name in ("interface_uuid", "interface_name", "transfer_syntax", "bind_seen")}
    if call["auth_level"] is None:
        call |= {name: meaning[name] for name in ("auth_type", "auth_level")}
    if call["outcome"] in ("unbound", "ok"):
        call["outcome"] = "ok" if meaning["bind_seen"] else "unbound"
    return call


@pytest.fixture(scope="module")
def expected(case):
    calls, labels, meanings = case
    by_name = {(label["capture_id"], label["was_connection_id"]): label for label in labels}
    by_context = {(each["capture_id"], each["was_connection_id"], each["context_id"]): each for each in meanings}
    found = [learnt(call, by_name, by_context) for call in calls]
    return [call for call in found if call is not None]


def batches(case):
    return [
        pa.RecordBatch.from_pylist(rows, schema)
        for rows, schema in zip(
            case, (BRONZE_SCHEMAS["rpc_calls"], CONNECTION_LABELS_SCHEMA, PRESENTATION_CONTEXTS_SCHEMA), strict=True
        )
    ]


def test_a_column_at_a_time_it_is_what_the_rule_says_call_by_call(case, expected):
    assert 0 < len(expected) < len(case[0])
    assert relabel_calls(*batches(case)).to_pylist() == expected


def test_calls_that_nothing_is_said_of_stay_as_they_are(case):
    calls, labels, meanings = batches(case)
    assert relabel_calls(calls, labels.slice(0, 0), meanings.slice(0, 0)).equals(calls)


def test_what_joining_made_anew_is_left_out_by_its_capture_and_its_key():
    rows = [{"capture_id": capture, "call_key": key} for capture, key in product("ab", "kl")]
    calls = pa.RecordBatch.from_pylist([dict.fromkeys(BRONZE_SCHEMAS["rpc_calls"].names) | row for row in rows])
    remade = pa.RecordBatch.from_pylist([{"capture_id": "a", "call_key": "l"}, {"capture_id": "b", "call_key": "k"}])
    left = drop_merged_calls(calls, remade)
    assert left.select(["capture_id", "call_key"]).to_pylist() == [rows[0], rows[3]]
    assert drop_merged_calls(calls, remade.slice(0, 0)).equals(calls)


def test_stray_bytes_of_this_run_take_their_connection_s_name_and_those_made_anew_are_left_out():
    places = [*product("ab", ("was 0", "was 1")), ("a", None)]
    strays = [
        dict.fromkeys(BRONZE_SCHEMAS["quarantine"].names)
        | {"quarantine_key": str(number), "capture_id": capture, "connection_id": connection}
        for number, (capture, connection) in enumerate(places)
    ]
    label = {"capture_id": "a", "was_connection_id": "was 1", "connection_id": "now", "ours": True, "handshake": True}
    changes = MergeChanges(
        labels=pa.Table.from_pylist([{**label, "together": False}], LABELS_SCHEMA),
        previous_connection_ids=pa.array(["was 1"]),
        replaced_quarantine_keys=pa.array(["2"]),
    )
    batch = pa.RecordBatch.from_pylist(strays, BRONZE_SCHEMAS["quarantine"])
    found = [row for named in apply_connection_ids(changes)([batch]) for row in named.to_pylist()]
    assert [(row["quarantine_key"], row["connection_id"]) for row in found] == [
        ("0", "was 0"), ("1", "now"), ("3", "was 1"), ("4", None),
    ]  # fmt: skip
    assert list(apply_connection_ids(MergeChanges())([batch])) == [batch]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("store", "rows_in_memory"),
    [("delta-rs", 1000), ("delta-rs", -1), ("spark", -1), pytest.param("spark", 1000, marks=pytest.mark.long)],
)
def test_the_lakes_table_learns_the_same(case, expected, spark, tmp_path, store, rows_in_memory, monkeypatch):
    """Where the rows are few, and where they are so many that tasks update them."""
    monkeypatch.setattr("pipeline.lake.lake.MAX_ROWS_IN_MEMORY", rows_in_memory)
    calls, labels, meanings = case
    tables = [
        pa.Table.from_pylist([{**row, CHANGES_STORED: True} for row in rows], schema)
        for rows, schema in ((labels, LABELS_SCHEMA), (meanings, MEANINGS_SCHEMA))
    ]
    changes = MergeChanges(labels=tables[0], meanings=tables[1], dates={NOON.date()})
    lake = Lake(spark, str(tmp_path), store=store)
    rows = arrow_to_frame(spark, pa.Table.from_pylist(calls, BRONZE_SCHEMAS["rpc_calls"]))
    lake.append(RPC_CALLS, rows.selectExpr("*", "'run' AS run_id", "current_timestamp() AS ingested_at"))
    relabel_stored_rows(lake, changes)
    found = lake.read(RPC_CALLS).select(*BRONZE_SCHEMAS["rpc_calls"].names).toArrow().to_pylist()
    assert sorted(found, key=lambda row: int(row["call_key"])) == expected
