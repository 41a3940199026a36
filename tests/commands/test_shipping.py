"""The project's code as one archive: the same each time, of the packages alone, and sent to a server once."""

import io
import zipfile

import pytest

from jobs import shipping


class Connected:
    """What a session with a Connect server shows of itself here."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, session_id):
        self.session_id = session_id
        self.got = []

    def addArtifacts(self, path, *, pyfile):  # noqa: N802 - Spark's name
        with open(path, "rb") as sent:  # noqa: PTH123
            self.got.append((path.rpartition("/")[2], sent.read(), pyfile))


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.setattr(shipping, "_sent", set())
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)


def test_the_archive_holds_the_packages_and_is_the_same_each_time(project, tmp_path):
    data = shipping.archive(project)
    assert data == shipping.archive(project)
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {name.partition("/")[0] for name in names} == set(shipping.PACKAGES)
    assert "udfs/capture/reader.py" in names
    assert not [name for name in names if "__pycache__" in name]
    packed = tmp_path / "pyfiles.zip"
    packed.write_bytes(data)
    assert shipping.archive(packed) == data


def test_a_connect_server_gets_it_once_for_each_session(project):
    first, second = Connected("1"), Connected("2")
    for each in (first, first, second):
        shipping.send(each, project)
    ((name, data, is_code),) = first.got
    assert (data, is_code) == (shipping.archive(project), True)
    assert name.startswith("msmq-")
    assert second.got == first.got


def test_where_the_code_is_already_nothing_is_sent(project, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.2")
    there = Connected("1")
    shipping.send(there, project)
    assert there.got == []
    assert not shipping.is_connected(object())
