"""What tests of the lake share."""

import pytest

from pipeline.lake.lake import Lake


@pytest.fixture
def lake(spark, tmp_path):
    """An empty lake in a folder whose name holds what a folder's name may hold."""
    return Lake(spark, str(tmp_path / "a `lake`'s {1} (2) * $x 100% ü"))
