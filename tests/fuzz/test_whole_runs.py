"""The rounds of ``make fuzz FUZZ=run_all``: equal seeds give equal input, and what is wrong is found."""

import json
import random
import sys

import pytest

from fuzz import whole_runs
from fuzz.whole_runs import CLEAN_CALLS, RoundError, check_output, run_limited, run_round, write_input


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_seed_chooses_the_input(tmp_path):
    seeds = [25, 25, 30]
    counts = [write_input(tmp_path / str(number), random.Random(seed)) for number, seed in enumerate(seeds)]
    one, again, other = (contents(tmp_path / str(number)) for number in range(3))
    assert one == again != other
    assert counts == [len(one)] * 3
    assert one["captures/clean.pcap"] == other["captures/clean.pcap"]


@pytest.mark.parametrize(
    ("limit", "code", "message"),
    [
        ("MAX_MEMORY", "x = bytearray(200 << 20); import time; time.sleep(60)", "bytes of memory"),
        ("MAX_DISK", "open('x', 'wb').write(bytes(200 << 20)); import time; time.sleep(60)", "bytes of disk"),
        ("MAX_SECONDS", "import time; time.sleep(60)", "seconds"),
        (None, "import os; os.kill(os.getpid(), 9)", "the process ended with -9"),
    ],
)
def test_a_process_beyond_a_limit_is_ended(tmp_path, monkeypatch, limit, code, message):
    if limit:
        monkeypatch.setattr(whole_runs, limit, 1 if limit == "MAX_SECONDS" else 100 << 20)
    (tmp_path / "work").mkdir()
    with pytest.raises(RoundError, match=message):
        run_limited([sys.executable, "-c", code], tmp_path, tmp_path / "work")


def said(folder, text="", **changes):
    """Write what the process of a round that is as it should be says, with changes."""
    summary = {"job": "run_all", "exit_code": 0, "tables": {"bronze.rpc_calls": {"rows_out": changes.pop("again", 0)}}}
    found = {"codes": [0, 3], "files": 2, "clean": CLEAN_CALLS} | changes
    (folder / "stdout").write_text(f"files 2\n{json.dumps(summary)}\n{json.dumps(found)}\n")
    (folder / "stderr").write_bytes(text.encode("utf-8", "surrogateescape"))
    check_output(folder, 2)


def test_what_is_not_as_it_should_be_fails_the_round(tmp_path):
    said(tmp_path)
    for changes, message in (
        ({"codes": [0, 4]}, "exit codes"),
        ({"files": 1}, "1 of 2 files"),
        ({"clean": 53}, "53 of 54 calls"),
        ({"again": 7}, "wrote 7 calls"),
        ({"text": "\x1b[2J"}, "obey"),
        ({"text": "\udcff"}, "obey"),
    ):
        with pytest.raises(RoundError, match=message):
            said(tmp_path, **changes)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("seed", [1, 2])
def test_a_round(tmp_path, seed):
    run_round(seed, tmp_path)
