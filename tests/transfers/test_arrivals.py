"""What queue histories count of transfers: reports of a queue manager beside the recording of what it was sent."""

import datetime as dt

import pytest

from collector.snapshot_files import line, machine, write
from engines import without_spark
from jobs import run_all
from pipeline.lake.lake import Lake
from schemas.queue_history import QUEUE_HISTORY
from transfers_peer.reading import DATA, account_lines, of

RECORDING = "06-two-hops"
EXCHANGE = of(account_lines(RECORDING), "exchange")[0]
HQ = {"name": "hq", "address": "10.77.106.2"}
COUNT, STATE = (7, 19), (4, 31)
CAME = ("transferred", "delivered", "received")
COLUMNS = ("valid_from", "message_count", "arrived", "departed", "arrivals_seen", "expected_message_count",
           "unexplained_change")  # fmt: skip


SECOND = 1_000_000_000
TIMES = [EXCHANGE["began_at"] + SECOND, EXCHANGE["ended_at"] - SECOND, EXCHANGE["ended_at"] + 600 * SECOND]


def arrivals():
    """By destination queue: when messages came to HQ, as the peer tells: when it acknowledged them, nanoseconds."""
    lines = account_lines(RECORDING)
    sent_at = {each["packet"]: each["sent_at"] for each in of(lines, "packet")}
    found = {}
    for each in of(lines, "message"):
        if each["receiver_address"] == HQ["address"] and each["outcome"] in CAME:
            found.setdefault(each["destination_queue"], []).append(sent_at[each["session_acked_by"]])
    return found


def moment(nanoseconds):
    at = dt.datetime.fromtimestamp(nanoseconds // 1000 / 1e6, dt.UTC).replace(microsecond=0)
    return at.strftime("%Y-%m-%dT%H:%M:%S.000000Z")


def report(queue, count, at):
    values = [(*STATE, '"LOCAL"'), (*COUNT, str(count))]
    return line("queue", queue, values, name=HQ["name"], at=moment(at)) | {"server_address": HQ["address"]}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of each queue a second after the recording begins and before it ends, and ten minutes later."""
    folder = tmp_path_factory.mktemp("reports")
    rows = [report(queue, count, at) for queue in arrivals() for count, at in zip((10, 14, 14), TIMES, strict=True)]
    address = {"server_address": HQ["address"]}
    return write(folder / "hq.jsonl", machine(HQ["name"], moment(TIMES[0])) | address, *rows)


def history(root, *runs):
    for arguments in runs:
        assert run_all.main(["--lake", str(root), *arguments]) == 0
    lake = Lake(without_spark(), str(root))
    rows = lake.select(QUEUE_HISTORY, "TRUE").drop_columns(["run_id"]).to_pylist()
    return sorted(rows, key=lambda row: (row["queue"], row["valid_from"]))


@pytest.mark.parametrize(
    "order", [["snapshots", "captures"], pytest.param(["captures", "snapshots"], marks=pytest.mark.long)]
)
def test_messages_that_were_handed_over_are_expected_in_the_queue(reports, tmp_path, order):
    given = {"captures": ["--captures", str(DATA / EXCHANGE["capture"])], "snapshots": ["--snapshots", str(reports)]}
    rows = history(tmp_path / "one", [*given["captures"], *given["snapshots"]])
    by_queue = {}
    for row in rows:
        by_queue.setdefault(row["queue_format_name"], []).append([row[name] for name in COLUMNS[1:]])
    expected = {}
    for queue, times in arrivals().items():
        first = sum(at < TIMES[1] // SECOND * SECOND for at in times)
        later = len(times) - first
        expected[queue] = [
            [10, first, 0, True, 10 + first, 4 - first],
            [14, later, 0, False, 14 + later, -later],
            [14, 0, 0, False, 14, None],
        ]
    assert by_queue == expected
    assert sum(map(len, arrivals().values())) > len(expected) > 1
    assert history(tmp_path / "two", *(given[kind] for kind in order)) == rows
