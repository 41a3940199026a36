"""Commands that are shown to be copied: the options that name the lake, and at most twenty keys of the evidence."""

import shlex

import pytest

from engines import without_spark
from pipeline.lake.lake import Lake
from pipeline.reports.export_keys import MAX_KEYS, export_packets_command, keys_by_option
from pipeline.reports.lake_options import lake_options


@pytest.mark.parametrize(
    ("catalog", "prefix", "options"),
    [(None, "", []), ("main", "", ["--set", "lake.catalog=main"]),
     ("main", "msmq_", ["--set", "lake.catalog=main", "--set", "lake.prefix=msmq_"])],
)  # fmt: skip
def test_a_lake_is_named_with_its_catalog(tmp_path, catalog, prefix, options):
    lake = Lake(without_spark(), str(tmp_path / "a lake"), catalog=catalog, prefix=prefix)
    assert shlex.split(lake_options(lake)) == ["--lake", str(tmp_path / "a lake"), *options]
    assert shlex.split(lake_options(lake, "here")) == ["--lake", "here", *options]


def test_packets_are_exported_by_twenty_keys_of_the_evidence_at_most():
    keys = [f"k{number}" for number in range(MAX_KEYS + 5)]
    options = {"snapshot": "none", **dict.fromkeys(keys, "call")} | {"k1": "packet"}
    found = keys_by_option([*keys, *keys, "unknown"], options)
    assert sum(map(len, found.values())) == MAX_KEYS == 20
    assert found["packet"] == ["k1"]
    command = shlex.split(export_packets_command({"packet": ["k1"], "call": ["k0", "k2"]}, "--lake 'a lake'"))
    assert command == [
        "msmq", "export_packets", "--lake", "a lake", "--packet", "k1", "--call", "k0", "k2", "--out", "trouble.pcapng",
    ]  # fmt: skip
