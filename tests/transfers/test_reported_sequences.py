"""O08: what queue managers report of sequences against what was captured of them."""

import json
from decimal import Decimal

import pyarrow as pa
import pytest

from engines import without_spark
from pipeline.findings import update_reported_sequences
from pipeline.lake.lake import Lake
from pipeline.transfers.sequences import update_sequences
from schemas.eod import EOD_SOURCES, EOD_TRANSFERS
from schemas.findings import FINDINGS
from schemas.queue_history import QUEUE_HISTORY
from transfers.silver_exchange import GUIDS, Connection, Exchange, Packet, S, moment

ONE, TWO, THREE = GUIDS
SEQUENCE = 7 << 32 | 1
MINUTES = 60 * S


@pytest.fixture
def lake(tmp_path):
    return Lake(without_spark(), str(tmp_path / "lake"))


def packet(by, at, number, connection, **more):
    said = {"source": GUIDS[ONE], "destination": GUIDS[TWO], "previous": number - 1}
    if by == "server":
        said = {"is_ack": True, "queue_manager": GUIDS[TWO], "acknowledged_queue_manager": GUIDS[ONE]}
    return Packet(connection, by, round(at * MINUTES), 1000 * number, SEQUENCE, number, **{**said, **more})


def exchange(*, sent=((1, 1), (2, 2)), acked=((3, 1),), **more):
    """Numbers that the client sent, and the server acknowledged, with their times in minutes."""
    connection = Connection("one", ONE, TWO, 0)
    packets = [packet("client", at, number, connection, **more) for at, number in sent]
    packets += [packet("server", at, number, connection) for at, number in acked]
    return Exchange(packets, [connection], {TWO: 100 * MINUTES})


def sender_says(at, *, following=3, first=None, sequence=SEQUENCE, manager=ONE, queue=r"srv\q"):
    return EOD_TRANSFERS, {
        "snapshot_id": f"s{at}{queue}", "queue": queue, "queue_manager": manager, "source": "collector",
        "observed_at": moment(round(at * MINUTES)), "sequence_id": Decimal(sequence), "next_number": following,
        "first_unacked_number": first,
    }  # fmt: skip


def receiver_says(at, *, last=1, sender=GUIDS[ONE], manager=TWO):
    return EOD_SOURCES, {
        "source_key": f"r{at}", "snapshot_id": f"r{at}", "queue": r"srv\q", "queue_manager": manager,
        "source": "collector", "observed_at": moment(round(at * MINUTES)), "sender_queue_manager": sender,
        "sequence_id": Decimal(SEQUENCE), "last_number": last,
    }  # fmt: skip


def load(lake, table, rows):
    current = lake.select(table, "TRUE") if lake.exists(table) else rows.slice(0, 0)
    dates = {*rows["event_date"].to_pylist(), *current["event_date"].to_pylist()}
    lake.replace_changed(table, rows, current, dates=dates)


def found(lake, of_wire, *reports, session_acknowledged=True):
    numbers = {"session_number": 1 if session_acknowledged else None, "server_unacknowledged": 0}
    for table, rows in of_wire.rows().items():
        filled = rows
        for name, value in numbers.items():
            if name in rows.column_names:
                column = pa.array([value] * rows.num_rows, pa.int64())
                filled = filled.set_column(rows.column_names.index(name), name, column)
        load(lake, table, filled)
    for table in (EOD_TRANSFERS, EOD_SOURCES):
        ours = [row | {"event_date": row["observed_at"].date()} for each, row in reports if each is table]
        load(lake, table, pa.Table.from_pylist(ours, table.schema()))
    update_sequences.update(lake, "run")
    update_reported_sequences.update(lake, "run")
    rows = lake.select(FINDINGS, "TRUE").to_pylist()
    assert {(row["rule_id"], row["severity"], row["scope"]) for row in rows} <= {("O08", "warning", "sequence")}
    return sorted((row["subject"].rpartition(" ")[2], row["actual"]) for row in rows)


SENT = (ONE, "next number 2, after number 2 was sent")
ACKED = (ONE, "number 1 not acknowledged, after an order ack of 1 was taken")
TAKEN = (TWO, "last number 0, after it acknowledged 1")


@pytest.mark.parametrize(
    ("report", "findings"),
    [
        (sender_says(7, following=2), [SENT]),
        (sender_says(6.9, following=2), []),
        (sender_says(60, following=3), []),
        (sender_says(60, following=None), []),
        (sender_says(60, following=2, manager=THREE), []),
        (sender_says(60, following=2, sequence=SEQUENCE + 1), []),
        (sender_says(8, first=1), [ACKED]),
        (sender_says(7.9, first=1), []),
        (sender_says(60, first=2), []),
        (receiver_says(8, last=0), [TAKEN]),
        (receiver_says(7.9, last=0), []),
        (receiver_says(60, last=1), []),
        (receiver_says(60, last=0, sender=GUIDS[THREE]), []),
        (receiver_says(60, last=0, manager=THREE), []),
    ],
)
def test_what_contradicts(lake, report, findings):
    assert found(lake, exchange(), report) == findings


def test_an_order_ack_that_was_perhaps_lost_behind_the_capture_proves_nothing(lake):
    assert found(lake, exchange(), sender_says(60, first=1), session_acknowledged=False) == []


def test_an_id_that_two_queues_share_proves_nothing(lake):
    reports = (sender_says(60, following=2), sender_says(61, following=2, queue=r"srv\other"))
    assert found(lake, exchange(), *reports) == []
    two = exchange()
    two.packets.append(packet("client", 5, 9, two.connections[0], queue=r"srv\other"))
    assert found(lake, two, sender_says(60, following=2)) == []


def test_what_a_router_sends_says_nothing_of_its_own_sequences(lake):
    assert found(lake, exchange(source=GUIDS[THREE]), sender_says(60, following=2)) == []


def test_one_finding_a_day_and_it_follows_its_inputs(lake):
    reports = [sender_says(at, following=2) for at in (50, 51, 24 * 60)]
    assert found(lake, exchange(), *reports) == [SENT, SENT]
    (first, _) = sorted(lake.select(FINDINGS, "TRUE").to_pylist(), key=lambda row: row["observed_at"])
    proof = next(each.name for each in exchange().packets if each.number == 2)
    assert (first["observed_at"], first["evidence"]) == (moment(50 * MINUTES), ["s50srv\\q", proof])
    assert update_reported_sequences.update(lake, "run") == 0
    assert found(lake, exchange(sent=((1, 1),)), *reports) == []
    assert found(lake, exchange(), *reports[:1]) == [SENT]
    assert found(lake, exchange()) == []


def test_a_name_of_a_queue_manager_that_is_seen_later_ties_its_reports_to_what_it_sent(lake, monkeypatch):
    report = sender_says(7, following=2, manager="srv1")
    assert found(lake, exchange(), report) == []
    lake.note_provenance(QUEUE_HISTORY, json.dumps({"names": {ONE: "srv1"}}))
    asked, evaluate = [], update_reported_sequences._evaluate
    monkeypatch.setattr(
        update_reported_sequences, "_evaluate", lambda lake, ids, *more: asked.append(ids) or evaluate(lake, ids, *more)
    )
    assert found(lake, exchange(), report) == [("srv1", SENT[1])]
    assert asked == [{str(SEQUENCE)}]
    lake.note_provenance(QUEUE_HISTORY, json.dumps({"names": {ONE: "srv2"}}))
    assert found(lake, exchange(), report) == []
