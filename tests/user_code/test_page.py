"""The page about own notebooks and jobs: its examples run word for word, in the project's folder after `make demo`."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.spark


def examples(project):
    """Return the Python examples of the page, in order: a reader types them into one session."""
    page = (project / "docs" / "guides" / "your-own-code.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def run_examples(project, spark):
    """Run the examples in one namespace with a session, and return it."""
    names = {"spark": spark}
    for number, code in enumerate(examples(project)):
        exec(compile(code, f"example {number}", "exec"), names)
    return names


@pytest.fixture
def folder(project, demo_lake, tmp_path, monkeypatch):
    """A folder as the project's is after `make demo`, and the current one."""
    (tmp_path / ".lake").mkdir()
    (tmp_path / ".lake" / "demo").symlink_to(demo_lake)
    (tmp_path / "data").symlink_to(project / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_as_it_stands(project, spark, folder, capsys):
    names = run_examples(project, spark)
    shown = capsys.readouterr().out
    assert shown.count("only showing top 20 rows") >= 1
    for told in ("RemoteRead", "order 5", "R_OpenQueue", "MQMSG_CLASS_NORMAL", "PROPID_MGMT_QUEUE_PATHNAME", "billing"):
        assert told in shown
    assert names["messages"].count() > 100
    assert names["management"].count() > 20
    assert len(examples(project)) == 10
