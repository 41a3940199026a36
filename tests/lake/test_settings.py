"""A session's settings while threads do something with them side by side."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from threading import Barrier
from types import SimpleNamespace

import pytest

from pipeline.lake.concurrency import run_concurrently
from pipeline.lake.engine.settings import spark_conf
from pipeline.lake.lake import Lake
from schemas.bronze import CONNECTIONS, QUARANTINE, RPC_BINDS

SAYS = "spark.databricks.delta.commitInfo.userMetadata"


class Conf(dict):
    """As much of a session's settings as there is to ask for."""

    set = dict.__setitem__
    unset = dict.__delitem__


class Session(SimpleNamespace):
    __hash__ = object.__hash__


def session(**settings: str) -> Session:
    return Session(conf=Conf(settings))


@pytest.mark.parametrize("before", [{}, {"a": "0"}], ids=["nothing", "something"])
@pytest.mark.parametrize("first", [0, 1])
def test_who_leaves_last_puts_back_what_was_there(before, first):
    spark, stacks, step = session(**before), (ExitStack(), ExitStack()), Barrier(2)

    def enter_and_leave(number: int) -> None:
        for turn in (0, 1):  # one enters after the other, and one leaves after the other
            if turn == number:
                stacks[number].enter_context(spark_conf(spark, {"a": "1"}))
            step.wait(10)
        for turn in (first, 1 - first):
            if turn == number:
                assert spark.conf["a"] == "1"
                stacks[number].close()
            step.wait(10)

    run_concurrently({number: partial(enter_and_leave, number) for number in (0, 1)})
    assert spark.conf == before


def test_what_one_thread_needs_otherwise_than_another_is_an_error():
    spark = session()

    def otherwise() -> None:
        with spark_conf(spark, {"a": "2"}):
            pass

    with spark_conf(spark, {"a": "1"}):
        with pytest.raises(RuntimeError, match="a is '1' for another thread"):
            run_concurrently({1: otherwise, 2: otherwise})
        with spark_conf(spark, {"a": "2", "b": "2"}):  # the same thread may
            assert spark.conf == {"a": "2", "b": "2"}
        assert spark.conf == {"a": "1"}
    assert spark.conf == {}


def test_sessions_have_their_own():
    one, two = session(), session()
    with spark_conf(one, {"a": "1"}), spark_conf(two, {"a": "2"}):
        assert (one.conf, two.conf) == ({"a": "1"}, {"a": "2"})
    assert (one.conf, two.conf) == ({}, {})


def test_tables_without_a_row_that_are_made_side_by_side_leave_nothing_said(spark, tmp_path):
    """Delta commits nothing then, so each of them says by a commit of its own what it is made of."""
    lake = Lake(spark.newSession(), str(tmp_path))
    tables = (CONNECTIONS, QUARANTINE, RPC_BINDS)
    for turn in range(4):
        none = {table: lake.spark.createDataFrame([], table.struct()) for table in tables}
        run_concurrently(
            {table: partial(lake.replace, table, none[table], provenance=f"these {turn}") for table in tables}
        )
        assert [lake.provenance_json(table) for table in tables] == [f"these {turn}"] * 3
        assert lake.spark.conf.get(SAYS, None) is None
