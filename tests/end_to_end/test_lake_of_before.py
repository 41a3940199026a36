"""A lake that an earlier version wrote is brought up to date: by the next run, and where that says so by `--reprocess`.

``lake_of_before.tar.xz`` was written by commit 24e1267, from the two captures of ``OLD``. The second one is as it was
then: transfers/05-resends.pcap has other TCP timestamps now.
"""

import tarfile
from pathlib import Path

import pytest

from end_to_end.lakes import facts
from engines import LOCAL
from jobs import run_all
from jobs.session import PROJECT_ROOT
from pipeline.lake.engine.sessions import LazySession
from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.bronze import CONNECTIONS, PENDING
from schemas.table import RUN_ID

DATA = Path(PROJECT_ROOT, "data")
OLD = (DATA / "sample" / "01-remoteread-ndr.pcap", Path(__file__).parent / "lake_of_before_resends.pcap")
ADDED = DATA / "transfers" / "03-transactions.pcapng"
READ_AGAIN = (CONNECTIONS, PENDING)  # CHANGELOG: they have columns that only the reader can fill
OF_THE_RUN = {RUN_ID, "ingested_at", "decoder_version"}
OF_FILES = {"opened_at", "modified_at", "path", "other_paths", "other_files"}


@pytest.fixture
def lake_of_before(tmp_path):
    with tarfile.open(Path(__file__).parent / "lake_of_before.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "lake"


def run(root, *captures, more=()):
    assert run_all.main(["--lake", str(root), *LOCAL, *more, "--captures", *map(str, captures)]) == 0


def rows_of(root):
    lake = Lake(LazySession(pytest.fail), str(root))
    found = {}
    for table in catalog.DATA_TABLES:
        if lake.exists(table):
            rows = lake.select(table, "TRUE")
            found[str(table)] = facts(
                rows.drop_columns([name for name in rows.column_names if name in OF_THE_RUN | OF_FILES])
            )
    return found


def versions(root):
    lake = Lake(LazySession(pytest.fail), str(root))
    return {str(table): lake.version(table) for table in catalog.DATA_TABLES}


def differing(one, other):
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def test_a_lake_of_before_is_brought_up_to_date(lake_of_before, tmp_path):
    run(tmp_path / "new", *OLD, ADDED)
    new = rows_of(tmp_path / "new")
    run(lake_of_before, *OLD, ADDED)
    assert differing(rows_of(lake_of_before), new) == {str(table) for table in READ_AGAIN}
    written = versions(lake_of_before)
    run(lake_of_before, *OLD, ADDED)
    assert versions(lake_of_before) == written  # what is computed again is computed once
    run(lake_of_before, *OLD, ADDED, more=("--reprocess", "all"))
    assert differing(rows_of(lake_of_before), new) == set()
