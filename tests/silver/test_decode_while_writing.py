"""Calls are decoded while they are written to ``bronze.rpc_calls``; silver is the same as if decoded afterwards."""

import pytest

from attempts.test_update import silver_follows
from capture.merge.cutting import cut, evenly, plain
from pcapgen.record import sample_captures
from pipeline.bronze import ingest_captures
from pipeline.bronze.input_files import list_files
from pipeline.lake.lake import Lake
from pipeline.runs.recovery import RunMarkers
from pipeline.silver import update as silver_update
from pipeline.silver.decode_tasks import CallDecoder
from pipeline.silver.inline_decoders import InlineDecoders
from schemas.bronze import RPC_CALLS
from schemas.calls import MANAGEMENT_CALLS, REMOTE_READ_CALLS

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark, tmp_path):
    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def captures():
    """Consecutive captures of many clients (the first, and the others), and one of other clients."""
    first, *_, many = sample_captures()
    one, *others = cut(plain(many), evenly(plain(many)))
    return one, first.read_bytes(), others


@pytest.fixture
def decode_jobs(monkeypatch):
    """Collects the decoders of calls that are read back from bronze."""
    jobs, decoding = [], CallDecoder.decode_stored

    def counting(decoder, *given):
        jobs.append(decoder)
        return decoding(decoder, *given)

    monkeypatch.setattr(CallDecoder, "decode_stored", counting)
    return jobs


def ingest(lake, folder, name, *captures):
    """Ingest captures; return what was decoded while they were written."""
    for number, capture in enumerate(captures):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}{number}.pcap").write_bytes(capture)
    files = list_files([str(path) for path in folder.glob(f"{name}*")])
    decoders = InlineDecoders.of(lake)
    options = {"reader_options": {}, "log": lambda _text: None, "observers": decoders.observers()}
    return decoders.decoded(ingest_captures.ingest(lake, files, run_id=name, **options).observed_writes).calls


def update_silver(lake, decoded):
    silver_update.update(lake, keep_stubs=True, decoded=decoded)
    assert silver_follows(lake)


def test_what_is_added_and_what_changes_is_decoded_on_the_way(lake, captures, decode_jobs, tmp_path):
    one, stranger, others = captures
    for name, capture in (("one", one), ("stranger", stranger)):
        update_silver(lake, ingest(lake, tmp_path / "files", name, capture))
        assert lake.read(REMOTE_READ_CALLS).where(f"run_id = '{name}'").count() > 0
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded.write.removed_calls.calls.num_rows  # calls of the first capture are complete now
    update_silver(lake, decoded)
    assert decode_jobs == []  # nothing was read back
    assert not (RunMarkers.of(lake).root / "decoded").exists()


def test_a_run_that_was_killed_before_it_kept_what_silver_rests_on_leaves_no_row_twice(
    lake, captures, project, tmp_path
):
    """Its last table got no row, so that no commit says that silver was complete."""
    files, managing = tmp_path / "files", (project / "data" / "sample" / "04-qmmgmt.pcapng").read_bytes()
    with lake.hold_exclusive_access(lambda: None):
        update_silver(lake, ingest(lake, files, "one", captures[0]))
    dies = Lake(lake.spark, lake.root)
    exclusive = dies.hold_exclusive_access(lambda: None)
    exclusive.__enter__()  # and never left
    update_silver(dies, ingest(dies, files, "managing", managing))
    written = dies.select(MANAGEMENT_CALLS, "TRUE").num_rows
    again = Lake(lake.spark, lake.root)
    with again.hold_exclusive_access(lambda: None):
        update_silver(again, None)
    assert again.select(MANAGEMENT_CALLS, "TRUE").num_rows == written > 0


@pytest.mark.long
def test_where_spark_stores_the_tables_what_changes_is_decoded_on_the_way_too(lake, captures, decode_jobs, tmp_path):
    one, _, others = captures
    lake = Lake(lake.spark, lake.root, store="spark")
    update_silver(lake, ingest(lake, tmp_path / "files", "one", one))
    assert decode_jobs == []
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded.write.removed_calls.calls.num_rows
    update_silver(lake, decoded)
    assert decode_jobs == []


@pytest.mark.long
def test_calls_that_change_whose_stubs_were_emptied_are_decoded_afterwards(lake, captures, decode_jobs, tmp_path):
    one, _, others = captures
    update_silver(lake, ingest(lake, tmp_path / "files", "one", one))
    silver_update.update(lake, keep_stubs=False)
    decoded = ingest(lake, tmp_path / "files", "others", *others)
    assert decoded.write.removed_calls.calls.num_rows
    silver_update.update(lake, keep_stubs=False, decoded=decoded)
    assert len(decode_jobs) == 1


@pytest.mark.long
def test_what_joining_tells_captures_of_one_run_is_in_what_is_decoded(lake, captures, decode_jobs, tmp_path):
    one, _, others = captures
    update_silver(lake, ingest(lake, tmp_path / "files", "all", one, *others))
    assert decode_jobs == []


@pytest.mark.long
@pytest.mark.parametrize("why", ["a commit more", "silver was not finished", "silver is behind"])
def test_what_was_decoded_is_not_taken_where_it_is_not_all(lake, captures, decode_jobs, tmp_path, why):
    one, stranger, _ = captures
    decoded = ingest(lake, tmp_path / "files", "one", one)
    if why != "silver is behind":
        update_silver(lake, decoded)
    decoded = ingest(lake, tmp_path / "files", "stranger", stranger)
    assert decoded is not None
    if why == "a commit more":
        lake.update(RPC_CALLS, {"outcome": "'damaged'"}, "run_id = 'one'")
    elif why == "silver was not finished":
        (RunMarkers.of(lake).root / "silver").make_folder()
    update_silver(lake, decoded)
    assert len(decode_jobs) == 1
