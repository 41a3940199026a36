"""How sequences began, from those next to what changed: as from all there are, and few rows are read for it."""

import datetime as dt
from random import Random

import pyarrow as pa
import pytest

from engines import without_spark
from example_counts import seeds
from pipeline.lake.lake import Lake
from pipeline.transfers.hops.hop_keys import HOP_COLUMNS, hop_keys
from pipeline.transfers.sequences.beginnings import find_beginnings, find_changed_beginnings, sequence_facts
from schemas.transfers import TRANSFER_SEQUENCES
from udfs.keys import key

DAY = dt.timedelta(days=1)
BEGIN = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
WAIT = 2 * DAY
CLONES = {"2"}
UNKNOWN = {"previous_sequence_id": None, "began": None}


def sequence_row(
    number, at, *, waiting=0, missing=(), source="s", queue="q", sender="1", receiver="3", ends=(None, None)
):
    """A row of the table, of a sequence that begins so many days after the first one."""
    first = BEGIN + at * DAY
    flow = {"source_queue_manager": source, "destination_queue": queue}
    hop = dict(zip(HOP_COLUMNS, (*ends, sender, receiver), strict=True))
    (hop_key,) = hop_keys([pa.array([each], pa.string()) for each in hop.values()], CLONES).to_pylist()
    return {
        **flow, **hop, **UNKNOWN, "hop_key": hop_key, "sequence_key": key(source, queue, str(number), sender, receiver),
        "transaction_sequence_id": number, "first_sent_at": first, "event_date": first.date(), "waiting": waiting,
        "missing": list(missing),
    }  # fmt: skip


def random_row(draw, number):
    """A row with one of few names for each end, which a handshake may show or not, at one of few times."""
    sender, receiver = draw.choice("12"), draw.choice("34")
    ends = [draw.choice([None, name]) for name in draw.choice([(sender, receiver), ("12", receiver), ("12", "34")])]
    waiting, missing = draw.choice([0, 0, 5]), draw.choice([(), (), ("no_response",)])
    at, source, queue = draw.randrange(40) / 4, draw.choice([None, "s"]), draw.choice("qr")
    return sequence_row(
        number, at, waiting=waiting, missing=missing, source=source, queue=queue, sender=sender, receiver=receiver,
        ends=ends,
    )  # fmt: skip


def table(rows):
    return pa.Table.from_pylist(rows, TRANSFER_SEQUENCES.schema())


def by_key(rows):
    names = ("sequence_key", "previous_sequence_id", "began")
    return {row["sequence_key"]: row for row in rows.select(names).to_pylist()}


def recomputed(draw, rows):
    """The rows as they come out for some sequences, of which some come, go or change; and as they were."""
    numbers = draw.sample(range(12), draw.choice([1, 1, 3]))
    before = [row for row in rows if row["transaction_sequence_id"] in numbers]
    kept = [row for row in before if draw.random() < 0.6]
    changed = [{**row, "waiting": draw.choice([row["waiting"], 0, 5])} for row in kept]
    added = [random_row(draw, draw.choice(numbers)) for _ in range(draw.choice([0, 1, 3]))]
    said = {row["sequence_key"]: {name: row[name] for name in UNKNOWN} for row in before}
    unique = {row["sequence_key"]: row for row in [*changed, *added]}
    return [{**row, **said.get(name, UNKNOWN)} for name, row in unique.items()], before


@pytest.mark.parametrize("seed", seeds(6, 60))
def test_from_the_next_ones_as_from_all(tmp_path, seed):
    draw = Random(seed)
    lake = Lake(without_spark(), str(tmp_path))
    rows = []
    for _ in range(8):
        now, before = recomputed(draw, rows)
        numbers = {row["transaction_sequence_id"] for row in [*now, *before]}
        lake.replace(TRANSFER_SEQUENCES, table(rows))
        changed = find_changed_beginnings(lake, *(sequence_facts(table(each)) for each in (now, before)), WAIT)
        all_rows = table([*(row for row in rows if row["transaction_sequence_id"] not in numbers), *now])
        rows = changed.set(all_rows).to_pylist()
        assert by_key(table(rows)) == by_key(find_beginnings(sequence_facts(all_rows), WAIT).set(all_rows))


def test_few_rows_are_read_of_a_long_history(tmp_path, monkeypatch):
    lake, read = Lake(without_spark(), str(tmp_path)), []
    query = lake.query

    def counted(sql, /, **of):
        found = query(sql, **of)
        read.append(found.num_rows)
        return found

    rows = table([sequence_row(number, number / 100) for number in range(1, 1001)])
    lake.append(TRANSFER_SEQUENCES, find_beginnings(sequence_facts(rows), WAIT).set(rows))
    before = rows.slice(500, 1)
    now = table([{**before.to_pylist()[0], "waiting": 1, "previous_sequence_id": 500, "began": "emptied"}])
    monkeypatch.setattr(lake, "query", counted)
    found = find_changed_beginnings(lake, sequence_facts(now), sequence_facts(before), WAIT)
    assert found.began.to_pylist() == ["abandoned"]
    assert read == [3]  # the changed one, the one before and the one behind


def test_an_end_that_is_shown_matters_also_where_two_machines_have_its_name(tmp_path):
    """Planted: by its addresses alone a sequence follows another one, until it is known to be of other machines."""
    lake = Lake(without_spark(), str(tmp_path))
    known, unknown = (
        sequence_row(number, number, sender="2", ends=(end, "3")) for number, end in ((1, "x"), (2, None))
    )
    rows = table([known, unknown])
    before = find_beginnings(sequence_facts(rows), WAIT).set(rows)
    assert before["began"].to_pylist() == ["first", "emptied"]
    lake.append(TRANSFER_SEQUENCES, before)
    before = before.slice(1)
    now = table([{**before.to_pylist()[0], "sender_queue_manager": "2"}])
    found = find_changed_beginnings(lake, sequence_facts(now), sequence_facts(before), WAIT)
    assert found.began.to_pylist() == ["first"]
