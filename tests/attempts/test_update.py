"""Silver and gold follow bronze: they take its changes, and nothing else, and come out as if made anew."""

import datetime as dt
from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from attempts.test_tables import CONNECTED, END, OPEN, OTHERS, START, at, call, frame, gold_anew
from killing import killed_and_repeated
from pipeline.attempts import update as attempts_update
from pipeline.lake.lake import Lake
from pipeline.silver import update as silver_update
from pipeline.silver.decode import DECODED_TABLES, decode_calls
from pipeline.silver.decode_tasks import CallDecoder
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import CONNECTIONS, PENDING, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from tests.support.lakes import versions_text

pytestmark = pytest.mark.spark

NEXT_DAY = 600  # s, in the next day: the story begins two seconds before midnight
CLEANUP = dt.timedelta(minutes=5)


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


def dated(lake, table, rows):
    """Rows as a frame whose event_date is made when it is written."""
    return frame(lake.spark, table, rows).drop("event_date")


def add(lake, table, *rows):
    lake.append(table, dated(lake, table, rows))


def change(lake, table, *rows, gone=()):
    """Put rows in the place of those with their keys, wherever those are, and take others out."""
    key = table.key[0]
    new = dated(lake, table, rows).toArrow() if rows else table.schema().empty_table()
    lake.delete_and_insert(table, key, {*new[key].to_pylist(), *gone}, new, dates=None)


def silver(lake, *, keep_stubs=True):
    written = silver_update.update(lake, keep_stubs=keep_stubs)
    return written[str(REMOTE_READ_CALLS)]


def plain(df, *without):
    return sorted((row.asDict(recursive=True) for row in df.drop("run_id", *without).collect()), key=str)


def silver_follows(lake):
    """Silver is what it would be if it were made now of all calls."""
    (calls,) = lake.read(RPC_CALLS).toArrow().combine_chunks().to_batches() or [None]
    expected = {} if calls is None else decode_calls(calls)
    for table in DECODED_TABLES:
        made = lake.select(table, "TRUE").to_pylist()
        rows = expected[str(table)].to_pylist() if expected else []
        assert sorted(made, key=str) == sorted(rows, key=str), table
    return True


def keys(df):
    return sorted(row[0] for row in df.select("call_key").collect())


@pytest.fixture
def decoded(monkeypatch):
    """The keys of calls that were decoded, in the order they were handed to the decoder."""
    seen, decoding = [], CallDecoder.decode_stored

    def counting(decoder, lake, calls, kept):
        read = lake.query(f"SELECT call_key FROM ({calls.sql}) WHERE interface_name <> 'qmmgmt'", **calls.inputs)
        seen.append(sorted(read["call_key"].to_pylist()))
        return decoding(decoder, lake, calls, kept)

    monkeypatch.setattr(CallDecoder, "decode_stored", counting)
    return seen


def test_silver_takes_what_was_inserted_updated_and_deleted_and_decodes_nothing_else(lake, decoded):
    add(lake, RPC_CALLS, OPEN, START, *OTHERS)
    assert silver(lake) == 5
    assert silver_follows(lake)

    add(lake, RPC_CALLS, END)
    assert silver(lake) == 1
    lost = call("lost", 7, NEXT_DAY, NEXT_DAY + 1, outcome="damaged")  # it moves to another day
    change(lake, RPC_CALLS, lost, START | {"connection_id": "joined"}, gone=["sealed", "mgmt"])
    assert silver(lake) == 2
    assert decoded == [["fault", "lost", "open", "sealed", "start"], ["end"], ["lost", "start"]]
    assert silver_follows(lake)
    assert keys(lake.read(REMOTE_READ_CALLS)) == ["end", "fault", "lost", "open", "start"]


@pytest.mark.long
def test_a_call_is_silvers_when_its_interface_is_known_and_no_longer_when_it_is_another(lake):
    unbound = START | {"interface_name": None, "outcome": "unbound"}
    add(lake, RPC_CALLS, OPEN, unbound)
    silver(lake)
    assert keys(lake.read(REMOTE_READ_CALLS)) == ["open"]
    change(lake, RPC_CALLS, START, OPEN | {"interface_name": "qmmgmt"})
    silver(lake)
    assert keys(lake.read(REMOTE_READ_CALLS)) == ["start"]
    assert silver_follows(lake)


@pytest.mark.long
def test_only_the_end_of_many_changes_counts(lake, decoded):
    add(lake, RPC_CALLS, OPEN, START)
    silver(lake)
    before = lake.version(RPC_CALLS)
    add(lake, RPC_CALLS, END, *OTHERS)
    change(lake, RPC_CALLS, START | {"connection_id": "x"}, gone=["lost", "open"])
    lake.restore(RPC_CALLS, before)  # a run that did not end is undone
    add(lake, RPC_CALLS, END)
    change(lake, RPC_CALLS, END | {"connection_id": "y"})
    silver(lake)
    assert silver_follows(lake)
    change(lake, RPC_CALLS, gone=["end"])
    add(lake, RPC_CALLS, END)
    silver(lake)
    assert silver_follows(lake)
    assert keys(lake.read(REMOTE_READ_CALLS)) == ["end", "open", "start"]


@pytest.mark.long
def test_what_did_not_change_makes_no_version(lake):
    assert silver(lake) == 0
    assert attempts_update.update(lake, cleanup=CLEANUP) == 0
    assert not lake.exists(REMOTE_READ_CALLS)
    add(lake, RPC_CALLS, OPEN, START)
    add(lake, CONNECTIONS, *CONNECTED)
    silver(lake)
    attempts_update.update(lake, cleanup=CLEANUP)
    versions = versions_text(lake, RPC_CALLS, REMOTE_READ_CALLS, RECEIVE_ATTEMPTS)
    for _ in range(2):
        assert silver(lake) == 0
        assert attempts_update.update(lake, cleanup=CLEANUP) == 0
    assert versions_text(lake, RPC_CALLS, REMOTE_READ_CALLS, RECEIVE_ATTEMPTS) == versions


@pytest.mark.long
def test_changes_that_are_none_of_silvers_are_looked_at_once(lake, decoded):
    add(lake, RPC_CALLS, OPEN)
    silver(lake)
    add(lake, RPC_CALLS, OTHERS[-1])
    assert silver(lake) == 0
    version = lake.version(REMOTE_READ_CALLS)
    assert silver(lake) == 0
    assert lake.version(REMOTE_READ_CALLS) == version
    assert keys(lake.read(REMOTE_READ_CALLS)) == ["open"]


@pytest.mark.long
@pytest.mark.parametrize("why", ["nothing said", "other decoders", "no feed", "no such version"])
def test_silver_is_made_anew_where_the_changes_are_not_known(lake, spark, monkeypatch, why):
    add(lake, RPC_CALLS, OPEN, START)
    silver(lake)
    wrong = lake.read(REMOTE_READ_CALLS).withColumn("method", F.lit("wrong"))
    lake.replace(
        REMOTE_READ_CALLS,
        wrong,
        provenance=lake.versions.provenance_json(REMOTE_READ_CALLS) if why != "nothing said" else None,
    )
    if why == "other decoders":
        monkeypatch.setattr(silver_update, "DECODED", replace(silver_update.DECODED, code_version="next"))
    elif why == "no feed":
        spark.sql(f"ALTER TABLE {lake.sql_name(RPC_CALLS)} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'false')")
    elif why == "no such version":
        lake.note_provenance(
            REMOTE_READ_CALLS, lake.versions.provenance_json(REMOTE_READ_CALLS).replace(": 1,", ": 77,")
        )
    add(lake, RPC_CALLS, END)
    assert silver(lake) == 3
    assert silver_follows(lake)
    add(lake, RPC_CALLS, OTHERS[0])
    assert silver(lake) == 1
    assert silver_follows(lake)


@pytest.mark.parametrize("before", ["nothing", "other decoders"])
def test_a_last_table_that_was_made_while_others_were_not_says_nothing_of_them(lake, monkeypatch, before):
    add(lake, RPC_CALLS, OPEN, START)
    if before == "other decoders":
        with monkeypatch.context() as older:
            older.setattr(silver_update, "DECODED", replace(silver_update.DECODED, code_version="previous"))
            silver(lake)
        add(lake, RPC_CALLS, END)

    def only_the_last(step):
        def failing(self, table, *rows, **options):
            if table is not REMOTE_READ_CALLS:
                raise OSError("no room on the disk")
            step(self, table, *rows, **options)

        return failing

    with monkeypatch.context() as full:
        for name in ("create", "replace"):
            full.setattr(Lake, name, only_the_last(getattr(Lake, name)))
        with pytest.raises(OSError, match="no room"):
            silver(lake)
    assert lake.exists(REMOTE_READ_CALLS)
    assert not lake.versions.provenance(REMOTE_READ_CALLS)
    add(lake, RPC_CALLS, *OTHERS)
    silver(lake)
    assert silver_follows(lake)
    assert lake.versions.provenance(REMOTE_READ_CALLS)


@pytest.mark.long
def test_emptied_stubs_are_not_decoded_again_and_what_they_said_is_kept(lake, decoded):
    add(lake, RPC_CALLS, OPEN, START, *OTHERS)
    add(lake, PENDING, {"pending_key": "p", "call_keys": ["open"], "connection_id": "c9"})
    waits = call("waits", 7, 5, None, connection_id="c8", outcome="no_response", request_stub=OPEN["request_stub"])
    add(lake, PENDING, {"pending_key": "q", "connection_id": "c8"})
    add(lake, RPC_CALLS, waits)
    silver(lake, keep_stubs=False)
    as_decoded = plain(lake.read(REMOTE_READ_CALLS))
    full = lake.read(RPC_CALLS).where("request_stub IS NOT NULL OR response_stub IS NOT NULL")
    assert keys(full) == ["open", "waits"]
    version = lake.version(RPC_CALLS)
    assert silver(lake, keep_stubs=False) == 0
    assert lake.version(RPC_CALLS) == version
    assert decoded.pop() == ["fault", "lost", "open", "sealed", "start", "waits"]
    assert decoded == []

    # A later capture joins the connection: the row changes, what its stubs said does not.
    bare = {"request_stub": None, "response_stub": None, "connection_id": "joined"}
    finished = waits | {"response_at": at(6), "outcome": "ok", "response_stub": b""}
    change(lake, RPC_CALLS, START | bare, END, finished)
    silver(lake, keep_stubs=False)
    now = {row["call_key"]: row for row in plain(lake.read(REMOTE_READ_CALLS))}
    old = {row["call_key"]: row for row in as_decoded}
    assert now["start"] == old["start"] | {"connection_id": "joined"}
    assert now["end"]["ack"] == 2
    assert now["open"] == old["open"]
    # What waits keeps its stubs as long as it does.
    assert keys(lake.read(RPC_CALLS).where("request_stub IS NOT NULL")) == ["open"]
    lake.delete(PENDING, "TRUE")
    silver(lake, keep_stubs=False)
    assert keys(lake.read(RPC_CALLS).where("request_stub IS NOT NULL")) == []

    # Made anew, of calls without stubs.
    lake.replace(REMOTE_READ_CALLS, lake.read(REMOTE_READ_CALLS), provenance="something else")
    silver(lake)
    assert plain(lake.read(REMOTE_READ_CALLS)) == sorted(now.values(), key=str)


@pytest.mark.long
def test_a_call_that_turns_out_to_have_no_stub_loses_what_was_decoded_of_it(lake):
    add(lake, RPC_CALLS, START)
    silver(lake)
    recut = {"request_stub": None, "response_stub": None, "outcome": "damaged"}
    change(lake, RPC_CALLS, START | recut)
    silver(lake)
    assert lake.read(REMOTE_READ_CALLS).where("action IS NOT NULL").count() == 0
    assert silver_follows(lake)


def die(*args, **options):
    raise KeyboardInterrupt


def killed(monkeypatch, where, name, step):
    with monkeypatch.context() as patch:
        patch.setattr(where, name, die)
        with pytest.raises(KeyboardInterrupt):
            step()


@pytest.mark.long
@pytest.mark.parametrize("here", [True, False], ids=["one commit a table", "Spark's two"])
def test_gold_killed_before_any_commit_and_repeated_is_that_of_an_undisturbed_run(lake, here):
    if not here:
        lake = Lake(lake.spark, lake.root, store="spark")

    def gold(lake=lake):
        return attempts_update.update(lake, cleanup=CLEANUP)

    add(lake, CONNECTIONS, *CONNECTED)
    add(lake, RPC_CALLS, OPEN, START, *OTHERS)
    silver(lake)
    gold()
    change(lake, RPC_CALLS, END, START | {"connection_id": "c2"}, gone=["lost"])
    silver(lake)
    change(lake, RPC_CALLS, START)  # a run that never came to gold, and one more
    silver(lake)
    assert killed_and_repeated(lake, gold) > (0 if here else 1)
    assert gold() == 0
    assert plain(lake.read(RECEIVE_ATTEMPTS)) == plain(gold_anew(lake))
