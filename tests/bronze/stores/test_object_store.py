"""Captures on an object store are listed, identified, read and refused like files in folders."""

import gzip

import pytest
import zstandard

from bronze.stores.bucket import serving
from ledgers import ledger_of
from pipeline.bronze.ingest_plan import plan_ingest
from pipeline.bronze.input_files import InputError, find_file, list_files
from pipeline.bronze.ledger_entries import LedgerEntry
from udfs.capture.capture_reader import CaptureReadRequest, ReadOptions, read_capture, read_capture_batches
from udfs.files import filesystems

SAMPLE = "01-remoteread-ndr.pcap"


@pytest.fixture(scope="module")
def server():
    with serving() as bucket:
        yield bucket


@pytest.fixture
def bucket(server, monkeypatch):
    server.set_environment(monkeypatch)
    yield server
    server.client.delete_bucket_policy(Bucket="captures")
    listed = server.client.list_objects_v2(Bucket="captures").get("Contents", ())
    for entry in listed:
        server.drop(entry["Key"])


@pytest.fixture(scope="module")
def sample(project):
    return (project / "data" / "sample" / SAMPLE).read_bytes()


def paths(*uris):
    return [listed.path.removeprefix("s3://captures/") for listed in list_files(uris)]


def test_an_object_a_folder_and_a_pattern(bucket):
    for key in ("a/1.pcap", "a/b/2.pcap", "a/b/.part", "a/.hidden/3.pcap", "c/4.pcap.gz", "c/[5] ?#%41 é.pcap"):
        bucket.put(key, b"x")
    bucket.put("a/", b"")  # as consoles make folders
    assert paths("s3://captures/a/1.pcap") == ["a/1.pcap"]
    assert paths("s3://captures/a") == paths("s3://captures/a/") == ["a/1.pcap", "a/b/2.pcap"]
    assert paths("s3://captures/*/*.pcap") == ["a/1.pcap", "c/[5] ?#%41 é.pcap"]
    assert paths("s3://captures/**/*.pcap*") == [
        "a/.hidden/3.pcap", "a/1.pcap", "a/b/2.pcap", "c/4.pcap.gz", "c/[5] ?#%41 é.pcap"
    ]  # fmt: skip
    assert paths("s3://captures/[ab]") == ["a/1.pcap", "a/b/2.pcap"]
    assert paths("s3://captures/c/[5] ?#%41 é.pcap") == ["c/[5] ?#%41 é.pcap"]
    assert paths("s3a://captures/c", "s3n://captures/c/4.pcap.gz", "s3://captures/c") == [
        "c/4.pcap.gz", "c/[5] ?#%41 é.pcap"
    ]  # fmt: skip


def test_patterns_match_as_in_folders(bucket, tmp_path):
    keys = ["x.pcap", "d/x.pcap", "d/e/x.pcap", "d/e/y.pcapng", "d/e.pcap/z"]
    for key in keys:
        bucket.put(key, b"x")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"x")
    for pattern in ("*", "*.pcap", "*/*", "**/*.pcap", "d/**", "d/*", "?/?/?.pcap", "d/e*", "[!d]*", "**/e*/*"):
        local = [str(tmp_path / key) for key in paths(f"s3://captures/{pattern}")]
        assert local == [listed.path for listed in list_files([f"{tmp_path}/{pattern}"])], pattern


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("s3://captures/none", "no file at s3://captures/none"),
        ("s3://captures/*.none", "no file matches s3://captures/"),
        ("s3://no-such-bucket/x", "no file at s3://no-such-bucket/x"),
        ("s3://capt*/x", "is no pattern"),
        ("s3:///x", "no bucket"),
        ("s3://key:secret@captures/x", "credentials do not belong in a URI: set AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_leads_nowhere_is_one_line(bucket, uri, says):
    with pytest.raises(InputError, match=r".+") as refused:
        list_files([uri])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_secret_in_a_uri_is_not_repeated(bucket):
    with pytest.raises(InputError) as refused:
        list_files(["s3://AKIA:hunter2@captures/x"])
    assert "hunter2" not in str(refused.value)


def test_a_server_that_is_not_there_is_one_line(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setattr(filesystems, "_MAX_ATTEMPTS", 1)
    with pytest.raises(InputError, match=r"NETWORK_CONNECTION"):
        list_files(["s3://captures/x"])


def row_of(listed):
    """Read a file like a task; return its ledger row."""
    batches = [
        rows
        for kind, rows in read_capture_batches(listed.capture_source(), ReadOptions(), CaptureReadRequest())
        if kind == "capture_files"
    ]
    (row,) = batches[-1].to_pylist()
    return row


def test_an_object_that_is_refused_is_a_row(bucket, sample):
    bucket.put("a.pcap", sample)
    (listed,) = list_files(["s3://captures/a.pcap"])
    bucket.deny("s3:GetObject", "/*")
    row = row_of(listed)
    assert (row["status"], row["damage"], row["packets"]) == ("unreadable", "unreadable", 0)
    assert "ACCESS_DENIED" in row["error"]


def test_an_object_that_vanishes_before_it_is_read_is_a_row(bucket, sample):
    bucket.put("gone.pcap", sample)
    (listed,) = list_files(["s3://captures/gone.pcap"])
    bucket.drop("gone.pcap")
    row = row_of(listed)
    assert (row["status"], row["damage"]) == ("unreadable", "unreadable")
    assert find_file("s3://captures/gone.pcap") is None


PACKED = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "gzip_in_members": lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:]),
}


@pytest.mark.parametrize("packed", PACKED)
def test_the_rows_are_those_of_the_file(bucket, sample, packed):
    uri = bucket.put(f"{packed} capture", PACKED[packed](sample))
    (listed,) = list_files([uri])
    of_object = read_capture(listed.path)
    of_file = read_capture(PACKED[packed](sample), path=uri)
    for kind, rows in of_file.items():
        if kind != "capture_files":
            assert of_object[kind].equals(rows), kind
    ours, theirs = (tables["capture_files"].to_pylist()[0] for tables in (of_object, of_file))
    assert ours.pop("modified_at").timestamp() * 1e6 == listed.modified_us
    theirs.pop("modified_at")
    assert ours == theirs
    assert theirs["status"] == "complete"


def test_an_object_that_is_put_anew_and_longer_is_read_on(bucket, sample):
    half = len(sample) // 2
    uri = bucket.put("ring.pcap", sample[:half])
    (read,) = plan_ingest(list_files([uri]), ledger_of()).reads
    (before,) = read_capture(uri)["capture_files"].to_pylist()
    run_columns = {
        "capture_id": read.capture_id, "first_key": read.first_key, "other_paths": None, "other_files": None,
        "first_us": None, "last_us": None, "modified_us": read.file.modified_us, "reread_endpoints": None,
        "learned_endpoints": None, "ingested_us": None,
    }  # fmt: skip
    ledger = ledger_of([LedgerEntry.from_row({**before, **run_columns})])
    assert not plan_ingest(list_files([uri]), ledger)
    bucket.put("ring.pcap", sample)
    (more,) = plan_ingest(list_files([uri]), ledger).reads
    assert (more.capture_id, more.file.size) == (read.capture_id, len(sample))
    assert 0 < more.start_offset <= half
    rest = read_capture(uri, request=CaptureReadRequest(more.capture_id, more.resume_state))[
        "capture_files"
    ].to_pylist()[0]
    whole = read_capture(sample)["capture_files"].to_pylist()[0]
    assert before["packets"] + rest["packets"] == whole["packets"] > rest["packets"] > 0
    assert rest["content_bytes"] == len(sample)
