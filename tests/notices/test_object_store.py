"""Kept lines of a lake on an object store."""

import pytest

from bronze.stores.bucket import serving_here
from notices.told import at
from pipeline.lake.lake_path import LakePath
from pipeline.notices.kept_lines import KeptLines, target_line


@pytest.fixture
def bucket():
    with serving_here() as server:
        yield server


def test_lines_are_kept_beside_the_tables(bucket):
    folder = LakePath("s3://captures/a lake/é")
    assert KeptLines(folder).lines == []
    KeptLines(folder).add([target_line("hook", at(0))], at(0))
    kept = KeptLines(folder)
    assert kept.is_known("hook")
    kept.add([target_line("mail", at(1))], at(1))
    assert len(KeptLines(folder).lines) == 2
    assert [entry.name for entry in folder.entries()] == ["_notices"]
