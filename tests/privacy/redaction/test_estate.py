"""The views of the estate over a redacted lake: no real name, and the figures of a lake without redaction."""

import re
from collections import Counter

import pytest

from engines import without_spark
from jobs import run_all
from pipeline.lake.lake import Lake
from pipeline.reports.targets.target_file import bundled_targets
from pipeline.reports.targets.verdicts import judge_queues
from pipeline.reports.views.catalog import LakeViews

VIEWS = (
    "estate_queues",
    "estate_flows",
    "estate_machines",
    "estate_hours",
    "depth_growth",
    "journal_growth",
    "machines",
)
CAPTURES = (
    "sample/01-remoteread-ndr.pcap", "sample/04-qmmgmt.pcapng", "transfers/06-two-hops.pcapng",
    "transfers/07-several-queues.pcap", "transfers/08-stall.pcap.gz",
)  # fmt: skip
KEY = "7d9f0a53c1b24e6688aa0b1c2d3e4f50"
NUMBER = re.compile(
    r"[0-9a-f]{8}((-[0-9a-f]{4}){3}-[0-9a-f]{12})?|\d+"
)  # a GUID, the number of a private queue, a port
KEPT = {
    "private$",
    "order_queue$",
    "system$",
    "direct",
    "os",
    "tcp",
    "http",
    "msmq",
    "private",
    "public",
    "journal",
    "",
}


@pytest.fixture(scope="module")
def lakes(project, tmp_path_factory):
    """The views of a lake of some recordings, and of a redacted one of the same."""
    folder = tmp_path_factory.mktemp("estates")
    (folder / "key").write_text(KEY)
    (folder / "key").chmod(0o600)
    mine = ["--set", "run.engine=local", "--snapshots", str(project / "data" / "estate" / "snapshots")]
    mine += ["--captures", *(str(project / "data" / name) for name in CAPTURES)]
    redacting = ["--redact-key", str(folder / "key"), "--set", f"privacy.scratch_folder={folder}"]
    redacting += ["--set", "privacy.redact=[labels,queues,hosts,addresses,senders]"]
    assert run_all.main(["--lake", str(folder / "plain"), *mine]) == 0
    assert run_all.main(["--lake", str(folder / "redacted"), *mine, *redacting]) == 0
    return tuple(LakeViews(Lake(without_spark(), str(folder / name))) for name in ("plain", "redacted"))


def texts(value):
    if isinstance(value, str):
        yield value.lower()
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


def names_in(rows, columns):
    """The names in columns: parts of names of queues, addresses, names of machines; no GUIDs and common words."""
    for text in (text for row in rows for column in columns for text in texts(row[column])):
        for part in re.split(r"[\\;/@=:]", text):
            if not NUMBER.fullmatch(part) and part not in KEPT:
                yield part


NAMED = {
    "estate_queues": ("queue", "holders", "senders", "readers", "dead_letter_queues", "admin_queues", "response_queues",
                      "subqueues", "message_types"),
    "estate_machines": ("machine", "host_names", "addresses"),
    "depth_growth": ("queue_manager", "queue", "queue_format_name"),
    "machines": ("queue_manager",),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(lakes):
    """The rows of each view over both lakes."""
    return {name: tuple(views.answer(name) for views in lakes) for name in VIEWS}


def test_the_verdicts_are_the_same(answers):
    plain, redacted = (
        judge_queues(rows.to_pylist(), bundled_targets(), "30 days") for rows in answers["estate_queues"]
    )
    told = [
        Counter(
            (queue.target, each.property, each.verdict, each.evidence) for queue in side for each in queue.properties
        )
        for side in (plain, redacted)
    ]
    assert told[0] == told[1]
    assert len({verdict for _, _, verdict, _ in told[0]}) > 3


def test_the_views_name_nothing_and_count_the_same(answers):
    names = {part for name, columns in NAMED.items() for part in names_in(answers[name][0].to_pylist(), columns)}
    named = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, names))})(?!\w)")
    assert len(names) > 20
    for name, (here, there) in answers.items():
        assert here.num_rows == there.num_rows > 0, name
        told = {text for row in there.to_pylist() for value in row.values() for text in texts(value)}
        assert [text for text in told if named.search(text)] == []
        numbers = [column for column, kind in zip(here.column_names, here.schema.types, strict=True)
                   if re.match("u?int|double|bool|decimal|timestamp", str(kind))]  # fmt: skip
        both = (Counter(tuple(row[n] for n in numbers) for row in side.to_pylist()) for side in (here, there))
        assert next(both) == next(both), name
