"""Sessions beside a session are kept, and used again; who starts one, and who computes tasks."""

from __future__ import annotations

import gc
import os
from contextlib import ExitStack
from threading import Event, get_ident
from types import SimpleNamespace
from weakref import ref

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pipeline.lake.engine.sessions import LazySession, own_session
from pipeline.lake.engine.tasks import MAX_DRIVER_BYTES, PartitionedRows
from pipeline.lake.lake import Lake
from spark_settings import spark_settings


class Session(SimpleNamespace):
    """As much of a session as is asked here, with its copies as behind Spark Connect."""

    __hash__ = object.__hash__

    def __init__(self) -> None:
        super().__init__(made=0, closed=False, conf=SimpleNamespace(get=self._get))

    def cloneSession(self) -> Session:  # noqa: N802 - PySpark's name
        self.made += 1
        return Session()

    def _get(self, _: str, default: str | None = None) -> str | None:
        if self.closed:
            raise ConnectionError("INVALID_HANDLE.SESSION_CLOSED")
        return default


def test_no_two_have_one_session_at_the_same_time_and_who_comes_later_has_it_again():
    spark, stack = Session(), ExitStack()
    with stack:
        first = [stack.enter_context(own_session(spark)) for _ in range(3)]
        assert len({id(each) for each in (*first, spark)}) == 4
    with own_session(spark) as one, own_session(spark) as two:
        assert one is not two
        assert {id(one), id(two)} < {id(each) for each in first}
    assert spark.made == 3


def test_a_session_is_there_for_as_long_as_the_one_that_it_is_beside():
    """Collected while others are at work it may hang them."""
    spark = Session()
    with own_session(spark) as one, own_session(one) as two:
        found = [ref(one), ref(two)]
    one.closed = True
    with own_session(spark) as other:
        assert other is not one
        found.append(ref(other))
    del one, two, other
    gc.collect()
    assert all(each() is not None for each in found)
    del spark
    for _ in found:  # each when the one is gone that it was beside
        gc.collect()
    assert all(each() is None for each in found)


def test_a_session_that_the_server_closed_is_not_used_again():
    spark = Session()
    with own_session(spark) as one:
        pass
    one.closed = True
    with own_session(spark) as other:
        assert other is not one
    with own_session(spark) as again:
        assert again is other


def test_a_session_comes_back_from_a_step_that_fails():
    spark = Session()
    with pytest.raises(LookupError), own_session(spark) as one:
        raise LookupError
    with own_session(spark) as again:
        assert again is one


def test_what_is_set_in_one_is_not_set_in_the_other(spark):
    name = "spark.sql.session.timeZone"
    with own_session(spark) as one, own_session(spark) as two, spark_settings(one, {name: "Europe/Prague"}):
        assert [each.conf.get(name) for each in (spark, one, two)] == ["UTC", "Europe/Prague", "UTC"]


def test_a_session_starts_beside_who_asks_for_it_and_fails_where_it_is_first_used():
    begun, go_on = Event(), Event()

    def make():
        begun.set()
        assert go_on.wait(60)
        raise LookupError("no Java")

    session = LazySession(make)
    session.start_soon()
    session.start_soon()
    assert begun.wait(60)
    assert session.has_started
    go_on.set()
    for _ in range(2):
        with pytest.raises(LookupError, match="no Java"):
            session.spark  # noqa: B018


def test_a_session_that_started_beside_is_made_once_in_another_thread():
    made = []

    def make():
        made.append(get_ident())
        return Session()

    session = LazySession(make)
    session.start_soon()
    assert session.spark is session.spark
    session.start_soon()
    assert len(made) == 1
    assert made != [get_ident()]


@pytest.mark.parametrize(
    ("engine", "store", "starts"), [("local", "delta-rs", False), ("local", "spark", True), ("spark", "delta-rs", True)]
)
def test_a_session_starts_early_where_spark_computes_or_stores_the_tables(tmp_path, engine, store, starts):
    asked = Event()
    session = LazySession(lambda: asked.set() or Session(), engine=engine)
    Lake(session, str(tmp_path), store=store).start_spark_soon()
    assert session.has_started == starts
    assert asked.wait(60 if starts else 0) == starts


def rows_by_process(size, *, in_tasks=False):
    def rows(number):
        yield pa.RecordBatch.from_pydict({"number": pa.array([number]), "process": pa.array([os.getpid()])})

    return PartitionedRows(3, size, rows, in_tasks=in_tasks)


@pytest.mark.parametrize(
    ("size", "in_tasks", "engine", "is_here"),
    [
        (MAX_DRIVER_BYTES, False, "spark", True),
        (MAX_DRIVER_BYTES + 1, False, "spark", False),
        (0, True, "spark", False),
        (MAX_DRIVER_BYTES + 1, False, "local", True),
        (0, True, "local", True),
    ],
)
def test_who_computes_tasks(spark, size, in_tasks, engine, is_here):
    session = LazySession(lambda: spark, engine=engine)
    schema = StructType().add("number", "long").add("process", "long")
    found = rows_by_process(size, in_tasks=in_tasks).table(session, schema).sort_by("number")
    assert found["number"].to_pylist() == [0, 1, 2]
    assert ({*found["process"].to_pylist()} == {os.getpid()}) == is_here
    assert session.has_started != is_here
