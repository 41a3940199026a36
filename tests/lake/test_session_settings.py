"""Settings that a session refuses, as on serverless compute, are left alone; nothing fails for them."""

from unittest.mock import Mock

import pytest
from pyspark.errors.exceptions.connect import AnalysisException
from pyspark.sql.conf import RuntimeConfig

from pipeline.lake.engine import codegen, session_settings
from pipeline.lake.engine.sessions import LazySession, own_session, session_for_groups
from refused_settings import TAKEN, refuse_settings


class Conf(RuntimeConfig):
    """Settings of a session without Java."""

    def __init__(self, **settings):
        self.settings = settings

    def get(self, name, default=None):
        return self.settings.get(name, default)

    def set(self, name, value):
        self.settings[name] = value

    def unset(self, name):
        self.settings.pop(name, None)


class Session:
    """A session of Spark Connect without a server."""

    def __init__(self):
        self.conf = Conf()

    def cloneSession(self):  # noqa: N802 - Spark's name
        return Session()


@pytest.fixture
def refused():
    with pytest.MonkeyPatch.context() as patch:
        yield refuse_settings(patch, Conf)


def test_groups_are_computed_though_the_size_of_batches_cannot_be_set(refused):
    spark = Session()
    with session_for_groups(spark) as own:
        assert own.conf.settings == {}
    assert "spark.sql.execution.arrow.maxBytesPerBatch" in refused


def test_a_setting_that_was_refused_is_not_tried_again(refused):
    for _ in range(2):
        assert not session_settings.try_to_set(Session(), "spark.some", "x")
        assert session_settings.read(Session(), "spark.some") is None
        assert not session_settings.unset(Session(), "spark.some")
    assert refused == ["spark.some"]


def test_codegen_is_left_alone(refused):
    spark = Session()
    LazySession.of(spark).expect_to_read(codegen.MIN_READ_BYTES)
    with own_session(spark) as own:
        assert own.conf.settings == spark.conf.settings == {}


def test_settings_that_are_taken_are_set_within_the_block_only(refused):
    spark, name = Session(), min(TAKEN)
    with session_settings.within(spark, {name: "1"}) as is_taken:
        assert (is_taken, spark.conf.settings) == (True, {name: "1"})
    with session_settings.within(spark, {name: "1", "spark.some": "2"}) as is_taken:
        assert not is_taken
    assert spark.conf.settings == {}


def test_another_error_is_raised():
    other = AnalysisException("not a number", errorClass="INVALID_CONF_VALUE")
    with pytest.raises(AnalysisException, match="not a number"):
        session_settings.try_to_set(Mock(conf=Mock(set=Mock(side_effect=other))), "spark.some", "x")
