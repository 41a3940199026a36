"""Calls are decoded on their way to bronze.rpc_calls where a run only adds some; silver is the same as otherwise."""

import pytest

from attempts.test_update import silver_follows
from capture.merge.cutting import cut, evenly, plain
from pcapgen.record import sample_captures
from pipeline.bronze import ingest_captures
from pipeline.bronze.input_files import list_files
from pipeline.lake.lake import Lake
from pipeline.lake.recovery import Runs
from pipeline.silver import update as silver_update
from pipeline.silver.decode_tasks import Decoded, Decoder
from schemas.bronze import RPC_CALLS
from schemas.remote_read_calls import REMOTE_READ_CALLS

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def captures():
    """Captures of many clients that read on from one another, and one of others."""
    first, *_, many = sample_captures()
    one, *others = cut(plain(many), evenly(plain(many)))
    return one, first.read_bytes(), others


@pytest.fixture
def again(monkeypatch):
    """Counts jobs that decode what bronze holds."""
    jobs, decoding = [], Decoder.decode

    def counting(decoder, calls):
        jobs.append(decoder)
        decoding(decoder, calls)

    monkeypatch.setattr(Decoder, "decode", counting)
    return jobs


def ingest(lake, folder, name, *captures):
    """Read captures into bronze; return what was decoded of them on the way."""
    for number, capture in enumerate(captures):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}{number}.pcap").write_bytes(capture)
    files = list_files([str(path) for path in folder.glob(f"{name}*")])
    decoder = silver_update.decoder(lake, keep_packets=False)
    options = {"reader_options": {}, "say": lambda _text: None, "tap": decoder}
    return Decoded.of(decoder, ingest_captures.ingest(lake, files, run_id=name, **options).tapped)


def silver(lake, decoded):
    silver_update.silver(lake, keep_packets=False, keep_stubs=True, decoded=decoded)
    assert silver_follows(lake)


def test_what_is_added_and_what_changes_is_decoded_on_the_way(lake, captures, again, tmp_path):
    one, stranger, others = captures
    for name, capture in (("one", one), ("stranger", stranger)):
        silver(lake, ingest(lake, tmp_path / "files", name, capture))
        assert lake.read(REMOTE_READ_CALLS).where(f"run_id = '{name}'").count() > 0
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded.write.removed.calls  # calls of the first are whole now
    silver(lake, decoded)
    assert again == []  # nothing was read back
    assert not (Runs.of(lake).root / "decoded").exists()


def test_where_spark_changes_calls_by_two_commits_what_changes_is_decoded_afterwards(lake, captures, again, tmp_path):
    one, _, others = captures
    lake._local = None
    silver(lake, ingest(lake, tmp_path / "files", "one", one))
    assert again == []
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded is None
    silver(lake, decoded)
    assert len(again) == 1


@pytest.mark.long
def test_calls_that_change_whose_stubs_were_emptied_are_decoded_afterwards(lake, captures, again, tmp_path):
    one, _, others = captures
    silver(lake, ingest(lake, tmp_path / "files", "one", one))
    silver_update.silver(lake, keep_packets=False, keep_stubs=False)
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded.write.removed.calls
    silver_update.silver(lake, keep_packets=False, keep_stubs=False, decoded=decoded)
    assert len(again) == 1


@pytest.mark.long
def test_what_joining_tells_captures_of_one_run_is_in_what_is_decoded(lake, captures, again, tmp_path):
    one, _, others = captures
    silver(lake, ingest(lake, tmp_path / "files", "all", one, *others))
    assert again == []


@pytest.mark.long
@pytest.mark.parametrize("why", ["a commit more", "silver was not finished", "silver is behind"])
def test_what_was_decoded_is_not_taken_where_it_is_not_all(lake, captures, again, tmp_path, why):
    one, stranger, _ = captures
    decoded = ingest(lake, tmp_path / "files", "one", one)
    if why != "silver is behind":
        silver(lake, decoded)
    decoded = ingest(lake, tmp_path / "files", "stranger", stranger)
    assert decoded is not None
    if why == "a commit more":
        lake.update(RPC_CALLS, {"outcome": "'damaged'"}, "run_id = 'one'")
    elif why == "silver was not finished":
        (Runs.of(lake).root / "silver").mkdir()
    silver(lake, decoded)
    assert len(again) == 1
