"""Sessions beside a session are kept, and used again."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from types import SimpleNamespace
from weakref import ref

import pytest

from pipeline.lake.engine.sessions import own_session
from pipeline.lake.engine.settings import spark_conf


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
    with own_session(spark) as one, own_session(spark) as two, spark_conf(one, {name: "Europe/Prague"}):
        assert [each.conf.get(name) for each in (spark, one, two)] == ["UTC", "Europe/Prague", "UTC"]
