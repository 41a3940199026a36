"""Queue aliases: evidence of every kind, and the choice of the canonical name."""

import datetime as dt
import random

import pyarrow as pa

from schemas.queue_aliases import QUEUE_ALIASES
from udfs.queues.alias_groups import (
    ALIAS_EVIDENCE_SCHEMA,
    alias_evidence_from_configuration,
    alias_evidence_from_opens,
    alias_evidence_from_responses,
    alias_evidence_from_snapshots,
    canonical_queues,
    canonicalize,
    queue_alias_rows,
)

GUID = "c1d2e3f4-0506-0708-090a-0b0c0d0e0f10"
CALL = pa.schema(
    {
        "interface_name": pa.string(), "opnum": pa.int32(), "queue_format_name": pa.string(), "queue": pa.string(),
        "remote_queue_name": pa.string(), "server_address": pa.string(), "queue_descriptor": pa.int64(),
        "context_handle": pa.string(), "hresult": pa.int64(), "call_key": pa.string(),
        "requested_at": pa.timestamp("us", tz="UTC"), "responded_at": pa.timestamp("us", tz="UTC"),
    }
)  # fmt: skip
SNAPSHOT = pa.schema(
    {
        "queue": pa.string(), "pathname": pa.string(), "formatname": pa.string(), "snapshot_id": pa.string(),
        "call_key": pa.string(), "observed_at": pa.timestamp("us", tz="UTC"),
    }
)  # fmt: skip


def at(second):
    return dt.datetime(2024, 5, 1, 12, 0, second, tzinfo=dt.UTC)


def calls(*rows):
    plain = {"server_address": "10.0.0.7", "hresult": 0, "call_key": "k", "responded_at": at(1)}
    return pa.Table.from_pylist([plain | row for row in rows], schema=CALL)


def snapshot(queue, path, name, second=0):
    row = {"queue": queue, "pathname": path, "formatname": name, "snapshot_id": "s", "observed_at": at(second)}
    return alias_evidence_from_snapshots(pa.Table.from_pylist([row], schema=SNAPSHOT))


def pairs(evidence):
    assert evidence.schema == ALIAS_EVIDENCE_SCHEMA
    found = {(row["queue"], row["other_queue"]) for row in evidence.to_pylist()}
    assert found == {(other, queue) for queue, other in found}
    return {tuple(sorted(pair)) for pair in found}


def test_a_snapshot_binds_path_name_format_name_and_the_object_asked():
    evidence = snapshot("10.0.0.7\\private$\\q", "Srv1\\private$\\Q", f"PRIVATE={GUID}\\9")
    numbered = f"{GUID}\\00000009"
    assert pairs(evidence) == {
        tuple(sorted(pair))
        for pair in [
            ("srv1\\private$\\q", numbered), ("srv1\\private$\\q", "10.0.0.7\\private$\\q"),
            ("10.0.0.7\\private$\\q", numbered),
        ]
    }  # fmt: skip
    assert {row["named_as"] for row in evidence.to_pylist() if row["queue"] == "srv1\\private$\\q"} == {"path_name"}
    # A FORMATNAME that is a path name (D21), an answer without names, a queue relative to who knows which machine.
    assert pairs(snapshot("h\\q", None, "H.example\\q")) == {("h.example\\q", "h\\q")}
    assert pairs(snapshot("h\\q", None, None)) == set()
    assert pairs(snapshot("h\\q", ".\\q", None)) == set()


def test_a_journal_binds_the_queues_that_it_belongs_to():
    assert pairs(snapshot("10.0.0.7\\q;journal", "srv1\\q;journal", None)) == {("10.0.0.7\\q", "srv1\\q")}
    assert pairs(snapshot("10.0.0.7\\q;journal", "srv1\\q", None)) == {("10.0.0.7\\q", "srv1\\q")}
    assert pairs(snapshot("10.0.0.7\\q;journal", "srv1\\q;sub", None)) == set()


def test_a_direct_name_opened_on_an_address():
    opened = {"interface_name": "RemoteRead", "opnum": 2, "queue_format_name": "DIRECT=OS:Srv1\\q", "queue": "srv1\\q",
              "context_handle": "00"}  # fmt: skip
    assert pairs(alias_evidence_from_opens(calls(opened))) == {("10.0.0.7\\q", "srv1\\q")}
    assert pairs(alias_evidence_from_opens(calls(opened | {"interface_name": "qmcomm"}))) == {
        ("10.0.0.7\\q", "srv1\\q")
    }
    refused = opened | {"context_handle": None}
    elsewhere = opened | {"interface_name": "qmcomm", "opnum": 19}  # asks a supporting server, not the owner
    same = opened | {"queue": "10.0.0.7\\q", "queue_format_name": "DIRECT=TCP:10.0.0.7\\q"}
    http = opened | {"queue": "direct=http://srv1/q", "queue_format_name": "DIRECT=http://srv1/q"}
    private = opened | {"queue": f"{GUID}\\00000009", "queue_format_name": f"PRIVATE={GUID}\\9"}
    assert pairs(alias_evidence_from_opens(calls(refused, elsewhere, same, http, private))) == set()


def test_the_name_answered_with_the_queue_asked_for():
    asked = {"interface_name": "qmcomm", "opnum": 19, "queue": f"public={GUID}"}
    answered = calls(asked | {"remote_queue_name": "Srv1\\Orders"}, asked)
    assert pairs(alias_evidence_from_responses(answered)) == {(f"public={GUID}", "srv1\\orders")}


def test_the_name_answered_to_a_number_is_that_of_the_queue_with_this_number():
    """Through the cursor, as specified, and through R_QMOpenRemoteQueue; the latest before the request."""
    name = {"interface_name": "qmcomm", "opnum": 1, "remote_queue_name": "Srv1\\Orders", "queue": "srv1\\orders"}
    evidence = alias_evidence_from_responses(
        calls(
            {"interface_name": "qmcomm", "opnum": 19, "queue": f"public={GUID}", "context_handle": "aa",
             "responded_at": at(1)},
            {"interface_name": "qmcomm2", "opnum": 3, "context_handle": "aa", "queue_descriptor": 5,
             "responded_at": at(2)},
            name | {"queue_descriptor": 5, "responded_at": at(3)},
            {"interface_name": "qmcomm", "opnum": 2, "queue": "10.0.0.7\\orders", "queue_descriptor": 6,
             "responded_at": at(4)},
            {"interface_name": "qmcomm", "opnum": 2, "queue": "later\\orders", "queue_descriptor": 6,
             "responded_at": at(6)},
            name | {"queue_descriptor": 6, "responded_at": at(5)},
            name | {"queue_descriptor": 7},
            name | {"queue_descriptor": 6, "hresult": 0xC00E0001},
            name | {"queue_descriptor": 6, "server_address": "10.0.0.8"},
        )
    )  # fmt: skip
    assert pairs(evidence) == {(f"public={GUID}", "srv1\\orders"), ("10.0.0.7\\orders", "srv1\\orders")}


def canonical(*evidence):
    table = pa.concat_tables(evidence)
    rows = table.to_pylist()
    out = canonical_queues(table)
    for _ in range(3):  # whatever the order
        random.Random(7).shuffle(rows)
        assert canonical_queues(pa.Table.from_pylist(rows, schema=ALIAS_EVIDENCE_SCHEMA)) == out
    return dict(zip(*(out.column(name).to_pylist() for name in out.column_names), strict=True))


def test_of_a_group_the_path_name_shown_first_stands_for_all():
    numbered, public = f"{GUID}\\00000009", f"public={GUID}"
    opens = alias_evidence_from_configuration(
        [("DIRECT=OS:host\\q", "DIRECT=TCP:10.0.0.7\\q"), ("DIRECT=TCP:10.0.0.7\\q", public)]
    )
    group = {"host\\q", "10.0.0.7\\q", public}
    assert canonical(opens) == dict.fromkeys(group, "host\\q")
    later = snapshot(public, "zz\\q", f"PRIVATE={GUID}\\9", 5)
    first = snapshot(numbered, "yy\\q", None, 4)
    assert canonical(opens, later) == dict.fromkeys(group | {"zz\\q", numbered}, "zz\\q")
    assert set(canonical(opens, later, first).values()) == {"yy\\q"}
    addresses = alias_evidence_from_configuration([("DIRECT=TCP:10.0.0.7\\q", public), (public, f"PRIVATE={GUID}\\9")])
    assert set(canonical(addresses).values()) == {"10.0.0.7\\q"}
    anything = alias_evidence_from_configuration([(public, f"PRIVATE={GUID}\\9")])
    assert set(canonical(anything).values()) == {numbered}


def test_journals_and_subqueues_follow_their_queue():
    groups = canonical_queues(alias_evidence_from_configuration([("DIRECT=OS:host\\q", f"PUBLIC={GUID}")]))
    queues = [f"public={GUID};journal", f"public={GUID}", "host\\q;sub", "other\\q;journal", None, ""]
    assert canonicalize(pa.array(queues), groups).to_pylist() == [
        "host\\q;journal", "host\\q", "host\\q;sub", "other\\q;journal", None, "",
    ]  # fmt: skip


def test_evidence_with_its_canonical_text_makes_rows_of_the_table():
    evidence = alias_evidence_from_configuration([("DIRECT=OS:host\\q", f"PUBLIC={GUID}")])
    rows = queue_alias_rows(evidence)
    assert set(rows.column_names) <= set(QUEUE_ALIASES.names)
    assert rows.column("canonical_queue").to_pylist() == ["host\\q", "host\\q"]
    assert queue_alias_rows(evidence.slice(0, 0)).num_rows == 0


def test_long_chains_are_one_group_in_no_time():
    names = [(f"DIRECT=OS:h{number:05}\\q", f"DIRECT=OS:h{number + 1:05}\\q") for number in range(20_000)]
    assert set(canonical(alias_evidence_from_configuration(names)).values()) == {"h00000\\q"}
