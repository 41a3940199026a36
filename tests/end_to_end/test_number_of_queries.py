"""How many queries a run makes that adds one small capture to a lake: each costs some milliseconds to plan."""

from contextlib import contextmanager

import pytest

from engines import LOCAL
from jobs import run_all
from pipeline.lake.queries.duckdb_sql import DuckDbSql
from pipeline.lake.storage.file_log import FileLog

MOST_QUERIES, MOST_FEEDS = 176, 55


@pytest.fixture
def asked(monkeypatch):
    """What runs ask: queries, and tables of which they read the change feed."""
    queries, feeds = [], []
    answer, changes = DuckDbSql._asked, FileLog.changes

    @contextmanager
    def noted(self, sql, of):
        queries.append(sql)
        with answer(self, sql, of) as found:
            yield found

    monkeypatch.setattr(DuckDbSql, "_asked", noted)
    monkeypatch.setattr(FileLog, "changes", lambda self, *feed: feeds.append(str(feed[0])) or changes(self, *feed))
    return queries, feeds


def test_a_run_that_adds_little_asks_little(project, tmp_path, asked):
    queries, feeds = asked
    captures = sorted((project / "data" / "sample").glob("0[1-7]*"))

    def run(*files):
        queries.clear()
        feeds.clear()
        given = ["--lake", str(tmp_path / "lake"), *LOCAL, "--captures", *map(str, files)]
        assert run_all.main(given) == 0
        return len(queries), len(feeds)

    assert run(*captures[:-1])[1] == 0
    many, looks = run(*captures)
    assert 100 < many <= MOST_QUERIES, many
    assert 20 < looks <= MOST_FEEDS, looks
    again, looks = run(*captures)
    assert (again < 15, looks) == (True, 0), again
