"""Settings of a Spark session for the duration of a block."""

from contextlib import contextmanager


@contextmanager
def spark_settings(spark, settings):
    """Set settings within the block, and put back what was there."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
