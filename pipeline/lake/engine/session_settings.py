"""Settings of Spark sessions, which some platforms refuse: Databricks' serverless compute takes few of them.

A setting that is refused once is not tried again in this process: Spark Connect logs each refusal as an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

Answer = TypeVar("Answer")

_REFUSALS: Final = frozenset({"CONFIG_NOT_AVAILABLE", "CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG"})
_REFUSED: Final[set[tuple[type[SparkSession], str]]] = set()


def read(spark: SparkSession, name: str) -> str | None:
    """Return a setting of a session; None where it has none, or does not tell it."""
    return _ask(spark, name, lambda: spark.conf.get(name, None))


def unset(spark: SparkSession, name: str) -> bool:
    """Unset a setting of a session; return whether the session takes it."""
    _ask(spark, name, lambda: spark.conf.unset(name))
    return (type(spark), name) not in _REFUSED


def try_to_set(spark: SparkSession, name: str, value: str) -> bool:
    """Set a setting of a session; return whether the session takes it."""
    _ask(spark, name, lambda: spark.conf.set(name, value))
    return (type(spark), name) not in _REFUSED


@contextmanager
def within(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[bool]:
    """Set settings of a session within the block; yield whether the session takes all of them."""
    taken = [name for name, value in settings.items() if try_to_set(spark, name, value)]
    try:
        yield len(taken) == len(settings)
    finally:
        for name in taken:
            unset(spark, name)


def _ask(spark: SparkSession, name: str, action: Callable[[], Answer]) -> Answer | None:
    """Return what an action on a setting returns; None where the session refuses it, now or before."""
    if (type(spark), name) not in _REFUSED:
        try:
            return action()
        except PySparkException as error:
            if error.getCondition() not in _REFUSALS:
                raise
            _REFUSED.add((type(spark), name))
    return None
