"""What computes in tests: this process where a test does not ask, since Spark takes seconds to start."""

from __future__ import annotations

from typing import Final

import pytest

from pipeline.lake.engine.sessions import LazySession

LOCAL: Final = ("--set", "run.engine=local")


def without_spark() -> LazySession:
    """Return a session of the engine ``local``, which fails the test if anything needs Spark."""
    return LazySession(lambda: pytest.fail("Spark is not needed"), engine="local")
