"""The console summary: the text for given counts, and the counts of a lake's tables."""

import pyarrow as pa
import pytest

from attempts.test_tables import ATTEMPTS, CONNECTED, END, OPEN, OTHERS, START, at, frame
from engines import without_spark
from pipeline.lake.lake import Lake
from pipeline.lake.queries.inputs import ChangesSince
from pipeline.reports.summary import SummaryCount, console_summary, format_summary, read_counts
from reports.questions.in_memory_lake import rows
from schemas.ack_sequences import ACK_SEQUENCES
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, QUARANTINE, RPC_CALLS
from schemas.calls import CLIENT_CALLS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import QUEUE_SNAPSHOTS

COUNTS = [
    SummaryCount("file", "complete", "", "", 2),
    SummaryCount("file", "partial", "", "", 1),
    SummaryCount("packet", "packets", "", "", 1234567),
    SummaryCount("packet", "packets_used", "", "", 1234000),
    SummaryCount("packet", "packets_other", "", "", 567),
    SummaryCount("packet", "packets_damaged", "", "", 0),
    SummaryCount("call", "RemoteRead", "7", "fault", 1),
    SummaryCount("call", "RemoteRead", "7", "ok", 40),
    SummaryCount("call", "RemoteRead", "13", "no_response", 2),
    SummaryCount("call", "RemoteRead", "99", "fault", 1),
    SummaryCount("call", "RemoteRead", "", "no_request", 1),
    SummaryCount("call", "epm", "3", "ok", 1),
    SummaryCount("message", "", "MQMSG_CLASS_NORMAL", "", 39),
    SummaryCount("message", "", "", "", 1),
    SummaryCount("message", "", "MQMSG_CLASS_ACK_RECEIVE", "", 1200),
    SummaryCount("decoded", "client calls", "", "", 3),
    SummaryCount("decoded", "COMQC calls", "", "", 2),
    SummaryCount("decoded", "queue snapshots", "wire", "", 20),
    SummaryCount("decoded", "queue snapshots", "collector", "", 30),
    SummaryCount("decoded", "machine snapshots", "wire", "", 0),
    SummaryCount("attempt", "RemoteRead", "", "in_flight", 2),
    SummaryCount("attempt", "RemoteRead", "", "acked", 40),
    SummaryCount("attempt", "RemoteRead", "", "some_new_outcome", 1),
    SummaryCount("sequence", "", "", "consumed", 1030),
    SummaryCount("sequence", "poison", "", "returned", 2),
    SummaryCount("sequence", "read_twice", "", "consumed", 1),
    SummaryCount("sequence", "poison", "", "consumed", 1),
    SummaryCount("transfer", "", "", "stalled", 2),
    SummaryCount("transfer", "", "", "", 1),
    SummaryCount("transfer", "", "", "flowing", 30),
    SummaryCount("observation", "wire", "", "", 400),
    SummaryCount("observation", "collector", "", "", 1500),
    SummaryCount("byte", "payload", "", "", 10000),
    SummaryCount("byte", "quarantined", "", "", 25),
    SummaryCount("byte", "missing", "", "", 1460),
]
TEXT = """\
run       captures 3, seconds 4.2
files     3: complete 2, partial 1
packets   1 234 000 of MSMQ RPC, 567 other; 1 234 567 packets in all
calls     46
  RemoteRead                                       45
    (opnum not seen)                                1  no_request 1
    R_StartReceive                                 41  ok 40, fault 1
    R_StartTransactionalReceive                     2  no_response 2
    opnum 99                                        1  fault 1
  epm                                               1
    ept_map                                         1  ok 1
messages  1 240 seen: MQMSG_CLASS_ACK_RECEIVE 1 200, MQMSG_CLASS_NORMAL 39, (class not seen) 1
decoded   2 COMQC calls, 30 queue snapshots by collector, 20 queue snapshots by wire, 3 client calls
attempts  43 to receive or peek
  RemoteRead                                       43  acked 40, in_flight 2, some_new_outcome 1
read      1 034 messages: consumed 1 032, returned 2
at risk   4 of them: read_twice 1, poison 3
transfers 33: flowing 30, stalled 2, unknown 1 (observations: collector 1 500, wire 400)
bytes             10 000 payload bytes captured on MSMQ connections (99.75% in PDUs and packets)
                      25 of them in quarantine
                   1 460 bytes missing from the captures
                       0 retransmitted bytes"""
EMPTY = """\
files     0
packets   0
calls     0
attempts  0 to receive or peek
bytes                  0 payload bytes captured on MSMQ connections
                       0 of them in quarantine
                       0 bytes missing from the captures
                       0 retransmitted bytes"""


def test_the_text_of_given_numbers():
    run = {"captures": 3, "seconds": 4.2}
    assert format_summary(COUNTS, run) == TEXT
    assert format_summary(reversed(COUNTS), run) == TEXT
    assert format_summary([]) == EMPTY


def test_calls_on_refused_contexts_are_of_an_interface_that_is_not_known():
    lines = format_summary([SummaryCount("call", "", "0", "fault", 1)]).splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("  (interface not known)  "))
    assert lines[place + 1].split() == ["opnum", "0", "1", "fault", "1"]


@pytest.mark.spark
def test_a_lake_is_counted(spark, tmp_path):
    lake = Lake(spark, str(tmp_path))
    assert console_summary(lake) == EMPTY
    calls = frame(spark, RPC_CALLS, [OPEN, START, END, *OTHERS])
    connections = frame(spark, CONNECTIONS, [row | {"client_bytes": 50} for row in CONNECTED])
    lake.append(RPC_CALLS, calls)
    lake.append(CONNECTIONS, connections)
    seen = [{"sighting_key": str(n), "class_name": name, "seen_at": at(0)} for n, name in enumerate(["A", "B", "A"])]
    lake.append(MESSAGES, frame(spark, MESSAGES, seen))
    lake.append(CLIENT_CALLS, frame(spark, CLIENT_CALLS, [{"call_key": "c", "requested_at": at(0)}]))
    lake.append(RECEIVE_ATTEMPTS, frame(spark, RECEIVE_ATTEMPTS, ATTEMPTS))
    read = [{"sequence_key": str(n), "fate": "held", "loss_risk": risk} for n, risk in enumerate(["poison", None])]
    lake.append(ACK_SEQUENCES, frame(spark, ACK_SEQUENCES, read))
    files = [{"capture_id": "one", "status": "complete", "packets": 9, "packets_used": 7, "packets_other": 2},
             {"capture_id": "two", "status": "unreadable", "packets": 0}]  # fmt: skip
    lake.append(CAPTURE_FILES, frame(spark, CAPTURE_FILES, files))
    bad = [{"quarantine_key": str(n), "connection_id": name, "size_bytes": 5, "seen_at": at(0)}
           for n, name in enumerate(["c1", "c1", None])]  # fmt: skip
    lake.append(QUARANTINE, frame(spark, QUARANTINE, bad))
    assert {count for count in read_counts(lake) if count.value} == {
        SummaryCount("file", "complete", "", "", 1),
        SummaryCount("file", "unreadable", "", "", 1),
        SummaryCount("packet", "packets", "", "", 9),
        SummaryCount("packet", "packets_used", "", "", 7),
        SummaryCount("packet", "packets_other", "", "", 2),
        SummaryCount("call", "RemoteRead", "2", "ok", 1),
        SummaryCount("call", "RemoteRead", "7", "ok", 1),
        SummaryCount("call", "RemoteRead", "7", "damaged", 1),
        SummaryCount("call", "RemoteRead", "7", "encrypted", 1),
        SummaryCount("call", "RemoteRead", "9", "ok", 1),
        SummaryCount("call", "qm2qm", "0", "fault", 1),
        SummaryCount("call", "qmmgmt", "0", "ok", 1),
        SummaryCount("message", "", "A", "", 2),
        SummaryCount("message", "", "B", "", 1),
        SummaryCount("decoded", "client calls", "", "", 1),
        SummaryCount("attempt", "RemoteRead", "", "acked", 1),
        SummaryCount("attempt", "RemoteRead", "", "in_flight", 1),
        SummaryCount("attempt", "RemoteRead", "", "unknown", 1),
        SummaryCount("attempt", "qm2qm", "", "failed", 1),
        SummaryCount("sequence", "poison", "", "held", 1),
        SummaryCount("sequence", "", "", "held", 1),
        SummaryCount("byte", "payload", "", "", 600),
        SummaryCount("byte", "quarantined", "", "", 10),
    }


@pytest.mark.spark
def test_what_did_not_change_is_not_counted_again(spark, tmp_path, monkeypatch):
    lake, queried = Lake(spark, str(tmp_path)), []
    files = [{"capture_id": "one", "status": "complete", "packets": 9}]
    lake.append(CAPTURE_FILES, frame(spark, CAPTURE_FILES, files))
    bad = {"quarantine_key": "1", "connection_id": "c1", "size_bytes": 5, "seen_at": at(0)}
    lake.append(QUARANTINE, frame(spark, QUARANTINE, [bad]))
    first = console_summary(lake)
    query = Lake.query
    monkeypatch.setattr(Lake, "query", lambda self, sql, rows: queried.append(rows) or query(self, sql, rows=rows))
    assert console_summary(lake) == first
    assert queried == []
    lake.append(QUARANTINE, frame(spark, QUARANTINE, [bad | {"quarantine_key": "2"}]))
    assert SummaryCount("byte", "quarantined", "", "", 10) in read_counts(lake)
    assert queried == [ChangesSince(QUARANTINE, 1, 2)]
    (tmp_path / "_runs" / "summary").write_text('{"format": 4, "tables": [')
    assert SummaryCount("byte", "quarantined", "", "", 10) in read_counts(lake)
    assert set(queried[1:]) == {QUARANTINE, CAPTURE_FILES}


def sized(table, name, text, size):
    """A row of a table with a text and a number in all columns that are counted."""
    texts = dict.fromkeys(("source", "class_name", "outcome", "status", "protocol", "interface_name"), text)
    sizes = dict.fromkeys(("packets", "size_bytes", "client_bytes", "server_bytes", "missing_bytes", "opnum"), size)
    row = {**texts, **sizes, table.key[0]: name, "connection_id": name, "kind": "rpc"}
    return rows(table, {column: value for column, value in row.items() if column in table.names})


def test_counts_of_before_and_of_what_changed_are_those_of_all_rows(tmp_path, monkeypatch):
    lake, queried = Lake(without_spark(), str(tmp_path)), []
    query = Lake.query
    monkeypatch.setattr(Lake, "query", lambda self, sql, rows: queried.append(rows) or query(self, sql, rows=rows))
    tables = (CAPTURE_FILES, MESSAGES, RPC_CALLS, CONNECTIONS, QUARANTINE, QUEUE_SNAPSHOTS, RECEIVE_ATTEMPTS)
    for table in tables:
        lake.append(table, pa.concat_tables([sized(table, "1", "a", 1), sized(table, "2", "a", 2)]))
    read_counts(lake)
    for name, text, size in (("3", None, None), ("1", "b", 5), ("2", None, 3), ("1", "a", 1)):
        queried.clear()
        for table in tables:
            key = table.key[0]
            lake.delete_and_insert(table, key, {name}, sized(table, name, text, size), dates=None)
            lake.delete_values(table, key, {"3"} - {name}, dates=None)
        found = read_counts(lake)
        assert {type(source) for source in queried} == {ChangesSince}
        (lake.folder / "_runs" / "summary").remove_file()
        assert sorted(found) == sorted(read_counts(lake))
