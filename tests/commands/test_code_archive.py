"""Archive of the project's code: reproducible, only the packages, and uploaded once per session."""

import io
import zipfile

import pytest

from jobs.command_line import code_archive


class FakeConnectSession:
    """Stand-in for a Spark Connect session, with the members that the upload uses."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, session_id):
        self.session_id = session_id
        self.got = []

    def addArtifacts(self, path, *, pyfile):  # noqa: N802 - Spark's name
        with open(path, "rb") as sent:  # noqa: PTH123
            self.got.append((path.rpartition("/")[2], sent.read(), pyfile))


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.setattr(code_archive, "_uploaded_sessions", set())
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)


def test_the_archive_holds_the_packages_and_is_the_same_each_time(project, tmp_path):
    data = code_archive.build_code_archive(project)
    assert data == code_archive.build_code_archive(project)
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {name.partition("/")[0] for name in names} == set(code_archive.PACKAGES)
    assert "udfs/capture/capture_reader.py" in names
    assert not [name for name in names if "__pycache__" in name]
    packed = tmp_path / "pyfiles.zip"
    packed.write_bytes(data)
    assert code_archive.build_code_archive(packed) == data


def test_a_connect_server_gets_it_once_for_each_session(project):
    first, second = FakeConnectSession("1"), FakeConnectSession("2")
    for each in (first, first, second):
        code_archive.upload_code(each, project)
    ((name, data, is_code),) = first.got
    assert (data, is_code) == (code_archive.build_code_archive(project), True)
    assert name.startswith("msmq-")
    assert second.got == first.got


def test_where_the_code_is_already_nothing_is_sent(project, monkeypatch):
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.2")
    there = FakeConnectSession("1")
    code_archive.upload_code(there, project)
    assert there.got == []
    assert not code_archive.is_spark_connect(object())
