"""Which files a run's arguments name: what may not be listed is reported, and the others are read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.bronze.input_files import InputError, MissingInputError, find_file, list_files, newest_paths, spool_pipe
from udfs.capture.capture_reader import read_capture_batches
from udfs.files.file_source import FileSource
from udfs.files.filesystems import escape_path, unescape_path

NOT_UTF8 = os.fsdecode(b"caf\xe9.pcap")


@pytest.fixture
def ring(tmp_path):
    """A folder with files at its top and in two folders, one of which may not be listed."""
    for name in ("1.pcap", "open/2.pcap", "closed/3.pcap", ".hidden/4.pcap"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.fixture
def closed(ring, monkeypatch):
    """The path of the folder that may not be listed. The administrator may list all, so this is pretended."""
    path, scandir = str(ring / "closed"), os.scandir

    def refusing(folder):
        if str(folder) == path:
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    return path


def listed(uris):
    """Return the names of the files, and what was reported."""
    problems: list[str] = []
    files = list_files(map(str, uris), problems.append)
    return [file.path.rsplit("/", 1)[1] for file in files], problems


@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.pcap", "*/*.pcap", "closed", "closed/*.pcap", "[co]*/*"])
def test_a_folder_that_may_not_be_listed_is_reported(ring, closed, pattern):
    names, problems = listed([ring / pattern, ring / "open"])
    assert problems == [f"{closed}: cannot be listed: Permission denied"]
    assert "2.pcap" in names
    assert "3.pcap" not in names
    with pytest.raises(InputError, match="closed: cannot be listed: Permission denied"):
        list_files([str(ring / pattern)])


def test_a_folder_that_may_not_be_entered_is_reported(ring, monkeypatch):
    """Its entries cannot be looked at, whether it can be listed or not."""
    stat = os.stat

    def refusing(path, *arguments, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(str(ring / "closed" / "3")):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", refusing)
    for uri in (ring, ring / "closed" / "3.pcap", ring / "closed" / "*.pcap"):
        _, problems = listed([uri])
        assert problems == [f"{ring}/closed/3.pcap: cannot be listed: Permission denied"]


def test_a_file_of_the_shells_list_that_is_gone_is_reported(ring):
    names, problems = listed([ring / "1.pcap", ring / "gone.pcap", ring / "none-*.pcap", ring / "open"])
    assert names == ["1.pcap", "2.pcap"]
    assert problems == [
        f"no such file or folder: {ring}/gone.pcap", f"no file matches {ring}/none-*.pcap"
    ]  # fmt: skip


def test_uris_that_name_nothing_at_all_are_wrong_usage(ring):
    for uris in (["gone"], ["gone", "none-*"], ["1.pcap/below"]):
        with pytest.raises(MissingInputError, match="no such file or folder"):
            listed([ring / uri for uri in uris])
    (ring / "empty").mkdir()
    assert listed([ring / "empty"]) == ([], [])


@pytest.mark.parametrize(
    "name", [NOT_UTF8, "a\nb", "tab\t", "back\\x41slash", "plain\\n", "é.pcap", "\udcff\\", "sp ace?*[1]#%41"]
)
def test_any_name_that_the_system_allows(ring, name):
    (ring / "open" / name).write_bytes(b"content")
    (file,) = [each for each in list_files([str(ring / "open")]) if not each.path.endswith("/2.pcap")]
    assert file.path.encode().decode() == file.path  # UTF-8
    assert file.path.isprintable()
    assert unescape_path(file.path) == str(ring / "open" / name)
    assert find_file(file.path) == file
    assert list_files([str(ring / "open" / name)]) == [file]
    with file.capture_source().open_file() as stream:
        assert stream.read() == b"content"
    assert FileSource.from_path(file.path).stored_bytes == 7
    (row,) = dict(read_capture_batches(file.capture_source()))["capture_files"].to_pylist()
    assert (row["path"], row["error"]) == (file.path, "no capture format begins with 63 6f 6e 74")


def test_a_name_that_is_not_utf8_is_shown_escaped():
    assert escape_path(NOT_UTF8) == "caf\\xe9.pcap"
    assert escape_path("caf\\xe9.pcap") == "caf\\x5cxe9.pcap"  # another file, which has this name
    assert escape_path("C:\\captures\\1.pcap") == "C:\\captures\\1.pcap"


def test_the_newest_file_of_each_folder(ring):
    for number, name in enumerate(("closed/3.pcap", "1.pcap", "open/2.pcap")):
        os.utime(ring / name, (number, number))
    (ring / "open" / "older.pcap").write_bytes(b"x")
    os.utime(ring / "open" / "older.pcap", (1, 1))
    newest = newest_paths(list_files([str(ring)]))
    assert newest == {f"{ring}/1.pcap", f"{ring}/closed/3.pcap", f"{ring}/open/2.pcap"}


def test_pipes_that_are_copied_at_once_do_not_mix(tmp_path):
    """As of two runs with standard input: the names are the same, and neither holds the lake's lease yet."""
    spool, pipes = tmp_path / "spool", [tmp_path / name / "stdin" for name in ("one", "two")]
    for pipe in pipes:
        pipe.parent.mkdir()
        os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        copies = [threads.submit(spool_pipe, str(pipe), spool, 1 << 20) for pipe in pipes]
        with pipes[0].open("wb", buffering=0) as one, pipes[1].open("wb", buffering=0) as two:
            for stream, data in ((one, b"1"), (two, b"2"), (one, b"1"), (two, b"2")):
                stream.write(data * 3)
    paths = [copy.result() for copy in copies]
    assert [path.read_bytes() for path in paths] == [b"111111", b"222222"]
    assert sorted(spool.iterdir()) == sorted(paths)
